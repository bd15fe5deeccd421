"""A training run that a person would believe, made short: examples/train_gpt.py."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/train_gpt.py"


def test_loss_curves_agree(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.spec_from_file_location("train_gpt", EXAMPLE)
    assert found is not None and found.loader is not None
    example = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "train_gpt", example)
    found.loader.exec_module(example)
    size = ["--steps", "200", "--batch", "8", "--length", "256"]
    if device == "cpu":
        size = ["--steps", "12", "--batch", "2", "--length", "96"]
    report = tmp_path / "curves.json"
    monkeypatch.setattr(
        sys, "argv", ["train_gpt", "--device", device, *size, "--json", str(report)]
    )
    assert example.main() == 0
    curves = json.loads(report.read_text())
    assert set(curves["largest_difference"]) == {"float32", "bf16"}
    for run in curves["runs"]:
        assert run["losses"][-1] < run["losses"][0] - 0.5, "it has not learned"
