"""What bench/cpu measures: the lines of issue 5's table, or the cells of a preset."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.peers.problem import read_preset


@dataclass(frozen=True)
class Case:
    direction: str  # "fwd" or "bwd"
    seq_q: int
    seq_k: int
    dim: int
    causal: bool = False
    dtype: str = "float32"
    threads: int = 1
    batch: int = 1
    heads: int = 8
    kv_heads: int = 8
    layout: str = "bhsd"
    kernel: str = ""  # a row of ours to force
    probe: str = "avx512"  # which registers the probe multiplies

    @property
    def flops(self) -> float:
        products = 2 if self.direction == "fwd" else 5
        full = 2.0 * products * self.batch * self.heads * self.seq_q * self.seq_k * self.dim
        return full / 2 if self.causal else full

    @property
    def label(self) -> str:
        parts = [self.direction, self.dtype, f"S {self.seq_q}", f"D {self.dim}"]
        if self.seq_q != self.seq_k:
            parts[2] = f"{self.seq_q} x {self.seq_k}"
        parts += ["causal"] if self.causal else []
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}:{self.kv_heads}"
        parts += [f"B {self.batch}"] if self.batch > 1 else []
        parts += [f"H {heads}", f"{self.threads} threads", self.kernel]
        return ", ".join(x for x in parts if x)


def cases(quick: bool) -> Iterator[Case]:
    """In the order of the table's lines."""
    lengths = (1024,) if quick else (512, 1024, 2048, 4096)
    for direction in ("fwd", "bwd"):
        for dim in (64, 128):
            for seq in lengths:
                for causal in (False, True):
                    yield Case(direction, seq, seq, dim, causal)
    for direction in ("fwd", "bwd"):
        for heads in (8, 1):
            for dim in (64, 128):
                for threads in (2, 1):
                    same = {"heads": heads, "kv_heads": heads}
                    yield Case(direction, 2048, 2048, dim, threads=threads, **same)
    for direction in ("fwd", "bwd"):
        for dim in (64, 128):
            for causal in (False, True):
                yield Case(direction, 2048, 2048, dim, causal, dtype="bfloat16")
        yield Case(direction, 2048, 2048, 64, dtype="float16")
    for dim in (64, 128):
        yield Case("fwd", 2048, 2048, dim, kernel="flash_fwd_avx2", probe="avx2")
        yield Case("bwd", 2048, 2048, dim, kernel="flash_bwd_avx2", probe="avx2")
    for dtype in ("float32", "bfloat16"):
        for threads in (1, 2):
            yield Case("fwd", 1, 65536, 128, dtype=dtype, threads=threads)


def preset_cases(path: Path, threads: int) -> Iterator[Case]:
    """The cells of a preset file, a case for each pass."""
    for cell in read_preset(path, argparse.Namespace()):
        p = cell.problem
        if p.is_served or p.packed or p.options != "none":
            raise ValueError(f"{path.name}: no peer here takes '{p}'")
        for direction in cell.passes:
            yield Case(
                direction,
                p.seq,
                p.keys,
                p.dim,
                p.causal,
                p.dtype,
                threads,
                p.batch,
                p.heads,
                p.kv_heads,
                p.layout,
            )
