"""Score and mask functions in torch.compile: one graph, no break.

The compiler traces the functions on tensors of one element, as a subgraph of `attend`'s body. When
the graph runs, or AOT autograd takes it apart, the subgraph is read with Traced values instead, and
what it makes is the operator of the formula. So guards, captured tensors and closures are the
compiler's affair, and no code of the caller's is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch._higher_order_ops.wrap import dynamo_bypassing_wrapper

from . import _trace, _trace_functions
from ._spec import SCORE_EXPRESSION, Spec


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def leaf(q: Tensor, name: str) -> Tensor:
    """A leaf of the formula, as the compiler sees it. Of one axis: without one, an index would be
    read to the host."""
    return q.new_empty((1,), dtype=torch.float32 if name == "score" else torch.int32)


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def _meet(
    score: Any, mask: Any, q: Tensor, k: Tensor, v: Tensor, spec: Spec
) -> tuple[Tensor, Tensor]:
    """Attention with what the functions make, as the compiler sees it: types, sizes, gradients."""
    if type(q) is Tensor:
        raise RuntimeError("tilewise: the graph of torch.compile runs without its wrapper")
    read = [score] if isinstance(score, Tensor) and score.is_floating_point() else []
    fields = (*spec[:SCORE_EXPRESSION], "score", "")
    o, lse = torch.ops.tilewise.expression_forward(q, k, v, *fields, read, [])
    return o, lse


def _body(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    spec: Spec,
) -> tuple[Tensor, Tensor]:
    place = [leaf(q, name) for name in _trace.MASK]
    score = None if score_mod is None else score_mod(leaf(q, "score"), *place)
    mask = None if mask_mod is None else mask_mod(*place)
    made: tuple[Tensor, Tensor] = _meet(score, mask, q, k, v, spec)
    return made


class _Reader(torch.fx.Interpreter):
    """Runs the subgraph of _body on traced values and the call's own tensors."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph)
        self.extra_traceback = False
        self.sizes: list[Any] = []  # the compiler's symbols in the formula: n0, n1, ...

    def _operand(self, value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            self.sizes.append(value)
            return _trace.Traced(f"n{len(self.sizes) - 1}", ())
        return float(value) if isinstance(value, torch.SymFloat) else value

    def _traced(self, run: Any, target: Any, arguments: Any, options: Any) -> Any:
        values = torch.utils._pytree.tree_leaves((arguments, options))
        if any(isinstance(value, _trace.Traced) for value in values):
            arguments, options = torch.utils._pytree.tree_map(self._operand, (arguments, options))
            with _trace_functions.torch_mode():
                return run(target, arguments, options)
        return run(target, arguments, options)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is leaf:
            return _trace.LEAVES[args[1]]
        if target is _meet:
            return self._attend(*args, **kwargs)
        return self._traced(super().call_function, target, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._traced(super().call_method, target, args, kwargs)

    def _attend(
        self, score: Any, mask: Any, q: Tensor, k: Tensor, v: Tensor, spec: Spec
    ) -> tuple[Any, Any]:
        from . import _torch

        texts = _trace.texts(score, mask)
        *both, captures = texts
        whole = (*spec[:SCORE_EXPRESSION], *both, tuple(map(_torch.as_row, captures)))
        o, lse = _torch.attention(q, k, v, whole, True, tuple(self.sizes))
        return o, lse


def _read(inner: Any) -> Callable[..., Any]:
    if isinstance(inner, torch.fx.GraphModule):
        return _Reader(inner).run
    return _eager


def _eager(
    q: Tensor, k: Tensor, v: Tensor, score_mod: Any, mask_mod: Any, spec: Spec
) -> tuple[Any, Any]:
    """Where the compiler broke the graph at the functions."""
    from . import _torch

    score, mask, captures = _torch.trace(score_mod, mask_mod)
    whole = (*spec[:SCORE_EXPRESSION], score, mask, tuple(map(_torch.as_row, captures)))
    return _torch.attention(q, k, v, whole, True)


def attend(*arguments: Any) -> Any:
    """O and LSE, of _body's arguments."""
    return dynamo_bypassing_wrapper(_read, _body, *arguments)
