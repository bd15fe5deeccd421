"""Fixtures: the device, and a run without torch (TILEWISE_NO_TORCH=1)."""

import importlib.abc
import os
import sys
from collections.abc import Sequence
from types import ModuleType

import pytest


class _NoTorch(importlib.abc.MetaPathFinder):
    """An environment without torch, made of one that has it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"{name} is hidden by TILEWISE_NO_TORCH", name=name)


if os.environ.get("TILEWISE_NO_TORCH"):
    sys.meta_path.insert(0, _NoTorch())


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same inputs, alone, in any order and on any machine."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Each device in turn; a test is skipped on one that is not there."""
    torch = pytest.importorskip("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.manual_seed(0)
    return str(request.param)
