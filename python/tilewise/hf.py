"""Tilewise as an attention of Hugging Face transformers.

    tilewise.hf.register()
    model = AutoModel.from_pretrained(..., attn_implementation="tilewise")

Masks are made as for "sdpa", with one difference: where an encoder's batch is padded on the right,
its lengths go to the kernel instead of a mask of every pair, so that padding costs nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

from ._attention import attention

__all__ = ["attention_forward", "attention_mask", "register"]


def _right_padded_lengths(mask: Tensor) -> Tensor | None:
    """Lengths (B) of a padding mask (B, S) whose padding is on the right; else None."""
    lengths = mask.sum(-1, dtype=torch.int32)
    places = torch.arange(mask.shape[-1], device=mask.device)
    return lengths if torch.equal(mask.bool(), places < lengths[:, None]) else None


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    **options: Any,
) -> Tensor | None:
    """What attention_forward takes as its mask: None, lengths int32 (B), or bool (B, 1, Sq, Sk)."""
    plain = mask_function is bidirectional_mask_function and not use_vmap
    if attention_mask is not None and plain and not torch.compiler.is_compiling():
        whole = attention_mask.shape == (batch_size, kv_length)
        lengths = _right_padded_lengths(attention_mask) if whole else None
        if lengths is not None:
            return None if bool((lengths == kv_length).all()) else lengths
    if mask_function is not None:
        options["mask_function"] = mask_function
    return sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        attention_mask=attention_mask,
        use_vmap=use_vmap,
        **options,
    )


def _mask_options(mask: Tensor | None, position_bias: Tensor | None) -> dict[str, Any]:
    options: dict[str, Any] = {"bias": position_bias}
    if mask is None:
        return options
    if mask.dim() == 1:
        options["key_lengths"] = mask
    elif mask.dtype == torch.bool:
        options["mask"] = mask
    elif position_bias is None:
        options["bias"] = mask
    else:
        options["bias"] = position_bias + mask
    return options


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """One layer's attention: query (B, Hq, Sq, D), key, value (B, Hk, Sk, D) -> (B, Sq, Hq, D)."""
    rows, keys = query.shape[2], key.shape[2]
    decoder = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal: bool | str = bool(decoder) and attention_mask is None and rows > 1
    if causal and rows != keys:
        # A first pass over a cache that is longer than what has been written.
        causal = "top_left"
    out = attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        causal=causal,
        scale=scaling,
        softcap=softcap or 0.0,
        sinks=None if s_aux is None else s_aux.float(),
        dropout_p=dropout,
        **_mask_options(attention_mask, position_bias),
    )
    return out, None


def register(name: str = "tilewise") -> None:
    """Makes attn_implementation=name a choice for every model that takes attention functions."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
