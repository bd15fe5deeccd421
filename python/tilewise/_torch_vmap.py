"""torch.func.vmap of the operators: the mapped axis becomes part of the batch.

Some calls cannot be folded and run as a loop: sinks per entry, packed or paged sequences, block
lists, and gradients of bias and sinks. Dropout also loops, because its bits depend on the batch
index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._spec import FIELDS, SINKS, TENSOR_FIELDS

# How many axes, from the batch on, what belongs to a batch entry has; q, k, v and the like aside.
_AXES = {"mask": 4, "bias": 4, "alibi_slopes": 2, "key_lengths": 1}
_DROPOUT = FIELDS.index("dropout_p")
_UNFOLDABLE = [
    i for i, name in enumerate(TENSOR_FIELDS) if name not in _AXES and name not in ("sinks", "seed")
]
Result = tuple[tuple[Any, ...], tuple[Any, ...]]


def _fold(t: Tensor, dim: int | None, size: int) -> Tensor:
    """(B, ...), mapped or not, as (size * B, ...)."""
    mapped = t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
    return mapped.flatten(0, 1)


def _fold_shared(t: Tensor, dim: int | None, size: int, batch: int, axes: int) -> Tensor:
    """The same for a tensor that broadcasts to (B, ...) of so many axes."""
    own = t.dim() - (dim is not None)
    if dim is None and (own < axes or (axes > 1 and t.shape[0] == 1)):
        return t  # every entry's. Key lengths do not broadcast
    mapped = t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
    shape = mapped.shape[1:]
    mapped = mapped.reshape(size, *(1,) * (axes - own), *shape)
    return mapped.expand(size, batch, *mapped.shape[2:]).flatten(0, 1)


def _fold_spec(spec: Any, dims: Any, size: int, batch: int) -> tuple[Any, ...]:
    folded = list(spec)
    for name, axes in _AXES.items():
        i = FIELDS.index(name)
        if spec[i] is not None:
            folded[i] = _fold_shared(spec[i], dims[i], size, batch, axes)
    return tuple(folded)


def _foldable(spec: Any, dims: Any) -> bool:
    return (
        spec[_DROPOUT] == 0.0 and dims[SINKS] is None and all(spec[i] is None for i in _UNFOLDABLE)
    )


def _loop(operator: Callable[..., Any], size: int, dims: Any, arguments: Any) -> Result:
    """One call per entry."""

    def entry(argument: Any, dim: Any, i: int) -> Any:
        if isinstance(argument, list | tuple) and isinstance(dim, list | tuple):
            return [entry(a, d, i) for a, d in zip(argument, dim, strict=True)]
        return argument if dim is None else argument.select(dim, i)

    outputs = [
        operator(*(entry(a, d, i) for a, d in zip(arguments, dims, strict=True)))
        for i in range(size)
    ]
    stacked = [
        [torch.stack(t) for t in zip(*parts, strict=True)]
        if isinstance(parts[0], list | tuple)
        else torch.stack(parts)
        for parts in zip(*outputs, strict=True)
    ]
    dims_out = tuple([0] * len(t) if isinstance(t, list) else 0 for t in stacked)
    return tuple(stacked), dims_out


def _batch(t: Tensor, dim: int | None) -> int:
    """The size of the first axis that is not mapped."""
    return t.shape[1 if dim == 0 else 0]


def forward(info: Any, dims: Any, q: Tensor, k: Tensor, v: Tensor, *spec: Any) -> Result:
    """The rule of attention_forward."""
    operator, size = torch.ops.tilewise.attention_forward, info.batch_size
    if not _foldable(spec, dims[3:]):
        return _loop(operator, size, dims, (q, k, v, *spec))
    batch = _batch(q, dims[0])
    folded = (_fold(t, dim, size) for t, dim in zip((q, k, v), dims, strict=False))
    outputs = operator(*folded, *_fold_spec(spec, dims[3:], size, batch))
    return tuple(t.unflatten(0, (size, batch)) for t in outputs), (0, 0)


def backward(
    info: Any,
    dims: Any,
    d_o: Tensor | None,
    d_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    need_dbias: bool,
    need_dsinks: bool,
    *spec: Any,
) -> Result:
    """The rule of attention_backward."""
    operator, size = torch.ops.tilewise.attention_backward, info.batch_size
    tensors = (d_o, d_lse, q, k, v, o, lse)
    if need_dbias or need_dsinks or not _foldable(spec, dims[9:]):
        return _loop(operator, size, dims, (*tensors, need_dbias, need_dsinks, *spec))
    batch = _batch(q, dims[2])
    folded = (
        None if t is None else _fold(t, dim, size) for t, dim in zip(tensors, dims, strict=False)
    )
    spec = _fold_spec(spec, dims[9:], size, batch)
    dq, dk, dv, *empty = operator(*folded, False, False, *spec)
    gradients = (t.unflatten(0, (size, batch)) for t in (dq, dk, dv))
    return (*gradients, *empty), (0, 0, 0, None, None)


def _looped(name: str) -> Callable[..., Result]:
    """The rule of an operator whose expressions may read the batch's place: one call an entry."""

    def rule(info: Any, dims: Any, *arguments: Any) -> Result:
        return _loop(getattr(torch.ops.tilewise, name), info.batch_size, dims, arguments)

    return rule


def register(library: torch.library.Library) -> None:
    """Registers the rules with torch."""
    for name in ("expression_forward", "expression_backward"):
        torch.library.register_vmap(f"tilewise::{name}", _looped(name), lib=library)
    torch.library.register_vmap("tilewise::attention_forward", forward, lib=library)
    torch.library.register_vmap("tilewise::attention_backward", backward, lib=library)
