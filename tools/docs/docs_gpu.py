"""Sections of docs/performance.md about GPU results: lengths across, ratios, the seeds beside ours.

Every number comes from bench/results or, for what the seed documents say, from cases.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from bench.peers import summary

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
PASS_NAMES = {"fwd": "forward", "bwd": "backward", "fwd+bwd": "both"}
SCALED = "another run's, scaled by cuDNN"
NAMES = {
    "cudnn": "cuDNN",
    "fa2": "FlashAttention-2",
    "fa3": "FlashAttention-3",
    "flex": "FlexAttention",
    "memeff": "memory-efficient",
    "math": "SDPA's math path",
    "flash-attn-2": "flash_attn 2",
    "flash-attn-3": "flash_attn 3",
    "flash-attn-4": "flash_attn 4",
    "seed-eager": "seed 001's table",
    "seed-fused": "seed 000's table",
    "torch-eager": "eager PyTorch",
    "torch-compile": "torch.compile",
}
LAYERS = {
    "layer-original": "original layers",
    "layer-flash": "flash layers",
    "layer-adaptive": "adaptive layers",
}
ORDER = ["flash", "fused", "eager", "baseline", *NAMES, *LAYERS]
TITLES = {
    "grid": "The field's grid: 16,384 tokens, hidden size 2048, bf16",
    "grid1024": "The grid's length 1024 with every peer in one process",
    "peers": "Peers alone, the day before",
    "leaderboard": "Seed 004's leaderboard",
    "assignment": "The assignment: one head, batch 1, causal",
    "seed-flash": "The seeds' grid, flash",
    "seed-fused": "The seeds' grid, fused",
    "seed-eager": "The seeds' grid, eager",
    "seed-protocol": "The seeds' grid by the seeds' own protocol",
    "seed-asam": "Seed 003: eager in float32 beside flash in 16 bits, batch 2, 4 heads",
    "asam": "Seed 003's layers in C++: inference at batch 2, training steps at batch 4",
    "fp16": "The grid in float16",
    "choice": "The sm_90a rows in the call of the sm_80 rows' grid",
    "flex": "The grid beside FlexAttention",
    "sustained": "Sustained: launches back to back",
    "options": "Grouped heads, a window, a softcap and one query: 16 heads or 32, bf16",
    "decode": "One query over long keys: grouped heads, bf16",
    "drawn": "Drawn shapes: dense",
    "served": "Drawn shapes: caches and pages",
    "paths": "Every path of PyTorch: 16,384 tokens, hidden size 2048, bf16",
    "precision": "Every type: 16 heads, batch 1, causal",
    "baseline-scaling": "Seed 002: growth of the textbook's time, gain of flash",
}


def number(row: Row | None, field: str) -> str:
    """Three digits, or why there is none."""
    if row is None:
        return "-"
    if row["status"] != "ok":
        words = {"oom": "OOM", "timeout": "too long", "unsupported": "-"}
        return words.get(row["status"], row["status"])
    value = row[field]
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def scaled_peers(rows: list[Row], runs: list[list[Row]]) -> list[Row]:
    """Peers that were measured in other runs, at the cells of `rows`, for tables and plots.

    Their time is multiplied by what cuDNN took in the run of `rows` over what it took in theirs, so
    that the card's temperature drops out; both sides of each run had one protocol.
    """

    def cell(row: Row) -> tuple[Any, ...]:
        return tuple(row[f] for f in (*summary.SHAPE[:-1], "pass"))

    def known(some: list[Row]) -> dict[tuple[str, tuple[Any, ...]], Row]:
        return {(r["implementation"], cell(r)): r for r in some if r["status"] == "ok"}

    here = known(rows)
    out = []
    for there, (name, at), row in ((k, at, row) for k in map(known, runs) for at, row in k.items()):
        ours, theirs = here.get(("cudnn", at)), there.get(("cudnn", at))
        if (name, at) in here or ours is None or theirs is None:
            continue
        factor = ours["ms_median"] / theirs["ms_median"]
        moved = {"ms_median": row["ms_median"] * factor, "tflops": row["tflops"] / factor}
        out.append({**row, **moved, "protocol": ours["protocol"], "kernel": SCALED})
        here[name, at] = row
    return out


def contender(row: Row) -> str:
    """Peers by name, ours by kernel row."""
    name = row["implementation"]
    if row["kernel"] == SCALED:
        return f"{NAMES[name]} (scaled)"
    return (NAMES | LAYERS).get(name, f"**{row['kernel'] or name}**")


def line_of(row: Row, several: set[str]) -> tuple[Any, ...]:
    """What the rows of one line have in common, in the order of the lines.

    Of heads and batch only what takes `several` values: a batch may go with the length.
    """
    cell = summary.Cell.of(row)
    words = [f"{cell.heads} heads"] if "heads" in several else []
    words += [cell.options] if cell.options else []
    words += [f"batch {cell.batch}"] if "batch" in several and "batch" not in cell.options else []
    problem = (cell.dtype, cell.head_dim, cell.causal, ", ".join(words))
    by = (ORDER.index(row["implementation"]), contender(row))
    return (*problem, list(PASS_NAMES).index(cell.which), cell.protocol, *by)


def several_at_one_length(rows: list[Row]) -> set[str]:
    """Which of heads and batch tells lines of the table apart that are otherwise the same."""
    several: set[str] = set()
    for name in ("heads", "batch"):
        values: dict[tuple[Any, ...], set[int]] = {}
        for row in rows:
            at = (*line_of(row, several), summary.Cell.of(row).length)
            values.setdefault(at, set()).add(row[name])
        several |= {name for found in values.values() if len(found) > 1}
    return several


def wide_table(rows: list[Row], field: str) -> list[str]:
    """Lengths across; a line for each type, mask, dim, options, pass and contender."""
    cells = sorted(map(summary.Cell.of, rows), key=lambda cell: (cell.seq_q, cell.seq_k))
    lengths = list(dict.fromkeys(cell.length for cell in cells))
    lines = ["| | pass | by | " + " | ".join(lengths) + " |"]
    lines.append("|---|---|---|" + "---:|" * len(lengths))
    groups: dict[tuple[Any, ...], dict[str, Row]] = {}
    several = several_at_one_length(rows)
    for row in rows:
        groups.setdefault(line_of(row, several), {})[summary.Cell.of(row).length] = row
    last: tuple[Any, ...] = ()
    for key in sorted(groups):
        dtype, dim, causal, options, which, protocol, _, name = key
        mask = "causal" if causal else "full"
        told = f", {options}" if options else ""
        problem = f"{dtype}, dim {dim}, {mask}{told}" if key[:4] != last[:4] else ""
        extra = "" if protocol == "burst" else f", {protocol}"
        shown = list(PASS_NAMES.values())[which] + extra if key[:6] != last[:6] else ""
        values = " | ".join(number(groups[key].get(n), field) for n in lengths)
        lines.append(f"| {problem} | {shown} | {name} | {values} |")
        last = key
    return lines


def ratio_section(rows: list[Row]) -> list[str]:
    """Ours against the best peer of each cell, one protocol at a time."""
    lines: list[str] = []
    for protocol in dict.fromkeys(row["protocol"] for row in rows):
        of_protocol = [row for row in rows if row["protocol"] == protocol]
        for ours in summary.OURS:
            if not summary.ratios(of_protocol, ours):
                continue
            title = f"{protocol}, " if protocol != "burst" else ""
            lines += ["", "```text", title + summary.table(of_protocol, ours, "")[0]]
            lines += [*summary.table(of_protocol, ours, "")[1:], "```"]
    return lines


def published() -> dict[str, Any]:
    return json.loads((ROOT / "cases" / "seeds_published.json").read_text())


def seeds_beside(rows: list[Row]) -> list[str]:
    """Seed 004's six tables of an RTX 4090 beside our flash rows at the same shapes."""
    claims = published()["assignment"]
    ours: dict[str, dict[tuple[int, str], Row]] = {}
    for row in rows:
        if (
            row["implementation"] == "flash"
            and row["head_dim"] == 16
            and row["protocol"] == "burst"
        ):
            best = ours.setdefault(row["dtype"], {})
            at = (row["seq_q"], row["pass"])
            if row["status"] == "ok" and (
                at not in best or row["ms_median"] < best[at]["ms_median"]
            ):
                best[at] = row
    tables = claims["tables"]
    lines = ["", f"Beside ours on the card above, milliseconds: {claims['source']}:"]
    for which, field in (("fwd", "forward_ms"), ("fwd+bwd", "forward_backward_ms")):
        mine = [f"**ours, {dtype}**" for dtype in ours]
        lines += ["", f"| {PASS_NAMES[which]} | " + " | ".join([*tables, *mine]) + " |"]
        lines.append("|---:|" + "---:|" * len([*tables, *mine]))
        for at, first in enumerate(next(iter(tables.values()))):
            seq = first["seq_len"]
            values = [table[at][field] for table in tables.values()]
            theirs = ["nan" if v is None else f"{v:.3g}" for v in values]
            own = [number(ours[dtype].get((seq, which)), "ms_median") for dtype in ours]
            lines.append(f"| {seq} | " + " | ".join(theirs + own) + " |")
    return lines


def slope(points: list[tuple[float, float]]) -> float:
    """Exponent of the power law through the points, by least squares."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    above = sum((x - mean_x) * (y - mean_y) for x, y in logs)
    return above / sum((x - mean_x) ** 2 for x, _ in logs)


def scaling_section(rows: list[Row]) -> list[str]:
    """Measured growth along each dimension and gain of flash, beside seed 002's claims."""
    claims = published()["baseline-scaling"]
    base = {"seq_q": 512, "batch": 1, "heads": 1, "head_dim": 64}
    found = {
        (r["implementation"], *(r[axis] for axis in base)): r for r in rows if r["status"] == "ok"
    }
    lines = ["", "| along | values | ms | exponent | claimed |", "|---|---|---|---:|---:|"]
    claimed = {"seq_q": "2", "batch": "1", "heads": "1", "head_dim": "memory unchanged"}
    for axis in base:
        points = []
        for key, row in sorted(found.items()):
            others = [a for a in base if a != axis and row[a] != base[a]]
            if key[0] == "baseline" and not others:
                points.append((row[axis], row["ms_median"]))
        points.sort()
        if len(points) < 2:
            continue
        values = ", ".join(str(x) for x, _ in points)
        times = ", ".join(f"{y:.3g}" for _, y in points)
        lines.append(f"| {axis} | {values} | {times} | {slope(points):.2f} | {claimed[axis]} |")
        if axis == "seq_q" and len([x for x, _ in points if x >= 2048]) > 1:
            tail = slope([p for p in points if p[0] >= 2048])
            lines.append(f"| seq_q, from 2048 | | | {tail:.2f} | 2 |")
    lines += ["", "| length | baseline, ms | flash, ms | gain | claimed |", "|---:|" + "---:|" * 4]
    for claim in claims["claimed_flash_speedup"]:
        pair = [found.get((n, claim["seq_len"], 1, 1, 64)) for n in ("baseline", "flash")]
        if None in pair:
            continue
        gain = pair[0]["ms_median"] / pair[1]["ms_median"]
        times = " | ".join(number(row, "ms_median") for row in pair)
        lines.append(f"| {claim['seq_len']} | {times} | {gain:.1f} | {claim['speedup']} |")
    return lines


def seed_tables(like: Row) -> list[Row]:
    """The tables of seeds 001 and 000 as rows; their card is not named."""
    rows = []
    for name in ("seed-eager", "seed-fused"):
        for row in published()[name]["rows"]:
            shape = {"seq_q": row["seq_len"], "seq_k": row["seq_len"], "head_dim": row["d_model"]}
            shape |= {"implementation": name}
            for which, word in (("fwd", "forward"), ("bwd", "backward")):
                ms, live = row.get(f"{word}_ms_mean"), row.get("memory_mb")
                values = {"pass": which, "ms_mean": ms, "live_mib": live, "status": row["status"]}
                rows.append({**like, **shape, **values, "kernel": ""})
    return rows


def seed_protocol_section(rows: list[Row]) -> list[str]:
    """Means as the seeds give them, and the memory that they call a peak; theirs beside them."""
    measured, rows = rows, rows + seed_tables(rows[0])
    lines = ["", "Milliseconds, means of 100 runs:", "", *wide_table(rows, "ms_mean")]
    memory = [row for row in rows if row["pass"] == "bwd"]
    title = "MiB allocated before backward (the seeds' column `fwd_peak_mem_MB`):"
    return [*lines, *ratio_section(measured), "", title, "", *wide_table(memory, "live_mib")]


def ceilings_section(name: str, document: dict[str, Any], machine: str) -> list[str]:
    """What `tilewise info --measure` found out about a card."""
    lines = ["", f"## What the card reaches at most ({name})", "", machine + ".", ""]
    lines += ["| | measured | | vendor | share | how |", "|---|---:|---|---:|---:|---|"]
    for row in document["ceilings"]:
        vendor, share = row["vendor"], row["of_vendor"]
        told = f"{vendor:,.0f} | {share:.2f}" if vendor else " | "
        value = f"{row['measured']:,.0f}" if row["measured"] >= 100 else f"{row['measured']:.3g}"
        lines.append(f"| {row['ceiling']} | {value} | {row['unit']} | {told} | {row['how']} |")
    return [
        *lines,
        "",
        "Vendor: figures of cases/hardware.json; rates are those of one clock at the highest.",
    ]


def section(name: str, rows: list[Row], peers: list[list[Row]]) -> list[str]:
    """The tables of one GPU result file; `peers` are rows of other runs, for the grid."""
    preset = Path(name).stem.rsplit("-", 1)[0]
    if preset == "peers":
        return ["", "These rows enter the tables above, scaled by cuDNN."]
    if preset == "grid":
        rows = rows + scaled_peers(rows, peers)
    if preset == "baseline-scaling":
        own = [r for r in rows if r["batch"] * r["heads"] == 1 or r["seq_q"] == 512]
        return scaling_section([r for r in own if r["pass"] == "fwd"])
    if preset == "seed-protocol":
        return seed_protocol_section(rows)
    field, unit = (
        ("tflops", "TFLOP/s")
        if preset in ("grid", "grid1024", "fp16", "flex", "sustained", "paths", "peers")
        else ("ms_median", "Milliseconds")
    )
    lines = ["", f"{unit}, medians:", "", *wide_table(rows, field), *ratio_section(rows)]
    if preset == "asam":
        memory = ["", "Peak MiB:", "", *wide_table(rows, "peak_mib")]
        # Times of asam-memory are those of a single step, which may compile kernels.
        lines = memory if Path(name).stem == "asam-memory" else lines + memory
    if preset.startswith("seed"):
        memory = [row for row in rows if row["pass"] == "bwd"]
        lines += ["", "Peak MiB of forward and backward:", "", *wide_table(memory, "peak_mib")]
    if Path(name).stem == "assignment-sm80":
        lines += seeds_beside(rows)
    return lines


def readme_table(rows: list[Row], peers: list[list[Row]]) -> list[str]:
    """The grid's causal cells, dim 128: what a reader compares first."""
    rows = rows + scaled_peers(rows, peers)
    some = [r for r in rows if r["causal"] and r["head_dim"] == 128 and r["protocol"] == "burst"]
    return wide_table(some, "tflops")
