"""Block lists on a GPU: time and TFLOP/s of listed pairs beside our own dense kernels, one process.

    python3 bench/lists.py build/release lists.json [--backward] [--select] [--flex]
    python3 bench/lists.py build/release tried.json --backward --blocks 64 --densities 0.25 0.1 \
        --beside flash_bwd_sm90 flash_fwd_sm80

Each cell is a length and a head dim of 16,384 tokens (or one longer sequence) of hidden 2048 in
bfloat16, and each of its lines a block size, a density and a kind of list: drawn at random, or
chosen on the card by scores of blocks (--select; the choice is timed alone and with what follows).
The plan chooses the kernels; --beside names rows that are forced on the same lists. Lines take
turns in bursts. A line is checked before it is timed, on blocks of queries drawn at random, against
float32 products of the same inputs.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.cpu import capi
from bench.peers import report, results
from bench.peers.contender import RefusedError
from bench.peers.ours import Library, Pass, view
from bench.peers.protocol import Card, Samples

TOKENS, HIDDEN, CHECKED_BLOCKS = 16384, 2048, 24


@dataclass(frozen=True)
class Line:
    """`kind`: uniform; rows: every tenth row of blocks is dense beside the density's; select:
    chosen by scores of blocks."""

    block: int = 128
    density: float = 1.0
    kind: str = "uniform"
    causal: bool = False
    dense: bool = False  # no list
    flex: bool = False  # FlexAttention
    kernel: str = ""  # a row of ours that is forced

    def forced(self, verb: str) -> dict[str, bytes]:
        """What a launch says of the kernel: the row's own pass is forced."""
        names = self.kernel.startswith("flash_bwd") == (verb == "backward")
        if self.kernel and names:
            return {"kernel": self.kernel.encode()}
        return {"implementation": b"flash"}

    def mask(self) -> str:
        """The field of a result's row; what it does not say of causality `causal` does."""
        if self.dense:
            return "none"
        word = "select" if self.kind == "select" else "blocks"
        return f"{word}={self.block}:{self.density}{':rows' if self.kind == 'rows' else ''}"


@dataclass
class Timed:
    """A line that runs: its passes (launch, kernel) by name, its share of all pairs, times."""

    line: Line
    passes: dict[str, tuple[Callable[[], None], str]]
    pairs: float
    kept: object = None  # tensors that the passes use
    samples: dict[str, Samples] = field(default_factory=dict)


def listed_blocks(line: Line, heads: int, seq: int, generator: torch.Generator) -> torch.Tensor:
    """Which blocks are listed, (heads, rows, columns) of bool; equally many in each row."""
    n = seq // line.block
    keep = max(1, round(line.density * n))
    order = torch.rand(heads, n, n, generator=generator).argsort(-1)
    listed = order < keep
    if line.kind == "rows":
        listed[:, ::10] = True
    if line.causal:
        listed &= torch.ones(n, n, dtype=torch.bool).tril()
        listed |= torch.eye(n, dtype=torch.bool)
    return listed


def block_list(listed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Its row offsets (1, heads, rows + 1) and block indices."""
    heads, rows, _ = listed.shape
    ends = listed.sum(-1).flatten().cumsum(0).view(heads, rows)
    begins = torch.cat([torch.zeros(1, dtype=ends.dtype), ends.flatten()[:-1]]).view(heads, rows)
    offsets = torch.cat([begins, ends[:, -1:]], 1)
    return offsets.int()[None].cuda(), listed.nonzero()[:, 2].int().cuda()


class Selection:
    """The blocks of a list chosen on the card, as many of a row as the density says."""

    def __init__(self, library: Library, q: torch.Tensor, k: torch.Tensor, line: Line) -> None:
        self._library, heads, seq = library, q.shape[1], q.shape[2]
        blocks = seq // line.block
        self._args = capi.Select(
            q=view(q),
            k=view(k),
            block_q=line.block,
            block_k=line.block,
            weight_mean=1.0,
            causal=int(line.causal),
            count=max(1, round(line.density * blocks)),
        )
        bound = ctypes.c_int64()
        library.call("tw_selected_blocks_bound", self._args, bound)
        shape = (q.shape[0], heads, blocks + 1)
        self.offsets = torch.full(shape, -1, device="cuda", dtype=torch.int32)
        self.index = torch.full((bound.value,), -1, device="cuda", dtype=torch.int32)
        self._args.block_row_offsets, self._args.block_index = view(self.offsets), view(self.index)
        self._launch = capi.Launch()
        self._work = torch.empty(2**26, device="cuda", dtype=torch.uint8)
        self._launch.workspace, self._launch.workspace_bytes = self._work.data_ptr(), 2**26

    def run(self) -> None:
        self._launch.stream = torch.cuda.current_stream().cuda_stream
        self._library.call("tw_select_blocks", self._args, self._launch)

    def listed(self) -> torch.Tensor:
        """What it has chosen, (entries of the batch, heads, rows, columns) of bool."""
        batch, heads, ends = self.offsets.shape
        made = torch.zeros(batch, heads, ends - 1, ends - 1, dtype=torch.bool)
        offsets, index = self.offsets.cpu(), self.index.cpu()
        for b in range(batch):
            for h in range(heads):
                for row in range(ends - 1):
                    made[b, h, row, index[offsets[b, h, row] : offsets[b, h, row + 1]].long()] = (
                        True
                    )
        return made


class Cell:
    """Inputs of a cell, and its lines."""

    def __init__(self, library: Library, dim: int, seq: int, *, backward: bool) -> None:
        self.library, self.dim, self.seq = library, dim, seq
        self.heads, self.batch = HIDDEN // dim, max(1, TOKENS // seq)
        shape = (self.batch, self.heads, seq, dim)
        kind = {"device": "cuda", "dtype": torch.bfloat16}
        self.q, self.k, self.v, self.d_o = (torch.randn(shape, **kind) for _ in range(4))
        self.backward = backward
        self.generator = torch.Generator().manual_seed(seq + dim)

    def _workspace(self, one: Pass) -> torch.Tensor:
        bytes_ = max(1, one.plan.workspace_bytes)
        made = torch.full((bytes_,), 0xFF, device="cuda", dtype=torch.uint8)
        one.use(made)
        return made

    def ours(self, line: Line) -> Timed:
        spec, selection, kept = capi.Spec(causal=int(line.causal)), None, ()
        if line.kind == "select":
            selection = Selection(self.library, self.q, self.k, line)
            selection.run()
            kept = (selection.offsets, selection.index)
            listed = selection.listed()
        elif line.dense:
            listed = torch.ones(1, 1, 1, 1, dtype=torch.bool)
        else:
            words = f"{self.seq} {self.dim} {line.mask()} {line.causal}"
            generator = torch.Generator().manual_seed(zlib.crc32(words.encode()))
            listed = listed_blocks(line, self.heads, self.seq, generator)[None]
            kept = block_list(listed[0])
        if kept:
            spec.block_row_offsets, spec.block_index = (view(x) for x in kept)
            spec.block_q = spec.block_k = line.block
        o = torch.full_like(self.q, torch.nan)
        lse = torch.full(o.shape[:3], torch.nan, device="cuda")
        forward = Pass(
            self.library,
            "forward",
            capi.Forward(q=view(self.q), k=view(self.k), v=view(self.v), o=view(o), lse=view(lse)),
            spec,
            capi.Launch(**line.forced("forward")),
        )
        tensors = [kept, selection, o, lse, self._workspace(forward)]
        forward.run()
        self._check_forward(line, listed, o, lse)
        kernel = forward.plan.kernel.decode()
        passes = {"fwd": (forward.run, kernel)}
        if selection is not None:
            # Beside the listed kernel's own time: the choice, and both as one line.
            def both() -> None:
                selection.run()
                forward.run()

            passes = {"select": (selection.run, "select"), "fwd": (both, f"select+{kernel}")}
        elif self.backward and not line.kernel.startswith("flash_fwd"):
            passes["bwd"] = self._backward_pass(line, listed, spec, (o, lse), tensors)
        if line.kernel.startswith("flash_bwd"):
            passes = {"bwd": passes["bwd"]} if "bwd" in passes else {}
        pairs = 1.0 if line.dense else float(listed.float().mean())
        return Timed(line, passes, 0.5 if line.causal and line.dense else pairs, tensors)

    def _backward_pass(
        self,
        line: Line,
        listed: torch.Tensor,
        spec: capi.Spec,
        made: tuple[torch.Tensor, torch.Tensor],
        tensors: list,
    ) -> tuple[Callable[[], None], str]:
        grads = [torch.full_like(self.q, torch.nan) for _ in range(3)]
        names = {"dq": view(grads[0]), "dk": view(grads[1]), "dv": view(grads[2])}
        given = {"q": self.q, "k": self.k, "v": self.v, "o": made[0], "lse": made[1]}
        args = capi.Backward(
            **{name: view(x) for name, x in given.items()}, d_o=view(self.d_o), **names
        )
        forced = capi.Launch(**line.forced("backward"))
        backward = Pass(self.library, "backward", args, spec, forced)
        tensors += [grads, self._workspace(backward)]
        backward.run()
        self._check_backward(line, listed, grads)
        return backward.run, backward.plan.kernel.decode()

    def _visible(
        self, line: Line, listed: torch.Tensor, b: int, h: int, rows: slice
    ) -> torch.Tensor:
        """(rows, keys) of bool."""
        i = torch.arange(rows.start, rows.stop)
        j = torch.arange(self.seq)
        seen = torch.ones(len(i), self.seq, dtype=torch.bool)
        if not line.dense:
            seen = listed[b % len(listed)][h][i // line.block][:, j // line.block]
        return (seen & (j[None] <= i[:, None]) if line.causal else seen).cuda()

    def _logits(self, b: int, h: int, rows: slice, seen: torch.Tensor) -> torch.Tensor:
        s = self.q[b, h, rows].float() @ self.k[b, h].float().T / self.dim**0.5
        return s.masked_fill(~seen, -torch.inf)

    def _drawn(self) -> list[tuple[int, int, slice]]:
        chosen = random.Random(self.seq)
        starts = [0, self.seq - 64] + [
            chosen.randrange(self.seq // 64) * 64 for _ in range(CHECKED_BLOCKS)
        ]
        return [
            (chosen.randrange(self.batch), chosen.randrange(self.heads), slice(s, s + 64))
            for s in starts
        ]

    def _check_forward(
        self, line: Line, listed: torch.Tensor, o: torch.Tensor, lse: torch.Tensor
    ) -> None:
        for b, h, rows in self._drawn():
            s = self._logits(b, h, rows, self._visible(line, listed, b, h, rows))
            expected = torch.nan_to_num(s.softmax(-1)) @ self.v[b, h].float()
            off = (o[b, h, rows].float() - expected).abs().max().item()
            off_by = torch.nan_to_num(lse[b, h, rows] - s.logsumexp(-1), nan=0.0)
            lse_off = off_by.abs().max().item()
            if not (off < 2e-2 and lse_off < 1e-3):
                raise RuntimeError(f"{line}: O off by {off}, LSE by {lse_off} at {b}, {h}, {rows}")

    def _check_backward(self, line: Line, listed: torch.Tensor, grads: list[torch.Tensor]) -> None:
        """One head, by float32 products of 512 queries at a time."""
        b, h = self.batch - 1, self.heads - 1
        q, k, v, d_o = (x[b, h].float() for x in (self.q, self.k, self.v, self.d_o))
        dk, dv, dq = torch.zeros_like(k), torch.zeros_like(v), torch.zeros_like(q)
        for start in range(0, self.seq, 512):
            rows = slice(start, start + 512)
            s = self._logits(b, h, rows, self._visible(line, listed, b, h, rows))
            p = torch.nan_to_num(s.softmax(-1))
            dp = d_o[rows] @ v.T
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / self.dim**0.5
            dv += p.T @ d_o[rows]
            dk += ds.T @ q[rows]
            dq[rows] = ds @ k
        for name, got, expected in zip(("dq", "dk", "dv"), grads, (dq, dk, dv), strict=True):
            off = (got[b, h].float() - expected).norm() / expected.norm()
            if not off < 1e-2:
                raise RuntimeError(f"{line}: {name} off by {off.item()} of its norm")
            if any(bool(torch.isnan(g).any()) for g in grads):
                raise RuntimeError(f"{line}: a gradient has NaN")

    def flex(self, line: Line) -> Timed:
        from torch.nn.attention.flex_attention import BlockMask, flex_attention

        listed = listed_blocks(line, self.heads, self.seq, self.generator)
        counts = listed.sum(-1, dtype=torch.int32)[None].cuda()
        columns = (~listed).int().argsort(dim=-1, stable=True).int()[None].cuda()
        none = torch.zeros_like(counts)
        mask = BlockMask.from_kv_blocks(
            none, torch.zeros_like(columns), counts, columns, BLOCK_SIZE=line.block
        )
        call = torch.compile(flex_attention, dynamic=False)
        q, k, v = (x.detach().requires_grad_(self.backward) for x in (self.q, self.k, self.v))
        state = {}

        def forward() -> None:
            state["o"] = call(q, k, v, block_mask=mask)

        def backward() -> None:
            torch.autograd.grad(state["o"], (q, k, v), self.d_o, retain_graph=True)

        forward()
        passes = {"fwd": (forward, "flex_attention")}
        if self.backward:
            backward()
            passes["bwd"] = (backward, "flex_attention")
        return Timed(line, passes, float(listed.float().mean()), state)


FLOPS = {"select": 0, "fwd": 4, "bwd": 10}  # of a pair and a column


def reason_of(line: Line) -> str:
    if line.kernel:
        return "forced by name"
    return "" if line.flex else "the plan's own choice"


def rows_of(cell: Cell, timed: list[Timed]) -> list[dict]:
    """Rows in the schema of `tilewise bench --format json`, printed as they come: TFLOP/s of listed
    pairs, and their share of dense attention's in the same cell."""
    rows, dense = [], {}
    for one in timed:
        for which, (_, kernel) in one.passes.items():
            measured = one.samples[which].statistics()
            flops = FLOPS[which] * cell.batch * cell.heads * cell.seq**2 * cell.dim * one.pairs
            rate = 1e-9 * flops / measured["ms_median"]
            if one.line.dense:
                dense[which, one.line.causal] = rate
                if which == "fwd":
                    dense["ms", one.line.causal] = measured["ms_median"]
            beside = rate / dense.get((which, one.line.causal), float("inf"))
            if which == "select":
                beside = measured["ms_median"] / dense["ms", one.line.causal]
            print(
                f"{which:6} d{cell.dim} s{cell.seq} {kernel:22} {one.line.mask():20} pairs "
                f"{one.pairs:.3f} {'causal' if one.line.causal else 'full':6} "
                f"{measured['ms_median']:.4f} ms {rate:6.1f} TFLOP/s, {beside:.3f} of dense"
                f"{' time' if which == 'select' else ''}",
                flush=True,
            )
            rows.append(
                {
                    "implementation": "flex" if one.line.flex else "flash",
                    "kernel": kernel,
                    "device": "cuda:0",
                    "dtype": "bfloat16",
                    "batch": cell.batch,
                    "heads": cell.heads,
                    "kv_heads": cell.heads,
                    "seq_q": cell.seq,
                    "seq_k": cell.seq,
                    "head_dim": cell.dim,
                    "head_dim_v": cell.dim,
                    "causal": one.line.causal,
                    "mask": one.line.mask(),
                    "precision": "exact",
                    "deterministic": False,
                    "layout": "bhsd",
                    "threads": torch.get_num_threads(),
                    "protocol": "burst",
                    "pass": "fwd" if which == "select" else which,
                    **measured,
                    "tflops": rate or None,
                    "gbps": None,
                    "live_mib": None,
                    "peak_mib": None,
                    "status": "ok",
                    "reason": reason_of(one.line),
                }
            )
    return rows


def lines_of(options: argparse.Namespace, seq: int) -> list[Line]:
    lines = [Line(dense=True), Line(dense=True, causal=True)]
    if seq <= TOKENS:
        for block in options.blocks:
            for kernel in ("", *options.beside):
                lines += [Line(block=block, density=d, kernel=kernel) for d in options.densities]
        lines += [Line(density=0.1, kind="rows"), Line(density=0.25, causal=True)]
        if options.flex and seq == options.seqs[0]:
            lines += [Line(density=d, flex=True) for d in (1.0, 0.25, 0.1)]
    if options.select:
        lines += [Line(block=b, density=0.25, kind="select") for b in options.blocks]
        lines.append(Line(density=0.1, kind="select"))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path, help="folder of libtilewise.so and tilewise")
    parser.add_argument("output", type=Path)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--select", action="store_true")
    parser.add_argument("--flex", action="store_true")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 64])
    parser.add_argument("--seqs", type=int, nargs="+", default=[8192, 16384])
    parser.add_argument("--blocks", type=int, nargs="+", default=[128, 64])
    parser.add_argument("--densities", type=float, nargs="+", default=[1.0, 0.5, 0.25, 0.1, 0.05])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--beside", nargs="+", default=[], metavar="KERNEL", help="rows, forced")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    torch.manual_seed(0)
    library, card = Library(options.build / "libtilewise.so"), Card()
    env = report.environment(options.build / "tilewise", "")
    rows, failed = [], 0
    for dim in options.dims:
        for seq in options.seqs:
            if time.monotonic() > end:
                print(f"stopped in time: d{dim} s{seq} and what follows was not measured")
                return failed
            cell = Cell(library, dim, seq, backward=options.backward and seq <= TOKENS)
            lines, timed = lines_of(options, seq), []
            for line in lines:
                try:
                    timed.append(cell.flex(line) if line.flex else cell.ours(line))
                except RefusedError as refusal:
                    print(f"d{dim} s{seq} {line}: refused, {refusal}")
                except Exception as error:
                    failed = 1
                    print(f"d{dim} s{seq} {line}: FAILED, {type(error).__name__}: {error}"[:600])
            for _ in range(options.rounds):
                for one in random.sample(timed, len(timed)):
                    for which, (launch, _) in one.passes.items():
                        turn = card.burst(lambda: None, launch)
                        one.samples.setdefault(which, Samples()).ms += turn
            rows += rows_of(cell, sorted(timed, key=lambda one: lines.index(one.line)))
            results.write(options.output, env, rows)
    return failed


if __name__ == "__main__":
    sys.exit(main())
