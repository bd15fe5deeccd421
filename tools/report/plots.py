"""What the page's script draws: series as plain numbers; colours and themes are the page's."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

from .data import OURS, Planner, Result, Row

PASSES = {"fwd": "forward", "bwd": "backward", "fwd+bwd": "forward and backward"}
ORDER = ("flash", "fa3", "cudnn", "fa2", "flex", "memeff", "fused", "eager", "baseline")
Plot = dict[str, Any]


def ordered(names: set[str]) -> list[str]:
    return [name for name in ORDER if name in names] + sorted(names - set(ORDER))


def label_of(row: Row) -> str:
    """ "flash", or a kernel's own name where several of one implementation are in the file."""
    return str(row.get("series", row["implementation"]))


def name_series(rows: list[Row]) -> None:
    """Kernels of one implementation that share a problem are series of their own."""
    kernels: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    fields = ("implementation", "dtype", "batch", "heads", "seq_q", "head_dim", "causal", "pass")
    for row in rows:
        kernels[tuple(row.get(field) for field in fields)].add(str(row.get("kernel") or ""))
    several = {key[0] for key, names in kernels.items() if len(names) > 1}
    for row in rows:
        if row["implementation"] in several and row.get("kernel"):
            row["series"] = row["kernel"]


def shapes_of(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows that differ in length (and the batch that goes with it): one line of a plot each."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["dtype"], row["causal"], row["head_dim"], row["heads"]].append(row)
    out: dict[str, list[Row]] = {}
    for (dtype, causal, dim, heads), group in sorted(groups.items(), key=str):
        batches: dict[int, set[int]] = defaultdict(set)
        for row in group:
            batches[row["seq_q"]].add(row["batch"])
        split = any(len(found) > 1 for found in batches.values())
        parts = {row["batch"] for row in group} if split else {None}
        for batch in sorted(parts, key=str):
            chosen = [row for row in group if batch is None or row["batch"] == batch]
            if len({row["seq_q"] for row in chosen}) < 2:
                continue
            told = sorted({row["batch"] for row in chosen})
            size = f"batch {told[0]}" if len(told) == 1 else f"batch {told[0]} to {told[-1]}"
            mask = "causal" if causal else "full"
            out[f"{dtype}, {mask}, dim {dim}, {size}, heads {heads}"] = chosen
    return out


def line(rows: list[Row], name: str, which: str, field: str) -> Plot | None:
    points = sorted(
        (row["seq_q"], row[field])
        for row in rows
        if label_of(row) == name
        and row["pass"] == which
        and row["status"] == "ok"
        and (row.get(field) or 0) > 0
    )
    if not points:
        return None
    return {"name": name, "x": [x for x, _ in points], "y": [y for _, y in points]}


def panel(title: str, series: list[Plot | None], unit: str, *, log_y: bool = True) -> Plot | None:
    kept = [one for one in series if one]
    if not kept:
        return None
    return {"title": title, "series": kept, "y": unit, "x": "length", "logY": log_y}


def gains(rows: list[Row], names: list[str], which: str) -> list[Plot | None]:
    """How many times faster flash is than each of the others."""
    flash = line(rows, "flash", which, "ms_median")
    out: list[Plot | None] = []
    for name in names:
        other = line(rows, name, which, "ms_median")
        if name == "flash" or not flash or not other:
            continue
        own = dict(zip(flash["x"], flash["y"], strict=True))
        both = [(x, y / own[x]) for x, y in zip(other["x"], other["y"], strict=True) if x in own]
        if both:
            out.append({"name": name, "x": [x for x, _ in both], "y": [y for _, y in both]})
    return out


def panels_of(rows: list[Row]) -> list[Plot]:
    """Time of each pass, rate, gain, memory: those that the rows have numbers for."""
    names = ordered({label_of(row) for row in rows})
    out: list[Plot | None] = []
    for which, words in PASSES.items():
        series = [line(rows, name, which, "ms_median") for name in names]
        out.append(panel(f"Time, {words}", series, "ms"))
    passes = [which for which in PASSES if any(row["pass"] == which for row in rows)]
    first = passes[0]
    rates = [line(rows, name, first, "tflops") for name in names]
    out.append(panel(f"Rate, {PASSES[first]}", rates, "TFLOP/s", log_y=False))
    for which in passes[:2]:
        title = f"Times faster than the others, {PASSES[which]}"
        out.append(panel(title, gains(rows, names, which), "times", log_y=False))
    memory = "bwd" if "bwd" in passes else first
    peaks = [line(rows, name, memory, "peak_mib") for name in names]
    out.append(panel(f"Peak memory, {PASSES[memory]}", peaks, "MiB"))
    return [one for one in out if one]


def roofline(machine: str, hardware: dict[str, Any], results: list[Result]) -> Plot | None:
    """Ceilings of the machine, and what our kernels reached: FLOP a byte, TFLOP/s."""
    points: dict[str, list[Row]] = defaultdict(list)
    for result in results:
        if result.machine != machine:
            continue
        for row in result.rows:
            measured = row["status"] == "ok" and row.get("tflops") and row.get("gbps")
            if measured and row["implementation"] in OURS:
                points[row["implementation"]].append(row)
    entry = next((m for m in hardware.values() if m.get("matches", "?") in machine), None)
    if entry is None or not points:
        return None
    series = []
    for name in ordered(set(points)):
        rows = points[name]
        series.append(
            {
                "name": name,
                "x": [1e3 * row["tflops"] / row["gbps"] for row in rows],
                "y": [row["tflops"] for row in rows],
                "text": [
                    f"{row['kernel']} {row['pass']} {row['dtype']} {row['seq_q']}" for row in rows
                ],
            }
        )
    if entry["device"] == "cpu":
        tops = {"float32": entry["float32_tflops"]}
    else:
        tera = 2e-6 * entry["clock_mhz"] * entry["multiprocessors"]
        tops = {
            "bf16": tera * entry["matrix_fma_per_clock"],
            "float32": tera * entry["float32_fma_per_clock"],
        }
    return {
        "title": f"Roofline, {machine}",
        "series": series,
        "ceilings": [{"name": name, "tflops": value} for name, value in tops.items()],
        "gbps": entry["bandwidth_gbps"],
        "x": "FLOP a byte",
        "y": "TFLOP/s",
    }


def accuracy(compared: list[Row]) -> tuple[Plot, list[list[str]]]:
    """Predicted over measured times, and the errors of each kernel."""
    kernels: dict[str, list[Row]] = defaultdict(list)
    names: dict[str, list[Row]] = defaultdict(list)
    for row in compared:
        kernels[row["kernel"]].append(row)
        names[row["implementation"]].append(row)
    series = [
        {
            "name": name,
            "x": [row["measured_ms"] for row in names[name]],
            "y": [row["predicted_ms"] / row["measured_ms"] for row in names[name]],
            "text": [f"{row['kernel']}, {row['problem']}" for row in names[name]],
        }
        for name in ordered(set(names))
    ]
    table = []
    for name, rows in sorted(kernels.items()):
        errors = sorted(abs(row["error_percent"]) for row in rows)
        p90 = errors[min(len(errors) - 1, round(0.9 * (len(errors) - 1)))]
        median = statistics.median(errors)
        table.append(
            [name, str(len(rows)), f"{median:.1f} %", f"{p90:.1f} %", f"{errors[-1]:.1f} %"]
        )
    plot = {"title": "Predicted over measured", "series": series, "x": "measured, ms"}
    return {**plot, "y": "predicted / measured"}, table


def sections(results: list[Result]) -> list[Plot]:
    """A section a file: its shapes, each with its panels."""
    out = []
    for result in results:
        name_series(result.rows)
        shapes = {label: panels_of(rows) for label, rows in shapes_of(result.rows).items()}
        out.append({"name": result.name, "shapes": {k: v for k, v in shapes.items() if v}})
    return out


def plan_of(planner: Planner, results: list[Result]) -> list[Row]:
    return [row for result in results for row in planner.against(result)]
