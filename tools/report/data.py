"""Result files, and the plan's answers to questions about them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OURS = ("flash", "fused", "eager", "baseline", "reference")
Row = dict[str, Any]
Answer = Any  # of JSON


def machine_of(environment: dict[str, Any]) -> str:
    """ "NVIDIA H200", or "AMD EPYC, 2 cores"."""
    gpus = environment.get("gpus") or []
    if gpus:
        first = gpus[0]
        return str(first["name"] if isinstance(first, dict) else first)
    cores = environment.get("cpu_usable")
    return f"{environment.get('cpu', 'CPU')}, {cores} core{'s' if cores != 1 else ''}"


def driver_version(text: str) -> str:
    """ "580.159.04" of the kernel module's line, or what there is."""
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", text)
    return found.group() if found else text


def on_gpu(rows: Iterable[Row]) -> bool:
    """Whether all were measured on a GPU: a machine with one can measure its CPU too."""
    return all(str(row.get("device", "cpu")) != "cpu" for row in rows)


@dataclass
class Result:
    """One result file: its name, the machine that it was measured on, its rows."""

    name: str
    path: Path
    environment: dict[str, Any]
    rows: list[Row]

    @property
    def machine(self) -> str:
        return machine_of(self.environment)

    @property
    def on_gpu(self) -> bool:
        return on_gpu(self.rows)

    def facts(self) -> list[tuple[str, str]]:
        """Where the numbers come from, for a reader."""
        env = self.environment
        rows = [
            ("machine", self.machine),
            ("system", env.get("host_os", "")),
            ("driver", driver_version(str(env.get("driver", "")))),
            ("tilewise", f"{env.get('library_version', '?')}, commit {env.get('commit', '?')}"),
            ("date", env.get("date", "")),
            ("rows", str(len(self.rows))),
            ("note", env.get("note", "")),
        ]
        return [(name, value) for name, value in rows if value]


@dataclass
class Table:
    """A table of seed 003's layers in torch: what `python -m tilewise.asam` wrote."""

    table: str  # "asam-training"
    name: str  # of the file
    environment: dict[str, Any]
    rows: list[Row]

    @property
    def machine(self) -> str:
        at, threads = self.environment, self.environment.get("threads")
        cpu = f"{at.get('cpu', 'CPU')}, {threads} thread{'s' if threads != 1 else ''}"
        return str(at.get("gpu") or cpu)

    @property
    def on_gpu(self) -> bool:
        return "gpu" in self.environment

    @property
    def date(self) -> str:
        return str(self.environment.get("date", ""))


def limit_of(row: Row, environment: dict[str, Any]) -> str:
    """The memory that a row was allowed, "24 GiB", where it or its file says so."""
    if "memory_limit_gib" in environment:
        return f"{environment['memory_limit_gib']:g} GiB"
    found = re.search(r"budget of ([\d.]+ \w+)", str(row.get("reason", "")))
    return found.group(1) if found else ""


def one_meaning(row: Row, environment: dict[str, Any]) -> Row:
    """`live_mib` is without workspace. Beside peers our rows' was with it, before the environment
    said otherwise: those have none."""
    told = "torch" not in environment or environment.get("live_mib") == "without workspace"
    if not told and row["implementation"] in OURS and row.get("protocol") != "seed":
        row["live_with_workspace_mib"], row["live_mib"] = row.get("live_mib"), None
    return row


def key_of(row: Row) -> Row:
    """Shape fields with the defaults of the schema filled in."""
    row.setdefault("kv_heads", row["heads"])
    row.setdefault("seq_k", row["seq_q"])
    row.setdefault("causal", row.get("mask") == "causal")
    if row.get("mask") == "causal":
        row["mask"] = "none"  # `causal` says it; of a row beside others' the mask is "none"
    if row.get("precision") == "tf32":
        row["dtype"] = "tf32"  # another type to a reader
    return row


def relative_name(path: Path) -> str:
    """ "h200/grid-sm90.json" for a committed file, else the file's own name."""
    try:
        return str(path.resolve().relative_to(ROOT / "bench" / "results"))
    except ValueError:
        return path.name


def load(paths: list[Path]) -> list[Result]:
    """The files that hold rows in the schema of `tilewise bench`; others are passed over."""
    results = []
    for path in paths:
        document = json.loads(path.read_text())
        rows = document.get("rows") if isinstance(document, dict) else None
        if not rows or "status" not in rows[0] or "implementation" not in rows[0]:
            continue
        name = relative_name(path)
        environment = document.get("environment", {})
        for row in rows:
            row["limit"] = limit_of(row, environment)
            row["file"] = name
            one_meaning(row, environment)
        results.append(Result(name, path, environment, list(map(key_of, rows))))
    return results


def load_tables(paths: list[Path]) -> list[Table]:
    """The files that `python -m tilewise.asam` wrote; others are passed over."""
    tables = []
    for path in paths:
        document = json.loads(path.read_text())
        if isinstance(document, dict) and str(document.get("table", "")).startswith("asam-"):
            environment, rows = document["environment"], document["rows"]
            tables.append(Table(document["table"], relative_name(path), environment, rows))
    return tables


def load_ceilings(paths: list[Path]) -> dict[str, dict[str, Row]]:
    """Machine -> ceiling -> its row, of the files of `tilewise info --measure`."""
    found: dict[str, dict[str, Row]] = {}
    for path in paths:
        document = json.loads(path.read_text())
        if isinstance(document, dict) and "ceilings" in document:
            machine = machine_of(document.get("environment", {}))
            name = relative_name(path)
            found[machine] = {r["ceiling"]: {**r, "file": name} for r in document["ceilings"]}
    return found


def _named(machine: str, fields: Row) -> tuple[str, ...]:
    return (machine, str(fields.get("implementation")), str(fields.get("pass")))


class Measured:
    """Looks measurements up across files, one machine at a time. A number is of the newest run that
    has it, so that a sentence can say which file that is."""

    def __init__(
        self, results: list[Result], ceilings: dict[str, dict[str, Row]] | None = None
    ) -> None:
        self.results = results
        self.ceilings = ceilings or {}
        self.machines = list(dict.fromkeys(result.machine for result in results))
        # By machine, implementation and pass, which most questions name; and by machine alone.
        self._rows: dict[tuple[str, ...], list[Row]] = {}
        self._runs: dict[str, list[Measured]] = {}
        for result in results:
            for row in result.rows:
                if row["seq_q"] == row["seq_k"] and row.get("mask") in (None, "none", "causal"):
                    for key in ((result.machine,), _named(result.machine, row)):
                        self._rows.setdefault(key, []).append(row)

    def rows(self, machine: str, **fields: object) -> list[Row]:
        """Rows of self-attention without options, which is all that the seeds are about."""
        by_name = "implementation" in fields and "pass" in fields
        return [
            row
            for row in self._rows.get(_named(machine, fields) if by_name else (machine,), [])
            if all(row.get(name) == value for name, value in fields.items())
        ]

    def find(
        self,
        machine: str,
        implementation: str,
        which: str,
        *,
        column: str = "ms_median",
        **fields: object,
    ) -> Row | None:
        """The row that ran and has `column`, of the newest run with one: of kernels that share the
        problem the fastest, of a kernel's rounds the last. Without a protocol in `fields`,
        PROTOCOLS."""
        wanted = {"implementation": implementation, "pass": which, "status": "ok", **fields}
        for run in self.runs(machine):
            rows = run.rows(machine, **wanted)
            found = [row for row in rows if row.get("ms_median") and row.get(column)]
            if "protocol" not in fields:
                found = usual(found)
            if found:
                rounds = {(row.get("kernel"), row["file"]): row for row in found}
                return min(rounds.values(), key=lambda row: float(row["ms_median"]))
        return None

    def ms(self, machine: str, implementation: str, which: str, **fields: object) -> float | None:
        row = self.find(machine, implementation, which, **fields)
        return None if row is None else float(row["ms_median"])

    def card(self, hardware: dict[str, Any]) -> str:
        """The GPU of `hardware` with the most rows, or the H100 without any."""
        rows: dict[str, int] = {}
        for result in self.results:
            for name, entry in hardware.items():
                if result.on_gpu and entry.get("matches", "?") in result.machine:
                    rows[name] = rows.get(name, 0) + len(result.rows)
        return max(rows, key=lambda name: rows[name], default="h100")

    def runs(self, machine: str) -> list[Measured]:
        """The files of a machine by the run that made them, those of one date, the newest first.
        Times of different runs say little about each other."""
        if machine not in self._runs:
            dates: dict[str, list[Result]] = {}
            for result in self.results:
                if result.machine == machine:
                    date = str(result.environment.get("date", result.name))
                    dates.setdefault(date, []).append(result)
            self._runs[machine] = [Measured(dates[date]) for date in sorted(dates, reverse=True)]
        return self._runs[machine]


# How most rows are timed, the most trusted first. "board" and "seed" time more than a kernel.
PROTOCOLS = ("burst", "sustained", "interleaved", None)


def usual(rows: list[Row]) -> list[Row]:
    """The rows of the first of PROTOCOLS that there is one of."""
    for protocol in PROTOCOLS:
        if found := [row for row in rows if row.get("protocol") == protocol]:
            return found
    return []


class RefusedError(RuntimeError):
    """`tilewise plan` ended with exit code 5: it has nothing to say about what it was asked."""


class Planner:
    """`tilewise plan`, asked for JSON, the same question once."""

    def __init__(self, command: Path) -> None:
        self.command = command
        self._done: dict[tuple[str, ...], subprocess.CompletedProcess[str]] = {}

    def ask(self, *words: object) -> Answer:
        command = [str(self.command), "plan", *map(str, words), "--format", "json"]
        done = self._done.get(tuple(command))
        if done is None:
            environment = {**os.environ, "TILEWISE_CASES_DIR": str(ROOT / "cases")}
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment
            )
            self._done[tuple(command)] = done
        if done.returncode != 0:
            kind = RefusedError if done.returncode == 5 else RuntimeError
            raise kind(f"{' '.join(command)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def ms(self, *words: object) -> float:
        """Predicted milliseconds of all passes of one problem."""
        return float(sum(row["predicted_ms"] for row in self.ask(*words)))

    def against(self, result: Result) -> list[Row]:
        """Predicted beside measured; nothing for files without kernels of ours and for those of
        machines that cases/hardware.json does not have."""
        try:
            return list(self.ask("--against", result.path))
        except RefusedError:
            return []


def published() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / "cases" / "seeds_published.json").read_text())
    return document


def machines() -> dict[str, Any]:
    """The named machines of cases/hardware.json, figures without their sources."""
    document = json.loads((ROOT / "cases" / "hardware.json").read_text())
    return {
        name: {key: v["value"] if isinstance(v, dict) else v for key, v in entry.items()}
        for name, entry in document["machines"].items()
    }
