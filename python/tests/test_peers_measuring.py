"""bench/peers: what `measure` writes when its time is over or it is told to end."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.peers import measure_command  # noqa: E402
from bench.peers.__main__ import parser  # noqa: E402
from bench.peers.measure import Deadline, Entry  # noqa: E402
from bench.peers.problem import Cell  # noqa: E402

MEASURED = 2  # cells before the signal


class OneRow:
    """Measures nothing: a row says which cell it is."""

    def __init__(self, seconds: float, cells_before_signal: int) -> None:
        self.seconds, self.left = seconds, cells_before_signal

    def run(self, cell: Cell, contenders: list[object]) -> list[Entry]:
        if self.left == 0:
            for _ in range(2):  # as `timeout` does: to the process and to its group
                os.kill(os.getpid(), signal.SIGTERM)
        self.left -= 1
        time.sleep(self.seconds)
        return []


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> argparse.Namespace:
    """The arguments of a preset of many cells, where nothing needs a GPU or a build."""
    monkeypatch.setattr(measure_command, "Library", lambda _: None)
    monkeypatch.setattr(measure_command, "Ours", lambda *_: None)
    monkeypatch.setattr(measure_command, "limit_memory", lambda _: None)
    monkeypatch.setattr(measure_command.report, "environment", lambda *_: {})
    monkeypatch.setattr(
        measure_command,
        "rows_of",
        lambda cell, *_: [
            {"status": "ok", "pass": "fwd", "protocol": "", "kernel": "", "ms_median": 1.0}
            | {"implementation": str(cell.problem)}
        ],
    )
    words = ["measure", "--preset", "grid", "-o", str(tmp_path / "rows.json")]
    return parser().parse_args(words)


def written(args: argparse.Namespace) -> list[dict[str, object]]:
    return json.loads(args.output.read_text())["rows"]


def test_sigterm_leaves_the_rows_measured_so_far(
    measure: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_command, "Bench", lambda _: OneRow(0.0, MEASURED))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        measure_command.run_measure(measure, time.monotonic())
    assert len(written(measure)) == MEASURED
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_time_limit_counts_what_came_before_the_first_cell(
    measure: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_command, "Bench", lambda _: OneRow(0.0, -1))
    measure.total_s = 20.0
    assert measure_command.run_measure(measure, time.monotonic() - 25.0) == 0
    assert written(measure) == []


def test_a_step_that_would_end_too_late_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 30.0, 40.0, 75.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    deadline = Deadline(100.0, 0.0)
    assert [deadline.has_time() for _ in range(4)] == [True, True, True, False]
    assert Deadline(0.0, 0.0)._end == float("inf")
