"""A drop-in for torch.nn.functional.scaled_dot_product_attention.

    from tilewise.sdpa import scaled_dot_product_attention

Signature and meaning are torch's: causal is top-left, a float mask is added and has a gradient, and
a bool mask is True for visible pairs. A fully masked row is 0; torch's backends return 0, NaN or a
uniform row. A call that no kernel supports raises NotImplementedError with the reasons, unless
fallback="torch".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant

from ._attention import attention

__all__ = ["scaled_dot_product_attention"]


class SdpaError(ValueError, RuntimeError):
    """A ValueError, as elsewhere in this package, and a RuntimeError, as torch's own function."""


_CAUSAL = {CausalVariant.UPPER_LEFT: "top_left", CausalVariant.LOWER_RIGHT: "bottom_right"}


def _heads(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(..., S, D) with a head axis, which broadcasts among the three. Grouped queries keep their
    own."""
    q, k, v = (t[None] if t.dim() == 2 else t for t in (q, k, v))
    if enable_gqa:
        return q, k, v
    heads = _broadcast([t.shape[-3:-2] for t in (q, k, v)], "heads", q, k, v)
    if any(t.shape[-3:-2] != heads for t in (q, k, v)):
        q, k, v = (t.expand(*t.shape[:-3], *heads, *t.shape[-2:]) for t in (q, k, v))
    return q, k, v


def _broadcast(shapes: list[torch.Size], what: str, q: Tensor, k: Tensor, v: Tensor) -> torch.Size:
    try:
        return torch.Size(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        hint = ": say enable_gqa=True for that" if what == "heads" else ""
        raise ValueError(
            f"query {tuple(q.shape)}, key {tuple(k.shape)} and value {tuple(v.shape)} have {what} "
            f"that do not broadcast{hint}"
        ) from None


def _one_batch(t: Tensor, batch: torch.Size) -> Tensor:
    """(..., H, S, D) as (B, H, S, D): broadcasts all leading axes and joins them."""
    return t.expand(*batch, *t.shape[-3:]).reshape(math.prod(batch), *t.shape[-3:])


def _mask_axes(mask: Tensor, batch: torch.Size, heads: int, rows: int, keys: int) -> Tensor:
    """A mask that broadcasts to (*batch, H, L, S), with at most four axes."""
    whole = (*batch, heads, rows, keys)
    while mask.dim() > len(whole) and mask.shape[0] == 1:
        mask = mask[0]
    try:
        fits = torch.broadcast_shapes(mask.shape, whole) == whole
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"attn_mask is {tuple(mask.shape)}: expected a shape that broadcasts to {whole}"
        )
    if mask.dim() <= 3 or (mask.dim() == 4 and len(batch) <= 1):
        return mask
    return _one_batch(mask, batch)


def _causal_kind(mask: CausalBias, rows: int, keys: int) -> str:
    """The kind of torch's causal mask types."""
    if (mask.seq_len_q, mask.seq_len_kv) != (rows, keys):
        raise ValueError(
            f"attn_mask is {mask.variant.name} of ({mask.seq_len_q}, {mask.seq_len_kv}): expected "
            f"({rows}, {keys})"
        )
    return _CAUSAL[mask.variant]


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
    """softmax(query key^T scale + attn_mask) value, like torch's function of this name.

    query is (..., Hq, L, E), key (..., H, S, E), value (..., H, S, Ev), and the result (..., Hq, L,
    Ev). Leading axes broadcast. With enable_gqa, Hq may be a multiple of H. attn_mask is a bool or
    float tensor that broadcasts to (..., Hq, L, S). It may also be causal_upper_left(L, S) or
    causal_lower_right(L, S) from torch.nn.attention.bias. Raises SdpaError for arguments
    that do not fit.
    """
    try:
        return _attend(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, fallback
        )
    except ValueError as error:
        raise SdpaError(str(error)) from error


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    fallback: str | None,
) -> Tensor:
    if attn_mask is not None and is_causal:
        raise ValueError("is_causal is True and attn_mask is given: expected only one of them")
    for name, t in (("query", query), ("key", key), ("value", value)):
        if t.dim() < 2:
            raise ValueError(f"{name} has {t.dim()} axes: expected (..., L, E)")
    if query.shape[-1] == key.shape[-1] == 0:  # scores are 0: a column of zeros says the same
        query, key = (torch.nn.functional.pad(t, (0, 1)) for t in (query, key))
        scale = 1.0
    dim = value.shape[-1]
    if dim == 0:  # the result has no column either
        value = torch.nn.functional.pad(value, (0, 1))
    q, k, v = _heads(query, key, value, enable_gqa)
    leading = [t.shape[:-3] for t in (q, k, v)]
    batch = leading[0]
    if any(shape != batch for shape in leading):
        batch = _broadcast(leading, "leading axes", query, key, value)
    rows, keys = q.shape[-2], k.shape[-2]
    causal: bool | str = "top_left" if is_causal else False
    mask = bias = None
    if isinstance(attn_mask, CausalBias):
        causal = _causal_kind(attn_mask, rows, keys)
    elif attn_mask is not None:
        if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
            raise ValueError(f"attn_mask is {attn_mask.dtype}: expected bool or a float type")
        fitted = _mask_axes(attn_mask, batch, q.shape[-3], rows, keys)
        mask, bias = (fitted, None) if attn_mask.dtype == torch.bool else (None, fitted)
    out: Tensor = attention(
        *(_one_batch(t, batch) if t.dim() != 4 or t.shape[:1] != batch else t for t in (q, k, v)),
        causal=causal,
        mask=mask,
        bias=bias,
        scale=scale,
        dropout_p=dropout_p,
        layout="bhsd",
        fallback=fallback,
    )
    out = out[..., :dim] if dim == 0 else out
    if query.dim() == key.dim() == value.dim() == 2:
        return out[0, 0]
    return out if len(batch) == 1 else out.reshape(*batch, *out.shape[1:])
