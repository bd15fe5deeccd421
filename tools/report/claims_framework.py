"""Claims of seeds 000 and 001: attention in a framework, compiled and eager."""

from __future__ import annotations

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

COMMAND = "tilewise bench --preset seed-eager and seed-fused on that machine."
SHAPE = ("--batch", 8, "--dtype", "f32")


def published_gains(e: Evidence, field: str) -> dict[tuple[int, int], float]:
    """(length, dim) -> eager over compiled in the seeds' own tables."""
    eager = {(r["seq_len"], r["d_model"]): r for r in e.published["seed-eager"]["rows"]}
    return {
        (row["seq_len"], row["d_model"]): eager[row["seq_len"], row["d_model"]][field] / row[field]
        for row in e.published["seed-fused"]["rows"]
        if row["status"] == "ok"
    }


def predicted_gain(e: Evidence, which: str, length: int, dim: int) -> float:
    words = ("--hardware", e.card, *SHAPE, "--seq", length, "--dim", dim, "--pass", which)
    return e.plan.ms(*words, "--impl", "eager") / e.plan.ms(*words, "--impl", "fused")


def measured_fusion(e: Evidence, which: str) -> tuple[dict[str, str], list[float]]:
    """What fusing gains in each machine's largest problem: ours, and PyTorch's where it was there;
    a sentence a machine, and all gains."""
    lines, all_gains = {}, []
    for machine in e.measured.machines:
        told = []
        for owner, slow, fast in (
            ("ours", "eager", "fused"),
            ("PyTorch", "torch-eager", "torch-compile"),
        ):
            for dim in (128, 64):
                found = ratios(e, machine, slow, fast, which, head_dim=dim, dtype="float32")
                if found:
                    length = max(found)
                    all_gains.append(found[length])
                    told.append(f"{owner} {times(found[length])} at {length}, dim {dim}")
                    break
        if told:
            lines[machine] = "; ".join(told) + "."
    return lines, all_gains


def fusion_gain(e: Evidence) -> Claim:
    seed = published_gains(e, "forward_ms_mean")[8192, 128]
    predicted = predicted_gain(e, "fwd", 8192, 128)
    lines, best = measured_fusion(e, "fwd")
    verdict = OPEN if not best else HOLDS if max(best) >= seed else PARTLY
    sentence = (
        f"Fusing the passes gives at most {times(max(best))} where it was measured, against the "
        f"seed's {times(seed)}: the gain is that of a card's memory, not of the method."
        if best
        else f"The model expects {times(predicted)} on an {e.card_name} for the seed's "
        f"{times(seed)}."
    )
    return Claim(
        "000",
        "Fusion: 44 % less time in the forward",
        f"At length 8192 and dim 128 the forward falls from 21.835 to 12.178 ms, by 44 %: "
        f"{times(seed)} faster.",
        f"{e.card_name}: {times(predicted)} (eager over fused).",
        per_machine(lines, COMMAND),
        verdict,
        sentence,
    )


def longer_is_better(e: Evidence) -> Claim:
    gains = published_gains(e, "forward_ms_mean")
    slower = sorted(key for key, gain in gains.items() if gain < 1.0)
    peaks = {
        dim: max((gain, length) for (length, d), gain in gains.items() if d == dim)
        for dim in (16, 32, 64, 128)
    }
    predicted = [predicted_gain(e, "fwd", length, 64) for length in (256, 1024, 4096, 8192)]
    lines, rising = {}, []
    for machine in e.measured.machines:
        found = ratios(e, machine, "eager", "fused", "fwd", head_dim=64, dtype="float32")
        if len(found) >= 3:
            values = list(found.values())
            rising.append(all(a <= b for a, b in pairwise(values)))
            lengths = ", ".join(map(str, found))
            lines[machine] = f"{listed(values)} times at lengths {lengths}, dim 64."
    where = "; ".join(f"dim {dim}: {times(g)} at {length}" for dim, (g, length) in peaks.items())
    verdict = PARTLY if not rising or any(rising) else FAILS
    return Claim(
        "000",
        "The longer the sequence, the more fusion helps",
        "The longer the sequence, the larger the gain of compiling.",
        f"{e.card_name}, dim 64: {listed(predicted)} times at lengths 256, 1024, 4096, 8192.",
        per_machine(lines, COMMAND),
        verdict,
        f"In the seed's own tables the compiled forward is slower than eager in {len(slower)} of "
        f"{len(gains)} cells, all of them at 256 or 1024, and the largest gains are {where}: it "
        f"grows until memory bounds the time, and then no more.",
    )


def backward_gain(e: Evidence) -> Claim:
    seed = published_gains(e, "backward_ms_mean")[8192, 128]
    predicted = predicted_gain(e, "bwd", 8192, 128)
    lines, best = measured_fusion(e, "bwd")
    return Claim(
        "000",
        "Fusion nearly doubles the backward",
        "At 8192 and dim 128 the backward falls from 50.456 to 28.37 ms, nearly twice as fast.",
        f"{e.card_name}: {times(predicted)}.",
        per_machine(lines, COMMAND),
        OPEN if not best else HOLDS if max(best) >= seed else PARTLY,
        f"{times(seed)} is what the seed measured; "
        + (f"here it is {times(max(best))} at most." if best else "nothing is measured here yet."),
    )


def memory_unchanged(e: Evidence) -> Claim:
    live = {}
    for name in ("eager", "fused"):
        rows = e.plan.ask(*SHAPE, "--seq", 8192, "--dim", 128, "--impl", name, "--hardware", e.card)
        live[name] = rows[0]["live_MiB"]
    lines = {}
    for machine in e.measured.machines:
        pairs = []
        for row in e.measured.rows(machine, implementation="fused", status="ok"):
            same = {n: row[n] for n in ("pass", "dtype", "batch", "seq_q", "head_dim")}
            for other in e.measured.rows(machine, implementation="eager", status="ok", **same):
                pairs.append(abs(other["live_mib"] - row["live_mib"]))
        if pairs:
            lines[machine] = f"at most {max(pairs):.2f} MiB apart in {len(pairs)} rows."
    gap = abs(live["eager"] - live["fused"])
    return Claim(
        "000",
        "Fusion leaves memory as it is",
        "4273.08 MB before compiling, 4273.28 after: both matrices of length x length stay.",
        f"{mib(live['eager'])} eager, {mib(live['fused'])} fused, {gap:.2f} MiB apart.",
        per_machine(lines, COMMAND),
        HOLDS if gap < 0.5 else FAILS,
        f"Both keep S and P: {gap:.2f} MiB of difference in {mib(live['eager'])}.",
    )


def out_of_memory(e: Evidence) -> Claim:
    words = (*SHAPE, "--seq", 16384, "--dim", 16, "--impl", "eager", "--hardware", e.card)
    plan = e.plan.ask(*words, "--memory")
    forward, backward = plan[0], plan[-1]
    s_gib, peak_gib = forward["S"] / 2**30, backward["peak"] / 2**30
    limits = {
        size: e.plan.ask(*words, "--mem-limit", f"{size}GiB", "--limits")[0]
        for size in (12, 24, 32, 80)
    }
    fits = ", ".join(f"{size} GiB: {row['largest_length']}" for size, row in limits.items())
    lines = {}
    for machine in e.measured.machines:
        rows = e.measured.rows(machine, seq_q=16384, batch=8, implementation="eager")
        if rows:
            status = sorted({row["status"] for row in rows})
            allowed = " and ".join(sorted({row["limit"] for row in rows if row["limit"]}))
            lines[machine] = (
                f"{' and '.join(status)} in {len(rows)} rows at 16384"
                f"{' under a limit of ' + allowed if allowed else ''}."
            )
    return Claim(
        "001",
        "16 GiB of scores run out of memory at 16384",
        "2,147,483,648 scores take 8.0 GiB, with the probabilities 16 GiB: out of memory at 16384 "
        "whatever the dim.",
        f"S {s_gib:.1f} GiB, S and P {2 * s_gib:.1f} GiB, live {forward['live'] / 2**30:.1f} GiB, "
        f"peak in the backward {peak_gib:.1f} GiB. Largest length by memory, dim 16: {fits}.",
        per_machine(lines, "tilewise bench --preset seed-eager --mem-limit 24GiB."),
        PARTLY,
        f"The 16 GiB are right and are what lives; the peak is {peak_gib:.1f} GiB. On a 24 GiB "
        f"card 16384 is {limits[24]['verdict']}, on an 80 GiB card {limits[80]['verdict']}: the "
        f"threshold is the card's.",
    )


def live_is_not_peak(e: Evidence) -> Claim:
    rows = e.plan.ask(*SHAPE, "--seq", 8192, "--dim", 128, "--impl", "eager", "--hardware", e.card)
    live, peak = rows[-1]["live_MiB"], rows[-1]["peak_MiB"]
    lines = {}
    for machine in e.measured.machines:
        found = [
            row["peak_mib"] / row["live_mib"]
            for row in e.measured.rows(machine, implementation="eager", status="ok", batch=8)
            if row["pass"] == "bwd" and row.get("live_mib")
        ]
        if found:
            lines[machine] = f"peak {number(min(found))} to {times(max(found))} the live memory."
    return Claim(
        "001",
        "The column fwd_peak_mem_MB is a peak",
        "4273.0 MB at 8192 and dim 128, named fwd_peak_mem_MB.",
        f"Live before the backward {mib(live)}, peak {mib(peak)}: {times(peak / live)}.",
        per_machine(lines, "tilewise bench --preset seed-eager."),
        FAILS,
        f"The seed read memory between forward and backward: that is live memory. The true peak is "
        f"{times(peak / live)} as much.",
    )


def quadratic_growth(e: Evidence) -> Claim:
    lives = {
        length: e.plan.ask(
            *SHAPE, "--seq", length, "--dim", 16, "--impl", "eager,flash", "--hardware", e.card
        )
        for length in (4096, 8192)
    }
    eager = [lives[n][0]["live_MiB"] for n in (4096, 8192)]
    flash = [lives[n][2]["live_MiB"] for n in (4096, 8192)]
    lines = {}
    for machine in e.measured.machines:
        found = []
        for length in (4096, 8192):
            rows = e.measured.rows(
                machine, implementation="eager", seq_q=length, batch=8, head_dim=16, status="ok"
            )
            if rows:
                found.append(rows[0]["live_mib"])
        if len(found) == 2:
            lines[machine] = f"{mib(found[0])} to {mib(found[1])}, {times(found[1] / found[0])}."
    return Claim(
        "001",
        "Twice the length takes four times the memory",
        "From 4096 to 8192 memory grows from about 1 to about 4 GB; FlashAttention is linear.",
        f"Eager {mib(eager[0])} to {mib(eager[1])}, {times(eager[1] / eager[0])}; flash "
        f"{mib(flash[0])} to {mib(flash[1])}, {times(flash[1] / flash[0])}.",
        per_machine(lines, "tilewise bench --preset seed-eager."),
        HOLDS if eager[1] / eager[0] > 3.9 and flash[1] / flash[0] < 2.1 else FAILS,
        f"{times(eager[1] / eager[0])} for eager, {times(flash[1] / flash[0])} for flash.",
    )


JUDGES = (
    fusion_gain,
    longer_is_better,
    backward_gain,
    memory_unchanged,
    out_of_memory,
    live_is_not_peak,
    quadratic_growth,
)
