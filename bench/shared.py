"""Shared prefixes and trees of speculative tokens on a GPU, in one process.

    python3 bench/shared.py build/release shared.json

A prefix cell: sequences with one query each, behind a prefix that all share. Its lines are
forward_prefix; the attention over the prefix alone and over the own keys alone, whose sum is the
ideal; one attention over pages that all sequences share, which reads the prefix for each.
A tree cell is up to 64 queries of each sequence on a cache: causal, and a tree of as many nodes.
The plan chooses the kernels. Lines are checked against float32 products and take turns in bursts.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.cpu import capi
from bench.peers import report, results
from bench.peers.ours import Library, Pass, view
from bench.peers.protocol import Card, Samples

DEVICE = "cuda"
KIND = {"device": DEVICE, "dtype": torch.bfloat16}
BYTES = {"device": DEVICE, "dtype": torch.uint8}
SHARED_PAGE = 64  # rows of the pages that the line without forward_prefix reads
TREE = (
    "n = key_length - query_length; t = j - n; (j <= i + n) & "
    "(t < 0 | ((tree[b, i, t >> 5 & {last}] >> (t & 31)) & 1) == 1)"
)


@dataclass(frozen=True)
class Cell:
    """`prefix` 0: a tree cell, of `queries` nodes; `own`: keys of each sequence."""

    batch: int
    queries: int
    own: int
    prefix: int = 0
    page: int = 0
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128

    def name(self) -> str:
        shape = f"b{self.batch} h{self.heads}/{self.kv_heads} q{self.queries} k{self.own}"
        more = f" prefix={self.prefix}" if self.prefix else ""
        return f"{shape} d{self.dim}{more}{f' paged={self.page}' if self.page else ''}"


@dataclass
class Line:
    name: str
    run: Callable[[], None]
    kernel: str
    kept: object
    samples: Samples = field(default_factory=Samples)


def tall(x: torch.Tensor) -> capi.Tensor:
    """Rows (B, S, H, D) as (B, H, S, D)."""
    return view(x.transpose(1, 2))


class Inputs:
    """q, the own keys, in pages where the cell has them, and the prefix."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        sizes = (cell.batch, cell.own, cell.kv_heads, cell.dim)
        self.q = torch.randn(cell.batch, cell.queries, cell.heads, cell.dim, **KIND)
        self.k, self.v = (torch.randn(sizes, **KIND) for _ in range(2))
        prefix = (1, cell.prefix, cell.kv_heads, cell.dim)
        self.prefix = [torch.randn(prefix, **KIND) for _ in range(2)] if cell.prefix else []
        self.o = torch.full_like(self.q, torch.nan)
        shape = (cell.batch, cell.heads, cell.queries)
        self.lse = torch.full(shape, torch.nan, device=DEVICE)
        self.parents = [-1] + [random.Random(i).randrange(max(0, i - 8), i) for i in range(1, 64)]

    def sees(self) -> torch.Tensor:
        """(nodes, nodes): itself and its ancestors."""
        n = self.cell.queries
        seen = torch.eye(n, dtype=torch.bool)
        for i in range(1, n):
            seen[i] |= seen[self.parents[i]]
        return seen.to(DEVICE)

    def words(self) -> torch.Tensor:
        n = self.cell.queries
        width = 1
        while 32 * width < n:
            width *= 2
        bits = torch.zeros(n, 32 * width, dtype=torch.int64, device=DEVICE)
        bits[:, :n] = self.sees()
        summed = (bits.view(n, width, 32) << torch.arange(32, device=DEVICE)).sum(-1)
        return (
            torch.where(summed >= 2**31, summed - 2**32, summed)
            .int()
            .expand(self.cell.batch, n, width)
        )

    def check(self, what: str, tree: bool) -> None:
        """A few sequences and heads against float32 products."""
        cell = self.cell
        for b, h in ((0, 0), (cell.batch - 1, cell.heads - 1)):
            own = h * cell.kv_heads // cell.heads
            keys = torch.cat([p[0, :, own] for p in self.prefix[:1]] + [self.k[b, :, own]]).float()
            values = torch.cat([p[0, :, own] for p in self.prefix[1:]] + [self.v[b, :, own]])
            s = self.q[b, :, h].float() @ keys.T / cell.dim**0.5
            n, before = cell.queries, len(keys) - cell.queries
            seen = self.sees() if tree else torch.ones(n, n, device=DEVICE).tril().bool()
            s[:, before:] = s[:, before:].masked_fill(~seen, -torch.inf)
            off = (self.o[b, :, h].float() - s.softmax(-1) @ values.float()).abs().max().item()
            lse_off = (self.lse[b, h] - s.logsumexp(-1)).abs().max().item()
            if not (off < 2e-2 and lse_off < 1e-3):
                raise RuntimeError(f"{cell.name()} {what}: O off by {off}, LSE by {lse_off}")
        self.o.fill_(torch.nan)
        self.lse.fill_(torch.nan)


class Bench:
    def __init__(self, library: Library) -> None:
        self.library = library

    def line(self, name: str, verb: str, args: object, spec: object, kept: object) -> Line:
        made = Pass(self.library, verb, args, spec, capi.Launch())
        work = torch.full((max(256, made.plan.workspace_bytes),), 0xFF, **BYTES)
        made.use(work)
        made.run()
        torch.cuda.synchronize()
        return Line(name, made.run, made.plan.kernel.decode(), (work, args, spec, kept))

    def own_keys(self, x: Inputs, spec: capi.Spec, shared: list[torch.Tensor]) -> list:
        """K and V of a call: as they lie, or pages, `shared` ones first in each table."""
        cell, page = x.cell, x.cell.page or (SHARED_PAGE if shared else 0)
        if not page:
            return [x.k, x.v]
        own, before = -(-cell.own // page), sum(len(s[0]) for s in shared[:1]) // page
        order = torch.randperm(before + cell.batch * own, device=DEVICE)
        pools = []
        for n, rows in enumerate((x.k, x.v)):
            pool = torch.full((len(order), page, cell.kv_heads, cell.dim), torch.nan, **KIND)
            padded = torch.nn.functional.pad(rows, (0, 0, 0, 0, 0, own * page - cell.own))
            pool[order[before:]] = padded.reshape(-1, page, cell.kv_heads, cell.dim)
            if shared:
                pool[order[:before]] = shared[n][0].reshape(-1, page, cell.kv_heads, cell.dim)
            pools.append(pool)
        table = torch.cat(
            (order[:before].expand(cell.batch, before), order[before:].view(cell.batch, own)), 1
        ).int()
        lengths = torch.full((cell.batch,), before * page + cell.own, device=DEVICE).int()
        spec.block_table, spec.key_lengths = view(table), view(lengths)
        return [*pools, table, lengths]

    def prefix_lines(self, x: Inputs) -> list[Line]:
        cell, lines = x.cell, []
        out = {"o": tall(x.o), "lse": view(x.lse)}
        spec = capi.Spec(causal=1)
        own = self.own_keys(x, spec, [])
        k_prefix, v_prefix = (tall(p) for p in x.prefix)
        args = capi.Prefix(
            q=tall(x.q), k_prefix=k_prefix, v_prefix=v_prefix, k=tall(own[0]), v=tall(own[1]), **out
        )
        lines.append(self.line("forward_prefix", "forward_prefix", args, spec, own))
        x.check("forward_prefix", tree=False)
        rows = x.q.reshape(1, -1, cell.heads, cell.dim)
        o = torch.full_like(rows, torch.nan)
        lse = torch.empty(1, cell.heads, rows.shape[1], device=DEVICE)
        alone = capi.Forward(q=tall(rows), k=k_prefix, v=v_prefix, o=tall(o), lse=view(lse))
        lines.append(self.line("prefix alone", "forward", alone, capi.Spec(), (rows, o, lse)))
        args = capi.Forward(q=tall(x.q), k=tall(own[0]), v=tall(own[1]), **out)
        lines.append(self.line("own alone", "forward", args, spec, own))
        spec = capi.Spec(causal=1)
        whole = self.own_keys(x, spec, x.prefix)
        args = capi.Forward(q=tall(x.q), k=tall(whole[0]), v=tall(whole[1]), **out)
        lines.append(self.line("shared pages", "forward", args, spec, whole))
        x.check("shared pages", tree=False)
        return lines

    def tree_lines(self, x: Inputs) -> list[Line]:
        lines = []
        for name in ("causal", "tree"):
            spec = capi.Spec(causal=1 if name == "causal" else 0)
            own, kept = self.own_keys(x, spec, []), None
            if name == "tree":
                words = x.words()
                names = (ctypes.c_char_p * 1)(b"tree")
                tensors = (capi.Tensor * 1)(view(words))
                text = TREE.format(last=words.shape[-1] - 1).encode()
                formula = capi.Expression(text=text, names=names, tensors=tensors, count=1)
                spec.mask_expression = ctypes.pointer(formula)
                kept = (words, names, tensors, formula)
            args = capi.Forward(
                q=tall(x.q), k=tall(own[0]), v=tall(own[1]), o=tall(x.o), lse=view(x.lse)
            )
            lines.append(self.line(name, "forward", args, spec, (own, kept)))
            x.check(name, tree=name == "tree")
        return lines


def rows_of(cell: Cell, lines: list[Line]) -> list[dict]:
    """Rows in the schema of `tilewise bench --format json`, printed as they come."""
    rows, ms = [], {line.name: line.samples.statistics()["ms_median"] for line in lines}
    ideal = ms["prefix alone"] + ms["own alone"] if cell.prefix else ms["causal"]
    for line in lines:
        print(
            f"{cell.name():44} {line.name:15} {line.kernel:36} {ms[line.name]:.4f} ms, "
            f"{ms[line.name] / ideal:.3f} of {'prefix + own' if cell.prefix else 'causal'}",
            flush=True,
        )
        rows.append(
            {
                "implementation": "flash",
                "kernel": line.kernel,
                "device": "cuda:0",
                "dtype": "bfloat16",
                "batch": cell.batch,
                "heads": cell.heads,
                "kv_heads": cell.kv_heads,
                "seq_q": cell.queries,
                "seq_k": cell.own,
                "head_dim": cell.dim,
                "head_dim_v": cell.dim,
                "causal": True,
                "mask": f"{line.name}: {cell.name()}",
                "precision": "exact",
                "deterministic": False,
                "layout": "bshd",
                "threads": torch.get_num_threads(),
                "protocol": "burst",
                "pass": "fwd",
                **line.samples.statistics(),
                "tflops": None,
                "gbps": None,
                "live_mib": None,
                "peak_mib": None,
                "status": "ok",
                "reason": "the plan's own choice",
            }
        )
    return rows


CELLS = (
    Cell(32, 1, 1024, prefix=32768),
    Cell(4, 64, 8192),
    Cell(32, 1, 1024, prefix=32768, page=16, kv_heads=4),
    Cell(1, 64, 16384, page=16, kv_heads=4),
    Cell(16, 16, 8192, page=16),
    Cell(128, 1, 512, prefix=8192, page=16),
    Cell(8, 64, 2048, kv_heads=4, dim=64),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path, help="folder of libtilewise.so and tilewise")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    torch.manual_seed(0)
    bench, card = Bench(Library(options.build / "libtilewise.so")), Card()
    env = report.environment(options.build / "tilewise", "")
    rows, failed = [], 0
    for cell in CELLS:
        if time.monotonic() > end:
            print(f"stopped in time: {cell.name()} and what follows was not measured")
            return failed
        try:
            x = Inputs(cell)
            lines = bench.prefix_lines(x) if cell.prefix else bench.tree_lines(x)
        except Exception as error:
            failed = 1
            print(f"{cell.name()}: FAILED, {type(error).__name__}: {error}"[:600])
            continue
        for _ in range(options.rounds):
            for line in random.sample(lines, len(lines)):
                line.samples.ms += card.burst(lambda: None, line.run)
        rows += rows_of(cell, lines)
        results.write(options.output, env, rows)
    return failed


if __name__ == "__main__":
    sys.exit(main())
