"""Ratios of the peers' times to ours, cell by cell, and their geometric means."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

Row = dict[str, Any]
OURS = ("flash", "fused", "eager", "baseline")
SHAPE = ("dtype", "causal", "head_dim", "batch", "heads", "kv_heads", "seq_q", "protocol")


class Cell(NamedTuple):
    """What rows that may be compared have in common: SHAPE, what rows may leave out, the pass."""

    dtype: str
    causal: bool
    head_dim: int
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    protocol: str
    seq_k: int
    mask: str  # what more there is than `causal` says
    which: str

    @staticmethod
    def of(row: Row) -> Cell:
        words = row.get("mask", "none").split("+")  # `tilewise bench` writes "causal" here too
        mask = "+".join(word for word in words if word != "causal") or "none"
        keys = row.get("seq_k", row["seq_q"])
        return Cell(*(row[name] for name in SHAPE), keys, mask, row["pass"])

    @property
    def length(self) -> str:
        return f"{self.seq_q}" if self.seq_q == self.seq_k else f"{self.seq_q}/{self.seq_k}"

    @property
    def options(self) -> str:
        """Of its line in the table. A batch that goes with the length is no part of it."""
        words = [f"{self.kv_heads} kv heads"] if self.heads != self.kv_heads else []
        words += [f"batch {self.batch}"] if self.seq_q != self.seq_k else []
        options = [word for word in self.mask.split("+") if word != "none"]
        words += [packed_words(o) if o.startswith("packed=") else o for o in options]
        return ", ".join(words)


def packed_words(option: str) -> str:
    """Of "packed=128,384,256": how many sequences, the shortest and the longest."""
    lengths = [int(n) for n in option.removeprefix("packed=").split("/")[0].split(",")]
    return f"{len(lengths)} packed, {min(lengths)} to {max(lengths)}"


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(x) for x in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def by_cell(rows: list[Row]) -> dict[Cell, list[Row]]:
    """Measured rows of each problem and pass."""
    cells: dict[Cell, list[Row]] = {}
    for row in rows:
        if row["status"] == "ok":
            cells.setdefault(Cell.of(row), []).append(row)
    return cells


def label(row: Row) -> str:
    """Our implementation, its rows, and whether the plan chose them; of a peer nothing."""
    if row["implementation"] not in OURS:
        return ""
    return f"{row['implementation']} {row['kernel']} {row.get('reason', '')}".rstrip()


def ratios(rows: list[Row], ours: str, against: str = "") -> dict[Cell, float]:
    """Time of the best peer (or of `against`) over ours, where both were measured."""
    out = {}
    for cell, present in by_cell(rows).items():
        mine = [r for r in present if r["implementation"] in OURS and ours in label(r)]
        peers = [r for r in present if r["implementation"] not in OURS]
        if against:
            peers = [r for r in present if r["implementation"] == against]
        if mine and peers:
            best = min(r["ms_median"] for r in peers)
            out[cell] = best / min(r["ms_median"] for r in mine)
    return out


def table(rows: list[Row], ours: str, against: str) -> list[str]:
    """Lengths across; one line for each type, mask, head dim and pass, with its geometric mean."""
    found = ratios(rows, ours, against)
    ordered = sorted(found, key=lambda cell: (cell.seq_q, cell.seq_k))
    lengths = list(dict.fromkeys(cell.length for cell in ordered))
    columns = {n: max(8, len(n) + 1) for n in lengths}
    width = max([34, *(len(cell.options) + 35 for cell in found if cell.options)])
    lines = [f"time of {against or 'the best peer'} / ours ({ours}); above 1 ours is faster"]
    head = "".join(f"{n:>{columns[n]}}" for n in lengths)
    lines.append(f"{'':{width}}{head}   geomean")
    groups: dict[tuple[Any, ...], dict[str, float]] = {}
    for c, ratio in found.items():
        key = (c.which, c.dtype, c.causal, c.head_dim, c.heads, c.protocol, c.options)
        groups.setdefault(key, {})[c.length] = ratio
    for key in sorted(groups, key=str):
        which, dtype, causal, dim, heads, _, options = key
        name = f"{which:8}{dtype:9} d{dim:<4} h{heads:<3}{'causal' if causal else 'full':7}"
        group = groups[key]
        cells = "".join(
            f"{group[n]:{columns[n]}.3f}" if n in group else f"{'-':>{columns[n]}}" for n in lengths
        )
        lines.append(f"{name + options:{width}}{cells}{geomean(group.values()):10.3f}")
    for which in sorted({cell.which for cell in found}):
        values = [r for cell, r in found.items() if cell.which == which]
        lines.append(
            f"{which}: {len(values)} cells, geomean {geomean(values):.3f}, "
            f"least {min(values):.3f}, {sum(v < 1 for v in values)} below 1"
        )
    return lines


def choices(rows: list[Row]) -> list[str]:
    """How often the plan's own choice is within 5 % of the best row of ours."""
    good, total, worst = 0, 0, []
    for cell, present in by_cell(rows).items():
        mine = [r for r in present if r["implementation"] == "flash"]
        chosen = [r for r in mine if "own choice" in r["reason"]]
        if len(mine) < 2 or not chosen:
            continue
        ratio = chosen[0]["ms_median"] / min(r["ms_median"] for r in mine)
        total += 1
        good += ratio <= 1.05
        worst.append((ratio, cell))
    if not total:
        return []
    worst.sort(key=lambda x: -x[0])
    lines = [f"the plan's choice is within 5 % of the best row on {good} of {total} cells"]
    return lines + [f"  {ratio:.3f} {cell}" for ratio, cell in worst[:5] if ratio > 1.05]


def failures(rows: list[Row]) -> list[str]:
    """What was not measured, and why, once for each reason."""
    seen: dict[tuple[str, ...], int] = {}
    for row in rows:
        if row["status"] != "ok":
            key = (row["implementation"], row["pass"], row["status"], row["reason"][:110])
            seen[key] = seen.get(key, 0) + 1
    return [f"{count} x {' | '.join(key)}" for key, count in seen.items()]
