"""Claims of seed 003: an adaptive sparse layer on an RTX 3060, its thresholds and limits."""

from __future__ import annotations

import math
from itertools import pairwise

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
from .data import Measured

# The benchmark behind the seed's tables: batch 2, 4 heads of 64.
SHAPE = ("--batch", 2, "--heads", 4, "--dim", 64)
LENGTHS = (128, 256, 512, 1024, 2048)
ASSIGNMENT = "tilewise bench --dtype f32,bf16 over the lengths on that machine."


def measured_gains(e: Evidence, machine: str, which: str) -> dict[int, float]:
    """Length -> flash float32 over flash bf16, of the shape with most heads that has both."""
    gains: dict[int, tuple[int, float]] = {}
    for row in e.measured.shapes(machine, "flash", which):
        if row["dtype"] != "float32":
            continue
        fields = ("batch", "heads", "seq_q", "seq_k", "head_dim", "causal")
        same = {name: row[name] for name in fields}
        other = e.measured.ms(machine, "flash", which, dtype="bfloat16", **same)
        size = row["batch"] * row["heads"] * row["head_dim"]
        if other and size >= gains.get(row["seq_q"], (0, 0.0))[0]:
            gains[row["seq_q"]] = (size, row["ms_median"] / other)
    return {length: gain for length, (_, gain) in sorted(gains.items())}


def thresholds(e: Evidence) -> Claim:
    named = sorted(e.published["asam"]["thresholds"].values())
    told = {}
    for name in ("rtx3060", e.card, "epyc-2"):
        start = e.plan.ask("--advise", "--hardware", name, *SHAPE)["bf16_from"]
        told[name] = "nowhere" if start is None else f"from {start or 128} on"
    lines = {}
    for machine in e.measured.machines:
        gains = measured_gains(e, machine, "fwd")
        if gains:
            pays = [length for length, gain in gains.items() if gain > 1.1]
            start = "nowhere"
            if pays:
                start = "everywhere" if len(pays) == len(gains) else f"from {min(pays)}"
            lines[machine] = (
                f"{start}; {listed(list(gains.values()))} times at {', '.join(map(str, gains))}."
            )
    origin = "; ".join(f"{name} {start}" for name, start in told.items())
    return Claim(
        "003",
        "16 bits pay from 256, 512 or 1024 on",
        f"Section 2.3 switches at 256, the template of 5.2 at 512, the table of 3.1 at 1024; its "
        f"own measurement at 512 gains {e.published['asam']['training'][2]['speedup']} times, "
        f"and the template makes a GradScaler that it never uses.",
        f"bf16 saves 10 % of attention's time: {origin} (batch 2, 4 heads of 64).",
        per_machine(lines, ASSIGNMENT),
        FAILS,
        f"{listed(list(map(float, named)))} contradict each other because the threshold is no "
        f"constant: attention itself gains {told['rtx3060']} on the seed's card, "
        f"{told[e.card]} on an {e.card_name}, {told['epyc-2']} on a CPU. What "
        f"the seed saw at 128 to 512 is its layer's other work.",
    )


def sweet_spot(e: Evidence) -> Claim:
    flash = {row["seq_len"]: row["flash_ms"] for row in e.published["asam"]["forward"]}
    original = {row["seq_len"]: row["original_ms"] for row in e.published["asam"]["forward"]}
    layers = 2
    words = ("--hardware", "rtx3060", *SHAPE, "--pass", "fwd", "--dtype", "f32")
    share = {
        length: layers * e.plan.ms(*words, "--seq", length) / flash[length] for length in LENGTHS
    }
    flat = max(flash[n] for n in (128, 256, 512)) / min(flash[n] for n in (128, 256, 512))
    return Claim(
        "003",
        "256 to 512 is the Tensor Cores' best length",
        f"The gain is largest, 4.4 times, at 256 and 512: the optimum of the RTX 3060's Tensor "
        f"Cores. Flash {listed(list(flash.values()))} ms, original "
        f"{listed(list(original.values()))} ms at {', '.join(map(str, LENGTHS))}.",
        f"Attention alone is {listed([100 * share[n] for n in LENGTHS])} % of those flash times.",
        "The seed's own table: "
        f"flash varies by {100 * (flat - 1):.1f} % from 128 to 512 while the work grows 16 times.",
        FAILS,
        f"A time that does not change while the work grows 16 times is the starting of kernels: "
        f"attention is {100 * share[128]:.0f} % of it at 128. And these layers ran in float32, "
        f"which the framework's flash kernel does not take at all.",
    )


def original_memory(e: Evidence) -> Claim:
    own = e.published["asam"]["original_mb_at_2048"]
    reach = 2048 * math.sqrt(12 * 1024 / own)
    limits = {}
    for name, words in (
        ("eager f32", ("--impl", "eager", "--dtype", "f32")),
        ("flash f32", ("--impl", "flash", "--dtype", "f32")),
        ("flash bf16", ("--impl", "flash", "--dtype", "bf16")),
    ):
        row = e.plan.ask(
            "--hardware",
            "rtx3060",
            *SHAPE,
            *words,
            "--seq",
            2048,
            "--mem-limit",
            "12GiB",
            "--limits",
        )[-1]
        limits[name] = row["largest_length"]
    told = ", ".join(f"{name} {length}" for name, length in limits.items())
    eager = limits["eager f32"]
    return Claim(
        "003",
        "The original runs out of memory at 2048",
        f"{own} MB at 2048 of 12 GB; longest lengths 2048 (original), 4096 (flash), 8192 "
        f"(flash with FP16).",
        f"Attention with its backward in 12 GiB: {told}.",
        f"The seed's own numbers: quadratic growth from {own} MB reaches 12 GiB at {reach:.0f}.",
        FAILS,
        f"{own} MB of 12 GB is no limit: it would be reached near {reach:.0f}, and attention's own "
        f"matrices allow {eager}. Flash holds "
        f"{times(limits['flash f32'] / eager)} as many tokens, in 16 bits "
        f"{times(limits['flash bf16'] / eager)}.",
    )


def dip(e: Evidence) -> Claim:
    gains = {row["seq_len"]: row["speedup"] for row in e.published["asam"]["forward"]}
    advice = e.plan.ask(
        "--advise",
        "--hardware",
        e.card,
        *SHAPE,
        "--seq",
        ",".join(map(str, LENGTHS)),
        "--pass",
        "fwd",
    )
    predicted = [row["eager f32_ms"] / row["flash f32_ms"] for row in advice["lengths"]]
    rising = all(a <= b * 1.1 for a, b in pairwise(predicted))
    lines = {}
    for machine in e.measured.machines:
        found = ratios(e, machine, "eager", "flash", "fwd", dtype="float32", head_dim=64)
        if len(found) >= 2:
            lines[machine] = (
                f"{listed(list(found.values()))} times at {', '.join(map(str, found))}."
            )
    return Claim(
        "003",
        "The gain dips at 1024",
        f"Flash gains {listed(list(gains.values()))} times at {', '.join(map(str, gains))}; "
        f"perhaps the framework changes kernels at 1024.",
        f"Our flash over eager on an {e.card_name}, float32: {listed(predicted)} times.",
        per_machine(lines, "tilewise bench --dtype f32 --impl eager,flash over the lengths."),
        FAILS if rising else PARTLY,
        "There is no dip where one kernel runs at every length: the seed's comes from its flash "
        "time, which starts to grow only at 1024, once work outweighs starting kernels."
        if rising
        else "The gain of ours is not even either: see the numbers.",
    )


def linear_accesses(e: Evidence) -> Claim:
    rows = {
        name: [
            e.plan.ask(
                "--hardware", "rtx3060", *SHAPE, "--seq", length, "--pass", "fwd", "--impl", name
            )[0]
            for length in (1024, 2048)
        ]
        for name in ("eager", "flash")
    }
    moved = {name: pair[1]["GB_moved"] / pair[0]["GB_moved"] for name, pair in rows.items()}
    words = ("--hardware", e.card, *SHAPE, "--pass", "fwd", "--seq")
    gains = [
        e.plan.ms(*words, n, "--impl", "eager") / e.plan.ms(*words, n, "--impl", "flash")
        for n in (2048, 4096, 8192, 16384)
    ]
    lines = {}
    for machine in e.measured.machines:
        found = ratios(e, machine, "eager", "flash", "fwd", pick=max, dtype="float32", head_dim=64)
        if len(found) >= 3:
            lengths = ", ".join(map(str, found))
            lines[machine] = f"{listed(list(found.values()))} times at {lengths}."
    return Claim(
        "003",
        "O(n) memory accesses: the gain grows with the length",
        "Flash accesses memory O(n) times instead of O(n^2); in theory the speed-up is "
        "proportional to the length.",
        f"Twice the length moves {times(moved['eager'])} (eager) and {times(moved['flash'])} "
        f"(flash) the bytes; on an {e.card_name} flash gains {listed(gains)} times at 2048, "
        f"4096, 8192, 16384.",
        per_machine(lines, "tilewise bench --impl eager,flash over the lengths."),
        PARTLY if gains[-1] < 4 * gains[0] else HOLDS,
        f"The accesses are as claimed. The gain is not proportional: both do the same O(n^2) "
        f"arithmetic, and once flash is bound by it the gain stays near "
        f"{number(gains[-1])} times.",
    )


def combined_gains(e: Evidence, machine: str, which: str) -> dict[int, float]:
    """Length -> eager float32 over flash bf16 of the seed's attention, both of one run."""
    found: dict[int, float] = {}
    shape = {"batch": 2, "heads": 4, "head_dim": 64, "causal": False}
    for run in e.measured.runs(machine):
        for length in LENGTHS:
            slow = run.ms(machine, "eager", which, dtype="float32", seq_q=length, **shape)
            fast = run.ms(machine, "flash", which, dtype="bfloat16", seq_q=length, **shape)
            if slow and fast:
                found[length] = slow / fast
    return found


def combined(e: Evidence) -> Claim:
    claimed = float(e.published["asam"]["combined_speedup"])
    predicted = {}
    for name in ("rtx3060", e.card):
        words = ("--hardware", name, *SHAPE, "--seq", 1024)
        slow = e.plan.ms(*words, "--impl", "eager", "--dtype", "f32")
        fast = e.plan.ms(*words, "--impl", "flash", "--dtype", "bf16")
        predicted[name] = slow / fast
    lines, both = {}, {}
    for machine in e.measured.machines:
        gains = combined_gains(e, machine, "fwd+bwd")
        if not gains:
            continue
        forward = combined_gains(e, machine, "fwd")
        both[machine] = gains
        lines[machine] = (
            f"forward and backward {listed(list(gains.values()))} times at "
            f"{', '.join(map(str, gains))}; forward alone {listed(list(forward.values()))}."
        )
    verdict, told = OPEN, f"Attention should gain {times(predicted['rtx3060'])} on the seed's card."
    reached = {name: gains[1024] for name, gains in both.items() if 1024 in gains}
    if reached:
        verdict = PARTLY if max(reached.values()) >= claimed else FAILS
        told = "Attention alone, measured in one run at 1024, gains " + "; ".join(
            f"{times(gain)} on {name} ({'more' if gain >= claimed else 'less'} than claimed)"
            for name, gain in reached.items()
        )
        told += "; a layer's other work gains less, so the layer's gain lies below it."
    return Claim(
        "003",
        "Flash with FP16 is 5.4 times faster from 1024 on",
        f"2.7 (forward) times 2.0 (training) = {claimed} times.",
        f"Eager float32 over flash bf16 at 1024, forward and backward: RTX 3060 "
        f"{times(predicted['rtx3060'])}, {e.card_name} {times(predicted[e.card])}.",
        per_machine(lines, "tilewise bench --preset seed-asam on that machine."),
        verdict,
        f"A forward's gain times a training step's is no number of anything. {told}",
    )


def half_the_memory(e: Evidence) -> Claim:
    words = ("--hardware", "rtx3060", "--batch", 4, "--heads", 4, "--dim", 64, "--seq", 1024)
    rows = {
        (impl, dtype): e.plan.ask(*words, "--impl", impl, "--dtype", dtype)[-1]
        for impl in ("eager", "flash")
        for dtype in ("f32", "bf16")
    }

    def saved(impl: str, field: str) -> float:
        return 100 * (1 - rows[impl, "bf16"][field] / rows[impl, "f32"][field])

    lines = {}
    for machine in e.measured.machines:
        shares = []
        for run in e.measured.runs(machine):
            # Beside peers torch's allocator is read, which holds the workspaces too.
            run = Measured([r for r in run.results if "torch" not in r.environment])
            wanted = {"implementation": "flash", "pass": "bwd", "status": "ok"}
            for row in run.rows(machine, dtype="float32", **wanted):
                fields = ("batch", "heads", "seq_q", "head_dim", "causal", "threads")
                same = {name: row.get(name) for name in fields}
                for other in run.rows(machine, dtype="bfloat16", **wanted, **same):
                    if row.get("live_mib") and other.get("live_mib"):
                        shares.append(100 * (1 - other["live_mib"] / row["live_mib"]))
        if shares:
            lines[machine] = (
                f"flash saves {number(min(shares))} to {number(max(shares))} % of what lives "
                f"before backward, {len(shares)} cells."
            )
    return Claim(
        "003",
        "FP16 saves half the memory, so twice the batch fits",
        "About 50 % at 1024, no source recorded; 11 % at 512, none below.",
        f"Live memory saved at 1024: eager {saved('eager', 'live_MiB'):.0f} %, flash "
        f"{saved('flash', 'live_MiB'):.0f} %; peak: eager {saved('eager', 'peak_MiB'):.0f} %, "
        f"flash {saved('flash', 'peak_MiB'):.0f} %.",
        per_machine(lines, ASSIGNMENT),
        HOLDS if saved("flash", "live_MiB") > 45 else PARTLY,
        f"Attention's tensors shrink by {saved('flash', 'live_MiB'):.0f} % at every length, LSE "
        f"stays in float32; that nothing was saved below 512 says that other things fill the "
        f"memory there. Flash in float32 takes {mib(rows['flash', 'f32']['peak_MiB'])}.",
    )


JUDGES = (
    thresholds,
    sweet_spot,
    linear_accesses,
    original_memory,
    dip,
    combined,
    half_the_memory,
)
