"""Seed 003's tables: `python -m tilewise.asam`."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tilewise.asam import __main__ as tables  # noqa: E402
from tilewise.asam._models import Job, peak_bytes  # noqa: E402
from tilewise.asam._routed import RoutedAttention  # noqa: E402
from tilewise.asam._tasks import TASKS  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> dict:
    out = Path(str(words[-1]))
    arguments = ["tilewise.asam", *map(str, words[:-1]), "--format", "json", "-o", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert tables.main() == 0
    return json.loads(out.read_text())


def test_memory_is_of_the_job_alone() -> None:
    """However much the process has held that asks."""
    held = torch.ones(2**27)  # 512 MiB
    del held
    short, long = (peak_bytes(Job("flash", 1, n, "cpu", True)) for n in (64, 1024))
    assert short is not None and long is not None
    assert 2**20 < short < long
    assert long - short > 2 * 1024 * 4 * 256 * 4  # two layers keep at least what F widens


def test_behaviour_sees_the_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    picture = tmp_path / "blocks.svg"
    rows = run(monkeypatch, "behaviour", "--picture", picture, tmp_path / "rows.json")["rows"]
    assert len(rows) == 12
    for row in rows:
        assert (row["gate_spread"] > 1e-3) == (row["layer"] == "working")
    working = [row["patterns"] for row in rows if row["layer"] == "working"]
    assert len(set(working)) > 1
    assert picture.read_text().count("<path") == 6 * 4


def test_answers_of_tasks_follow_from_their_tokens() -> None:
    generator = torch.Generator().manual_seed(1)
    ids, kinds = TASKS["needle"].draw(8, 40, generator)
    assert ((ids == 50 + kinds[:, None]).sum(1) == 1).all()
    ids, values = TASKS["listops"].draw(64, 40, generator)
    for row, value in zip(ids.tolist(), values.tolist(), strict=True):
        inner: list[int] = []
        for depth in (1, 0):
            marks = [t - 50 - 12 * depth for t in row if 0 <= t - 50 - 12 * depth < 12]
            digits = [mark for mark in marks if mark < 10] + inner
            inner = [min(digits) if 11 in marks else max(digits)]
        assert inner == [value]


def test_tasks_have_a_row_for_each_layer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ("tasks", "--tasks", "needle", "--lengths", 64, "--steps", 2, "--examined", 8)
    rows = run(monkeypatch, *words, tmp_path / "rows.json")["rows"]
    assert [row["layer"] for row in rows] == ["dense", "working", "published"]
    assert rows[0]["density"] == 1.0


def test_tasks_take_layers_and_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ("tasks", "--tasks", "listops", "--lengths", 64, "--steps", 1, "--examined", 8)
    words += ("--layers", "working", "--seeds", 3, 4)
    rows = run(monkeypatch, *words, tmp_path / "rows.json")["rows"]
    assert [(row["layer"], row["seed"]) for row in rows] == [("working", 3), ("working", 4)]
    assert rows[0]["loss"] != rows[1]["loss"]


def test_tasks_begin_with_all_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lists of a few blocks hide what the layer has not learnt to look for."""
    shares: dict[int, set[float]] = {64: set(), 128: set()}
    choose = RoutedAttention._blocks

    def spied(self: RoutedAttention, q: torch.Tensor, *rest: object) -> tuple:
        chosen = choose(self, q, *rest)
        if torch.is_grad_enabled():
            shares[q.shape[2]].add(float(chosen[0].float().mean()))
        return chosen

    monkeypatch.setattr(RoutedAttention, "_blocks", spied)
    words = ("tasks", "--tasks", "listops", "--lengths", 128, "--steps", 1, "--examined", 8)
    run(monkeypatch, *words, "--layers", "working", tmp_path / "rows.json")
    assert shares[64] == {1.0}
    assert max(shares[128]) < 0.8


@pytest.mark.parametrize("drops", [False, True])
def test_losses_are_compared_without_dropout(drops: bool) -> None:
    step = Job("flash", 1, 16, "cpu", True, drops=drops).step()
    before = torch.get_rng_state()
    step()
    assert torch.equal(before, torch.get_rng_state()) == (not drops)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    def cut(arguments: object) -> Iterator[dict]:
        del arguments
        yield {"seq": 16}
        os.kill(os.getpid(), number)
        time.sleep(60)
        yield {"seq": 32}

    monkeypatch.setitem(tables.TABLES, "forward", cut)
    words = ["tilewise.asam", "forward", "--device", "cpu", "--format", "csv"]
    monkeypatch.setattr(sys, "argv", [*words, "-o", str(tmp_path / "rows.csv")])
    # A shell's background job ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert tables.main() == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "rows.csv").read_text().split() == ["seq", "16"]


def test_training_has_the_seed_s_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A CPU trains in bfloat16 beside float32: its products of float16 take minutes."""
    monkeypatch.setattr(tables, "peak_bytes", lambda job: 1)
    words = ("training", "--device", "cpu", "--lengths", 16, "--runs", 1)
    document = run(monkeypatch, *words, tmp_path / "rows.json")
    (row,) = document["rows"]
    assert "fp16_ms" not in row
    told = document["training_16_bf16"]
    assert told == {k: row[f"{k}_ms"] for k in ("fp32", "bf16")} | {"speedup": row["bf16_speedup"]}
    assert 0 <= row["bf16_loss_off_percent"] < 5


@pytest.mark.parametrize("table", ["precision", "training"])
def test_types_are_timed_in_turn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, table: str
) -> None:
    """Each step takes longer than the one before, as on a host that slows down: the types tie."""
    taken = iter(range(1, 10**6))

    def step(job: Job) -> Callable[[], torch.Tensor]:
        def run_one() -> torch.Tensor:
            clock[0] += next(taken)
            return torch.ones(())

        return run_one

    clock = [0.0]
    monkeypatch.setattr(Job, "step", step)
    monkeypatch.setattr(tables, "peak_bytes", lambda job: 1)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    words = (table, "--device", "cpu", "--lengths", 16, "--runs", 40)
    for row in run(monkeypatch, *words, tmp_path / "rows.json")["rows"]:
        assert row["bf16_ms"] == pytest.approx(row["fp32_ms"], rel=0.04)
