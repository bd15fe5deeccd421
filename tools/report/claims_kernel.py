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
    Claim,
    Evidence,
    listed,
    mib,
    number,
    per_machine,
    ratios,
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


def swept(e: Evidence, machine: str, size: str, values: list[int], **base: object) -> list[float]:
    """Measured baseline forwards as multiples of the first; empty unless all are there."""
    found = [
        e.measured.ms(machine, "baseline", "fwd", **{**BASE, **base, size: value})
        for value in values
    ]
    if not all(found):
        return []
    first = found[0] or 1.0
    return [(ms or 0.0) / first for ms in found]


def slope(values: list[int], growth: list[float]) -> float:
    return math.log(growth[-1] / growth[0]) / math.log(values[-1] / values[0])


def quadratic_time(e: Evidence) -> Claim:
    lengths = [256, 512, 1024, 2048]
    predicted = [row["predicted_times"] for row in analysis(e, "length")]
    lines, right = {}, []
    for machine in e.measured.machines:
        growth = swept(e, machine, "seq_q", lengths)
        if growth:
            exponent = slope(lengths, growth)
            right.append(1.8 <= exponent <= 2.2)
            lines[machine] = f"{listed(growth)} times, an exponent of {exponent:.2f}."
    small = predicted[1]
    return Claim(
        "002",
        "Length: t, 4t, 16t, 64t",
        "At 256, 512, 1024, 2048 the baseline takes t, 4t, 16t, 64t.",
        f"{e.card_name}: {listed(predicted)} times.",
        per_machine(lines, SCALING),
        OPEN if not right else HOLDS if all(right) else PARTLY,
        f"Work grows as claimed, time only once the machine is full: an {e.card_name} with one "
        f"head should take {times(small)} for 512 instead of 4"
        + (", a CPU follows the claim." if any(right) else "."),
    )


def linear_batch_and_heads(e: Evidence) -> Claim:
    predicted = {size: analysis(e, size) for size in ("batch", "heads")}
    told = {size: [row["predicted_times"] for row in rows] for size, rows in predicted.items()}
    lines, right = {}, []
    for machine in e.measured.machines:
        batch = swept(e, machine, "batch", [1, 2, 4], seq_q=512)
        heads = swept(e, machine, "heads", [1, 2, 4], seq_q=512)
        if batch and heads:
            right.append(abs(batch[1] - 2) < 0.2 and abs(heads[1] - 2) < 0.2)
            lines[machine] = f"batch {listed(batch)}, heads {listed(heads)} times for 1, 2, 4."
    return Claim(
        "002",
        "Batch and heads: t, 2t, 2t, 4t",
        "(1, 1), (2, 1), (1, 2), (4, 1) take t, 2t, 2t, 4t at length 512.",
        f"{e.card_name}: batch {listed(told['batch'])} times for 1, 2, 4; heads "
        f"{listed(told['heads'])} for 1, 2.",
        per_machine(lines, SCALING),
        OPEN if not right else HOLDS if all(right) else PARTLY,
        f"Linear where one problem fills the machine; an {e.card_name} should take "
        f"{times(told['batch'][1])} for a batch of 2.",
    )


def head_dim(e: Evidence) -> Claim:
    growth = {row["doubled"]: row for row in analysis(e, "growth")}["head dim"]
    lines = {}
    for machine in e.measured.machines:
        found = [
            e.measured.ms(machine, "baseline", "fwd", **{**BASE, "head_dim": dim, "seq_q": 512})
            for dim in (32, 64, 128)
        ]
        if all(found):
            first = found[0] or 1.0
            relative = listed([(ms or 0.0) / first for ms in found])
            lines[machine] = f"{relative} times for 32, 64, 128."
    return Claim(
        "002",
        "The head dim changes arithmetic, not the scores' memory",
        "Scores take 1 MB at 512 for every dim; compute grows with the dim.",
        f"Doubling the dim multiplies held memory by {growth['held_times']:.2f}, FLOPs by "
        f"{growth['flops_times']:.2f}, an {e.card_name}'s time by {growth['time_times']:.2f}.",
        per_machine(lines, SCALING),
        HOLDS if abs(growth["held_times"] - 1) < 0.01 else FAILS,
        f"The scores stay as they are; time grows less than the arithmetic, "
        f"{growth['time_times']:.2f} times on an {e.card_name}, since memory and launches stay.",
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
    lines = {}
    for machine, found in e.measured.ceilings.items():
        near, far = found.get("shared memory read"), found.get("device memory read")
        if near and far:
            ratio = near["measured"] / far["measured"]
            lines[machine] = (
                f"shared memory {near['measured'] / 1000:.1f} TB/s, device memory "
                f"{far['measured'] / 1000:.2f} TB/s: {number(ratio)} times."
            )
    return Claim(
        "002",
        "Shared memory is 12 times faster than device memory",
        "Shared memory about 19 TB/s, device memory about 1.5 TB/s: 12 times.",
        f"128 bytes a clock and multiprocessor at the highest clock: {text}.",
        per_machine(lines, "tilewise info --measure --device cuda:0 on that machine."),
        PARTLY,
        f"19 TB/s and 1.5 TB/s are an A100 with 40 GB. The ratio is the card's: from "
        f"{least[2]:.1f} ({least[0]}) to {most[2]:.1f} ({most[0]}).",
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
        "Bytes through memory are counted by the plan; no profiler reads them here.",
        PARTLY,
        f"The count is right for the instructions, not for memory: caches and tiles serve K and V, "
        f"so that the baseline moves {times(counted / moved['baseline'])} less than it touches, "
        f"its scores, and flash {times(moved['baseline'] / moved['flash'])} less again.",
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


def flash_gains(e: Evidence) -> Claim:
    rows = e.plan.ask("--analyze", "--hardware", e.card, "--impl", "baseline")["flash_gain"]
    lengths = [row["length"] for row in rows]
    claimed = [row["claimed"] for row in rows]
    lines, reached, total = {}, 0, 0
    for machine in e.measured.machines:
        found = ratios(e, machine, "baseline", "flash", "fwd", **BASE)
        known = [length for length in lengths if length in found]
        if known:
            lines[machine] = f"{listed([found[n] for n in known])} times at {listed(known)}."
        for length, claim in zip(lengths, claimed, strict=True):
            if length in found:
                total += 1
                reached += found[length] >= claim
    return Claim(
        "002",
        "Flash is 2, 5, 15, 40 times faster",
        "At 128, 512, 2048, 4096 flash should be 2, 5, 15, 40 times faster than the baseline.",
        f"{e.card_name}: {listed([row['predicted'] for row in rows])} times.",
        per_machine(lines, SCALING),
        OPEN if not total else HOLDS if reached == total else PARTLY,
        f"The claims are reached in {reached} of {total} measured cells; "
        "how much is gained depends on how slow the baseline is, not on flash alone."
        if total
        else f"The model expects them to be exceeded on an {e.card_name} where its numbers above "
        f"say so.",
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
    lines, filled, asked = {}, 0, 0
    for machine in e.measured.machines:
        cells: dict[tuple[Any, ...], list[str]] = {}
        for row in e.measured.rows(machine, implementation="flash", causal=True, batch=1, heads=1):
            if row["seq_q"] >= 32768:
                cell = (row["seq_q"], row["head_dim"], row["dtype"], row["pass"])
                cells.setdefault(cell, []).append(row["status"])
        if cells:
            done = sum("ok" in statuses for statuses in cells.values())
            oom = sum("ok" not in statuses and "oom" in statuses for statuses in cells.values())
            lengths = ", ".join(map(str, sorted({cell[0] for cell in cells})))
            lines[machine] = (
                f"{done} of {len(cells)} cells of flash at {lengths} have a number, {oom} ran "
                f"out of memory."
            )
            filled, asked = filled + done, asked + len(cells)
    return Claim(
        "004",
        "No number at 32768 and 65536",
        f"{empty} cells of the six tables are nan: forward with backward at 32768, everything at "
        f"65536.",
        f"Flash at 65536, dim 16, float32, forward and backward: peak {mib(peak['peak_MiB'])} on a "
        f"24 GB card: {peak['verdict']}.",
        per_machine(lines, ASSIGNMENT),
        OPEN if not asked else FAILS if filled == asked else PARTLY,
        f"Keeping O and LSE alone fills {filled} of the {asked} cells measured at these lengths; "
        f"memory is no reason for an empty one, {mib(peak['peak_MiB'])} would do."
        if asked
        else f"The memory of the lengths that failed is {mib(peak['peak_MiB'])}, no more.",
    )


def faster_than_the_tables(e: Evidence) -> Claim:
    tables = e.published["assignment"]["tables"]
    best: dict[int, float] = {}
    for rows in tables.values():
        for row in rows:
            if row["forward_ms"] is not None:
                length = row["seq_len"]
                best[length] = min(best.get(length, math.inf), row["forward_ms"])
    predicted = {}
    for length in best:
        words = ("--seq", length, "--dim", 16, "--dtype", "bf16", "--causal", "--pass", "fwd")
        predicted[length] = e.plan.ms("--hardware", e.card, *words)
    faster = sum(predicted[n] < best[n] for n in best)
    lines, won, total = {}, 0, 0
    for machine in e.measured.machines:
        cells = {}
        for length in best:
            shape = {"batch": 1, "heads": 1, "head_dim": 16, "causal": True, "seq_q": length}
            ms = e.measured.ms(machine, "flash", "fwd", dtype="bfloat16", **shape)
            if ms:
                cells[length] = best[length] / ms
        if cells:
            total += len(cells)
            won += sum(gain > 1 for gain in cells.values())
            lines[machine] = (
                f"{number(min(cells.values()))} to {times(max(cells.values()))} faster."
            )
    return Claim(
        "004",
        "The six tables of an RTX 4090, dim 16",
        f"The best forward of the six tables: {listed([best[n] for n in sorted(best)])} ms from "
        f"{min(best)} to {max(best)}.",
        f"{e.card_name}, bf16: {listed([predicted[n] for n in sorted(predicted)])} ms; faster in "
        f"{faster} of {len(best)}.",
        per_machine(lines, ASSIGNMENT),
        OPEN if not total else HOLDS if won == total else PARTLY,
        f"Ours is faster than the best of the six tables in {won} of {total} measured cells."
        if total
        else f"By the model ours is faster in {faster} of {len(best)} cells.",
    )


def leaderboard(e: Evidence) -> Claim:
    seed = e.published["assignment"]["leaderboard"]["forward_backward_ms"]
    shape = ("--heads", 16, "--dim", 64, "--dtype", "bf16", "--causal")
    predicted = {n: e.plan.ms("--hardware", e.card, "--seq", n, *shape) for n in (8192, 16384)}
    room = e.plan.ask("--hardware", "rtx4090", "--seq", 16384, *shape)[-1]
    lines, own = {}, []
    for machine in e.measured.machines:
        told = []
        for length in (8192, 16384):
            same: dict[str, Any] = {"heads": 16, "head_dim": 64, "causal": True, "batch": 1}
            same |= {"seq_q": length, "dtype": "bfloat16"}
            ms = e.measured.ms(machine, "flash", "fwd+bwd", **same)
            step = e.measured.ms(machine, "flash", "fwd+bwd", **same, protocol="board")
            if ms:
                told.append(f"{number(ms)} ms at {length}")
                own.append((length, step or ms))
            if step:
                told.append(f"{number(step)} ms as the board times it, with o.sum() and the leaf")
        if told:
            lines[machine] = ", ".join(told) + "."
    at = dict(own)
    return Claim(
        "004",
        "Leaderboard: 8192 is the longest on 24 GB, 70.0 ms",
        f"{seed:.1f} ms for forward and backward of 16 heads at 8192 on an RTX 4090, the longest "
        f"that fitted; the best verified entry takes 5.364 ms at 16384 on an H100.",
        f"Flash at 16384: peak {mib(room['peak_MiB'])} on a 24 GB card: {room['verdict']}. "
        f"{e.card_name}: {number(predicted[8192])} ms at 8192, {number(predicted[16384])} ms at "
        f"16384.",
        per_machine(lines, "tilewise bench --preset leaderboard on that machine."),
        OPEN if 16384 not in at else HOLDS if at[16384] > 5.364 else FAILS,
        f"Memory is no reason to stop at 8192. Ours takes {number(at[16384])} ms at 16384, "
        f"{times(5.364 / at[16384])} as fast as the best verified entry."
        if 16384 in at
        else f"The model expects {number(predicted[16384])} ms at 16384 with today's kernels.",
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
    delta_identity,
)
