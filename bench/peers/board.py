"""The leaderboard's step: forward, sum, backward, gradients accumulated in one leaf."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .autograd import as_function
from .contender import Contender
from .problem import Problem
from .reference import Inputs


def board_step(contender: Contender, problem: Problem) -> Callable[[], None]:
    """What the board times, of one contender. As there, the first gradient is there before."""
    shape = (3, problem.heads, problem.seq, problem.dim)
    dtype = getattr(torch, problem.dtype)
    leaf = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
    leaf.grad = torch.zeros_like(leaf)
    d_o = torch.empty_like(leaf[0][None], requires_grad=False)
    session = contender.open(problem, Inputs(*(x.detach()[None] for x in leaf), d_o))
    attention = as_function(session, d_o)

    def step() -> None:
        attention(*(x[None] for x in leaf)).sum().backward()

    return step
