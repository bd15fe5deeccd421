"""What result files say of seed 003's layers: training steps, their memory, the longest sequence.

`tilewise layer bench` measures our layers in C++, `python -m tilewise.asam` those of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .claims import Evidence, Figures, digits, short
from .data import Result, Row, Table

BATCH = 4  # of the seed's training
LAYERS = {"layer-original": "original", "layer-flash": "flash", "layer-adaptive": "working"}
TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
NARROW = ("float16", "bfloat16")  # the seed's type first


@dataclass(frozen=True)
class Kind:
    """A kind of layers, "original", "flash" or "working", and the type that it computes in."""

    layers: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.layers}, {self.dtype}"


ORIGINAL32, FLASH32 = Kind("original", "float32"), Kind("flash", "float32")
Series = dict[Kind, dict[int, float]]  # kind -> length -> value


@dataclass
class Training:
    """Training steps of layers, batch 4, in one file."""

    machine: str
    on_gpu: bool
    whose: str  # "C++" or "torch"
    file: str
    date: str
    ms: Series = field(default_factory=dict)
    mib: Series = field(default_factory=dict)
    longest: dict[Kind, int] = field(default_factory=dict)
    limit: str = ""  # the memory that `longest` was found under

    @property
    def where(self) -> str:
        """ "the H200 (C++)"."""
        return f"the {short(self.machine)} ({self.whose})"

    def narrow(self, series: Series, layers: str = "flash") -> Kind | None:
        """The first type of 16 bits that `layers` ran in."""
        kinds = (Kind(layers, dtype) for dtype in NARROW)
        return next((kind for kind in kinds if series.get(kind)), None)

    def gain(self, slow: Kind, fast: Kind, series: Series | None = None) -> dict[int, float]:
        """Length -> how many times less time, or of `series`, `fast` takes."""
        found = self.ms if series is None else series
        both = (found.get(slow, {}), found.get(fast, {}))
        return {at: both[0][at] / both[1][at] for at in sorted(both[0]) if at in both[1]}

    def figures(self, series: Series, unit: str, gains: list[tuple[str, Kind, Kind]]) -> Figures:
        """A row a kind, then a row a gain: its title, the slow kind, the fast one."""
        lengths = sorted({at for values in series.values() for at in values})
        rows = [
            [f"{kind}, {unit}", *(digits(values.get(at)) for at in lengths)]
            for kind, values in series.items()
        ]
        for title, slow, fast in gains:
            gain = self.gain(slow, fast, series)
            rows.append([title, *(digits(gain.get(at)) for at in lengths)])
        return Figures(
            f"{self.machine}: a training step of {self.whose} layers, batch {BATCH}",
            [self.file],
            ["length", *map(str, lengths)],
            rows,
        )

    def longest_figures(self) -> Figures:
        rows = [[str(kind), str(length)] for kind, length in self.longest.items()]
        return Figures(
            f"{self.machine}: the longest sequence of a training step of {self.whose} layers, "
            f"batch {BATCH}, under {self.limit}",
            [self.file],
            ["layers", "tokens"],
            rows,
        )


def trainings(e: Evidence) -> list[Training]:
    """The newest first; of a machine and of whose layers, every file."""
    found = [*map(_of_rows, e.measured.results), *_of_tables(e.tables)]
    kept = [one for one in found if one.ms or one.mib or one.longest]
    return sorted(kept, key=lambda one: one.date, reverse=True)


def newest(found: Iterator[Training]) -> list[Training]:
    """One of each machine and of whose layers, on_gpu first."""
    first: dict[tuple[str, str], Training] = {}
    for one in found:
        first.setdefault((one.machine, one.whose), one)
    return sorted(first.values(), key=lambda one: not one.on_gpu)


def _of_rows(result: Result) -> Training:
    """The steps in a file of `tilewise layer bench`; a row of a graph is another contender."""
    date = str(result.environment.get("date", ""))
    found = Training(result.machine, result.on_gpu, "C++", result.name, date)
    for row in result.rows:
        layers = LAYERS.get(row["implementation"])
        is_step = row["pass"] == "fwd+bwd" and row["batch"] == BATCH and row["status"] == "ok"
        if layers is None or not is_step or "graph" in row["kernel"]:
            continue
        kind, length, reason = Kind(layers, row["dtype"]), row["seq_q"], str(row.get("reason"))
        if reason.startswith("the longest sequence"):
            found.longest[kind] = length
            found.limit = reason.rpartition(" under ")[2]
        else:
            found.ms.setdefault(kind, {})[length] = row["ms_median"]
            found.mib.setdefault(kind, {})[length] = row["peak_mib"]
    return found


def _of_tables(tables: list[Table]) -> Iterator[Training]:
    for table in tables:
        found = Training(table.machine, table.on_gpu, "torch", table.name, table.date)
        for row in table.rows:
            if table.table == "asam-training":
                _add_types(found, row)
            elif table.table == "asam-memory":
                _add_memory(found, row)
        yield found


def _add_types(found: Training, row: Row) -> None:
    """A row of `python -m tilewise.asam training`."""
    kinds = {short: Kind("flash", dtype) for short, dtype in TYPES.items()}
    for name, kind in {**kinds, "original_fp32": ORIGINAL32}.items():
        if row.get(f"{name}_ms"):
            found.ms.setdefault(kind, {})[row["seq"]] = row[f"{name}_ms"]
        if row.get(f"{name}_mib"):
            found.mib.setdefault(kind, {})[row["seq"]] = row[f"{name}_mib"]


def _add_memory(found: Training, row: Row) -> None:
    """A row of `python -m tilewise.asam memory`."""
    kind = Kind(row["model"], TYPES[row["precision"]])
    if row["mib_at_2048"]:
        found.mib.setdefault(kind, {})[2048] = row["mib_at_2048"]
    found.longest[kind] = row["longest"]
    found.limit = f"{row['budget_mib'] / 1024:g} GiB"
