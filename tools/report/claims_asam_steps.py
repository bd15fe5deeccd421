"""Claims of seed 003 on training steps: 16 bits, memory, the longest sequence.

Times of 16 bits are judged on GPUs alone, for the seed speaks of Tensor Cores: a CPU's times stand
beside the claims. Memory is judged on every machine. Where no file holds the layers, a claim is
open, and the tables are of the attention inside, at the seed's shape.
"""

from __future__ import annotations

import math

from . import layers
from .claims import (
    FAILS,
    OPEN,
    PARTLY,
    Claim,
    Contender,
    Evidence,
    Figures,
    grids,
    joined,
    listed,
    mib,
    missing,
    short,
    times,
)
from .claims_asam import (
    EAGER32,
    FLASH16,
    FLASH32,
    LENGTHS,
    PROBLEM,
    SHAPE,
    attention_tables,
    verdict_of,
)
from .layers import Kind, Training

STEPS_ON_A_GPU = "tilewise layer bench --preset asam-training --format json, on a GPU."
MEMORY = "tilewise layer bench --preset asam-memory --format json."
TRAINED = (128, 256, 512, 1024)
LIMIT_MIB = 12 * 1024  # of the seed's card
GAIN = "times faster in 16 bits"


def with_narrow(e: Evidence, lengths: tuple[int, ...], column: str) -> list[tuple[Training, Kind]]:
    """Trainings that have flash in 32 and in 16 bits at all lengths, with the latter's kind."""
    found = []
    for one in layers.newest(t for t in layers.trainings(e) if _reaches(t, lengths, column)):
        narrow = one.narrow(getattr(one, column))
        assert narrow is not None
        found.append((one, narrow))
    return found


def _reaches(one: Training, lengths: tuple[int, ...], column: str) -> bool:
    series = getattr(one, column)
    narrow = one.narrow(series)
    return narrow is not None and set(lengths) <= set(one.gain(layers.FLASH32, narrow, series))


def first_to_pay(gain: dict[int, float]) -> int | None:
    """The length from which on 16 bits save 10 % of a step."""
    start = None
    for length in sorted(gain, reverse=True):
        if gain[length] < 1 / 0.9:
            break
        start = length
    return start


def thresholds(e: Evidence) -> Claim:
    named = sorted(e.published["asam"]["thresholds"].values())
    predicted = {}
    for name in ("rtx3060", e.card, "epyc-2"):
        start = e.plan.ask("--advise", "--hardware", name, *SHAPE)["bf16_from"]
        predicted[name] = "nowhere" if start is None else f"from {start or 128} on"
    origin = "; ".join(f"{name} {start}" for name, start in predicted.items())
    gains = e.published["asam"]["training"]
    tables, told, right = [], [], []
    for one, narrow in with_narrow(e, TRAINED, "ms"):
        start = first_to_pay(one.gain(layers.FLASH32, narrow))
        told.append(f"{f'from {start} tokens' if start else 'nowhere'} on {one.where}")
        tables.append(one.figures(one.ms, "ms", [(GAIN, layers.FLASH32, narrow)]))
        if one.on_gpu:
            right.append(start in named)
    return Claim(
        "003",
        "16 bits pay from 256, 512 or 1024 on",
        f"Section 2.3 switches at 256, the template of 5.2 at 512, the table of 3.1 at 1024. The "
        f"layer's training gains {listed([row['speedup'] for row in gains])} times at "
        f"{listed([row['seq_len'] for row in gains])}.",
        f"bf16 saves 10 % of attention's time: {origin} (batch 2, 4 heads of 64).",
        "" if right else missing(STEPS_ON_A_GPU),
        # Three thresholds cannot all be right.
        OPEN if not right else PARTLY if any(right) else FAILS,
        f"The seed names three thresholds, {joined(list(map(str, named)))}: one at most is right. "
        + (f"Measured, 16 bits save 10 % of a step {joined(told)}." if told else NO_STEP)
        + ("" if right else TENSOR_CORES),
        tables or attention_tables(e, "fwd+bwd", [[FLASH32, FLASH16]]),
    )


NO_STEP = "A training step of the layer is not measured here."
NO_MEMORY = "The memory of the layer's training step is not measured here."
TENSOR_CORES = " The seed speaks of Tensor Cores, which a CPU does not have."


def training_gain(e: Evidence) -> Claim:
    row = e.published["asam"]["training"][-1]
    words = ("--hardware", "rtx3060", "--batch", 4, "--heads", 4, "--dim", 64, "--seq", 1024)
    slow, fast = (e.plan.ms(*words, "--impl", "flash", "--dtype", t) for t in ("f32", "bf16"))
    tables, told, twice = [], [], []
    for one, narrow in with_narrow(e, (1024,), "ms"):
        gain = one.gain(layers.FLASH32, narrow)[1024]
        told.append(f"{times(gain)} in {narrow.dtype} on {one.where}")
        tables.append(one.figures(one.ms, "ms", [(GAIN, layers.FLASH32, narrow)]))
        if one.on_gpu:
            twice.append(gain >= 0.95 * row["speedup"])
    alone = []
    for grid in grids(e, [FLASH32, FLASH16], "fwd+bwd", [1024], **PROBLEM):
        tables.append(grid.figures([("times faster", FLASH32.name, FLASH16.name)]))
        gain = grid.gain(FLASH32.name, FLASH16.name)[1024]
        alone.append(f"{times(gain)} on the {short(grid.machine)}")
    return Claim(
        "003",
        "FP16 trains 2.02 times faster at 1024",
        f"{row['fp32_ms']} ms a step in float32, {row['fp16_ms']} ms in float16, at batch 4: "
        f"{row['speedup']} times.",
        f"Attention alone at batch 4 on an RTX 3060, forward and backward: {times(slow / fast)}.",
        "" if twice else missing(STEPS_ON_A_GPU),
        verdict_of(twice),
        (f"Measured, a step gains {joined(told)}." if told else NO_STEP)
        + ("" if twice else TENSOR_CORES)
        + (f" Attention alone, at batch 2, gains {joined(alone)}." if alone else ""),
        tables,
    )


def combined(e: Evidence) -> Claim:
    claimed = float(e.published["asam"]["combined_speedup"])
    predicted = {}
    for name in ("rtx3060", e.card):
        words = ("--hardware", name, *SHAPE, "--seq", 1024)
        slow = e.plan.ms(*words, "--impl", "eager", "--dtype", "f32")
        fast = e.plan.ms(*words, "--impl", "flash", "--dtype", "bf16")
        predicted[name] = slow / fast
    tables, told, reached = [], [], []
    for one, narrow in with_narrow(e, (1024,), "ms"):
        gain = one.gain(layers.ORIGINAL32, narrow)
        if 1024 not in gain:
            continue
        told.append(f"{times(gain[1024])} on {one.where}")
        tables.append(one.figures(one.ms, "ms", [("times faster", layers.ORIGINAL32, narrow)]))
        if one.on_gpu:
            reached += [gain[n] >= claimed for n in gain if n >= 1024]
    return Claim(
        "003",
        "Flash with FP16 is 5.4 times faster from 1024 on",
        f"2.7 (forward) times 2.0 (training) = {claimed} times.",
        f"Our eager float32 over our flash bf16 at 1024, forward and backward: RTX 3060 "
        f"{times(predicted['rtx3060'])}, {e.card_name} {times(predicted[e.card])}.",
        "" if reached else missing(STEPS_ON_A_GPU),
        verdict_of(reached),
        "The seed multiplies a forward's gain by a training step's and measured neither "
        "combination. "
        + (f"A step at 1024 gains {joined(told)}, end to end." if told else NO_STEP)
        + ("" if reached else TENSOR_CORES),
        tables or attention_tables(e, "fwd+bwd", [[EAGER32, FLASH16]]),
    )


NO_SCORES = "Our original layers keep no scores, as the seed's did."


def memory_at_2048(e: Evidence) -> Claim:
    words = ("--hardware", "rtx3060", *SHAPE, "--seq", 2048, "--pass", "fwd")
    predicted = {
        (impl, dtype): e.plan.ask(*words, "--impl", impl, "--dtype", dtype)[-1]["peak_MiB"]
        for impl, dtype in (("eager", "f32"), ("flash", "f32"), ("flash", "bf16"))
    }
    tables, told, shares = [], [], []
    for one in layers.newest(t for t in layers.trainings(e) if _has_2048(t)):
        of = {kind: values[2048] for kind, values in one.mib.items() if 2048 in values}
        original, narrow = of[layers.ORIGINAL32], one.narrow(one.mib)
        shares.append(of[layers.FLASH32] <= 1.1 * original / 3)
        words_of = [f"the original {mib(original)}, flash {mib(of[layers.FLASH32])}"]
        if narrow in of:
            shares.append(of[narrow] <= 1.1 * original / 6)
            words_of.append(f"flash in {narrow.dtype} {mib(of[narrow])}")
        told.append(f"{', '.join(words_of)} on {one.where}")
        tables.append(one.figures(one.mib, "MiB", []))
    return Claim(
        "003",
        "At 2048: 750 MB, with flash 250, with FP16 125",
        "Original about 750 MB, measured; flash about 250 MB and flash with FP16 about 125 MB, "
        "estimated: a third and a sixth.",
        "Our attention's forward on an RTX 3060, peak: "
        + ", ".join(f"{impl} {dtype} {mib(peak)}" for (impl, dtype), peak in predicted.items())
        + ".",
        "" if shares else missing(MEMORY),
        verdict_of(shares),
        "The seed measured one of its three numbers. "
        + (f"A training step at 2048 takes: {joined(told)}. {NO_SCORES}" if told else NO_MEMORY),
        tables or held_memory(e, "fwd", [EAGER32, FLASH32, FLASH16], [2048]),
    )


def _has_2048(one: Training) -> bool:
    return all(2048 in one.mib.get(kind, {}) for kind in (layers.ORIGINAL32, layers.FLASH32))


def longest(e: Evidence) -> Claim:
    own = e.published["asam"]["original_mb_at_2048"]
    reach = 2048 * math.sqrt(LIMIT_MIB / own)
    limits = {}
    for name, impl, dtype in (
        ("eager f32", "eager", "f32"),
        ("flash f32", "flash", "f32"),
        ("flash bf16", "flash", "bf16"),
    ):
        words = ("--hardware", "rtx3060", *SHAPE, "--impl", impl, "--dtype", dtype)
        row = e.plan.ask(*words, "--seq", 2048, "--mem-limit", "12GiB", "--limits")[-1]
        limits[name] = row["largest_length"]
    predicted = ", ".join(f"{name} {length}" for name, length in limits.items())
    tables, told, right = [], [], []
    both = {layers.ORIGINAL32, layers.FLASH32}
    for one in layers.newest(t for t in layers.trainings(e) if both <= set(t.longest)):
        original, narrow = one.longest[layers.ORIGINAL32], one.narrow(one.mib)
        peak = one.mib.get(layers.ORIGINAL32, {}).get(2048)
        if peak:
            right.append(peak >= LIMIT_MIB)
        right.append(one.longest[layers.FLASH32] >= 2 * original)
        if narrow in one.longest:
            right.append(one.longest[narrow] >= 4 * original)
        reached = ", ".join(
            f"{kind} {length}" for kind, length in one.longest.items() if kind.layers != "working"
        )
        told.append(
            (f"the original takes {mib(peak)} at 2048; " if peak else "")
            + f"under {one.limit} the longest are {reached}, on {one.where}"
        )
        tables.append(one.longest_figures())
    return Claim(
        "003",
        "The original runs out of memory at 2048",
        f"{own} MB at 2048 of 12 GB; longest lengths 2048 (original), 4096 (flash), 8192 "
        f"(flash with FP16).",
        f"Our attention with its backward in 12 GiB: {predicted}.",
        "" if right else missing(MEMORY),
        verdict_of(right),
        f"The seed's own {own} MB are {100 * own / LIMIT_MIB:.0f} % of 12 GiB; quadratic growth "
        f"from there reaches 12 GiB at {reach:.0f}. "
        + (f"A training step: {joined(told)}. {NO_SCORES}" if told else NO_MEMORY),
        tables,
    )


def half_the_memory(e: Evidence) -> Claim:
    words = ("--hardware", "rtx3060", "--batch", 4, "--heads", 4, "--dim", 64, "--seq", 1024)
    rows = {
        dtype: e.plan.ask(*words, "--impl", "flash", "--dtype", dtype)[-1]
        for dtype in ("f32", "bf16")
    }
    predicted = {
        name: 100 * (1 - rows["bf16"][name] / rows["f32"][name])
        for name in ("live_MiB", "peak_MiB")
    }
    tables, told, halves = [], [], []
    for one, narrow in with_narrow(e, (1024,), "mib"):
        share = {n: 1 - 1 / x for n, x in one.gain(layers.FLASH32, narrow, one.mib).items()}
        halves += [share[1024] >= 0.45, share[1024] >= 0.2]
        told.append(
            f"{listed([100 * x for x in share.values()])} % at {listed(list(share))} in "
            f"{narrow.dtype} on {one.where}"
        )
        tables.append(one.figures(one.mib, "MiB", [("times less", layers.FLASH32, narrow)]))
    return Claim(
        "003",
        "FP16 saves half the memory, so twice the batch fits",
        "About 50 % at 1024, no source recorded. 11 % at 512, 0 % below.",
        f"Our flash at 1024, batch 4: {predicted['live_MiB']:.0f} % of what lives before the "
        f"backward, {predicted['peak_MiB']:.0f} % of the peak.",
        "" if halves else missing(MEMORY),
        verdict_of(halves),
        f"Measured, 16 bits save of a training step's memory: {joined(told)}."
        if told
        else NO_MEMORY,
        tables or held_memory(e, "fwd+bwd", [FLASH32, FLASH16], LENGTHS),
    )


def held_memory(
    e: Evidence, which: str, kinds: list[Contender], lengths: list[int]
) -> list[Figures]:
    """Peak memory of attention at the seed's shape; a machine needs all contenders."""
    tables = []
    for grid in grids(e, kinds, which, lengths, **PROBLEM, column="peak_mib"):
        tables.append(grid.figures([], "peak_mib", "peak MiB"))
    return tables


JUDGES = (thresholds, training_gain, longest, memory_at_2048, combined, half_the_memory)
