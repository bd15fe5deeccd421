"""Compiling before anything is timed, in several processes at once.

What the processes share with the measuring one are caches on disk: ours of NVRTC's kernels, and
Inductor's of what torch.compile makes.
"""

from __future__ import annotations

import multiprocessing
import random
from dataclasses import dataclass
from pathlib import Path

import torch

from .contender import Contender
from .ours import Library, Ours
from .problem import Cell
from .reference import Inputs
from .torch_paths import torch_paths

COMPILED = ("flex", "torch-compile")
LONGEST = 16384  # longer problems use kernels of shorter ones, and memory that processes share


@dataclass(frozen=True)
class Task:
    """A contender's first run of a cell; `rows` are our rows to force, of a peer empty."""

    name: str
    rows: tuple[str, ...]
    cell: Cell

    @property
    def is_ours(self) -> bool:
        return self.name not in COMPILED


def _compile(library: Path, tasks: list[Task]) -> None:
    loaded = Library(library)
    paths = torch_paths()
    for task in tasks:
        contender: Contender = paths.get(task.name) or Ours(loaded, task.name, task.rows)
        inputs = Inputs.random(task.cell.problem)
        try:
            session = contender.open(task.cell.problem, inputs)
            session.forward()
            if task.cell.passes != ("fwd",):
                session.forward_for_backward()
                session.backward()
        except Exception as error:  # the measuring process meets it again and reports it
            print(f"{task.name} {task.cell.problem}: {type(error).__name__}", flush=True)
        del inputs
        torch.cuda.empty_cache()


def compile_ahead(tasks: list[Task], library: Path, jobs: int) -> None:
    """Runs every task once, in `jobs` processes."""
    short = {t for t in tasks if max(t.cell.problem.seq, t.cell.problem.keys) <= LONGEST}
    wanted = sorted(short, key=lambda t: t.is_ours)
    random.Random(0).shuffle(wanted)
    wanted.sort(key=lambda t: t.is_ours)  # what takes longest is spread first
    spawned = multiprocessing.get_context("spawn")
    processes = [
        spawned.Process(target=_compile, args=(library, wanted[first::jobs]))
        for first in range(jobs)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
