"""A drop-in for torch.nn.functional.scaled_dot_product_attention.

    from tilewise.sdpa import scaled_dot_product_attention

The same signature and meaning: causal is top-left, a float mask is added and has a gradient, a
bool mask shows where it is True. Where torch gives NaN or uniform rows for a fully masked row (it
depends on its backend), the row is 0 here. What no kernel runs raises NotImplementedError with the
reasons, unless fallback="torch".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._attention import attention

__all__ = ["scaled_dot_product_attention"]


def _four_axes(t: Tensor) -> Tensor:
    """(..., S, D) as (B, H, S, D)."""
    if t.dim() == 4:
        return t
    if t.dim() < 4:
        return t.reshape(*(1,) * (4 - t.dim()), *t.shape)
    return t.reshape(math.prod(t.shape[:-3]), *t.shape[-3:])


def _mask_axes(mask: Tensor, batch: torch.Size, rows: int, keys: int) -> Tensor:
    """A mask that broadcasts to (*batch, H, S, S), with at most four axes."""
    if mask.dim() <= 4 and len(batch) <= 1:
        return mask
    return _four_axes(mask.expand(*batch, *mask.shape[-3:]) if mask.dim() > 3 else mask)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    fallback: str | None = None,
) -> Tensor:
    """softmax(query key^T scale + attn_mask) value, as torch's function of this name.

    query (..., Hq, L, E), key (..., H, S, E), value (..., H, S, Ev); the result (..., Hq, L, Ev).
    Hq may be a multiple of H with enable_gqa.
    """
    if attn_mask is not None and is_causal:
        raise ValueError("is_causal is True and attn_mask is given: torch takes one of them")
    if (
        attn_mask is not None
        and attn_mask.dtype != torch.bool
        and not attn_mask.is_floating_point()
    ):
        raise ValueError(f"attn_mask is {attn_mask.dtype}: expected bool or a float type")
    if query.dim() < 2:
        raise ValueError(f"query has {query.dim()} axes: expected (..., L, E)")
    q, k, v = _four_axes(query), _four_axes(key), _four_axes(value)
    if q.shape[1] != k.shape[1] and not enable_gqa:
        raise ValueError(
            f"query has {q.shape[1]} heads and key {k.shape[1]}: say enable_gqa=True for that"
        )
    mask = attn_mask
    if mask is not None:
        mask = _mask_axes(mask, query.shape[:-3], q.shape[2], k.shape[2])
    is_bool = mask is not None and mask.dtype == torch.bool
    out: Tensor = attention(
        q,
        k,
        v,
        causal="top_left" if is_causal else False,
        mask=mask if is_bool else None,
        bias=None if is_bool else mask,
        scale=scale,
        dropout_p=dropout_p,
        layout="bhsd",
        fallback=fallback,
    )
    return out.reshape(*query.shape[:-1], value.shape[-1])
