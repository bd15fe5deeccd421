"""What is measured: problems, and the grids of them that cases/presets names."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PASSES = ("fwd", "bwd", "fwd+bwd")


@dataclass(frozen=True)
class Problem:
    """Self-attention of contiguous (batch, heads, seq, dim) tensors, full or causal."""

    batch: int
    heads: int
    kv_heads: int
    seq: int
    dim: int
    dtype: str
    causal: bool

    @property
    def scale(self) -> float:
        return self.dim**-0.5

    @property
    def pairs(self) -> int:
        """Visible (query, key) pairs over batch and query heads."""
        one_head = self.seq * (self.seq + 1) // 2 if self.causal else self.seq**2
        return self.batch * self.heads * one_head

    def flops(self, which: str) -> float:
        """Of the pass: two matrix products forward, five backward."""
        products = {"fwd": 2, "bwd": 5, "fwd+bwd": 7}[which]
        return 2.0 * products * self.pairs * self.dim

    def bytes_moved(self, which: str) -> int:
        """Every input read once and every output written once, LSE included."""
        query_side = self.batch * self.heads * self.seq * self.dim * DTYPE_BYTES[self.dtype]
        key_side = self.batch * self.kv_heads * self.seq * self.dim * DTYPE_BYTES[self.dtype]
        lse = self.batch * self.heads * self.seq * 4
        forward = 2 * query_side + 2 * key_side + lse
        backward = 4 * query_side + 4 * key_side + lse  # Q O dO dQ, K V dK dV
        return {"fwd": forward, "bwd": backward, "fwd+bwd": forward + backward}[which]

    def __str__(self) -> str:
        """As cases/README.md writes it."""
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        dtype = next(short for short, name in DTYPES.items() if name == self.dtype)
        mask = " causal" if self.causal else ""
        return f"b{self.batch} h{heads} s{self.seq} d{self.dim} {dtype}{mask}"


@dataclass(frozen=True)
class Cell:
    """A problem, the implementations of ours that its preset names, and the passes to time."""

    problem: Problem
    implementations: tuple[str, ...]
    passes: tuple[str, ...]


def axis(text: str) -> list[int]:
    """The values of "64,128", "256:16384:x4" or "1:8:+1", as `tilewise bench` reads them."""
    values: list[int] = []
    for part in text.split(","):
        if ":" not in part:
            values.append(int(part))
            continue
        first, last, step = part.split(":")
        value = int(first)
        while value <= int(last):
            values.append(value)
            value = value * int(step[1:]) if step[0] == "x" else value + int(step[1:])
    return values


def grid_flags(parser: argparse.ArgumentParser, *, preset_line: bool) -> None:
    """The words of bench's grid that a GPU comparison needs; a preset line may hold all of them."""
    grid = parser.add_argument_group("grid: the flags of `tilewise bench`, over the preset's own")
    default = {"batch": "1", "heads": "1", "seq": "1024", "dim": "64", "dtype": "f32"}
    default |= {"impl": "flash", "pass": "fwd,bwd"}
    for name in ("batch", "heads", "seq", "dim", "dtype", "impl", "pass"):
        grid.add_argument(f"--{name}", default=default[name] if preset_line else None)
    for name in ("tokens", "hidden", "kv-heads"):
        grid.add_argument(f"--{name}", type=int)
    grid.add_argument("--causal", action="store_true", default=None)
    if preset_line:
        for name in ("protocol", "repeat", "warmup", "view"):  # this command's timer has its own
            grid.add_argument(f"--{name}")


def read_preset(path: Path, overrides: argparse.Namespace) -> list[Cell]:
    """The cells of a preset file; what `overrides` gives (not None) has the last word."""
    parser = argparse.ArgumentParser(prog=str(path), exit_on_error=False)
    grid_flags(parser, preset_line=True)
    cells: list[Cell] = []
    for line in path.read_text().splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        flags = vars(parser.parse_args(words))
        given = {k: v for k, v in vars(overrides).items() if k in flags and v is not None}
        cells += expand(flags | given)
    return cells


def expand(flags: dict[str, object]) -> Iterator[Cell]:
    """All combinations: types and dims outermost, lengths innermost."""
    text = {name: str(value) for name, value in flags.items() if value is not None}
    for dtype in text["dtype"].split(","):
        for dim in axis(text["dim"]):
            heads = (
                [max(1, int(text["hidden"]) // dim)] if "hidden" in text else axis(text["heads"])
            )
            for batch in axis(text["batch"]):
                for h in heads:
                    for seq in axis(text["seq"]):
                        b = max(1, int(text["tokens"]) // seq) if "tokens" in text else batch
                        kv = int(text.get("kv_heads", h))
                        problem = Problem(b, h, kv, seq, dim, DTYPES[dtype], bool(flags["causal"]))
                        yield Cell(
                            problem,
                            tuple(text["impl"].split(",")),
                            tuple(p for p in PASSES if p in text["pass"].split(",")),
                        )
