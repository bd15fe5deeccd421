"""fallback="torch": torch's scaled_dot_product_attention if no Tilewise kernel supports a call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _torch as ours
from ._spec import FIELDS, Spec, make_spec
from ._torch_onlookers import in_memory

# Not by its name in torch.nn.functional, under which a caller may have put a drop-in.
_torch_s_own = torch._C._nn.scaled_dot_product_attention

# Options that torch's function supports, and fields that only accompany others.
_TORCH_HAS = {
    *("mask", "bias", "alibi_slopes", "key_lengths", "seed", "layout", "scale", "causal"),
    *("window_left", "window_right", "dropout_p", "deterministic", "precision"),
    *("max_seqlen_q", "max_seqlen_k", "captures"),
}
_BEYOND_TORCH = {
    name: value for name, value in zip(FIELDS, make_spec(), strict=True) if name not in _TORCH_HAS
}


def refusal(q: Tensor, k: Tensor, v: Tensor, spec: Spec) -> str:
    """Why no Tilewise kernel supports the call, including the backward if it is needed."""
    wanted = [t for t in (q, k, v, *spec) if isinstance(t, Tensor)]
    if torch.compiler.is_compiling() or not in_memory(*wanted):
        return ""
    try:
        ours.plan(q, k, v, spec, backward=False)
        if torch.is_grad_enabled() and any(t.requires_grad for t in wanted):
            ours.plan(q, k, v, spec, backward=True)
    except NotImplementedError as error:
        return str(error)
    return ""


def _diagonal(s: dict[str, Any], rows: int, keys: int, device: torch.device) -> Tensor:
    """i + Sk - Sq, (Sq, 1). With key lengths, per entry: (B, 1, Sq, 1)."""
    i = torch.arange(rows, device=device)[:, None]
    lengths = s["key_lengths"]
    return i + ((keys if lengths is None else lengths[:, None, None, None]) - rows)


def visible(s: dict[str, Any], rows: int, keys: int, device: torch.device) -> Tensor | None:
    """The spec's masks as one bool tensor for (B, Hq, Sq, Sk); None = all visible."""
    i = torch.arange(rows, device=device)[:, None]
    j = torch.arange(keys, device=device)
    diagonal = _diagonal(s, rows, keys, device)
    most = rows + keys  # as far as a bound reaches: its sum with a position stays within int64
    left, right = (
        None if bound is None else max(-most, min(bound, most))
        for bound in (s["window_left"], s["window_right"])
    )
    parts = []
    if s["causal"]:
        parts.append(j <= (diagonal if s["causal"] == "bottom_right" else i))
    if left is not None:
        parts.append(j >= diagonal - left)
    if right is not None:
        parts.append(j <= diagonal + right)
    if s["key_lengths"] is not None:
        parts.append(j < s["key_lengths"][:, None, None, None])
    if s["mask"] is not None:
        parts.append(s["mask"])
    mask: Tensor | None = None
    for part in parts:
        mask = part if mask is None else mask & part
    return mask


def _added(s: dict[str, Any], rows: int, keys: int, like: Tensor) -> Tensor | None:
    """Bias and ALiBi as one tensor in the type of q."""
    bias: Tensor | None = None if s["bias"] is None else s["bias"].to(like.dtype)
    if s["alibi_slopes"] is None:
        return bias
    diagonal = _diagonal(s, rows, keys, like.device)
    distance = (diagonal - torch.arange(keys, device=like.device)).abs()
    alibi: Tensor = (-s["alibi_slopes"][..., None, None] * distance).to(like.dtype)
    return alibi if bias is None else bias + alibi


def torch_attention(q: Tensor, k: Tensor, v: Tensor, spec: Spec) -> Tensor:
    """The same attention by torch, if torch can express it. Dropout bits are torch's."""
    s = dict(zip(FIELDS, spec, strict=True))
    beyond = [name for name, value in _BEYOND_TORCH.items() if s[name] != value]
    if beyond or q.dim() != 4:
        what = ", ".join(beyond) or f"{q.dim()} axes"
        raise NotImplementedError(f"torch's attention does not support {what} either")
    heads_first = s["layout"] == "bhsd"
    if not heads_first:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    rows, keys = q.shape[2], k.shape[2]
    mask, bias = visible(s, rows, keys, q.device), _added(s, rows, keys, q)
    if bias is not None:
        mask = bias if mask is None else torch.where(mask, bias, float("-inf"))
    out = _torch_s_own(
        q,
        k,
        v,
        mask,
        s["dropout_p"],
        scale=s["scale"],
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out if heads_first else out.transpose(1, 2)


def attention(
    q: Tensor, k: Tensor, v: Tensor, spec: Spec, return_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """Tilewise's attention if a kernel supports the call, else torch's, which returns no LSE."""
    reason = refusal(q, k, v, spec)
    if not reason:
        return ours.attention(q, k, v, spec, return_lse)
    if return_lse:
        raise NotImplementedError(f"torch's attention returns no LSE either\n{reason}")
    q, k, v = ours._autocast(q, k, v)
    out = torch_attention(q, k, v, spec)
    ours.warn_once(reason)
    return out, None
