"""What a contender is: a way to compute attention that can be opened on the inputs of a problem."""

from __future__ import annotations

from typing import Protocol

import torch

from .problem import Problem
from .reference import Inputs


class RefusedError(Exception):
    """The contender does not compute this problem; the message says why."""


class Session(Protocol):
    """A contender at work on one problem. It holds its outputs and what it keeps for backward."""

    def forward(self) -> None:
        """O alone."""

    def forward_for_backward(self) -> None:
        """O and what backward needs; then `backward` may run any number of times."""

    def backward(self) -> None:
        """dQ, dK and dV of the last `forward_for_backward`."""

    def both(self) -> None:
        """A training step's attention: forward, then backward."""

    def outputs(self) -> dict[str, torch.Tensor]:
        """Of what ran: O, and dQ, dK, dV after a backward."""


class Contender(Protocol):
    """A column of the comparison."""

    name: str  # the implementation of its rows
    dtypes: tuple[str, ...]  # cells of other types are not its own

    def kernel(self, problem: Problem, which: str) -> str:
        """What its rows name as kernel for the pass."""

    def open(self, problem: Problem, inputs: Inputs) -> Session:
        """Raises RefusedError for a problem that it does not compute."""
