"""The leaderboard's step: forward, sum, backward, gradients accumulated in one leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .contender import Contender, Session
from .problem import Problem
from .reference import Inputs
from .torch_paths import TorchSession


class _Launches(torch.autograd.Function):
    """A session's own launches as a torch function."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        session: Session,
        d_o: torch.Tensor,
    ) -> torch.Tensor:
        del q, k, v  # the session was opened on them
        ctx.session, ctx.d_o = session, d_o
        session.forward_for_backward()
        return session.outputs()["O"].detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        ctx.d_o.copy_(gradient)
        ctx.session.backward()
        named = ctx.session.outputs()
        return named["dQ"], named["dK"], named["dV"], None, None


def board_step(contender: Contender, problem: Problem) -> Callable[[], None]:
    """What the board times, of one contender. As there, the first gradient is there before."""
    shape = (3, problem.heads, problem.seq, problem.dim)
    dtype = getattr(torch, problem.dtype)
    leaf = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
    leaf.grad = torch.zeros_like(leaf)
    d_o = torch.empty_like(leaf[0][None], requires_grad=False)
    session = contender.open(problem, Inputs(*(x.detach()[None] for x in leaf), d_o))

    def step() -> None:
        q, k, v = (x[None] for x in leaf)
        if isinstance(session, TorchSession):
            o = session.attention(q, k, v)
        else:
            o = _Launches.apply(q, k, v, session, d_o)
        o.sum().backward()

    return step
