"""Ratios of the peers' times to ours, cell by cell, and their geometric means."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]
OURS = ("flash", "fused", "eager", "baseline")
SHAPE = ("dtype", "causal", "head_dim", "batch", "heads", "kv_heads", "seq_q", "protocol")


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(x) for x in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def by_cell(rows: list[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Measured rows of each problem and pass."""
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["status"] == "ok":
            cells.setdefault((*(row[f] for f in SHAPE), row["pass"]), []).append(row)
    return cells


def label(row: Row) -> str:
    return f"{row['implementation']} {row['kernel']}" if row["implementation"] in OURS else ""


def ratios(rows: list[Row], ours: str, against: str = "") -> dict[tuple[Any, ...], float]:
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
    lengths = sorted({cell[6] for cell in found})
    lines = [f"time of {against or 'the best peer'} / ours ({ours}); above 1 ours is faster"]
    lines.append(f"{'':34}" + "".join(f"{n:>8}" for n in lengths) + "   geomean")
    groups: dict[tuple[Any, ...], dict[int, float]] = {}
    for cell, ratio in found.items():
        groups.setdefault((cell[-1], *cell[:3], cell[4], cell[7]), {})[cell[6]] = ratio
    for key in sorted(groups, key=str):
        which, dtype, causal, dim, heads, _ = key
        name = f"{which:8}{dtype:9} d{dim:<4} h{heads:<3}{'causal' if causal else 'full':7}"
        cells = "".join(
            f"{groups[key][n]:8.3f}" if n in groups[key] else f"{'-':>8}" for n in lengths
        )
        lines.append(f"{name:34}{cells}{geomean(groups[key].values()):10.3f}")
    for which in sorted({cell[-1] for cell in found}):
        values = [r for cell, r in found.items() if cell[-1] == which]
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
