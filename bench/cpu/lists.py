#!/usr/bin/env python3
"""Block lists on a CPU beside our own dense kernels and compiled FlexAttention, in one process.

A line is a block size, a density, a pass and a number of threads; its blocks are drawn at random,
equally many in each row of blocks, for each head. Lines of a length take turns, round after round.
One thread is timed by its CPU time, more by the clock. Of dense: (dense's time * density) / time,
1 where a list saves all that it hides. Each forward is compared with dense attention under the
same mask first. Writes rows in the schema of `tilewise bench`.

    python3 bench/cpu/lists.py -o bench/results/cpu/amd-epyc/lists.json --seq 2048 4096 8192
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import capi
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

CODES = capi.DTYPES | {"int32": 6}
HEADS_TIMES_LENGTH = 16384
DENSE = 0  # block size of a line without a list


@dataclass
class Line:
    """`share`: of all pairs that are listed."""

    block: int
    density: float
    which: str
    threads: int
    implementation: str = "flash"
    share: float = 1.0
    kernel: str = ""
    call: Callable[[], object] = lambda: None
    ms: list[float] = field(default_factory=list)


def view(x: Tensor) -> capi.Tensor:
    code = CODES[str(x.dtype).removeprefix("torch.")]
    made = capi.Tensor(data=x.data_ptr(), dtype=code, rank=x.dim())
    made.sizes[: x.dim()], made.strides[: x.dim()] = x.shape, x.stride()
    return made


def listed_blocks(lists: int, n: int, density: float, generator: torch.Generator) -> Tensor:
    """Which blocks are listed, (lists, n, n) of bool; equally many in each row."""
    order = torch.rand(lists, n, n, generator=generator).argsort(-1).argsort(-1)
    return order < max(1, round(density * n))


def block_list(listed: Tensor) -> tuple[Tensor, Tensor]:
    """Its row offsets (1, lists, rows + 1) and block indices."""
    lists, rows, _ = listed.shape
    ends = listed.sum(-1).flatten().cumsum(0)
    begins = torch.cat([torch.zeros(1, dtype=ends.dtype), ends])
    at = torch.arange(lists)[:, None] * rows + torch.arange(rows + 1)
    return begins[at].int()[None].contiguous(), listed.nonzero()[:, 2].int()


class Cell:
    """The inputs of a length, and what runs on them."""

    def __init__(self, library: Path, shape: argparse.Namespace, seq: int) -> None:
        self.lib = ctypes.CDLL(str(library.resolve()))
        self.lib.tw_last_error.restype = ctypes.c_char_p
        self.alone = capi.Executor(
            concurrency=1,
            parallel_for=ctypes.cast(capi._one_thread, capi._PARALLEL_FOR),
        )
        self.seq, self.heads = seq, shape.heads or max(2, HEADS_TIMES_LENGTH // seq)
        self.kv_heads = self.heads // shape.group
        self.causal, self.dtype = shape.causal, getattr(torch, shape.dtype)
        self.q, self.d_o = (self.drawn(self.heads, shape.dim) for _ in range(2))
        self.k, self.v = (self.drawn(self.kv_heads, shape.dim) for _ in range(2))
        self.lists: dict[tuple[int, float], Tensor] = {}
        self.generator = torch.Generator().manual_seed(seq)

    def drawn(self, heads: int, dim: int) -> Tensor:
        return torch.randn(1, heads, self.seq, dim).to(self.dtype)

    def listed(self, line: Line) -> Tensor:
        """One list for the heads of a group."""
        key = (line.block, line.density)
        if key not in self.lists:
            n = self.seq // line.block
            made = listed_blocks(self.kv_heads, n, line.density, self.generator)
            if self.causal:
                made = made.tril() | torch.eye(n, dtype=torch.bool)
            self.lists[key] = made.repeat_interleave(self.heads // self.kv_heads, 0)
        return self.lists[key]

    def pairs(self, line: Line) -> float:
        """Pairs that list and causality leave visible, of a head on average."""
        if line.block == DENSE:
            return self.seq * (self.seq + 1) / 2 if self.causal else float(self.seq) ** 2
        blocks = self.listed(line).float().mean(0)
        whole = blocks.sum() * line.block**2
        cut = blocks.diagonal().sum() * line.block * (line.block - 1) / 2 if self.causal else 0.0
        return float(whole - cut)

    def mask(self, line: Line) -> Tensor:
        visible = torch.ones(self.seq, self.seq, dtype=torch.bool)
        if self.causal:
            visible = visible.tril()
        if line.block == DENSE:
            return visible[None]
        blocks = self.listed(line).repeat_interleave(line.block, 1)
        return visible & blocks.repeat_interleave(line.block, 2)

    def check(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(self.lib.tw_last_error().decode())

    def prepare(self, line: Line) -> None:
        """Sets the line's call, kernel and share."""
        line.share = self.pairs(line) / self.pairs(Line(DENSE, 1.0, "", 1))
        if line.implementation == "flex":
            return self.prepare_flex(line)
        spec = capi.Spec(causal=int(self.causal))
        kept: list[Any] = [spec]
        if line.block != DENSE:
            offsets, index = block_list(self.listed(line))
            kept += [offsets, index]
            spec.block_row_offsets, spec.block_index = view(offsets), view(index)
            spec.block_q = spec.block_k = line.block
        o = torch.full_like(self.q, torch.nan)
        lse = torch.full(self.q.shape[:3], torch.nan)
        tensors = {name: view(getattr(self, name)) for name in ("q", "k", "v")}
        tensors |= {"o": view(o), "lse": view(lse)}
        args = capi.Forward(**tensors)
        kept += [o, lse]
        forward = self.launch("forward", line, args, spec, kept)
        forward()
        self.compare(line, o)
        line.call = forward
        if line.which == "bwd":
            made = [torch.full_like(x, torch.nan) for x in (self.q, self.k, self.v)]
            gradients = {n: view(x) for n, x in zip(("dq", "dk", "dv"), made, strict=True)}
            args = capi.Backward(**tensors, d_o=view(self.d_o), **gradients)
            line.call = self.launch("backward", line, args, spec, [*kept, *made])
            line.call()
            if not all(bool(x.isfinite().all()) for x in made):
                raise RuntimeError(f"{line}: gradients are not finite")
        return None

    def launch(
        self, verb: str, line: Line, args: ctypes.Structure, spec: capi.Spec, kept: list[Any]
    ) -> Callable[[], None]:
        launch = capi.Launch(implementation=b"flash")
        if line.threads == 1:
            launch.executor = ctypes.pointer(self.alone)
        plan = capi.Plan()
        structs = [ctypes.byref(x) for x in (args, spec, launch, plan)]
        self.check(getattr(self.lib, f"tw_plan_{verb}")(*structs))
        memory = torch.empty(plan.workspace_bytes + 256, dtype=torch.uint8)
        launch.workspace = memory.data_ptr() + -memory.data_ptr() % 256
        launch.workspace_bytes = plan.workspace_bytes
        line.kernel = plan.kernel.decode()
        run, everything = getattr(self.lib, f"tw_{verb}"), [*kept, memory, args, launch, plan]

        def call(_keep: list[Any] = everything) -> None:
            self.check(run(*structs))

        return call

    def compare(self, line: Line, o: Tensor) -> None:
        """The last rows of every head against dense attention under the same mask."""
        rows = slice(self.seq - 128, self.seq)
        group = self.heads // self.kv_heads
        k, v = (x.repeat_interleave(group, 1).float() for x in (self.k, self.v))
        scores = self.q[:, :, rows].float() @ k.mT * self.q.shape[-1] ** -0.5
        scores.masked_fill_(~self.mask(line)[:, rows], -torch.inf)
        wrong = (scores.softmax(-1) @ v - o[:, :, rows].float()).abs().max().item()
        limit = 1e-4 if self.dtype == torch.float32 else 3e-2
        if not wrong < limit:
            raise RuntimeError(f"{line}: O is {wrong} away from dense attention")

    def prepare_flex(self, line: Line) -> None:
        listed, causal, block = self.listed(line), self.causal, line.block

        def shown(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            seen = listed[h, i // block, j // block]
            return seen & (i >= j) if causal else seen

        mask = torch_flex.create_block_mask(
            shown, 1, self.heads, self.seq, self.seq, device="cpu", BLOCK_SIZE=max(block, 32)
        )
        torch.compiler.reset()  # it gives up on a function that it has compiled often
        compiled = torch.compile(torch_flex.flex_attention)
        enable_gqa = self.heads != self.kv_heads
        torch.set_num_threads(line.threads)

        def call() -> Tensor:
            torch.set_num_threads(line.threads)
            return compiled(self.q, self.k, self.v, block_mask=mask, enable_gqa=enable_gqa)

        self.compare(line, call())
        line.call = call

    def row(self, line: Line, shape: argparse.Namespace) -> dict[str, Any]:
        words = f"blocks={line.block}:{line.share:.4f}" if line.block else "none"
        return {
            "implementation": line.implementation,
            "kernel": line.kernel,
            "device": "cpu",
            "dtype": shape.dtype,
            "batch": 1,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "seq_q": self.seq,
            "seq_k": self.seq,
            "head_dim": shape.dim,
            "head_dim_v": shape.dim,
            "causal": self.causal,
            "mask": words,
            "precision": "exact",
            "deterministic": False,
            "layout": "bhsd",
            "threads": line.threads,
            "protocol": "interleaved",
            "pass": line.which,
            "ms_mean": statistics.fmean(line.ms),
            "ms_std": statistics.pstdev(line.ms),
            "ms_min": min(line.ms),
            "ms_median": statistics.median(line.ms),
            "status": "ok",
            "reason": "",
        }


def time_ms(line: Line) -> float:
    clock = time.thread_time if line.threads == 1 else time.perf_counter
    begin = clock()
    line.call()
    return 1e3 * (clock() - begin)


def lines_of(args: argparse.Namespace) -> list[Line]:
    made = []
    for threads in args.threads:
        for which in args.passes:
            made.append(Line(DENSE, 1.0, which, threads))
            for block in args.blocks:
                for density in args.densities:
                    made.append(Line(block, density, which, threads))
                    if args.flex and which == "fwd" and block >= 64:
                        made.append(Line(block, density, which, threads, "flex"))
    return made


def measure(cell: Cell, args: argparse.Namespace) -> list[dict[str, Any]]:
    lines = lines_of(args)
    for line in lines:
        cell.prepare(line)
    for _ in range(args.rounds):
        for line in lines:
            line.ms.append(time_ms(line))
    dense = {(x.which, x.threads): min(x.ms) for x in lines if x.block == DENSE}
    for line in lines:
        of_dense = dense[line.which, line.threads] * line.share / min(line.ms)
        spread = statistics.median(line.ms) / min(line.ms)
        print(
            f"{cell.seq:6} {line.which} {line.threads} {line.implementation:5} {line.block:4} "
            f"{line.share:.4f} {min(line.ms):9.2f} ms {of_dense:6.3f} spread {spread:.2f}",
            flush=True,
        )
    return [cell.row(line, args) for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seq", type=int, nargs="+", default=[2048])
    parser.add_argument("--heads", type=int, default=0, help="0: 16,384 over the length")
    parser.add_argument("--group", type=int, default=1, help="query heads that share keys and list")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--dtype", choices=sorted(capi.DTYPES), default="float32")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--blocks", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--densities", type=float, nargs="+", default=[0.5, 0.25, 0.1, 0.02])
    parser.add_argument("--passes", nargs="+", choices=("fwd", "bwd"), default=["fwd", "bwd"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--flex", action="store_true", help="compiled FlexAttention beside it")
    args = parser.parse_args()
    command = [args.build / "tilewise", "bench", "--seq", "16", "--dim", "16", "--repeat", "1"]
    text = subprocess.run([*command, "--format", "json"], capture_output=True, check=True).stdout
    environment = json.loads(text)["environment"] | {"peers": {"torch": torch.__version__}}
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for seq in args.seq:
            rows += measure(Cell(args.build / "libtilewise.so", args, seq), args)
            report = {"schema_version": 1, "environment": environment, "rows": rows}
            if args.output:
                args.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
