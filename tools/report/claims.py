"""The seeds' claims: what each says, what the plan predicts, what was measured, and a verdict.

Every sentence is made from numbers: the seeds' own (cases/seeds_published.json), the plan's, and
those of result files. A claim without a measurement says which command gives one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .data import Measured, Planner, machines, published

HOLDS, PARTLY, FAILS, OPEN = "holds", "partly", "does not hold", "open"


@dataclass
class Claim:
    seed: str
    title: str
    claim: str
    prediction: str
    measurement: str
    verdict: str
    sentence: str


@dataclass
class Evidence:
    """What claims are judged by."""

    plan: Planner
    measured: Measured
    published: dict
    hardware: dict
    card: str  # the GPU of cases/hardware.json that predictions are made for

    @property
    def card_name(self) -> str:
        """ "H200"."""
        return str(self.hardware[self.card]["matches"]).split()[0]


def evidence(plan: Planner, measured: Measured) -> Evidence:
    hardware = machines()
    return Evidence(plan, measured, published(), hardware, measured.card(hardware))


Judge = Callable[[Evidence], Claim]
Pick = Callable[[dict[int, float]], int]


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def times(value: float) -> str:
    return f"{number(value)} times"


def mib(value: float) -> str:
    return f"{value / 1024:.2f} GiB" if value >= 1024 else f"{value:.1f} MiB"


def listed(values: list[float]) -> str:
    return ", ".join(number(value) for value in values)


def missing(command: str) -> str:
    return f"Not measured in the files given: {command}"


def per_machine(lines: dict[str, str], command: str) -> str:
    """One sentence a machine, or what would measure it."""
    return " ".join(f"{name}: {text}" for name, text in lines.items()) or missing(command)


def ratios(
    e: Evidence, machine: str, slow: str, fast: str, which: str, pick: Pick = len, **fields: object
) -> dict[int, float]:
    """Length -> times that `fast` is faster, where one run measured both on the same problem; of
    the problems that differ in more than their length the one with the most lengths, or with the
    most of `pick`."""
    found: dict[tuple[object, ...], dict[int, float]] = {}
    for run in e.measured.runs(machine):
        for row in run.shapes(machine, slow, which):
            if any(row.get(name) != value for name, value in fields.items()):
                continue
            kind = {name: row[name] for name in ("dtype", "batch", "heads", "head_dim", "causal")}
            other = run.ms(machine, fast, which, **kind, seq_q=row["seq_q"])
            if other:
                gains = found.setdefault((id(run), *kind.values()), {})
                gains[row["seq_q"]] = row["ms_median"] / other
    return dict(sorted(max(found.values(), key=pick, default={}).items()))
