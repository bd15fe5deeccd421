"""Tilewise as an attention of Hugging Face transformers.

    tilewise.hf.register()
    model = AutoModel.from_pretrained(..., attn_implementation="tilewise")

Masks are made as for "sdpa", with one difference: where a batch is padded on the right, or a static
cache is longer than what has been written, lengths go to the kernel instead of a mask of every
pair, so that padding costs nothing and runs where no kernel takes a mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
)

from ._attention import attention

__all__ = ["attention_forward", "attention_mask", "register"]


def _right_padded_lengths(mask: Tensor) -> Tensor | None:
    """Lengths (B) of a padding mask (B, S) whose padding is on the right; else None."""
    lengths = mask.sum(-1, dtype=torch.int32)
    places = torch.arange(mask.shape[-1], device=mask.device)
    return lengths if torch.equal(mask.bool(), places < lengths[:, None]) else None


def _bidirectional_lengths(padding: Tensor | None, kv_length: int) -> tuple[bool, Tensor | None]:
    """Whether lengths say it all, and the lengths (B); None = every key is seen."""
    if padding is None or padding.shape[-1] != kv_length:
        return False, None
    lengths = _right_padded_lengths(padding)
    if lengths is None:
        return False, None
    return True, None if bool((lengths == kv_length).all()) else lengths


def _causal_lengths(
    padding: Tensor | None, batch: int, rows: int, keys: int, first: Any, device: Any
) -> tuple[bool, Tensor | None]:
    """The same for causal attention of rows `first`, `first` + 1, ... (an int, or a tensor).

    One row: lengths (B). Several from the first on: lengths (B, 2), each twice.
    """
    lengths = None if padding is None else _right_padded_lengths(padding)
    if padding is not None and (lengths is None or padding.shape[-1] > keys):
        return False, None
    if rows == 1:
        if isinstance(first, int) and first + 1 >= keys:  # no cache behind what is written
            return True, None if lengths is None or bool((lengths >= keys).all()) else lengths
        seen = torch.as_tensor(first + 1, dtype=torch.int32, device=device).expand(batch)
        return True, seen if lengths is None else torch.minimum(lengths, seen)
    if lengths is None or int(first) != 0:
        return False, None
    # A row sees what is before it: padding behind the last row hides nothing more.
    return True, None if bool((lengths >= rows).all()) else lengths[:, None].expand(-1, 2)


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *,
    mask_function: Any = causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    q_offset: Any = 0,
    kv_offset: int = 0,
    **options: Any,
) -> Tensor | None:
    """What attention_forward takes as its mask.

    None, bool (B, 1, Sq, Sk), or int32 lengths (B, 1, 1, 1); (B, 1, 1, 2), each of them twice,
    where causal from the top left applies too. Four axes, because transformers takes only such a
    mask for a finished one when it comes back.
    """
    if not use_vmap and kv_offset == 0 and not torch.compiler.is_compiling():
        found, lengths = False, None
        if mask_function is bidirectional_mask_function:
            found, lengths = _bidirectional_lengths(attention_mask, kv_length)
        elif mask_function is causal_mask_function:
            device = options.get("device", "cpu")
            found, lengths = _causal_lengths(
                attention_mask, batch_size, q_length, kv_length, q_offset, device
            )
        if found:
            return None if lengths is None else lengths.reshape(batch_size, 1, 1, -1)
    return sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        use_vmap=use_vmap,
        **options,
    )


def _mask_options(mask: Tensor | None, position_bias: Tensor | None) -> dict[str, Any]:
    options: dict[str, Any] = {"bias": position_bias}
    if mask is None:
        return options
    if mask.dtype == torch.int32:
        options["key_lengths"] = mask[:, 0, 0, 0]
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
    if attention_mask is not None and attention_mask.dtype == torch.int32:
        causal = "top_left" if attention_mask.shape[-1] == 2 else False
    elif causal and rows != keys:
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
