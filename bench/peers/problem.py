"""What is measured: problems, and the grids of them that cases/presets names."""

from __future__ import annotations

import argparse
import itertools
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PASSES = ("fwd", "bwd", "fwd+bwd")


Window = tuple[int | None, int | None]


@dataclass(frozen=True)
class Problem:
    """Attention of contiguous (batch, heads, seq, dim) tensors: `seq` queries, `keys` keys.

    What is served has K and V in a cache (batch, keys, heads, dim) of `lengths` keys, or in pools
    (pages, page, heads, dim) with a table of pages for each entry.
    Of packed sequences `batch` counts them and `seq` is the longest; their tensors are views
    (1, heads, total, dim) of memory in the order (total, heads, dim).
    """

    batch: int
    heads: int
    kv_heads: int
    seq: int
    dim: int
    dtype: str
    causal: bool
    seq_k: int | None = None  # None: as many keys as queries
    window: Window = (None, None)
    softcap: float = 0.0  # c of c tanh(x / c), 0 is off
    packed: tuple[int, ...] = ()  # lengths of packed sequences, as many queries as keys
    lengths: tuple[int, ...] = ()  # keys of each entry; `seq_k` is the most of them
    page: int = 0  # rows of the pages that K and V lie in; 0: they lie side by side
    layout: str = "bhsd"

    @staticmethod
    def of_packed(lengths: tuple[int, ...], like: Problem) -> Problem:
        """The problem of these sequences with everything else as in `like`."""
        return replace(like, batch=len(lengths), seq=max(lengths), seq_k=None, packed=lengths)

    @property
    def rows(self) -> int:
        """Queries of a head in all entries or sequences."""
        return sum(self.packed) if self.packed else self.batch * self.seq

    @property
    def key_rows(self) -> int:
        return sum(self.packed) if self.packed else sum(self.key_lengths)

    @property
    def key_lengths(self) -> tuple[int, ...]:
        """Keys of each entry."""
        return self.lengths or (self.keys,) * self.batch

    @property
    def is_served(self) -> bool:
        """Lengths or pages are looked up on the device; there is no backward."""
        return bool(self.lengths or self.page)

    @property
    def offsets(self) -> list[int]:
        """Where packed sequences begin, and where the last one ends."""
        return [0, *itertools.accumulate(self.packed)]

    @property
    def scale(self) -> float:
        return self.dim**-0.5

    @property
    def keys(self) -> int:
        return self.seq if self.seq_k is None else self.seq_k

    @property
    def band(self) -> Window:
        """Query i sees keys i + keys - seq - left to ... + right; None is no bound."""
        left, right = self.window
        return left, (min(0, right if right is not None else 0) if self.causal else right)

    @property
    def has_window(self) -> bool:
        return self.window != (None, None)

    @property
    def pairs(self) -> int:
        """Visible (query, key) pairs over batch and query heads."""
        if self.packed:
            return self.heads * sum(self._pairs_of(n, n) for n in self.packed)
        return self.heads * sum(self._pairs_of(self.seq, n) for n in self.key_lengths)

    def _pairs_of(self, seq: int, keys: int) -> int:
        """Of one head of one entry or sequence."""
        left, right = self.band
        shift = keys - seq
        pairs = 0
        for i in range(seq):
            begin = 0 if left is None else max(0, i + shift - left)
            end = keys if right is None else min(keys, i + shift + right + 1)
            pairs += max(0, end - begin)
        return pairs

    def flops(self, which: str) -> float:
        """Of the pass: two matrix products forward, five backward."""
        products = {"fwd": 2, "bwd": 5, "fwd+bwd": 7}[which]
        return 2.0 * products * self.pairs * self.dim

    def bytes_moved(self, which: str) -> int:
        """Every input read once and every output written once, LSE included."""
        query_side = self.heads * self.rows * self.dim * DTYPE_BYTES[self.dtype]
        key_side = self.kv_heads * self.key_rows * self.dim * DTYPE_BYTES[self.dtype]
        lse = self.heads * self.rows * 4
        forward = 2 * query_side + 2 * key_side + lse
        backward = 4 * query_side + 4 * key_side + lse  # Q O dO dQ, K V dK dV
        return {"fwd": forward, "bwd": backward, "fwd+bwd": forward + backward}[which]

    def __str__(self) -> str:
        """As cases/README.md writes it."""
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        dtype = next(short for short, name in DTYPES.items() if name == self.dtype)
        lengths = f"s{self.seq}" if self.seq == self.keys else f"q{self.seq} k{self.keys}"
        sizes = self.packed_text() or f"b{self.batch}"
        words = [f"{sizes} h{heads} d{self.dim} {dtype}"]
        if not self.packed:
            words = [f"{sizes} h{heads} {lengths} d{self.dim} {dtype}"]
        words += ["causal"] if self.causal else []
        words += [option for option in self._served_options() if option]
        words += [f"layout={self.layout}"] if self.layout != "bhsd" else []
        words += ["pass=fwd"] if self.is_served else []
        return " ".join(words)

    def packed_text(self) -> str:
        return f"packed={','.join(map(str, self.packed))}" if self.packed else ""

    def window_text(self) -> str:
        sides = ("none" if side is None else str(side) for side in self.window)
        return f"window={','.join(sides)}" if self.has_window else ""

    def softcap_text(self) -> str:
        return f"softcap={self.softcap:g}" if self.softcap else ""

    @property
    def options(self) -> str:
        """The field `mask` of its rows: what more than "full or causal" there is."""
        return "+".join(filter(None, self._options())) or "none"

    def _options(self) -> tuple[str, ...]:
        return self.packed_text(), *self._served_options()

    def _served_options(self) -> tuple[str, ...]:
        lengths = self.key_lengths if self.is_served else ()
        keys = f"lengths={','.join(map(str, lengths))}" if lengths else ""
        return (
            self.window_text(),
            keys,
            f"paged={self.page}" if self.page else "",
            self.softcap_text(),
        )


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
    grid = parser.add_argument_group("grid: flags of `tilewise bench`, which override the preset")
    default = {"batch": "1", "heads": "1", "seq": "1024", "dim": "64", "dtype": "f32"}
    default |= {"impl": "flash", "pass": "fwd,bwd"}
    for name in ("batch", "heads", "seq", "dim", "dtype", "impl", "pass"):
        grid.add_argument(f"--{name}", default=default[name] if preset_line else None)
    for name in ("tokens", "hidden"):
        grid.add_argument(f"--{name}", type=int)
    for name in ("kv-heads", "seq-q", "seq-k", "packed", "lengths"):  # lists too
        grid.add_argument(f"--{name}")
    grid.add_argument("--paged", type=int, metavar="N", help="page size in rows")
    grid.add_argument("--layout", choices=("bhsd", "bshd"))
    grid.add_argument("--window", metavar="LEFT,RIGHT", help="- is unbounded")
    grid.add_argument("--softcap", type=float)
    grid.add_argument("--causal", action="store_true", default=None)
    if preset_line:
        for name in ("protocol", "repeat", "warmup", "view"):  # this command's timer has its own
            grid.add_argument(f"--{name}")


class UnsupportedPresetError(ValueError):
    """A preset that these peers have no problems for."""


def read_preset(path: Path, overrides: argparse.Namespace) -> list[Cell]:
    """The cells of a preset file; what `overrides` gives (not None) has the last word."""
    parser = argparse.ArgumentParser(prog=str(path), exit_on_error=False)
    grid_flags(parser, preset_line=True)
    cells: list[Cell] = []
    for line in path.read_text().splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if {"--score", "--mask", "--alibi"} & set(words):
            raise UnsupportedPresetError(
                f"{path.name} holds formulas: bench/cpu/expressions.py has its peers"
            )
        if "latent" in words:
            raise UnsupportedPresetError(f"{path.name} holds V inside of K: no peer here takes it")
        if "--case" in words:
            raise UnsupportedPresetError(f"{path.name} holds lines of cases: no peer reads them")
        flags = vars(parser.parse_args(words))
        given = {k: v for k, v in vars(overrides).items() if k in flags and v is not None}
        cells += expand(flags | given)
    return cells


def window_of(text: str) -> Window:
    """Of "1023,0" or "128,-". A side below 0 is refused: the peers read -1 as no bound."""
    sides = text.split(",")
    if len(sides) != 2 or not all(side == "-" or side.isdecimal() for side in sides):
        raise ValueError(f"--window '{text}': expected LEFT,RIGHT, 0 or more, no bound as -")
    left, right = (None if side == "-" else int(side) for side in sides)
    return left, right


def lengths_of(text: dict[str, str]) -> list[tuple[int, int]]:
    """(queries, keys): equal along --seq; every combination when one has a flag of its own."""
    if "seq_q" not in text and "seq_k" not in text:
        return [(n, n) for n in axis(text["seq"])]
    queries, keys = (axis(text.get(name, text["seq"])) for name in ("seq_q", "seq_k"))
    return [(q, k) for q in queries for k in keys]


def heads_of(text: dict[str, str], dim: int) -> list[tuple[int, int]]:
    """(query heads, key heads): equal, or every pair that divides."""
    heads = [max(1, int(text["hidden"]) // dim)] if "hidden" in text else axis(text["heads"])
    if "kv_heads" not in text:
        return [(h, h) for h in heads]
    pairs = [(h, kv) for h in heads for kv in axis(text["kv_heads"]) if h % kv == 0]
    if not pairs:
        counts = ",".join(map(str, heads))
        raise ValueError(f"--kv-heads '{text['kv_heads']}': expected divisors of {counts} heads")
    return pairs


def expand(flags: dict[str, object]) -> Iterator[Cell]:
    """All combinations: types and dims outermost, lengths innermost."""
    text = {name: str(value) for name, value in flags.items() if value is not None}
    window = window_of(text["window"]) if "window" in text else (None, None)
    sizes = (
        (dtype, dim, batch, heads, lengths)
        for dtype in text["dtype"].split(",")
        for dim in axis(text["dim"])
        for batch in axis("1" if "packed" in text else text["batch"])
        for heads in heads_of(text, dim)
        for lengths in ([(1, 1)] if "packed" in text else lengths_of(text))
    )
    for dtype, dim, batch, (heads, kv_heads), (seq, keys) in sizes:
        problem = Problem(
            max(1, int(text["tokens"]) // seq) if "tokens" in text else batch,
            heads,
            kv_heads,
            seq,
            dim,
            DTYPES[dtype],
            bool(flags["causal"]),
            None if keys == seq else keys,
            window,
            float(text.get("softcap", 0.0)),
            page=int(text.get("paged", 0)),
            layout=text.get("layout", "bhsd"),
        )
        if "lengths" in text:
            lengths = tuple(axis(text["lengths"]))
            problem = replace(problem, batch=len(lengths), seq_k=max(lengths), lengths=lengths)
        if "packed" in text:
            problem = Problem.of_packed(tuple(axis(text["packed"])), problem)
        passes = tuple(p for p in PASSES if p in text["pass"].split(","))
        yield Cell(problem, tuple(text["impl"].split(",")), passes)
