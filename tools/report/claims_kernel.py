"""Claims of seeds 002 and 004: a kernel of one's own, its bottleneck, and FlashAttention-2."""

from __future__ import annotations

import math
from operator import mul
from typing import Any

from .claims import (
    FAILS,
    HOLDS,
    OPEN,
    PARTLY,
    PASSES,
    Claim,
    Evidence,
    Figures,
    contender,
    digits,
    grids,
    joined,
    listed,
    mib,
    missing,
    number,
    shape_words,
    short,
    times,
)

SCALING = "tilewise bench --preset baseline-scaling on that machine."
ASSIGNMENT = "tilewise bench --preset assignment on that machine."
BASE = {"dtype": "float32", "batch": 1, "heads": 1, "head_dim": 64, "causal": False}
# Shared memory of one multiprocessor, bytes a clock: 32 banks of 4 bytes (CUDA C++ Programming
# Guide).
SHARED_BYTES_PER_CLOCK = 128


def analysis(e: Evidence, part: str) -> list[dict[str, Any]]:
    answer = e.plan.ask("--analyze", "--hardware", e.card, "--impl", "baseline")
    return list(answer[part])


BASELINE, FLASH = contender("baseline"), contender("flash")


def growth(
    e: Evidence, along: str, values: list[int], **base: object
) -> tuple[list[Figures], dict[str, list[float]]]:
    """The baseline's forward along a size: a table a machine, and multiples of the first value."""
    tables, found = [], {}
    for grid in grids(e, [BASELINE], "fwd", values, along, **{**BASE, **base}):
        rows = grid.rows[BASELINE.name]
        if len(rows) < len(values):
            continue
        multiples = [rows[n]["ms_median"] / rows[values[0]]["ms_median"] for n in values]
        figures = grid.figures([])
        figures.rows.append(["times the first", *map(number, multiples)])
        tables.append(figures)
        found[short(grid.machine)] = multiples
    return tables, found


def slope(values: list[int], multiples: list[float]) -> float:
    return math.log(multiples[-1] / multiples[0]) / math.log(values[-1] / values[0])


def quadratic_time(e: Evidence) -> Claim:
    lengths = [256, 512, 1024, 2048]
    predicted = [row["predicted_times"] for row in analysis(e, "length")]
    tables, found = growth(e, "seq_q", lengths)
    slopes = {name: slope(lengths, multiples) for name, multiples in found.items()}
    right = [1.8 <= exponent <= 2.2 for exponent in slopes.values()]
    told = [
        f"{name}: an exponent of {exponent:.2f}, {times(found[name][-1])} for 8 times the length."
        for name, exponent in slopes.items()
    ]
    return Claim(
        "002",
        "Time over the length: t, 4t, 16t, 64t",
        "At 256, 512, 1024, 2048 the baseline takes t, 4t, 16t, 64t.",
        f"{e.card_name}: {listed(predicted)} times.",
        "" if tables else missing(SCALING),
        OPEN if not right else HOLDS if all(right) else PARTLY if any(right) else FAILS,
        "The claim is an exponent of 2, 64 times. " + " ".join(told)
        if told
        else f"The plan expects {times(predicted[-1])} on an {e.card_name}.",
        tables,
    )


def linear_batch_and_heads(e: Evidence) -> Claim:
    predicted = {size: analysis(e, size) for size in ("batch", "heads")}
    told = {size: [row["predicted_times"] for row in rows] for size, rows in predicted.items()}
    tables, by_batch = growth(e, "batch", [1, 2, 4], seq_q=512)
    more, by_heads = growth(e, "heads", [1, 2, 4], seq_q=512)
    right, words = [], []
    for name in by_batch:
        if name in by_heads:
            two = (by_batch[name][1], by_heads[name][1], by_batch[name][2] / 2)
            right.append(all(abs(times_two - 2) < 0.2 for times_two in two))
            words.append(
                f"{name}: batch 2 takes {times(two[0])}, 2 heads {times(two[1])}, batch 4 "
                f"{times(by_batch[name][2])}."
            )
    return Claim(
        "002",
        "Time over batch and heads: t, 2t, 2t, 4t",
        "(1, 1), (2, 1), (1, 2), (4, 1) take t, 2t, 2t, 4t at length 512.",
        f"{e.card_name}: batch {listed(told['batch'])} times for 1, 2, 4; heads "
        f"{listed(told['heads'])} for 1, 2.",
        "" if tables else missing(SCALING),
        OPEN if not right else HOLDS if all(right) else PARTLY if any(right) else FAILS,
        " ".join(words)
        or f"The plan expects {times(told['batch'][1])} for a batch of 2 on an {e.card_name}.",
        [*tables, *more],
    )


def planned_beside_scores(e: Evidence, machine: str, dim: int) -> float:
    """MiB of the baseline's forward at 512 without its scores; 0 for a machine without a plan. A
    measured peak less these is what the scores take."""
    for name, entry in e.hardware.items():
        if entry.get("matches", "?") in machine:
            words = ("--hardware", name, "--impl", "baseline", "--seq", 512, "--dim", dim)
            row = e.plan.ask(*words, "--pass", "fwd", "--memory")[0]
            scores = sum(size for tensor, size in row.items() if tensor.split(",")[0] == "S")
            return float(row["peak"] - scores) / 2**20
    return 0.0


def head_dim(e: Evidence) -> Claim:
    doubled = {row["doubled"]: row for row in analysis(e, "growth")}["head dim"]
    dims = [32, 64, 128]
    tables, words, right = [], [], []
    for grid in grids(e, [BASELINE], "fwd", dims, "head_dim", **BASE, seq_q=512):
        rows = grid.rows[BASELINE.name]
        if len(rows) < len(dims):
            continue
        held = {dim: planned_beside_scores(e, grid.machine, dim) for dim in dims}
        if not all(held.values()):
            continue
        scores = [rows[dim]["peak_mib"] - held[dim] for dim in dims]
        figures = grid.figures([])
        figures.rows.append(["scores, MiB", *(f"{one:.2f}" for one in scores)])
        tables.append(figures)
        grows = rows[128]["ms_median"] / rows[32]["ms_median"]
        right.append(all(abs(one - 1) < 0.05 for one in scores) and grows > 1.1)
        words.append(
            f"{short(grid.machine)}: {joined([f'{one:.2f}' for one in scores])} MiB of scores at "
            f"dim 32, 64 and 128, and {times(grows)} the time at 128."
        )
    return Claim(
        "002",
        "The head dim changes arithmetic, not the scores' memory",
        "Scores take 1 MB at 512 for every dim; compute grows with the dim.",
        f"Doubling the dim multiplies held memory by {doubled['held_times']:.2f}, FLOPs by "
        f"{doubled['flops_times']:.2f}, an {e.card_name}'s time by {doubled['time_times']:.2f}.",
        "" if tables else missing(SCALING),
        OPEN if not right else HOLDS if all(right) else PARTLY if any(right) else FAILS,
        " ".join(words) or "The plan counts the same scores for every dim.",
        tables,
    )


def tile_bytes(e: Evidence) -> Claim:
    tile, matrix = 64 * 64 * 4, 512 * 512 * 4
    plan = e.plan.ask("--hardware", e.card, "--seq", 512, "--impl", "flash", "--pass", "fwd")[0]
    return Claim(
        "002",
        "A 64 x 64 tile takes 16 KB instead of 1 MB",
        "64 x 64 tile = 16 KB against 1 MB for the matrix of length 512.",
        f"{tile} bytes against {matrix}: {matrix // tile} times less. The plan takes tiles of "
        f"{plan['tiles']} on an {e.card_name}.",
        "Arithmetic; nothing to measure.",
        HOLDS,
        f"{tile // 1024} KB is right; today's tiles are {plan['tiles']}, in registers and shared "
        f"memory.",
    )


def shared_memory(e: Evidence) -> Claim:
    told = []
    for name in dict.fromkeys(("rtx3060", "rtx4090", "a100", "h100", e.card)):
        entry = e.hardware[name]
        shared = SHARED_BYTES_PER_CLOCK * entry["multiprocessors"] * entry["clock_mhz"] * 1e-3
        told.append((entry["name"], shared, shared / entry["bandwidth_gbps"]))
    text = "; ".join(f"{name} {s / 1000:.1f} TB/s, {ratio:.1f} times" for name, s, ratio in told)
    least, most = min(told, key=lambda x: x[2]), max(told, key=lambda x: x[2])
    tables, measured = [], []
    for machine, found in e.measured.ceilings.items():
        near, far = found.get("shared memory read"), found.get("device memory read")
        if near and far:
            ratio = near["measured"] / far["measured"]
            measured.append(f"{times(ratio)} on the {short(machine)}")
            tables.append(
                Figures(
                    f"{machine}, read by `tilewise info --measure`",
                    [str(near.get("file", ""))],
                    ["shared memory, TB/s", "device memory, TB/s", "times"],
                    [
                        [
                            f"{near['measured'] / 1000:.1f}",
                            f"{far['measured'] / 1000:.2f}",
                            number(ratio),
                        ]
                    ],
                )
            )
    return Claim(
        "002",
        "Shared memory is 12 times faster than device memory",
        "Shared memory about 19 TB/s, device memory about 1.5 TB/s: 12 times.",
        f"128 bytes a clock and multiprocessor at the highest clock: {text}.",
        "" if tables else missing("tilewise info --measure --device cuda:0 on that machine."),
        PARTLY if measured else OPEN,
        (f"Measured: {joined(measured)}. " if measured else "")
        + f"The ratio is the card's: by the data sheets from {least[2]:.1f} ({least[0]}) to "
        f"{most[2]:.1f} ({most[0]}).",
        tables,
    )


def accesses(e: Evidence) -> Claim:
    rows = analysis(e, "accesses")
    total = rows[-1]
    words = ("--hardware", e.card, "--seq", 2048, "--dim", 64, "--pass", "fwd", "--impl")
    moved = {name: e.plan.ask(*words, name)[0]["GB_moved"] for name in ("baseline", "flash")}
    counted = 4 * total["all_queries"] * (2048 / 512) ** 2 * 1e-9
    return Claim(
        "002",
        "All queries together access S^2 d elements",
        "A query reads S d elements of K, walks three times over its scores and reads S d of V; "
        "all queries O(S^2 d).",
        f"At 512, dim 64: {number(total['one_query'])} elements a query, "
        f"{number(total['all_queries'])} in all. At 2048 that is {number(counted)} GB; through "
        f"memory go {moved['baseline']:.3f} GB (baseline) and {moved['flash']:.4f} GB (flash).",
        "Not measured in the files given: bytes are counted by the plan, no profiler read them.",
        OPEN,
        f"By the plan the baseline moves {times(counted / moved['baseline'])} less through memory "
        f"than the claim counts, and flash {times(moved['baseline'] / moved['flash'])} less again. "
        f"A profiler's bytes would decide.",
    )


def delta_identity(e: Evidence) -> Claim:
    """One small head in plain arithmetic: nothing of ours is asked, nothing is random."""
    length, dim = 24, 8

    def matrix(seed: int) -> list[list[float]]:
        return [[math.sin(seed + 7 * i + 3 * j + i * j) for j in range(dim)] for i in range(length)]

    q, k, v, d_o = (matrix(seed) for seed in (1, 2, 3, 4))
    worst = 0.0
    for i in range(length):
        scores = [sum(map(mul, q[i], k[j])) / math.sqrt(dim) for j in range(length)]
        powers = [math.exp(s - max(scores)) for s in scores]
        p = [power / sum(powers) for power in powers]
        o = [sum(p[j] * v[j][d] for j in range(length)) for d in range(dim)]
        dp = [sum(map(mul, d_o[i], v[j])) for j in range(length)]
        worst = max(worst, abs(sum(map(mul, o, d_o[i])) - sum(map(mul, p, dp))))
    return Claim(
        "004",
        "D = rowsum(O dO) is rowsum(P dP)",
        "Equation 17 takes D_i from P and dP; the algorithm takes it from O and dO, so that P need "
        "not be kept.",
        "Equal: O = P V, so both are the sum over j and d of P_ij V_jd dO_id.",
        f"{length} rows of dim {dim} in double precision: at most {worst:.1e} apart. Our kernels: "
        "tests/contract/properties_test.cpp.",
        HOLDS if worst < 1e-12 else FAILS,
        f"Both are the same number to {worst:.0e}: the backward needs O and LSE alone.",
    )


def twice_read(e: Evidence) -> Claim:
    words = ("--hardware", e.card, *("--batch", 8, "--dtype", "f32", "--seq", 8192, "--dim", 16))
    rows = {
        name: e.plan.ask(*words, "--pass", "bwd", "--impl", name)[0] for name in ("eager", "flash")
    }
    matrix = 8 * 8192**2 * 4 * 1e-9
    return Claim(
        "004",
        "The backward reads P from memory twice",
        "The standard backward reads the matrix P twice, for dV and for dS. FlashAttention never "
        "stores it.",
        f"Batch 8, length 8192, dim 16, float32: P is {matrix:.2f} GB. Our eager backward moves "
        f"{rows['eager']['GB_moved']:.1f} GB, {rows['eager']['GB_moved'] / matrix:.1f} times "
        f"P; our flash moves {rows['flash']['GB_moved']:.2f} GB.",
        "Not measured in the files given: bytes are counted by the plan, no profiler read them.",
        OPEN,
        "Equations 7 and 9 each use P, so that a backward that stores it reads it twice. How often "
        "the memory serves it is for a profiler to count.",
    )


def flash_gains(e: Evidence) -> Claim:
    rows = e.plan.ask("--analyze", "--hardware", e.card, "--impl", "baseline")["flash_gain"]
    lengths = [row["length"] for row in rows]
    claimed = {row["length"]: row["claimed"] for row in rows}
    tables, told, reached, total = [], [], 0, 0
    for grid in grids(e, [BASELINE, FLASH], "fwd", lengths, **BASE):
        gain = grid.gain(BASELINE.name, FLASH.name)
        figures = grid.figures([("times faster", BASELINE.name, FLASH.name)])
        figures.rows.append(["claimed", *(number(claimed[n]) for n in grid.values())])
        tables.append(figures)
        good = sum(times_faster >= claimed[n] for n, times_faster in gain.items())
        reached, total = reached + good, total + len(gain)
        told.append(f"{good} of {len(gain)} lengths on the {short(grid.machine)}")
    return Claim(
        "002",
        "Flash is 2, 5, 15, 40 times faster",
        "At 128, 512, 2048, 4096 flash should be 2, 5, 15, 40 times faster than the baseline.",
        f"{e.card_name}: {listed([row['predicted'] for row in rows])} times.",
        "" if tables else missing(SCALING),
        OPEN if not total else HOLDS if reached == total else PARTLY if reached else FAILS,
        f"Our flash reaches the claim at {joined(told)}, against a baseline that is ours too."
        if told
        else f"The plan expects {listed([row['predicted'] for row in rows])} times.",
        tables,
    )


def filled_cells(e: Evidence) -> Claim:
    peak = e.plan.ask(
        "--hardware", "rtx4090", "--seq", 65536, "--dim", 16, "--dtype", "f32", "--causal"
    )[-1]
    tables = e.published["assignment"]["tables"]
    empty = sum(
        row[field] is None
        for rows in tables.values()
        for row in rows
        for field in ("forward_ms", "forward_backward_ms")
    )
    figures, filled, asked = [], 0, 0
    for machine in e.measured.machines:
        cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in e.measured.rows(machine, implementation="flash", causal=True, batch=1, heads=1):
            if (
                row["seq_q"] >= 32768
                and row["head_dim"] == 16
                and row["pass"] in ("fwd", "fwd+bwd")
            ):
                cell = (row["dtype"], row["pass"], row["seq_q"])
                cells.setdefault(cell, []).append(row)
        if not cells:
            continue
        lengths = sorted({cell[2] for cell in cells})
        kinds = list(dict.fromkeys(cell[:2] for cell in cells))
        lines = []
        for dtype, which in kinds:
            shown = []
            for length in lengths:
                rows = cells.get((dtype, which, length), [])
                times_of = [row["ms_median"] for row in rows if row["status"] == "ok"]
                filled, asked = filled + bool(times_of), asked + bool(rows)
                shown.append(
                    digits(min(times_of)) if times_of else rows[0]["status"] if rows else "-"
                )
            lines.append([f"{dtype}, {PASSES[which]}, ms", *shown])
        files = list(dict.fromkeys(row["file"] for rows in cells.values() for row in rows))
        caption = f"{machine}, our flash: batch 1, 1 head, dim 16, causal"
        figures.append(Figures(caption, files, ["length", *map(str, lengths)], lines))
    return Claim(
        "004",
        "No number at 32768 and 65536",
        f"{empty} cells of the six tables are nan: forward with backward at 32768, everything at "
        f"65536. All are of dim 16.",
        f"Flash at 65536, dim 16, float32, forward and backward: peak {mib(peak['peak_MiB'])} on a "
        f"24 GB card: {peak['verdict']}.",
        "" if figures else missing(ASSIGNMENT),
        OPEN if not asked else FAILS if filled == asked else PARTLY if filled else HOLDS,
        f"Our flash has a number in {filled} of {asked} cells of that shape. By the plan it needs "
        f"{mib(peak['peak_MiB'])}."
        if asked
        else f"By the plan the longest needs {mib(peak['peak_MiB'])}.",
        figures,
    )


def faster_than_the_tables(e: Evidence) -> Claim:
    tables = e.published["assignment"]["tables"]
    best: dict[int, float] = {}
    for rows in tables.values():
        for row in rows:
            if row["forward_ms"] is not None:
                length = row["seq_len"]
                best[length] = min(best.get(length, math.inf), row["forward_ms"])
    lengths = sorted(best)
    words = ("--dim", 16, "--dtype", "bf16", "--causal", "--pass", "fwd")
    predicted = [e.plan.ms("--hardware", e.card, "--seq", n, *words) for n in lengths]
    # The 16-bit table is in float16: a kernel's time is that of bfloat16.
    kinds = [
        contender("flash", "our flash, bfloat16", dtype="bfloat16"),
        contender("flash", "our flash, float32", dtype="float32"),
    ]
    figures, won, total = [], {kind.name: 0 for kind in kinds}, 0
    shape = {"batch": 1, "heads": 1, "head_dim": 16, "causal": True}
    for grid in grids(e, kinds, "fwd", lengths, **shape):
        table = grid.figures([])
        table.rows.append(["best of the tables, ms", *(number(best[n]) for n in grid.values())])
        figures.append(table)
        total += len(grid.values())
        for name, found in grid.rows.items():
            won[name] += sum(row["ms_median"] < best[n] for n, row in found.items())
    told = joined([f"{count} of {total} cells ({name})" for name, count in won.items()])
    return Claim(
        "004",
        "The six tables of an RTX 4090, dim 16",
        f"The best forward of the six tables, any type: {listed([best[n] for n in lengths])} ms "
        f"from {min(best)} to {max(best)}.",
        f"{e.card_name}, bf16: {listed(predicted)} ms.",
        "" if figures else missing(ASSIGNMENT),
        OPEN,  # of this card, and of theirs, nothing is measured
        "No RTX 4090 is measured here. "
        + (
            f"On other cards ours is faster than the best of the six tables in {told}."
            if total
            else "The checklist asks for ours to be faster in every cell on a data-centre card."
        ),
        figures,
    )


def leaderboard(e: Evidence) -> Claim:
    seed = e.published["assignment"]["leaderboard"]["forward_backward_ms"]
    shape = ("--heads", 16, "--dim", 64, "--dtype", "bf16", "--causal")
    predicted = {n: e.plan.ms("--hardware", e.card, "--seq", n, *shape) for n in (8192, 16384)}
    room = e.plan.ask("--hardware", "rtx4090", "--seq", 16384, *shape)[-1]
    tables, own = [], []
    for machine in e.measured.machines:
        lines: list[list[str]] = []
        files: list[str] = []
        for length in (8192, 16384):
            same: dict[str, Any] = {"heads": 16, "head_dim": 64, "causal": True, "batch": 1}
            same |= {"seq_q": length, "dtype": "bfloat16"}
            kernel = e.measured.find(machine, "flash", "fwd+bwd", **same)
            step = e.measured.find(machine, "flash", "fwd+bwd", **same, protocol="board")
            for row, protocol in ((kernel, "kernels alone"), (step, "the board's step")):
                if row:
                    kernels = str(row["kernel"]).replace("+", " + ")
                    peak = row.get("peak_mib")
                    told = "-" if peak is None else mib(peak)
                    lines.append([str(length), protocol, digits(row["ms_median"]), told, kernels])
                    files.append(row["file"])
            counted = step or kernel
            if length == 16384 and counted:
                timed = "the board's step" if step else "kernels alone"
                own.append((counted["ms_median"], counted.get("peak_mib"), machine, timed))
        if lines:
            row = {**same, "pass": "fwd+bwd"}
            tables.append(
                Figures(
                    f"{machine}: {shape_words(row, without=('seq_q',))}",
                    list(dict.fromkeys(files)),
                    ["length", "timed", "ms", "peak", "kernels"],
                    lines,
                )
            )
    verdict, sentence = OPEN, "Not measured at 16384."
    if own:
        ms, peak, machine, timed = min(own)
        fits = peak is not None and peak < 24 * 1024
        verdict = OPEN if peak is None else FAILS if fits else HOLDS
        sentence = (
            f"At 16384 ours takes {number(ms)} ms on the {short(machine)} ({timed})"
            + (f" and peaks at {mib(peak)}" if peak is not None else "")
            + f". The best verified entry takes 5.364 ms on an H100, {times(5.364 / ms)} that time."
        )
    return Claim(
        "004",
        "Leaderboard: 8192 is the longest that fits 24 GB",
        f"{seed:.1f} ms for forward and backward of 16 heads at 8192 on an RTX 4090, the longest "
        f"that fits; the best verified entry takes 5.364 ms at 16384 on an H100.",
        f"Flash at 16384: peak {mib(room['peak_MiB'])} on a 24 GB card: {room['verdict']}. "
        f"{e.card_name}: {number(predicted[8192])} ms at 8192, {number(predicted[16384])} ms at "
        f"16384.",
        "" if tables else missing("tilewise bench --preset leaderboard on that machine."),
        verdict,
        sentence,
        tables,
    )


JUDGES = (
    quadratic_time,
    linear_batch_and_heads,
    head_dim,
    tile_bytes,
    shared_memory,
    accesses,
    flash_gains,
    filled_cells,
    faster_than_the_tables,
    leaderboard,
    twice_read,
    delta_identity,
)
