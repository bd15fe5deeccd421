"""Claims of seed 003: an adaptive sparse layer on an RTX 3060, its thresholds and limits.

The seed timed a whole layer on a GPU. `tilewise layer bench` measures its inference, by which two
claims are judged, on GPUs alone: a CPU's times stand beside them and decide nothing. The others
need a training step in 16 bits, which no result file holds: they are open, and the tables are of
the attention inside, at the seed's shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .claims import (
    FAILS,
    HOLDS,
    OPEN,
    PARTLY,
    Claim,
    Contender,
    Evidence,
    Figures,
    contender,
    grids,
    joined,
    listed,
    mib,
    missing,
    number,
    short,
    times,
)

# The benchmark behind the seed's tables: batch 2, 4 heads of 64, model dim 256; training batch 4.
SHAPE = ("--batch", 2, "--heads", 4, "--dim", 64)
PROBLEM = {"batch": 2, "heads": 4, "head_dim": 64, "causal": False}
LENGTHS = [128, 256, 512, 1024, 2048]
PRESET = "tilewise bench --preset seed-asam on that machine."
LAYER = "The layer is not measured in the files given."
F32, BF16 = {"dtype": "float32"}, {"dtype": "bfloat16"}
EAGER32 = contender("eager", "our eager, float32", **F32)
FLASH32 = contender("flash", "our flash, float32", **F32)
FLASH16 = contender("flash", "our flash, bfloat16", **BF16)
TORCH32 = contender("torch-eager", "PyTorch eager, float32", **F32)
SDPA32 = contender("memeff", "PyTorch memory-efficient, float32", **F32)


ORIGINAL = contender("layer-original", "the original layers", **F32)
FLASH = contender("layer-flash", "the flash layers", **F32)
LAYER_BENCH_ON_A_GPU = "tilewise layer bench --preset asam-forward --format json, on a GPU."


@dataclass
class LayerGains:
    """How many times faster the flash layers are, length by length, on each machine."""

    gains: dict[str, dict[int, float]]  # machine -> length -> gain
    gpus: list[str]  # the machines among them that decide: the seed's claims are of a GPU
    tables: list[Figures]

    def on_gpus(self) -> list[dict[int, float]]:
        return [self.gains[machine] for machine in self.gpus]

    def told(self) -> str:
        """ "2.1, 3.2 times at 128, 256 on the H200 and ..."."""
        return joined(
            [
                f"{listed(list(gain.values()))} times at {listed(list(gain))} on the "
                f"{short(machine)}"
                for machine, gain in self.gains.items()
            ]
        )


def layer_gains(e: Evidence) -> LayerGains:
    found = LayerGains({}, [], [])
    for grid in grids(e, [ORIGINAL, FLASH], "fwd", LENGTHS, **PROBLEM):
        gain = grid.gain(ORIGINAL.name, FLASH.name)
        if set(LENGTHS) <= set(gain):
            found.gains[grid.machine] = dict(sorted(gain.items()))
            if grid.on_gpu():
                found.gpus.append(grid.machine)
            found.tables.append(grid.figures([("times faster", ORIGINAL.name, FLASH.name)]))
    return found


def verdict_of(holds: list[bool]) -> str:
    if not holds:
        return OPEN
    return HOLDS if all(holds) else PARTLY if any(holds) else FAILS


def layer_words(tables: list[Figures]) -> str:
    """The words in a measurement's place: no file holds a layer."""
    if tables:
        return f"{LAYER} The tables are of its attention alone."
    return f"{LAYER} Its attention alone: {PRESET}"


def layer_gflop(length: int) -> float:
    """Forward of one layer of the seed, batch 2, dim 256: products of attention, of the
    projections to q, k, v and o, and of a feed-forward four times as wide."""
    tokens, dim = 2 * length, 256
    return (2 * tokens * 12 * dim * dim + 4 * tokens * length * dim) * 1e-9


def attention_tables(e: Evidence, which: str, pairs: list[list[Contender]]) -> list[Figures]:
    """Times and the gain along the length, for each pair of contenders at the seed's shape."""
    tables = []
    for slow, fast in pairs:
        for grid in grids(e, [slow, fast], which, LENGTHS, **PROBLEM):
            gain = ("times faster", slow.name, fast.name)
            tables.append(grid.figures([gain]))
    return tables


def thresholds(e: Evidence) -> Claim:
    named = sorted(e.published["asam"]["thresholds"].values())
    told = {}
    for name in ("rtx3060", e.card, "epyc-2"):
        start = e.plan.ask("--advise", "--hardware", name, *SHAPE)["bf16_from"]
        told[name] = "nowhere" if start is None else f"from {start or 128} on"
    origin = "; ".join(f"{name} {start}" for name, start in told.items())
    gains = e.published["asam"]["training"]
    tables = attention_tables(e, "fwd+bwd", [[FLASH32, FLASH16]])
    return Claim(
        "003",
        "16 bits pay from 256, 512 or 1024 on",
        f"Section 2.3 switches at 256, the template of 5.2 at 512, the table of 3.1 at 1024. The "
        f"layer's training gains {listed([row['speedup'] for row in gains])} times at "
        f"{listed([row['seq_len'] for row in gains])}.",
        f"bf16 saves 10 % of attention's time: {origin} (batch 2, 4 heads of 64).",
        layer_words(tables),
        OPEN,
        f"The seed names three thresholds, {joined(list(map(str, named)))}. Which one is right for "
        f"its layer is not measured here.",
        tables,
    )


def training_gain(e: Evidence) -> Claim:
    row = e.published["asam"]["training"][-1]
    words = ("--hardware", "rtx3060", "--batch", 4, "--heads", 4, "--dim", 64, "--seq", 1024)
    slow, fast = (e.plan.ms(*words, "--impl", "flash", "--dtype", t) for t in ("f32", "bf16"))
    tables, told = [], []
    for grid in grids(e, [FLASH32, FLASH16], "fwd+bwd", [1024], **PROBLEM):
        tables.append(grid.figures([("times faster", FLASH32.name, FLASH16.name)]))
        gain = grid.gain(FLASH32.name, FLASH16.name)[1024]
        told.append(f"{times(gain)} on the {short(grid.machine)}")
    return Claim(
        "003",
        "FP16 trains 2.02 times faster at 1024",
        f"{row['fp32_ms']} ms a step in float32, {row['fp16_ms']} ms in float16, at batch 4: "
        f"{row['speedup']} times.",
        f"Attention alone at batch 4 on an RTX 3060, forward and backward: {times(slow / fast)}.",
        layer_words(tables),
        OPEN,
        "A training step of the layer is not measured here."
        + (f" Attention alone, at batch 2, gains {joined(told)}." if told else ""),
        tables,
    )


def sweet_spot(e: Evidence) -> Claim:
    rows = e.published["asam"]["forward"]
    flash = {row["seq_len"]: row["flash_ms"] for row in rows}
    gain = {row["seq_len"]: row["speedup"] for row in rows}
    flat = max(flash[n] for n in (128, 256, 512)) / min(flash[n] for n in (128, 256, 512))
    work = [layer_gflop(n) for n in (128, 512)]
    words = ("--hardware", "rtx3060", *SHAPE, "--pass", "fwd", "--dtype", "f32", "--seq")
    alone = [e.plan.ms(*words, n) for n in LENGTHS]
    layers = layer_gains(e)
    best = [max(of, key=of.__getitem__) for of in layers.on_gpus()]
    tables = [*layers.tables, *attention_tables(e, "fwd", [[TORCH32, SDPA32], [EAGER32, FLASH32]])]
    measured = f" Measured, the layers gain {layers.told()}." if layers.gains else ""
    return Claim(
        "003",
        "256 to 512 is the Tensor Cores' best length",
        f"The gain, {listed(list(gain.values()))} times at {listed(LENGTHS)}, is largest at 256 "
        f"and 512: the optimum of the RTX 3060's Tensor Cores.",
        f"Attention of one layer alone on an RTX 3060, a card that no file measures: "
        f"{listed(alone)} ms at {listed(LENGTHS)}.",
        "" if best else missing(LAYER_BENCH_ON_A_GPU),
        verdict_of([length in (256, 512) for length in best]),
        f"The seed's own table: from 128 to 512 the flash layer's time differs by "
        f"{100 * (flat - 1):.1f} %. A layer's products grow {number(work[1] / work[0])} times "
        f"({number(work[0])} to {number(work[1])} GFLOP).{measured}",
        tables,
    )


NOT_MEASURED = "The layer's dip is not measured here."


def dip(e: Evidence) -> Claim:
    gains = {row["seq_len"]: row["speedup"] for row in e.published["asam"]["forward"]}
    words = ("--hardware", e.card, *SHAPE, "--pass", "fwd", "--dtype", "f32", "--seq")
    predicted = [
        e.plan.ms(*words, n, "--impl", "eager") / e.plan.ms(*words, n, "--impl", "flash")
        for n in LENGTHS
    ]
    told = []
    for grid in grids(e, [EAGER32, FLASH32], "fwd", LENGTHS, **PROBLEM):
        gain = grid.gain(EAGER32.name, FLASH32.name)
        if 512 in gain and 1024 in gain:
            way = "dips" if gain[1024] < gain[512] else "does not dip"
            told.append(
                f"On the {short(grid.machine)} attention alone {way}: our flash gains "
                f"{number(gain[512])} times at 512 and {number(gain[1024])} at 1024."
            )
    layers = layer_gains(e)
    dips = [of[1024] < min(of[512], of[2048]) for of in layers.on_gpus()]
    told.insert(0, f"Measured, the layers gain {layers.told()}." if layers.gains else NOT_MEASURED)
    tables = [*layers.tables, *attention_tables(e, "fwd", [[TORCH32, SDPA32], [EAGER32, FLASH32]])]
    return Claim(
        "003",
        "The gain dips at 1024",
        f"The flash layer gains {listed(list(gains.values()))} times at {listed(list(gains))}.",
        f"Our flash over our eager on an {e.card_name}, float32, {listed(LENGTHS)}: "
        f"{listed(predicted)} times.",
        "" if dips else missing(LAYER_BENCH_ON_A_GPU),
        verdict_of(dips),
        " ".join(told),
        tables,
    )


def forced_flash(e: Evidence) -> Claim:
    """Rows of PyTorch's flash kernel in float32: a status, or a time."""
    rows = [
        row
        for machine in e.measured.machines
        for row in e.measured.rows(machine, implementation="forced-flash", dtype="float32")
    ]
    done = [row for row in rows if row["status"] == "ok"]
    verdict, sentence = OPEN, "PyTorch's flash kernel was not forced in float32 in these files."
    if rows:
        verdict = HOLDS if len(done) == len(rows) else PARTLY if done else FAILS
        sentence = (
            f"Forced in float32, PyTorch's flash kernel ran in {len(done)} of {len(rows)} rows."
        )
    reasons = [[row["file"], row["status"], str(row.get("reason") or "")] for row in rows[:3]]
    table = Figures(
        "PyTorch's flash kernel in float32", [r[0] for r in reasons], ["file", "status", "reason"],
        reasons,
    )  # fmt: skip
    return Claim(
        "003",
        "SDPA changes kernels at 1024, so force flash",
        "PyTorch may change kernels at 1024. Advice: sdp_kernel(enable_flash=True, "
        "enable_math=False, enable_mem_efficient=False). The layers ran in float32.",
        "The plan knows our kernels only; our flash takes float32 at every length.",
        ""
        if rows
        else missing(
            "python -m bench.peers measure --preset seed-asam --peers forced-flash,memeff."
        ),
        verdict,
        sentence,
        [table] if rows else [],
    )


def linear_accesses(e: Evidence) -> Claim:
    words = ("--hardware", e.card, *SHAPE, "--pass", "fwd", "--dtype", "f32", "--seq")
    moved = {
        name: [e.plan.ask(*words, n, "--impl", name)[0]["GB_moved"] for n in (1024, 2048)]
        for name in ("eager", "flash")
    }
    predicted = [
        e.plan.ms(*words, n, "--impl", "eager") / e.plan.ms(*words, n, "--impl", "flash")
        for n in LENGTHS
    ]
    told, straight = [], []
    for grid in grids(e, [EAGER32, FLASH32], "fwd", LENGTHS, **PROBLEM):
        gain = grid.gain(EAGER32.name, FLASH32.name)
        if len(gain) >= 3:
            longer = max(gain) / min(gain)
            grown = gain[max(gain)] / gain[min(gain)]
            straight.append(grown >= 0.8 * longer)
            told.append(
                f"{number(gain[min(gain)])} to {number(gain[max(gain)])} times for "
                f"{number(longer)} times the length on the {short(grid.machine)}"
            )
    eager, flash = (pair[1] / pair[0] for pair in moved.values())
    return Claim(
        "003",
        "O(n) memory accesses: the gain grows with the length",
        "Flash accesses memory O(n) times instead of O(n^2); in theory the speed-up is "
        "proportional to the length.",
        f"From 1024 to 2048 our eager moves {times(eager)} and our flash {times(flash)} the bytes. "
        f"On an {e.card_name} flash gains {listed(predicted)} times at {listed(LENGTHS)}.",
        "" if told else missing(PRESET),
        OPEN if not told else HOLDS if all(straight) else PARTLY,
        f"Measured, our flash over our eager gains {joined(told)}: "
        + ("proportional to it." if all(straight) else "less than in proportion.")
        + " The bytes are the plan's count."
        if told
        else "The gain along the length is not measured here.",
        attention_tables(e, "fwd", [[EAGER32, FLASH32], [TORCH32, SDPA32]]),
    )


def longest(e: Evidence) -> Claim:
    own = e.published["asam"]["original_mb_at_2048"]
    reach = 2048 * math.sqrt(12 * 1024 / own)
    limits = {}
    for name, impl, dtype in (
        ("eager f32", "eager", "f32"),
        ("flash f32", "flash", "f32"),
        ("flash bf16", "flash", "bf16"),
    ):
        words = ("--hardware", "rtx3060", *SHAPE, "--impl", impl, "--dtype", dtype)
        row = e.plan.ask(*words, "--seq", 2048, "--mem-limit", "12GiB", "--limits")[-1]
        limits[name] = row["largest_length"]
    told = ", ".join(f"{name} {length}" for name, length in limits.items())
    return Claim(
        "003",
        "The original runs out of memory at 2048",
        f"{own} MB at 2048 of 12 GB; longest lengths 2048 (original), 4096 (flash), 8192 "
        f"(flash with FP16).",
        f"Our attention with its backward in 12 GiB: {told}.",
        LAYER,
        OPEN,
        f"The seed's own {own} MB are {100 * own / (12 * 1024):.0f} % of 12 GiB; quadratic growth "
        f"from there reaches 12 GiB at {reach:.0f}. The layer's longest length is not measured "
        f"here.",
    )


def held_memory(
    e: Evidence, which: str, kinds: list[Contender], lengths: list[int]
) -> list[Figures]:
    """Live and peak memory of contenders at the seed's shape; a machine needs all of them."""
    tables = []
    for grid in grids(e, kinds, which, lengths, **PROBLEM, column="peak_mib"):
        tables.append(grid.figures([], "peak_mib", "peak MiB"))
    return tables


def memory_at_2048(e: Evidence) -> Claim:
    words = ("--hardware", "rtx3060", *SHAPE, "--seq", 2048, "--pass", "fwd")
    told = {
        (impl, dtype): e.plan.ask(*words, "--impl", impl, "--dtype", dtype)[-1]["peak_MiB"]
        for impl, dtype in (("eager", "f32"), ("flash", "f32"), ("flash", "bf16"))
    }
    tables = held_memory(e, "fwd", [EAGER32, FLASH32, FLASH16], [2048])
    return Claim(
        "003",
        "At 2048: 750 MB, with flash 250, with FP16 125",
        "Original about 750 MB, measured; flash about 250 MB and flash with FP16 about 125 MB, "
        "estimated.",
        "Our attention's forward on an RTX 3060, peak: "
        + ", ".join(f"{impl} {dtype} {mib(peak)}" for (impl, dtype), peak in told.items())
        + ".",
        layer_words(tables),
        OPEN,
        "The seed measured one of its three numbers, and the layer is not measured here.",
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
    tables = attention_tables(e, "fwd+bwd", [[EAGER32, FLASH16]])
    return Claim(
        "003",
        "Flash with FP16 is 5.4 times faster from 1024 on",
        f"2.7 (forward) times 2.0 (training) = {claimed} times.",
        f"Our eager float32 over our flash bf16 at 1024, forward and backward: RTX 3060 "
        f"{times(predicted['rtx3060'])}, {e.card_name} {times(predicted[e.card])}.",
        layer_words(tables),
        OPEN,
        f"The seed multiplies a forward's gain by a training step's and measured neither "
        f"combination. {claimed} times is not measured here for the layer.",
        tables,
    )


def half_the_memory(e: Evidence) -> Claim:
    words = ("--hardware", "rtx3060", "--batch", 4, "--heads", 4, "--dim", 64, "--seq", 1024)
    rows = {
        dtype: e.plan.ask(*words, "--impl", "flash", "--dtype", dtype)[-1]
        for dtype in ("f32", "bf16")
    }
    saved = {
        name: 100 * (1 - rows["bf16"][name] / rows["f32"][name])
        for name in ("live_MiB", "peak_MiB")
    }
    tables = held_memory(e, "fwd+bwd", [FLASH32, FLASH16], LENGTHS)
    return Claim(
        "003",
        "FP16 saves half the memory, so twice the batch fits",
        "About 50 % at 1024, no source recorded. 11 % at 512, 0 % below.",
        f"Our flash at 1024, batch 4: {saved['live_MiB']:.0f} % of what lives before the backward, "
        f"{saved['peak_MiB']:.0f} % of the peak.",
        layer_words(tables),
        OPEN,
        "A training step's memory of the layer is not measured here.",
        tables,
    )


JUDGES = (
    thresholds,
    training_gain,
    sweet_spot,
    linear_accesses,
    longest,
    memory_at_2048,
    dip,
    forced_flash,
    combined,
    half_the_memory,
)
