"""Any contender as a torch function, for protocols that go through autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .contender import Session
from .torch_paths import TorchSession

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


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


def as_function(session: Session, d_o: torch.Tensor) -> Attention:
    """The session's attention; `d_o` is where the session reads its gradient of O."""
    if isinstance(session, TorchSession):
        return session.attention
    return lambda q, k, v: _Launches.apply(q, k, v, session, d_o)
