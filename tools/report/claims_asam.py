"""Claims of seed 003: an adaptive sparse layer on an RTX 3060, its thresholds and limits.

The seed timed a whole layer on a GPU. `tilewise layer bench` measures its inference, by which two
claims are judged, on GPUs alone: a CPU's times stand beside them and decide nothing. Claims on
training steps are in claims_asam_steps.py.
"""

from __future__ import annotations

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
    missing,
    number,
    short,
    times,
)
from .data import on_gpu

# The benchmark behind the seed's tables: batch 2, 4 heads of 64, model dim 256; training batch 4.
SHAPE = ("--batch", 2, "--heads", 4, "--dim", 64)
PROBLEM = {"batch": 2, "heads": 4, "head_dim": 64, "causal": False}
LENGTHS = [128, 256, 512, 1024, 2048]
PRESET = "tilewise bench --preset seed-asam on that machine."
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
    """Rows of PyTorch's flash kernel of GPUs in float32: a status, or a time."""
    rows = [
        row
        for machine in e.measured.machines
        for row in e.measured.rows(machine, implementation="forced-flash", dtype="float32")
        if on_gpu([row])
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


JUDGES = (sweet_spot, linear_accesses, dip, forced_flash)
