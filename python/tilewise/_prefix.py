"""prefix_attention: attention over a shared prefix, by the operator tilewise::prefix_attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from . import _native, _torch_flops
from ._spec import Spec, make_spec, number
from ._torch import as_tensor, trace
from ._torch_onlookers import check_without_gradient

_SCHEMA = (
    "(Tensor q, Tensor k_prefix, Tensor v_prefix, Tensor k, Tensor v, Tensor? key_lengths, "
    "Tensor? cu_seqlens_q, Tensor? block_table, Tensor? sinks, SymInt max_seqlen_q, "
    "SymInt max_seqlen_k, str causal, float? scale, float softcap, str layout, "
    "str mask_expression, Tensor[] captures) -> (Tensor o, Tensor lse)"
)
_NAMES = (
    "key_lengths",
    "cu_seqlens_q",
    "block_table",
    "sinks",
    "max_seqlen_q",
    "max_seqlen_k",
    "causal",
    "scale",
    "softcap",
    "layout",
    "mask_expression",
    "captures",
)


def _spec(options: tuple[Any, ...]) -> Spec:
    given = dict(zip(_NAMES, options, strict=True))
    return make_spec(**given | {"captures": tuple(given["captures"])})


@torch.library.custom_op(
    "tilewise::prefix_attention", mutates_args=(), device_types=("cpu", "cuda"), schema=_SCHEMA
)
def _operator(
    q: Tensor, k_prefix: Tensor, v_prefix: Tensor, k: Tensor, v: Tensor, *options: Any
) -> tuple[Tensor, Tensor]:
    spec = _spec(options)
    outputs: tuple[Tensor, Tensor] = _native.empty_outputs(q, v, spec, True)
    _native.forward_prefix((q, k_prefix, v_prefix, k, v), outputs, spec)
    return outputs


@_operator.register_fake
def _fake(
    q: Tensor, k_prefix: Tensor, v_prefix: Tensor, k: Tensor, v: Tensor, *options: Any
) -> tuple[Tensor, Tensor]:
    outputs: tuple[Tensor, Tensor] = _native.empty_outputs(q, v, _spec(options), True)
    return outputs


register_flop_formula(torch.ops.tilewise.prefix_attention, get_raw=True)(_torch_flops.of_prefix)


def prefix_attention(
    q: Tensor,
    k_prefix: Tensor,
    v_prefix: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    key_lengths: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    block_table: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    mask_mod: Callable[..., Any] | None = None,
    layout: str = "bshd",
    return_lse: bool = False,
) -> Any:
    """Attention over keys that all sequences share, followed by each sequence's own keys.

    k_prefix and v_prefix are (P, Hk, D) and (P, Hk, Dv), with layout "bhsd" (Hk, P, D). They are
    read once for all sequences, and every query sees the whole prefix. The other options are those
    of attention:

    - causal, key_lengths, cu_seqlens_q, block_table and mask_mod apply to a sequence's own keys.
      mask_mod, and so tree_mask, counts keys from the first own key.
    - scale, softcap and sinks apply to all keys.
    - If q has a batch axis, batch and rows must form one axis in memory, as in "bshd".

    Returns O, or (O, LSE) with return_lse. Both parts are rounded to q's type and merged by their
    LSE. Raises ValueError (wrong argument) or NotImplementedError (no kernel supports the call, or
    a tensor requires a gradient: prefix_attention has none).
    """
    check_without_gradient(
        "prefix_attention",
        q=q,
        k_prefix=k_prefix,
        v_prefix=v_prefix,
        k=k,
        v=v,
        key_lengths=key_lengths,
        cu_seqlens_q=cu_seqlens_q,
        block_table=block_table,
        sinks=sinks,
    )
    text = ""
    captures: tuple[torch.Tensor, ...] = ()
    if mask_mod is not None:
        _, text, given = trace(None, mask_mod)
        captures = tuple(as_tensor(c) for c in given)
    o, lse = torch.ops.tilewise.prefix_attention(
        q,
        k_prefix,
        v_prefix,
        k,
        v,
        key_lengths,
        cu_seqlens_q,
        block_table,
        sinks,
        max_seqlen_q,
        max_seqlen_k,
        "bottom_right" if causal else "",
        None if scale is None else number("scale", scale),
        number("softcap", softcap),
        layout,
        text,
        [c if c.ndim else c.reshape(1) for c in captures],
    )
    return (o, lse) if return_lse else o
