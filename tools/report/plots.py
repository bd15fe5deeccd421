"""Series that the page's script draws, as plain numbers. Colours and themes are the page's."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

from .data import OURS, Planner, Result, Row

PASSES = {"fwd": "forward", "bwd": "backward", "fwd+bwd": "forward and backward"}
ORDER = ("flash", "fa3", "cudnn", "fa2", "flex", "memeff", "fused", "eager", "baseline")
COLOURS = {
    "flash": "#1f9d6b", "fused": "#d98e04", "eager": "#d1495b", "baseline": "#8a8f98",
    "reference": "#5c677d", "fa2": "#3a86ff", "fa3": "#8e5bea", "cudnn": "#b8a000",
    "memeff": "#e0439a", "flex": "#e4632e", "torch-eager": "#17a2b8", "torch-compile": "#a17c5b",
}  # fmt: skip
OTHERS = (
    "#1f9d6b", "#3a86ff", "#e4632e", "#8e5bea", "#b8a000", "#17a2b8", "#e0439a", "#8a8f98",
    "#d1495b", "#a17c5b", "#6a994e", "#bc6c25", "#4361ee", "#9d4edd",
)  # fmt: skip
Plot = dict[str, Any]

# What a row holds beside its problem; every other field makes the problem.
MEASURED = {
    "implementation", "kernel", "pass", "status", "reason", "series", "file", "limit", "device",
    "ms_mean", "ms_std", "ms_median", "ms_min", "tflops", "gbps", "live_mib", "peak_mib", "run",
    "live_with_workspace_mib",
}  # fmt: skip
SIZES = {"batch", "seq_q", "seq_k"}


def ordered(names: set[str]) -> list[str]:
    return [name for name in ORDER if name in names] + sorted(names - set(ORDER))


def colours(names: list[str]) -> dict[str, str]:
    """A colour a name, all different while there are enough."""
    chosen = {name: COLOURS[name] for name in names if name in COLOURS}
    left = [colour for colour in OTHERS if colour not in chosen.values()]
    others = [name for name in names if name not in chosen]
    return chosen | {name: left[i % len(left)] for i, name in enumerate(others)}


def label_of(row: Row) -> str:
    """ "flash", or a kernel's own name where several of one implementation are in the file."""
    return str(row.get("series", row["implementation"]))


def problem_of(row: Row) -> dict[str, Any]:
    """The fields that make a problem, sizes aside; a GPU's row is no matter of host threads."""
    on_cpu = str(row.get("device", "cpu")).startswith("cpu")
    ignored = MEASURED | SIZES | (set() if on_cpu else {"threads"})
    return {name: value for name, value in row.items() if name not in ignored}


def name_series(rows: list[Row]) -> None:
    """Kernels of one implementation that share a problem are series of their own."""
    kernels: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    for row in rows:
        problem = (*problem_of(row).items(), *(row[size] for size in sorted(SIZES)), row["pass"])
        kernels[row["implementation"], problem].add(str(row.get("kernel") or ""))
    several = {key[0] for key, names in kernels.items() if len(names) > 1}
    for row in rows:
        if row["implementation"] in several and row.get("kernel"):
            row["series"] = row["kernel"]


def words_of(row: Row, told: list[str]) -> str:
    """ "bfloat16, causal, dim 64, heads 32 (8 of K and V)", then options and what is `told`."""
    heads = f"heads {row['heads']}"
    if row["kv_heads"] != row["heads"]:
        heads += f" ({row['kv_heads']} of K and V)"
    parts = [row["dtype"], "causal" if row["causal"] else "full", f"dim {row['head_dim']}"]
    usual = {"mask": "none", "precision": "exact", "deterministic": False, "layout": "bhsd"}
    for name, value in problem_of(row).items():
        known = name in ("dtype", "causal", "head_dim", "head_dim_v", "heads", "kv_heads")
        if known or value is None or value == usual.get(name):
            continue
        if name == "protocol":
            parts.append(str(value))
        elif name == "threads":
            parts.append(f"{value} thread{'s' if value != 1 else ''}")
        else:
            parts.append(str(value) if name == "mask" else f"{name} {value}")
    return ", ".join([*parts[:3], heads, *told, *parts[3:]])


def axes_of(row: Row) -> list[tuple[str, dict[str, int]]]:
    """Axes that a row may be drawn along, and the sizes that stay."""
    if row["seq_q"] == row["seq_k"]:
        return [("length", {})]
    return [("keys", {"queries": row["seq_q"]}), ("queries", {"keys": row["seq_k"]})]


FIELDS = {"length": "seq_q", "keys": "seq_k", "queries": "seq_q"}


def shapes_of(rows: list[Row]) -> dict[str, tuple[str, list[Row]]]:
    """Label -> the axis and the rows of one plot: they differ in the axis's size, and in a batch
    that keeps the number of tokens."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        for axis, fixed in axes_of(row):
            groups[(axis, *fixed.items(), *sorted(problem_of(row).items(), key=str))].append(row)
    out: dict[str, tuple[str, list[Row]]] = {}
    for (axis, *_), group in sorted(groups.items(), key=str):
        field = FIELDS[axis]
        fixed = dict(axes_of(group[0])).get(axis, {})
        told = [f"{size} {name}" for name, size in fixed.items()]
        tokens = {row["batch"] * row[field] for row in group}
        batches = {row["batch"] for row in group}
        together = len(tokens) == 1 and len(batches) > 1
        for batch in [None] if together else sorted(batches):
            chosen = [row for row in group if batch in (None, row["batch"])]
            if len({row[field] for row in chosen}) < 2:
                continue
            size = f"batch {max(batches)} to {min(batches)}" if together else f"batch {batch}"
            out[words_of(chosen[0], [size, *told])] = (axis, chosen)
    return out


def line(rows: list[Row], name: str, which: str, field: str, axis: str) -> Plot | None:
    """A point for each size; of several rounds the last."""
    points = {
        row[FIELDS[axis]]: row[field]
        for row in rows
        if label_of(row) == name
        and row["pass"] == which
        and row["status"] == "ok"
        and (row.get(field) or 0) > 0
    }
    if not points:
        return None
    sizes = sorted(points)
    return {"name": name, "x": sizes, "y": [points[size] for size in sizes]}


def panel(
    title: str, series: list[Plot | None], unit: str, axis: str, *, log_y: bool = True
) -> Plot | None:
    kept = [one for one in series if one]
    if not kept:
        return None
    chosen = colours([one["name"] for one in kept])
    for one in kept:
        one["color"] = chosen[one["name"]]
    return {"title": title, "series": kept, "y": unit, "x": axis, "logY": log_y}


def named_baseline(rows: list[Row], which: str) -> str:
    """The series of flash that has most points: what the gains are those of."""
    found: dict[str, int] = defaultdict(int)
    for row in rows:
        if row["implementation"] == "flash" and row["pass"] == which and row["status"] == "ok":
            found[label_of(row)] += 1
    return max(sorted(found), key=lambda name: found[name], default="")


def gains(rows: list[Row], names: list[str], which: str, own: str, axis: str) -> list[Plot | None]:
    """How many times faster `own` is than each of the others."""
    flash = line(rows, own, which, "ms_median", axis)
    out: list[Plot | None] = []
    for name in names:
        other = line(rows, name, which, "ms_median", axis)
        if name == own or not flash or not other:
            continue
        mine = dict(zip(flash["x"], flash["y"], strict=True))
        both = [(x, y / mine[x]) for x, y in zip(other["x"], other["y"], strict=True) if x in mine]
        if both:
            out.append({"name": name, "x": [x for x, _ in both], "y": [y for _, y in both]})
    return out


def panels_of(rows: list[Row], axis: str) -> list[Plot]:
    """Time of each pass, rate, gain, memory: those that the rows have numbers for."""
    names = ordered({label_of(row) for row in rows})
    out: list[Plot | None] = []
    for which, words in PASSES.items():
        series = [line(rows, name, which, "ms_median", axis) for name in names]
        out.append(panel(f"Time, {words}", series, "ms", axis))
    passes = [which for which in PASSES if any(row["pass"] == which for row in rows)]
    first = passes[0]
    rates = [line(rows, name, first, "tflops", axis) for name in names]
    out.append(panel(f"Rate, {PASSES[first]}", rates, "TFLOP/s", axis, log_y=False))
    for which in passes[:2]:
        own = named_baseline(rows, which)
        title = f"{own} over the others, {PASSES[which]}"
        found = gains(rows, names, which, own, axis)
        out.append(panel(title, found, "times faster", axis, log_y=False))
    memory = "bwd" if "bwd" in passes else first
    peaks = [line(rows, name, memory, "peak_mib", axis) for name in names]
    out.append(panel(f"Peak memory, {PASSES[memory]}", peaks, "MiB", axis))
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
    chosen = colours(ordered(set(points)))
    for name in ordered(set(points)):
        rows = points[name]
        series.append(
            {
                "name": name,
                "color": chosen[name],
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
    chosen = colours(ordered(set(names)))
    series = [
        {
            "name": name,
            "color": chosen[name],
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
        found = shapes_of(result.rows).items()
        shapes = {label: panels_of(rows, axis) for label, (axis, rows) in found}
        out.append({"name": result.name, "shapes": {k: v for k, v in shapes.items() if v}})
    return out


def plan_of(planner: Planner, results: list[Result]) -> dict[str, list[Row]]:
    """Measured rows beside today's plan, by file."""
    return {result.name: planner.against(result) for result in results}


def older_peaks(compared: dict[str, list[Row]]) -> list[list[str]]:
    """Files whose kernels took other memory than today's: their times are of older kernels too.

    A row whose live memory differs was metered otherwise (a forward that keeps nothing), not older.
    """
    found = []
    for name, rows in compared.items():
        factors = []
        for row in rows:
            peak, planned = row["peak_MiB"], row["planned_peak_MiB"]
            live = row["live_MiB"] or row["planned_live_MiB"]
            if not peak or abs(live / row["planned_live_MiB"] - 1) > 0.01:
                continue
            factors.append(max(peak / planned, planned / peak))
        other = sum(factor > 1.01 for factor in factors)
        if other:
            found.append([name, f"{other} of {len(factors)}", f"{max(factors):.2f}"])
    return found


# The questions that files answer: a title, and how the files' names begin. A CPU's are one group.
QUESTIONS = (
    ("The leaderboard: 16 heads of 64, length 16384", ("leaderboard",)),
    ("The assignment: one head, causal, 128 to 65536", ("assignment",)),
    (
        "The grid beside the peers: dims 64 to 256",
        ("grid", "choice", "sustained", "paths", "peers"),
    ),
    ("The seeds' own shapes", ("seed", "asam", "baseline-scaling")),
    ("Shapes that people train", ("training", "vision", "cross", "small", "packed", "drawn")),
    ("Serving: caches, pages, shared prefixes", ("serving", "served", "shared", "decode", "mla")),
    ("Options and masks", ("options", "flex", "lists", "expressions")),
    ("Types and precisions", ("fp16", "precision")),
)
ON_CPU, REST = "On CPUs", "Other files"
WORDS = {
    "asam-forward": "Seed 003: layers, inference", "asam-memory": "Seed 003: layers, memory",
    "asam-training": "Seed 003: layers, training steps",
    "assignment": "The assignment's cells", "baseline-scaling": "Seed 002: the baseline's growth",
    "choice": "The plan's choice, on the grid", "cross": "Other tokens as keys",
    "decode": "One query over 4k to 512k keys", "drawn": "Drawn shapes: dense",
    "expressions": "Functions of scores and masks",
    "flex": "Masks of FlexAttention", "fp16": "float16", "fused": "Eager and fused",
    "grid": "Grid", "grid1024": "Grid at length 1024", "leaderboard": "The leaderboard's step",
    "lists": "Block lists", "packed": "Packed sequences",
    "served": "Drawn shapes: caches and pages", "serving": "Decoding over caches and pages",
    "shared": "A prefix that sequences share", "small": "Short sequences",
    "training": "Training: grouped heads, masks, dropout, sinks", "vision": "Vision",
    "options": "Windows, softcap, grouped heads", "paths": "PyTorch's own paths",
    "peers-burst": "Peers alone, cool card", "peers-hot": "Peers alone, hot card",
    "precision": "float32, tf32, bfloat16, float16", "scaling": "Seed 002: the baseline's growth",
    "seed-asam": "Seed 003's attention", "seed-eager": "Seed 001: eager attention",
    "seed-flash": "Seeds 000 and 001: flash beside them", "seed-fused": "Seed 000: fused attention",
    "seed-protocol": "Seeds 000 and 001, timed as they time", "seeds": "Seeds 000 and 001",
    "short-queries": "Few queries: flash", "short-queries-eager": "Few queries: eager",
    "sustained": "Grid under sustained load",
}  # fmt: skip


def question_of(result: Result) -> str:
    if not result.on_gpu:
        return ON_CPU
    stem = result.path.stem
    return next((title for title, starts in QUESTIONS if stem.startswith(starts)), REST)


def title_of(result: Result) -> str:
    """ "Grid, kernels for sm_90": the file's name in words."""
    stem, _, arch = result.path.stem.rpartition("-sm")
    if not stem or not arch.isdigit():
        return WORDS.get(result.path.stem, "Against other CPU libraries" if not result.on_gpu else
                         result.path.stem.replace("-", " ").capitalize())  # fmt: skip
    return f"{WORDS.get(stem, stem.replace('-', ' ').capitalize())}, kernels for sm_{arch}"
