"""The command `measure`: from its flags to a result file."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from . import report, results
from .compile_ahead import COMPILED, Task, compile_ahead
from .contender import Contender
from .fa3 import Fa3
from .measure import Bench, Deadline, Options, rows_of
from .ours import Library, Ours
from .problem import DTYPES, Cell, read_preset
from .protocol import FLUSH_BYTES
from .summary import Row
from .torch_paths import torch_paths


def cells_of(args: argparse.Namespace) -> list[Cell]:
    return read_preset(args.cases / "presets" / f"{args.preset}.txt", args)


def forced_rows(args: argparse.Namespace, dtype: str) -> list[tuple[str, str]]:
    """Pairs of rows to force for flash in a type's cells; an empty name leaves it to the plan."""
    if not args.kernel:
        return [("", "")]
    found = []
    for text in args.kernel:
        only, _, pair = text.rpartition(":")
        if not only or DTYPES[only] == dtype:
            forward, _, backward = pair.replace("plan", "").partition("+")
            found.append((forward, backward))
    return found


def library_of(args: argparse.Namespace) -> Path:
    return args.build / "libtilewise.so"


def compile_for(calls: list[argparse.Namespace]) -> None:
    """Compiles what all the calls need, where one of them asks for it."""
    jobs = max(args.compile_jobs for args in calls)
    if jobs == 0:
        return
    tasks = []
    for args in calls:
        peers = [name for name in args.peers.split(",") if name in COMPILED]
        for cell in cells_of(args):
            tasks += [Task(name, (), cell) for name in peers]
            tasks += [Task("flash", rows, cell) for rows in forced_rows(args, cell.problem.dtype)]
    compile_ahead(tasks, library_of(calls[0]), jobs)


def limit_memory(gib: float) -> None:
    """Of torch's allocator, which everything measured here draws from; 0 is the whole card."""
    total = torch.cuda.get_device_properties(0).total_memory
    limit = (gib * 2**30 + FLUSH_BYTES) / total if gib else 1.0
    torch.cuda.set_per_process_memory_fraction(min(limit, 1.0))


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, which `timeout` sends, ends the block as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` sends it twice
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def measure_cells(args: argparse.Namespace, begun: float, known: dict[str, Contender]) -> list[Row]:
    """The rows of the cells that fit into the time. They are written however the loop ends."""
    cells = cells_of(args)
    library = Library(library_of(args))
    peers = [known[name] for name in args.peers.split(",") if name]
    named = args.fa3.with_suffix(".commit") if args.fa3 else None
    commit = (
        named.read_text().strip() if named and named.exists() else args.fa3.name if args.fa3 else ""
    )
    env = report.environment(args.build / "tilewise", commit)
    env["rounds"] = args.rounds
    if args.mem_limit:
        env["memory_limit_gib"] = args.mem_limit
    torch.cuda.empty_cache()
    limit_memory(args.mem_limit)
    protocols = tuple(args.protocol.split(","))
    bench = Bench(Options(args.rounds, protocols))
    deadline = Deadline(args.total_s, begun)
    rows: list[Row] = []
    try:
        for cell in cells:
            if not deadline.has_time():
                print(f"stopped in time: {cell.problem} and what follows was not measured")
                break
            ours: list[Contender] = []
            for name in cell.implementations:
                rows_of_flash = forced_rows(args, cell.problem.dtype)
                pairs = rows_of_flash if name == "flash" else [("", "")]
                ours += [Ours(library, name, pair) for pair in pairs]
            theirs = [peer for peer in peers if cell.problem.dtype in peer.dtypes]
            entries = bench.run(cell, ours + theirs)
            done = rows_of(cell, entries, protocols)
            rows += done
            print_cell(str(cell.problem), done)
    finally:
        env["gpu_temperature_c"] = report.smi("temperature.gpu")
        results.write(args.output, env, rows)
        print(f"{len(rows)} rows in {args.output}", flush=True)
    return rows


def run_measure(args: argparse.Namespace, begun: float) -> int:
    """1 when an output was refused by its check. `begun`: when the part's time began."""
    known: dict[str, Contender] = dict(torch_paths())
    if args.fa3:
        known["fa3"] = Fa3(args.fa3)
    with terminated_as_interrupted():
        rows = measure_cells(args, begun, known)
    return 1 if any(row["status"] == "failed" for row in rows) else 0


def print_cell(name: str, rows: list[Row]) -> None:
    for which, protocol in dict.fromkeys((row["pass"], row["protocol"]) for row in rows):
        words = []
        for row in rows:
            if (row["pass"], row["protocol"]) != (which, protocol):
                continue
            mine = row["kernel"] if row["implementation"] == "flash" else row["implementation"]
            value = f"{row['ms_median']:.4f}" if row["status"] == "ok" else row["status"]
            words.append(f"{mine} {value}")
        print(f"{name} {which} {protocol}: " + ", ".join(words), flush=True)
