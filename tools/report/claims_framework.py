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
    Figures,
    contender,
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

COMMAND = "python -m bench.peers measure --preset seed-fused --peers torch-eager,torch-compile."
SHAPE = ("--batch", 8, "--dtype", "f32")
SEED = {"dtype": "float32", "batch": 8, "heads": 1, "causal": False}
LIVE = {**SEED, "column": "live_mib"}
LENGTHS = [256, 1024, 4096, 8192]
DIMS = [16, 32, 64, 128]
# Seed 000 is about torch.compile. Our own pair stands beside it and decides nothing.
EAGER, COMPILED = contender("torch-eager"), contender("torch-compile")
OURS = (contender("eager"), contender("fused"))


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


def percent(gain: float) -> str:
    """The share of time that a gain saves: "44 %"."""
    return f"{100 * (1 - 1 / gain):.0f} %"


def compiled(e: Evidence, which: str, seed: float) -> tuple[list[Figures], str, str]:
    """torch.compile at 8192 and dim 128: tables, verdict, sentence."""
    at = {**SEED, "head_dim": 128}
    measured = grids(e, [EAGER, COMPILED], which, [8192], **at)
    tables = [grid.figures([("times faster", EAGER.name, COMPILED.name)]) for grid in measured]
    ours = grids(e, list(OURS), which, [8192], **at)
    tables += [grid.figures([("times faster", OURS[0].name, OURS[1].name)]) for grid in ours]
    gains = {short(g.machine): g.gain(EAGER.name, COMPILED.name)[8192] for g in measured}
    if not gains:
        return tables, OPEN, "torch.compile is not measured at this shape."
    told = joined(
        [f"{percent(gain)} on the {name} ({times(gain)} faster)" for name, gain in gains.items()]
    )
    least, most = min(gains.values()), max(gains.values())
    verdict = HOLDS if least >= seed else PARTLY if most > 1.05 else FAILS
    words = f"torch.compile saves {told} at 8192 and dim 128. The seed's card: {percent(seed)}."
    return tables, verdict, words


def fusion_gain(e: Evidence) -> Claim:
    seed = published_gains(e, "forward_ms_mean")[8192, 128]
    tables, verdict, sentence = compiled(e, "fwd", seed)
    return Claim(
        "000",
        "torch.compile takes 44 % less time in the forward",
        f"At length 8192 and dim 128 the forward falls from 21.835 to 12.178 ms, by 44 %: "
        f"{times(seed)} faster.",
        f"The plan knows our kernels only: our fused over our eager on an {e.card_name} "
        f"{times(predicted_gain(e, 'fwd', 8192, 128))}.",
        "" if tables else missing(COMMAND),
        verdict,
        sentence,
        tables,
    )


def longer_is_better(e: Evidence) -> Claim:
    published = published_gains(e, "forward_ms_mean")
    slower = sorted(length for (length, _), gain in published.items() if gain < 1.0)
    predicted = [predicted_gain(e, "fwd", length, 64) for length in LENGTHS]
    tables, rising, told = [], [], []
    for machine in e.measured.machines:
        gains, files = {}, []
        for dim in DIMS:
            for grid in grids(e, [EAGER, COMPILED], "fwd", LENGTHS, **SEED, head_dim=dim):
                if grid.machine == machine:
                    gains[dim] = grid.gain(EAGER.name, COMPILED.name)
                    files += grid.files()
        gains = {dim: found for dim, found in gains.items() if len(found) >= 3}
        if not gains:
            continue
        kind = {**SEED, "head_dim": 0, "seq_q": 0, "pass": "fwd"}
        tables.append(
            Figures(
                f"{machine}, PyTorch eager over torch.compile: "
                f"{shape_words(kind, without=('seq_q', 'head_dim'))}",
                list(dict.fromkeys(files)),
                ["length", *map(str, LENGTHS)],
                [
                    [f"dim {dim}", *(number(g[n]) if n in g else "-" for n in LENGTHS)]
                    for dim, g in gains.items()
                ],
            )
        )
        up = {dim: all(a <= b for a, b in pairwise(found.values())) for dim, found in gains.items()}
        rising += up.values()
        first, last = ([found[pick(found)] for found in gains.values()] for pick in (min, max))
        told.append(
            f"torch.compile's gain on the {short(machine)} grows with every step in "
            f"{sum(up.values())} of {len(up)} dims: {number(min(first))} to {times(max(first))} at "
            f"256, {number(min(last))} to {times(max(last))} at 8192."
        )
    own = (
        f"In the seed's own tables the compiled forward is slower than eager in {len(slower)} of "
        f"{len(published)} cells, at {joined(sorted(set(map(str, slower)), key=int))}."
    )
    return Claim(
        "000",
        "The longer the sequence, the more compiling helps",
        "The longer the sequence, the larger the gain of compiling.",
        f"Our fused over our eager on an {e.card_name}, dim 64: {listed(predicted)} times at "
        f"{listed(LENGTHS)}.",
        "" if tables else missing(COMMAND),
        OPEN if not rising else HOLDS if all(rising) else PARTLY if any(rising) else FAILS,
        " ".join([*told, own]) if told else f"torch.compile is not measured here. {own}",
        tables,
    )


def backward_gain(e: Evidence) -> Claim:
    seed = published_gains(e, "backward_ms_mean")[8192, 128]
    tables, verdict, sentence = compiled(e, "bwd", seed)
    return Claim(
        "000",
        "torch.compile nearly doubles the backward's speed",
        "At 8192 and dim 128 the backward falls from 50.456 to 28.37 ms, nearly twice as fast: "
        f"{times(seed)}.",
        f"Our fused over our eager on an {e.card_name}: "
        f"{times(predicted_gain(e, 'bwd', 8192, 128))}.",
        "" if tables else missing(COMMAND),
        verdict,
        sentence,
        tables,
    )


def memory_unchanged(e: Evidence) -> Claim:
    tables, told, gaps, peaks = [], [], [], []
    for grid in grids(e, [EAGER, COMPILED], "bwd", LENGTHS, **LIVE, head_dim=128):
        for column, unit in (("live_mib", "live MiB"), ("peak_mib", "peak MiB")):
            tables.append(grid.figures([], column, unit))
        pairs = [(row, grid.rows[COMPILED.name].get(n)) for n, row in grid.rows[EAGER.name].items()]
        both = [(a, b) for a, b in pairs if b and a["seq_q"] == 8192]
        for eager, other in both:
            gaps.append(abs(eager["live_mib"] - other["live_mib"]))
            peaks.append(eager["peak_mib"] / other["peak_mib"])
            told.append(
                f"on the {short(grid.machine)} {mib(eager['live_mib'])} and "
                f"{mib(other['live_mib'])} live before the backward, and a peak of "
                f"{mib(eager['peak_mib'])} and {mib(other['peak_mib'])}"
            )
    verdict, sentence = OPEN, "torch.compile's memory is not measured at this shape."
    if gaps:
        verdict = FAILS if max(gaps) > 1 else HOLDS if max(peaks) < 1.05 else PARTLY
        sentence = (
            f"Eager and compiled keep, at 8192 and dim 128, {joined(told)}. The seed's column is "
            f"live memory; the peak decides which length fits, and compiling divides it by "
            f"{number(max(peaks))}."
        )
    return Claim(
        "000",
        "Compiling does not change memory",
        "4273.08 MB before compiling, 4273.28 after, at 8192 and dim 128: both matrices of "
        "length x length stay.",
        "The plan counts our kernels only; our eager and our fused keep S and P alike.",
        "" if tables else missing(COMMAND),
        verdict,
        sentence,
        tables,
    )


def statuses(e: Evidence, machine: str, implementation: str) -> dict[int, list[dict[str, object]]]:
    """Dim -> the rows of both passes at 16384 of the newest run that has them."""
    for run in e.measured.runs(machine):
        wanted = {**SEED, "implementation": implementation, "seq_q": 16384}
        rows = [row for row in run.rows(machine, **wanted) if row.get("protocol") != "seed"]
        if rows:
            return {dim: [r for r in rows if r["head_dim"] == dim] for dim in DIMS}
    return {}


def ran(rows: list[dict[str, object]]) -> bool:
    return bool(rows) and all(row["status"] == "ok" for row in rows)


def outcomes(e: Evidence, implementations: list[str]) -> list[tuple[str, str, Figures]]:
    """Machine, its limit, and what became of each dim at 16384, where all contenders were tried."""
    out = []
    for machine in e.measured.machines:
        found = {name: statuses(e, machine, name) for name in implementations}
        if not all(found.values()):
            continue
        rows, files, limits = [], [], []
        dims = [dim for dim in DIMS if any(found[name][dim] for name in implementations)]
        for name in implementations:
            told = []
            for dim in dims:
                of_dim = found[name][dim]
                files += [str(row["file"]) for row in of_dim]
                limits += [str(row["limit"]) for row in of_dim if row["limit"]]
                peak = max((float(str(r["peak_mib"])) for r in of_dim if r["peak_mib"]), default=0)
                told.append("-" if not of_dim else mib(peak) if ran(of_dim) else "OOM")
            rows.append([contender(name).name, *told])
        limit = " and ".join(dict.fromkeys(limits))
        caption = (
            f"{machine}{', limit ' + limit if limit else ''}, peak of forward and backward: "
            f"float32, batch 8, 1 head, length 16384"
        )
        header = ["dim", *map(str, dims)]
        out.append((machine, limit, Figures(caption, list(dict.fromkeys(files)), header, rows)))
    return out


def same_out_of_memory(e: Evidence) -> Claim:
    tables, told, same = [], [], []
    for machine, limit, figures in outcomes(e, ["torch-eager", "torch-compile"]):
        eager, other = figures.rows
        dims = figures.header[1:]
        fits = [
            dim for dim, a, b in zip(dims, eager[1:], other[1:], strict=True) if a == "OOM" != b
        ]
        tables.append(figures)
        same.append(not fits)
        told.append(
            f"Under {limit or 'its own memory'} the {short(machine)} runs torch.compile at 16384 "
            f"with dim {joined(fits)}, where eager is out of memory."
            if fits
            else f"Both are out of memory in the same dims on the {short(machine)}."
        )
    return Claim(
        "000",
        "Compiling does not move the length that runs out of memory",
        "With and without compiling every configuration at 16384 runs out of memory.",
        "The plan counts our kernels only.",
        "" if tables else missing(COMMAND),
        OPEN if not same else HOLDS if all(same) else FAILS,
        " ".join(told) or "Both are not measured at 16384 under one limit.",
        tables,
    )


def out_of_memory(e: Evidence) -> Claim:
    words = (*SHAPE, "--seq", 16384, "--dim", 16, "--impl", "eager", "--hardware", e.card)
    plan = e.plan.ask(*words, "--memory")
    forward, backward = plan[0], plan[-1]
    s_gib, peak_gib = forward["S"] / 2**30, backward["peak"] / 2**30
    reach = {
        size: e.plan.ask(*words, "--mem-limit", f"{size}GiB", "--limits")[0]["largest_length"]
        for size in (12, 24, 32, 80)
    }
    fits = ", ".join(f"{size} GiB: {length}" for size, length in reach.items())
    tables, told, everywhere = [], [], []
    for machine, limit, figures in outcomes(e, ["torch-eager"]):
        states = figures.rows[0][1:]
        tables.append(figures)
        everywhere.append(all(state == "OOM" for state in states if state != "-"))
        told.append(
            f"PyTorch eager on the {short(machine)} under {limit or 'its own memory'}: out of "
            f"memory in {states.count('OOM')} of {len(states) - states.count('-')} dims."
        )
    return Claim(
        "001",
        "16 GiB of scores run out of memory at 16384",
        "2,147,483,648 scores take 8.0 GiB, with the probabilities 16 GiB: out of memory at 16384 "
        "whatever the dim.",
        f"Our eager: S {s_gib:.1f} GiB, S and P {2 * s_gib:.1f} GiB, live "
        f"{forward['live'] / 2**30:.1f} GiB, peak in the backward {peak_gib:.1f} GiB. Its largest "
        f"length by memory, dim 16: {fits}.",
        ""
        if tables
        else missing("python -m bench.peers measure --preset seed-eager --mem-limit 24."),
        OPEN if not everywhere else HOLDS if all(everywhere) else FAILS,
        " ".join(told)
        + f" The threshold is the memory's: by the plan our eager reaches {reach[24]} in 24 GiB "
        f"and {reach[80]} in 80 GiB."
        if told
        else f"PyTorch is not measured at 16384. By the plan our eager reaches {reach[24]} in 24 "
        f"GiB and {reach[80]} in 80 GiB.",
        tables,
    )


def live_is_not_peak(e: Evidence) -> Claim:
    rows = e.plan.ask(*SHAPE, "--seq", 8192, "--dim", 128, "--impl", "eager", "--hardware", e.card)
    live, peak = rows[-1]["live_MiB"], rows[-1]["peak_MiB"]
    tables, told, apart = [], [], []
    for grid in grids(e, [EAGER], "bwd", [8192], **LIVE, head_dim=128):
        row = grid.rows[EAGER.name][8192]
        tables.append(
            Figures(
                f"{grid.machine}: {shape_words(row)}",
                grid.files(),
                ["", "live, MiB", "peak, MiB"],
                [[EAGER.name, f"{row['live_mib']:.0f}", f"{row['peak_mib']:.0f}"]],
            )
        )
        apart.append(row["peak_mib"] / row["live_mib"])
        told.append(
            f"On the {short(grid.machine)} eager PyTorch holds {mib(row['live_mib'])} before the "
            f"backward and peaks at {mib(row['peak_mib'])}, {times(apart[-1])} as much."
        )
        matrices = (row["live_mib"] - 4 * 8 * 8192 * 128 * 4 / 2**20) / 2048
        told.append(
            f"Beside Q, K, V and O it keeps {matrices:.1f} matrices of 2048 MiB; the seed's 4273 "
            f"MB hold two."
        )
    return Claim(
        "001",
        "The column fwd_peak_mem_MB is a peak",
        "4273.0 MB at 8192 and dim 128, named fwd_peak_mem_MB.",
        f"Our eager: live before the backward {mib(live)}, peak {mib(peak)}: "
        f"{times(peak / live)}.",
        "" if tables else missing("python -m bench.peers measure --preset seed-eager."),
        OPEN if not apart else FAILS if min(apart) > 1.05 else HOLDS,
        " ".join(["The seed reads memory between forward and backward: live memory.", *told]),
        tables,
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
    tables, told, right = [], [], []
    kernels = [EAGER, contender("memeff", "PyTorch without the matrix")]
    for grid in grids(e, kernels, "bwd", [4096, 8192], **LIVE, head_dim=16):
        tables.append(grid.figures([], "live_mib", "live MiB"))
        growth = [
            grid.rows[one.name][8192]["live_mib"] / grid.rows[one.name][4096]["live_mib"]
            for one in kernels
        ]
        right.append(growth[0] > 3.9 and growth[1] < 2.1)
        told.append(
            f"On the {short(grid.machine)} eager PyTorch's live memory grows {times(growth[0])}, "
            f"that of its memory-efficient kernel {times(growth[1])}."
        )
    return Claim(
        "001",
        "Twice the length takes four times the memory",
        "From 4096 to 8192 memory grows from about 1 to about 4 GB; FlashAttention is linear.",
        f"Our eager {mib(eager[0])} to {mib(eager[1])}, {times(eager[1] / eager[0])}; our flash "
        f"{mib(flash[0])} to {mib(flash[1])}, {times(flash[1] / flash[0])}.",
        "" if tables else missing("python -m bench.peers measure --preset seed-eager."),
        OPEN if not right else HOLDS if all(right) else FAILS,
        " ".join(told)
        or f"PyTorch is not measured. By the plan: {times(eager[1] / eager[0])} for our eager, "
        f"{times(flash[1] / flash[0])} for our flash.",
        tables,
    )


JUDGES = (
    fusion_gain,
    longer_is_better,
    backward_gain,
    memory_unchanged,
    same_out_of_memory,
    out_of_memory,
    live_is_not_peak,
    quadratic_growth,
)
