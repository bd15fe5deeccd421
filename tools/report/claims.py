"""The seeds' claims: what each says, what the plan predicts, what was measured, and a verdict.

Every sentence is made from numbers: the seeds' own (cases/seeds_published.json), the plan's, and
those of result files. A verdict speaks of the contender and the shape of its claim. A claim whose
contender or shape was not measured is open and says which command measures it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .data import Measured, Planner, Row, Table, machines, on_gpu, published

HOLDS, PARTLY, FAILS, OPEN = "holds", "partly", "does not hold", "open"


@dataclass
class Figures:
    """A small table of measurements. The caption gives the problem, `files` the result files."""

    caption: str
    files: list[str]
    header: list[str]
    rows: list[list[str]]


@dataclass
class Claim:
    """`measurement` is a sentence where there is no table to show."""

    seed: str
    title: str
    claim: str
    prediction: str
    measurement: str
    verdict: str
    sentence: str
    figures: list[Figures] = field(default_factory=list)


@dataclass
class Evidence:
    """The plan, the measurements and published numbers, which claims are judged by."""

    plan: Planner
    measured: Measured
    published: dict
    hardware: dict
    card: str  # the GPU of cases/hardware.json that predictions are made for
    tables: list[Table] = field(default_factory=list)  # seed 003's layers in torch

    @property
    def card_name(self) -> str:
        """ "H200"."""
        return str(self.hardware[self.card]["matches"]).split()[0]


def evidence(plan: Planner, measured: Measured, tables: list[Table] | None = None) -> Evidence:
    hardware = machines()
    card = measured.card(hardware)
    return Evidence(plan, measured, published(), hardware, card, tables or [])


Judge = Callable[[Evidence], Claim]


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


NAMES = {
    "torch-eager": "PyTorch eager",
    "torch-compile": "torch.compile",
    "memeff": "PyTorch's memory-efficient kernel",
    "cudnn": "cuDNN",
    "fa2": "FlashAttention-2",
    "fa3": "FlashAttention-3",
}
PASSES = {"fwd": "forward", "bwd": "backward", "fwd+bwd": "forward and backward"}


def name_of(implementation: str) -> str:
    """Whose it is: "torch.compile", "our fused"."""
    return NAMES.get(implementation, f"our {implementation}")


def shape_words(row: Row, *, without: tuple[str, ...] = ()) -> str:
    """ "float32, batch 8, 1 head, length 8192, dim 128, full, forward"."""
    heads = row["heads"]
    parts = {
        "dtype": row["dtype"],
        "batch": f"batch {row['batch']}",
        "heads": f"{heads} head{'s' if heads != 1 else ''}",
        "seq_q": f"length {row['seq_q']}",
        "head_dim": f"dim {row['head_dim']}",
        "causal": "causal" if row["causal"] else "full",
        "pass": PASSES[row["pass"]],
    }
    return ", ".join(text for name, text in parts.items() if name not in without)


@dataclass(frozen=True)
class Contender:
    """An implementation and the fields that set it apart: ("flash", dtype=...)."""

    name: str
    implementation: str
    fields: tuple[tuple[str, object], ...] = ()


def contender(implementation: str, name: str = "", **fields: object) -> Contender:
    return Contender(name or name_of(implementation), implementation, tuple(fields.items()))


@dataclass
class Grid:
    """Rows of one run, contender by contender, along one field of the problem."""

    machine: str
    along: str
    rows: dict[str, dict[int, Row]]

    def gain(self, slow: str, fast: str) -> dict[int, float]:
        """Value of the field -> times that `fast` is faster."""
        return {
            at: row["ms_median"] / self.rows[fast][at]["ms_median"]
            for at, row in self.rows[slow].items()
            if at in self.rows[fast]
        }

    def on_gpu(self) -> bool:
        return on_gpu(row for rows in self.rows.values() for row in rows.values())

    def values(self) -> list[int]:
        return sorted({at for found in self.rows.values() for at in found})

    def files(self) -> list[str]:
        found = [row["file"] for rows in self.rows.values() for row in rows.values()]
        return list(dict.fromkeys(found))

    def words(self) -> str:
        """The problem, without what varies."""
        rows = [row for found in self.rows.values() for row in found.values()]
        differ = {name for name in ("dtype", "batch") if len({row[name] for row in rows}) > 1}
        return shape_words(rows[0], without=(self.along, *differ))

    def figures(
        self,
        gains: list[tuple[str, str, str]],
        column: str = "ms_median",
        unit: str = "ms",
    ) -> Figures:
        """A row a contender, then a row a gain: (its title, the slow one, the fast one)."""
        at = self.values()
        title = {"seq_q": "length", "head_dim": "dim", "batch": "batch", "heads": "heads"}
        rows = [
            [f"{name}, {unit}", *(digits(found.get(value, {}).get(column)) for value in at)]
            for name, found in self.rows.items()
        ]
        for text, slow, fast in gains:
            gain = self.gain(slow, fast)
            rows.append([text, *(digits(gain.get(value)) for value in at)])
        return Figures(
            f"{self.machine}: {self.words()}",
            self.files(),
            [title[self.along], *map(str, at)],
            rows,
        )


def digits(value: float | None) -> str:
    return "-" if value is None else number(value)


def measured_grid(
    e: Evidence,
    machine: str,
    contenders: list[Contender],
    which: str,
    values: list[int],
    along: str = "seq_q",
    column: str = "ms_median",
    **fields: object,
) -> Grid | None:
    """The newest run that measured `column` of all contenders at one value at least."""
    for run in e.measured.runs(machine):
        rows: dict[str, dict[int, Row]] = {}
        for one in contenders:
            kind = {**fields, **dict(one.fields)}
            found = {
                value: run.find(
                    machine, one.implementation, which, column=column, **{**kind, along: value}
                )
                for value in values
            }
            rows[one.name] = {value: row for value, row in found.items() if row}
        if set.intersection(*(set(found) for found in rows.values())):
            return Grid(machine, along, rows)
    return None


def grids(
    e: Evidence,
    contenders: list[Contender],
    which: str,
    values: list[int],
    along: str = "seq_q",
    column: str = "ms_median",
    **fields: object,
) -> list[Grid]:
    """A grid for each machine that has one."""
    found = [
        measured_grid(e, machine, contenders, which, values, along, column, **fields)
        for machine in e.measured.machines
    ]
    return [grid for grid in found if grid]


def short(machine: str) -> str:
    """ "H200" of "NVIDIA H200", "H100" of "NVIDIA H100 80GB HBM3"; of a CPU its name."""
    words = machine.split()
    return words[1] if words[0] == "NVIDIA" else machine.split(",")[0]


def joined(parts: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1] if parts else ""
