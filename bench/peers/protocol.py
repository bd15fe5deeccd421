"""Clocks: how one launch is timed, and how contenders take turns."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

IDLE_S = 0.040
TIMED_LAUNCHES = 3
FLUSH_BYTES = 256 * 2**20  # five times the L2 of an H100
FIRST_SPIN_CYCLES = 400_000  # about 0.2 ms
MOST_SPIN_CYCLES = 50_000_000

DESCRIPTION = (
    "burst: a turn is 40 ms idle, one warm launch, three timed launches with 256 MB written before "
    "each to empty the L2; contenders of a cell take turns in random order, inputs are fresh each "
    "round; the GPU is kept busy while the host enqueues, so that no host time is counted. "
    "sustained: launches back to back for a second, the first third of it not counted. "
    "board: as sustained, with the L2 emptied before each; a launch is a step of the leaderboard: "
    "forward, o.sum(), backward, gradients added to those of one (3, heads, seq, dim) leaf. "
    "seed: as the tables of seeds 000 and 001: five warm-ups, then 100 forwards and 100 backwards "
    "through autograd by the host's clock, a synchronisation before and after each; memory is what "
    "is allocated between the two"
)


@dataclass
class Samples:
    """Milliseconds of one contender's launches of one pass."""

    ms: list[float] = field(default_factory=list)

    def statistics(self) -> dict[str, float]:
        std = statistics.stdev(self.ms) if len(self.ms) > 1 else 0.0
        return {
            "ms_mean": statistics.fmean(self.ms),
            "ms_std": std,
            "ms_median": statistics.median(self.ms),
        }


class Card:
    """The GPU's clock."""

    def __init__(self) -> None:
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        self._spin_cycles = FIRST_SPIN_CYCLES

    def burst(self, warm: Callable[[], None], launch: Callable[[], None]) -> list[float]:
        """One turn of a contender: milliseconds of its timed launches."""
        torch.cuda.synchronize()
        time.sleep(IDLE_S)
        warm()
        launch()
        torch.cuda.synchronize()
        return [self._cold(launch) for _ in range(TIMED_LAUNCHES)]

    def _cold(self, launch: Callable[[], None]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        while True:
            self._flush.zero_()
            torch.cuda._sleep(self._spin_cycles)
            begin.record()
            launch()
            end.record()
            host_was_late = begin.query()  # the GPU reached the launch before the host was done
            torch.cuda.synchronize()
            if not host_was_late or self._spin_cycles >= MOST_SPIN_CYCLES:
                return begin.elapsed_time(end)
            self._spin_cycles *= 2

    def sustained(self, launch: Callable[[], None], seconds: float) -> list[float]:
        """Milliseconds of launches back to back for `seconds`, without the first third."""
        return self._for_a_while(self._back_to_back, launch, seconds)

    def board(self, step: Callable[[], None], seconds: float) -> list[float]:
        """As sustained, with an L2 flush before each step."""
        return self._for_a_while(self._flushed, step, seconds)

    def _for_a_while(
        self, run: Callable[..., list[float]], launch: Callable[[], None], seconds: float
    ) -> list[float]:
        launch()
        torch.cuda.synchronize()
        once = min(run(launch, 3)[1:])
        count = max(9, int(seconds * 1e3 / max(once, 1e-3)))
        return run(launch, count)[count // 3 :]

    def _back_to_back(self, launch: Callable[[], None], count: int) -> list[float]:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        marks[0].record()
        for mark in marks[1:]:
            launch()
            mark.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]

    def _flushed(self, launch: Callable[[], None], count: int) -> list[float]:
        marks = []
        for _ in range(count):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._flush.zero_()
            begin.record()
            launch()
            end.record()
            marks.append((begin, end))
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in marks]
