"""The table of docs/cpu.md: our CPU kernels beside their peers, from a result of bench/cpu."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

Row = dict[str, Any]
PEERS = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime", "eager": "eager", "ggml": "ggml"}
PASS_NAMES = {"fwd": "forward", "bwd": "backward"}


def is_beside_peers(rows: list[Row]) -> bool:
    """Whether these are rows of bench/cpu."""
    return bool(rows) and "probe_fraction" in rows[0]


def groups(rows: list[Row]) -> list[list[Row]]:
    """Contestants of one case, ours first: a row of flash begins a case."""
    out: list[list[Row]] = []
    for row in rows:
        if row["implementation"] == "flash":
            out.append([])
        out[-1].append(row)
    return out


EVERYDAY_ROWS = "cpu-everyday-rows"
EVERYDAY = "cpu-everyday"  # the result of the preset of this name has tables of its own
EVERYDAY_TWO = "cpu-everyday-two"  # the same with two threads
PAGES = "pages"  # so has that of bench/cpu/pages.py


def everyday_kind(row: Row) -> str:
    if row["seq_q"] == 1:
        return "one query"
    if row["seq_q"] < row["seq_k"]:
        return "2 to 32 queries"
    return "short sequences" if row["batch"] >= 16 else "vision, odd head dims"


def best_ratio(contestants: list[Row]) -> float:
    """Time of the fastest peer's best round over ours."""
    return min(row["ms_min"] for row in contestants[1:]) / contestants[0]["ms_min"]


def shape_text(row: Row) -> str:
    """As cases/README.md writes it."""
    kv = row["kv_heads"]
    heads = f"{row['heads']}" if row["heads"] == kv else f"{row['heads']}/{kv}"
    same = row["seq_q"] == row["seq_k"]
    lengths = f"s{row['seq_q']}" if same else f"q{row['seq_q']} k{row['seq_k']}"
    words = [f"b{row['batch']} h{heads} {lengths} d{row['head_dim']}"]
    words += ["causal"] if row["causal"] else []
    words += [f"layout={row['layout']}"] if row["layout"] != "bhsd" else []
    return " ".join(words)


def everyday_summary(rows: list[Row]) -> list[str]:
    """Best peer's time over ours: a line for each kind of shape, pass and type."""
    found: dict[tuple[str, str, str], list[list[Row]]] = {}
    for contestants in groups(rows):
        ours = contestants[0]
        key = (everyday_kind(ours), PASS_NAMES[ours["pass"]], ours["dtype"])
        found.setdefault(key, []).append(contestants)
    lines = [
        "| shapes | pass | type | cells | geometric mean | least | at |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for (kind, name, dtype), cases in found.items():
        ratios = [best_ratio(case) for case in cases]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        least = cases[ratios.index(min(ratios))][0]
        told = f"| {kind} | {name} | {dtype} | {len(cases)} | {mean:.2f} | {min(ratios):.2f} "
        lines.append(told + f"| {shape_text(least)} |")
    return lines


def everyday_sentence(rows: list[Row]) -> str:
    """The best peer's time over ours, over all cells."""
    ratios = [best_ratio(case) for case in groups(rows)]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return (
        f"In {len(ratios)} [everyday shapes](cpu.md#everyday-shapes) the best peer takes "
        f"{mean:.2f} times our time (geometric mean), at least {min(ratios):.2f}."
    )


def everyday_block(machine: str, environment: dict[str, Any], rows: list[Row]) -> list[str]:
    lines = ["", f"{machine}. {environment['note']}.", ""]
    lines += ["The best peer's time divided by ours:", "", *everyday_summary(rows), ""]
    lines += ["| shape | pass | type | kernel | ms | PyTorch | ONNX Runtime |"]
    lines += ["|---|---|---|---|---:|---:|---:|"]
    for contestants in groups(rows):
        ours = contestants[0]
        told = f"| {shape_text(ours)} | {PASS_NAMES[ours['pass']]} | {ours['dtype']} "
        told += f"| {ours['kernel']} | {ours['ms_min']:.3g} "
        told += "".join(f"| {ratio(contestants, name)} " for name in ("torch", "onnxruntime"))
        lines.append(told + "|")
    return [*lines, ""]


def everyday_two(machine: str, rows: list[Row]) -> list[str]:
    """The summary, and the cells in which a peer is faster."""
    lines = [f"Two threads of an {machine}:", "", *everyday_summary(rows), ""]
    slower = [case for case in groups(rows) if best_ratio(case) < 1.0]
    if slower:
        lines += ["| a peer is faster | pass | type | ms | ratio |", "|---|---|---|---:|---:|"]
    for case in slower:
        ours = case[0]
        lines.append(
            f"| {shape_text(ours)} | {PASS_NAMES[ours['pass']]} | {ours['dtype']} "
            f"| {ours['ms_min']:.3g} | {best_ratio(case):.2f} |"
        )
    return [*lines, ""] if slower else lines


def pages_block(machine: str, rows: list[Row]) -> list[str]:
    """A cell is a row of contiguous keys and, behind it, those of pages of several sizes."""
    cells: list[list[Row]] = []
    for row in rows:
        if row["mask"] == "none":
            cells.append([])
        cells[-1].append(row)
    sizes = [row["mask"].rpartition("=")[2] for row in cells[0][1:]]
    lines = ["", f"{machine}.", ""]
    lines += [
        "| shape | type | kernel | threads | contiguous, ms | GB/s | reading, GB/s | "
        + " | ".join(f"page {size}" for size in sizes)
        + " |",
        "|---|---|---|---:|---:|---:|---:|" + "---:|" * len(sizes),
    ]
    for contiguous, *paged in cells:
        least = contiguous["ms_min"]
        gbps = contiguous["gbps"] * contiguous["ms_median"] / least
        told = f"| {shape_text(contiguous)} | {contiguous['dtype']} | {contiguous['kernel']} "
        told += f"| {contiguous['threads']} | {least:.2f} | {gbps:.1f} "
        told += f"| {contiguous['read_gbps']:.1f} "
        lines.append(told + "".join(f"| {row['ms_min'] / least:.2f} " for row in paged) + "|")
    return [*lines, ""]


def ratio(contestants: list[Row], name: str) -> str:
    """Time of a peer's best round over ours."""
    for row in contestants:
        if row["implementation"] == name:
            return f"{row['ms_min'] / contestants[0]['ms_min']:.2f}"
    return "-"


def table(rows: list[Row]) -> list[str]:
    names = " | ".join(PEERS.values())
    lines = [
        "| kernel | type | heads | length | dim | causal | threads | ms | of the probe "
        f"| {names} |",
        "|---|---|---:|---:|---:|---|---:|---:|---:|" + "---:|" * len(PEERS),
    ]
    for contestants in groups([row for row in rows if row["seq_q"] > 1]):
        ours = contestants[0]
        shape = f"{ours['kernel']} | {ours['dtype']} | {ours['heads']} | {ours['seq_q']}"
        causal = "yes" if ours["causal"] else "no"
        shape += f" | {ours['head_dim']} | {causal} | {ours['threads']}"
        measured = f"{ours['ms_min']:.1f} | {ours['probe_fraction']:.2f}"
        ratios = " | ".join(ratio(contestants, name) for name in PEERS)
        lines.append(f"| {shape} | {measured} | {ratios} |")
    decode = [row for row in rows if row["seq_q"] == 1]
    return [*lines, "", *decode_table(decode)] if decode else lines


def decode_table(rows: list[Row]) -> list[str]:
    names = " | ".join(PEERS.values())
    lines = [
        f"| one query | keys | dim | threads | ms | GB/s | of reading | {names} |",
        "|---|---:|---:|---:|---:|---:|---:|" + "---:|" * len(PEERS),
    ]
    for contestants in groups(rows):
        ours = contestants[0]
        gbps = ours["gbps"] * ours["ms_median"] / ours["ms_min"]
        shape = f"{ours['dtype']} | {ours['seq_k']} | {ours['head_dim']} | {ours['threads']}"
        measured = f"{ours['ms_min']:.2f} | {gbps:.1f} | {gbps / ours['read_gbps']:.2f}"
        ratios = " | ".join(ratio(contestants, name) for name in PEERS)
        lines.append(f"| {shape} | {measured} | {ratios} |")
    return lines


class Goal(NamedTuple):
    """What a row of ours should reach at least; `of` are names of quantities()."""

    path: str
    kernel: str
    covers: Callable[[Row], bool]
    of: dict[str, float]


def lengths(least: int, most: int, **fields: object) -> Callable[[Row], bool]:
    """Rows of one thread and eight heads of these lengths, with these fields."""
    fields = {"threads": 1, "heads": 8} | fields
    return lambda row: (
        least <= row["seq_q"] <= most and all(row[name] == x for name, x in fields.items())
    )


FWD, BWD = "flash_fwd_avx512", "flash_bwd_avx512"
F32 = {"dtype": "float32"}
GOALS = (
    Goal(
        "float32 forward, full, from 1024",
        FWD,
        lengths(1024, 4096, causal=False, **F32),
        {"probe": 0.74, "torch": 1.15, "onnxruntime": 1.03, "eager": 1.2},
    ),
    *(
        Goal(
            f"float32 forward, causal, from 2048, dim {dim}",
            FWD,
            lengths(2048, 4096, causal=True, head_dim=dim, **F32),
            {"probe": 0.67, "torch": torch, "eager": 1.9},
        )
        for dim, torch in ((64, 1.25), (128, 1.35))
    ),
    *(
        Goal(
            f"float32 forward, 512, {'causal' if causal else 'full'}",
            FWD,
            lengths(512, 512, causal=causal, **F32),
            {"probe": probe, "torch": torch},
        )
        for causal, probe, torch in ((False, 0.70, 1.3), (True, 0.56, 2.0))
    ),
    Goal(
        "float32 backward, full",
        BWD,
        lengths(512, 4096, causal=False, **F32),
        {"probe": 0.72, "torch": 1.25},
    ),
    Goal(
        "float32 backward, causal",
        BWD,
        lengths(512, 4096, causal=True, **F32),
        {"probe": 0.64, "torch": 1.25},
    ),
    Goal(
        "float32 backward, causal, 512",
        BWD,
        lengths(512, 512, causal=True, **F32),
        {"torch": 2.0},
    ),
    *(
        Goal(
            f"bfloat16 forward with AMX, dim {dim}",
            "flash_fwd_amx",
            lengths(1024, 4096, causal=False, head_dim=dim),
            {"probe": probe, "torch": 1.8},
        )
        for dim, probe in ((64, 2.8), (128, 4.0))
    ),
    Goal(
        "bfloat16 forward with AMX, causal",
        "flash_fwd_amx",
        lengths(1024, 4096, causal=True),
        {"torch": 2.0},
    ),
    Goal(
        "bfloat16 backward with AMX",
        "flash_bwd_amx",
        lengths(1024, 4096),
        {"float32": 2.0, "torch": 2.0},
    ),
    Goal(
        "AVX2 forward, of the AVX2 probe",
        "flash_fwd_avx2",
        lengths(1024, 4096),
        {"probe": 0.68},
    ),
    *(
        Goal(
            f"two threads, {PASS_NAMES[name]}, {heads} {'heads' if heads > 1 else 'head'}",
            f"flash_{name}_avx512",
            lengths(1024, 4096, threads=2, heads=heads),
            {"threads": 1.75},
        )
        for name in ("fwd", "bwd")
        for heads in (8, 1)
    ),
    Goal("decode", "", lambda row: row["seq_q"] == 1, {"reading": 0.8}),
)
QUANTITIES = PEERS | {
    "probe": "of the probe",
    "float32": "own float32",
    "threads": "one thread",
    "reading": "of reading",
}


def same_problem(ours: Row, other: Row, **fields: object) -> bool:
    names = ("pass", "dtype", "heads", "seq_q", "seq_k", "head_dim", "causal", "threads")
    return all(fields.get(name, ours[name]) == other[name] for name in names)


def quantities(contestants: list[Row], rows: list[Row]) -> dict[str, float]:
    """What a goal may ask of a case: shares of ceilings, and other times over ours."""
    ours = contestants[0]
    found = {"probe": ours["probe_fraction"]}
    if ours["read_gbps"]:
        found["reading"] = ours["gbps"] * ours["ms_median"] / ours["ms_min"] / ours["read_gbps"]
    for row in contestants[1:]:
        found[row["implementation"]] = row["ms_min"] / ours["ms_min"]
    for name, fields in (("float32", F32), ("threads", {"threads": 1})):
        others = [
            row["ms_min"]
            for row in rows
            if row["implementation"] == "flash"
            and row is not ours
            and same_problem(ours, row, **fields)
            and (name == "float32" or row["kernel"] == ours["kernel"])
        ]
        if others:
            found[name] = min(others) / ours["ms_min"]
    return found


def goal_table(rows: list[Row]) -> list[str]:
    """The least of each goal's cases beside the goal."""
    lines = ["| goal | of | least | goal |", "|---|---|---:|---:|"]
    cases = groups(rows)
    for goal in GOALS:
        covered = [
            quantities(case, rows)
            for case in cases
            if goal.kernel in ("", case[0]["kernel"]) and goal.covers(case[0])
        ]
        for name, wanted in goal.of.items():
            seen = [found[name] for found in covered if name in found]
            if seen:
                lines.append(f"| {goal.path} | {QUANTITIES[name]} | {min(seen):.2f} | {wanted} |")
    return lines


def summary_table(machines: list[tuple[str, list[Row]]]) -> list[str]:
    """The range of each peer's time over ours: a line for each machine, kernel and type."""
    peers = [name for name in PEERS if name != "ggml"]
    lines = ["| CPU | kernel | type | " + " | ".join(PEERS[n] for n in peers) + " |"]
    lines.append("|---|---|---|" + "---:|" * len(peers))
    covers = lengths(512, 4096)
    for machine, rows in machines:
        found: dict[tuple[Any, ...], list[list[Row]]] = {}
        for contestants in groups(rows):
            ours = contestants[0]
            if len(contestants) > 1 and covers(ours):
                key = (ours["kernel"], ours["dtype"])
                found.setdefault(key, []).append(contestants)
        for (kernel, dtype), cases in sorted(found.items()):
            ranges = []
            for name in peers:
                values = [v for v in (ratio(case, name) for case in cases) if v != "-"]
                ends = sorted(values, key=float)
                ranges.append(f"{ends[0]} to {ends[-1]}" if ends else "-")
            told = f"{machine} | {kernel} | {dtype}"
            lines.append(f"| {told} | " + " | ".join(ranges) + " |")
    return lines


def block(machine: str, environment: dict[str, Any], rows: list[Row]) -> list[str]:
    """What stands between the markers of docs/cpu.md."""
    peers = ", ".join(f"{name} {version}" for name, version in environment["peers"].items())
    note = environment.get("note", "")
    about = f"{machine}. Peers: {peers}." + (f" {note}." if note else "")
    return ["", about, "", *goal_table(rows), "", *table(rows), ""]
