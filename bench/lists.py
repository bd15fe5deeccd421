"""Block lists on a GPU: time and TFLOP/s of listed pairs beside our own dense kernels, one process.

    python3 bench/lists.py build/release/libtilewise.so lists.json [--backward] [--flex]

Each cell is a length and a head dim of 16,384 tokens of hidden 2048 in bfloat16, and each of its
lines a block size, a density and a kind of list. Lines take turns in bursts: 15 ms idle, three runs
with the L2 cache flushed before each. A line is checked before it is timed, on blocks of queries
drawn at random, against float32 products of the same inputs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.cpu import capi
from bench.peers.contender import RefusedError
from bench.peers.ours import Library, Pass, view

TOKENS, HIDDEN, CHECKED_BLOCKS = 16384, 2048, 24


@dataclass(frozen=True)
class Line:
    """`kind`: uniform, or rows: every tenth row of blocks is dense beside the density's."""

    block: int = 128
    density: float = 1.0
    kind: str = "uniform"
    causal: bool = False
    dense: bool = False  # no list
    flex: bool = False  # FlexAttention


@dataclass
class Timed:
    """A line that runs: what it computes, its share of all pairs, its times."""

    line: Line
    forward: object
    backward: object
    pairs: float
    forward_ms: list[float] = field(default_factory=list)
    backward_ms: list[float] = field(default_factory=list)


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


class Cell:
    """Inputs of a cell, and its lines."""

    def __init__(self, library: Library, dim: int, seq: int, *, backward: bool) -> None:
        self.library, self.dim, self.seq = library, dim, seq
        self.heads, self.batch = HIDDEN // dim, TOKENS // seq
        shape = (self.batch, self.heads, seq, dim)
        kind = {"device": "cuda", "dtype": torch.bfloat16}
        self.q, self.k, self.v, self.d_o = (torch.randn(shape, **kind) for _ in range(4))
        self.backward = backward
        self.generator = torch.Generator().manual_seed(seq + dim)

    def ours(self, line: Line) -> Timed:
        listed = listed_blocks(line, self.heads, self.seq, self.generator)
        spec = capi.Spec(causal=int(line.causal))
        kept = block_list(listed)
        if not line.dense:
            spec.block_row_offsets, spec.block_index = (view(x) for x in kept)
            spec.block_q = spec.block_k = line.block
        o = torch.full_like(self.q, torch.nan)
        lse = torch.full(o.shape[:3], torch.nan, device="cuda")
        forward = Pass(
            self.library,
            "forward",
            capi.Forward(q=view(self.q), k=view(self.k), v=view(self.v), o=view(o), lse=view(lse)),
            spec,
            capi.Launch(kernel=b"flash_fwd_sm90"),
        )
        work = torch.full(
            (max(1, forward.plan.workspace_bytes),), 0xFF, device="cuda", dtype=torch.uint8
        )
        forward.use(work)
        forward.run()
        self._check_forward(line, listed, o, lse)
        backward, tensors = None, [kept, o, lse, work]
        if self.backward:
            grads = [torch.full_like(self.q, torch.nan) for _ in range(3)]
            names = {"dq": view(grads[0]), "dk": view(grads[1]), "dv": view(grads[2])}
            given = {"q": self.q, "k": self.k, "v": self.v, "o": o, "lse": lse, "d_o": self.d_o}
            args = capi.Backward(**{name: view(x) for name, x in given.items()}, **names)
            backward = Pass(
                self.library, "backward", args, spec, capi.Launch(kernel=b"flash_bwd_sm90")
            )
            space = torch.full(
                (max(1, backward.plan.workspace_bytes),), 0xFF, device="cuda", dtype=torch.uint8
            )
            backward.use(space)
            backward.run()
            tensors += [grads, space]
            self._check_backward(line, listed, grads)
        pairs = float(listed.float().mean()) if not line.dense else 1.0
        if line.causal and line.dense:
            pairs = 0.5
        forward.kept = tensors
        return Timed(line, forward.run, backward.run if backward else None, pairs)

    def _visible(self, line: Line, listed: torch.Tensor, h: int, rows: slice) -> torch.Tensor:
        """(rows, keys) of bool."""
        i = torch.arange(rows.start, rows.stop)
        j = torch.arange(self.seq)
        seen = torch.ones(len(i), self.seq, dtype=torch.bool)
        if not line.dense:
            seen = listed[h][i // line.block][:, j // line.block]
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
            s = self._logits(b, h, rows, self._visible(line, listed, h, rows))
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
            s = self._logits(b, h, rows, self._visible(line, listed, h, rows))
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
        if self.backward:
            backward()
        return Timed(
            line, forward, backward if self.backward else None, float(listed.float().mean())
        )


def burst(run: object, flush: torch.Tensor) -> list[float]:
    torch.cuda.synchronize()
    time.sleep(0.015)
    times = []
    for _ in range(3):
        flush.zero_()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        run()
        events[1].record()
        times.append(events)
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in times]


def median(x: list[float]) -> float:
    return sorted(x)[len(x) // 2]


def report(cell: Cell, timed: list[Timed]) -> list[dict]:
    rows = []
    for which, products in (("fwd", 4), ("bwd", 10)):
        ms = {
            t.line: median((t.forward_ms if which == "fwd" else t.backward_ms) or [0])
            for t in timed
        }
        flops = products * cell.batch * cell.heads * cell.seq**2 * cell.dim
        rate = {t.line: 1e-9 * flops * t.pairs / ms[t.line] for t in timed if ms[t.line]}
        for t in timed:
            if t.line not in rate:
                continue
            beside = Line(dense=True, causal=t.line.causal)
            part = rate[t.line] / rate[beside] if beside in rate else 0.0
            name = "flex" if t.line.flex else "dense" if t.line.dense else "ours"
            print(
                f"{which} d{cell.dim} s{cell.seq} {name:5} block {t.line.block:3} density "
                f"{t.pairs:.3f} {t.line.kind:7} {'causal' if t.line.causal else 'full':6} "
                f"{ms[t.line]:.4f} ms {rate[t.line]:6.1f} TFLOP/s {part:.3f} of dense",
                flush=True,
            )
            rows.append(
                {"pass": which, "dim": cell.dim, "seq": cell.seq, "batch": cell.batch}
                | {"heads": cell.heads, "name": name, **asdict(t.line), "pairs": t.pairs}
                | {"ms": ms[t.line], "tflops": rate[t.line], "of_dense": part}
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--flex", action="store_true")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 64])
    parser.add_argument("--seqs", type=int, nargs="+", default=[8192, 16384])
    parser.add_argument("--blocks", type=int, nargs="+", default=[128, 64])
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    torch.manual_seed(0)
    library = Library(options.library)
    flush = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    rows = []
    for dim in options.dims:
        for seq in options.seqs:
            if time.monotonic() > end:
                print("stopped in time")
                return
            cell = Cell(library, dim, seq, backward=options.backward)
            lines = [Line(dense=True), Line(dense=True, causal=True)]
            lines += [Line(density=d) for d in (1.0, 0.5, 0.25, 0.1, 0.05)]
            lines += [Line(density=0.1, kind="rows"), Line(density=0.25, causal=True)]
            if 64 in options.blocks:
                lines += [Line(block=64, density=d) for d in (1.0, 0.25, 0.1)]
            if options.flex and seq == options.seqs[0]:
                lines += [Line(density=d, flex=True) for d in (1.0, 0.25, 0.1)]
            timed = []
            for line in lines:
                try:
                    timed.append(cell.flex(line) if line.flex else cell.ours(line))
                except RefusedError as refusal:
                    print(f"d{dim} s{seq} {line}: refused, {refusal}")
                except Exception as error:
                    print(f"d{dim} s{seq} {line}: FAILED, {type(error).__name__}: {error}"[:600])
            for _ in range(options.rounds):
                random.shuffle(timed)
                for t in timed:
                    t.forward_ms += burst(t.forward, flush)
                    if t.backward is not None:
                        t.backward_ms += burst(t.backward, flush)
            rows += report(cell, sorted(timed, key=lambda t: lines.index(t.line)))
            options.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
