"""Tilewise as an attention implementation of Hugging Face transformers.

    tilewise.hf.register()
    model = AutoModel.from_pretrained(..., attn_implementation="tilewise")

Masks are made as for "sdpa", but the kernel receives a cheaper form where possible:

- lengths for right-padded batches and for partly filled static caches,
- a window for sliding windows,
- packed sequences for left-padded batches, position_ids that restart, and cu_seq_lens_q and _k.

    tilewise.hf.register(continuous_batching=True)
    model.set_attn_implementation("tilewise_flash_2")
    model.generate_batch(prompts)

transformers accepts only FlashAttention names for continuous batching. Under this name its
FlashAttention path calls the functions of this module. On a GPU it decodes from pages.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    masking_utils,
    modeling_flash_attention_utils,
)
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    flash_attention_mask,
    sdpa_mask,
)

from ._append import append_kv
from ._attention import attention
from ._spec import flash_window
from .flash_attn import flash_attn_func, flash_attn_varlen_func

__all__ = ["attention_forward", "attention_mask", "register"]


class _Said(Tensor):
    """A mask in a cheaper form than a tensor of all pairs. Distinct types keep it apart from the
    caller's masks. It has four axes, because transformers then takes it for a finished mask."""


class _Lengths(_Said):
    """int32 (B, 1, 1, 1), or (B, 1, 1, 2) with each length twice for top-left causal."""


class _Window(_Said):
    """(1, 1, 1, W): causal over W keys, including the query's own."""


class _Packed(_Said):
    """int32 offsets (1, 2, 1, sequences + 1) of queries and keys of causal sequences, over all
    batch entries in order. (1, 2, 1 + W, sequences + 1) with a window."""


class _Padded(_Packed):
    """The same for a left-padded batch."""


class _PaddedBothWays(_Padded):
    """The same, not causal."""


def _right_padded_lengths(mask: Tensor) -> Tensor | None:
    """Lengths (B) of a right-padded mask (B, S), otherwise None."""
    lengths = mask.sum(-1, dtype=torch.int32)
    places = torch.arange(mask.shape[-1], device=mask.device)
    return lengths if torch.equal(mask.bool(), places < lengths[:, None]) else None


def _bidirectional_lengths(padding: Tensor | None, kv_length: int) -> tuple[bool, Tensor | None]:
    """Whether lengths express the mask, and the lengths (B). None: every key is visible."""
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


def _parts(mask_function: Any) -> dict[str, Any] | None:
    """The window and the packed sequences of a mask function of transformers, which is causal; None
    where it is not, or is more than that. They are closures: their names and cells say it."""
    if mask_function is causal_mask_function:
        return {}
    kind = getattr(mask_function, "__qualname__", "")
    if getattr(mask_function, "__module__", "") != masking_utils.__name__:
        return None
    cells = inspect.getclosurevars(mask_function).nonlocals
    if kind == "and_masks.<locals>.and_mask":
        parts: dict[str, Any] = {"causal": False}
        for part in cells["mask_functions"]:
            name = getattr(part, "__qualname__", "")
            if name == "sliding_window_overlay.<locals>.inner_mask":
                found: dict[str, Any] | None = {"window": _cell(part, "sliding_window")}
            elif name == "packed_sequence_mask_function.<locals>.inner_mask":
                found = {"sequences": _cell(part, "packed_sequence_mask")}
            else:
                found = _parts(part)
                found = None if found is None else {"causal": True} | found
            if found is None or (parts.keys() & found.keys()) - {"causal"}:
                return None
            parts |= found
        return parts if parts.pop("causal") else None
    if kind == "remap_positions_for_packed_sequence.<locals>.inner_mask":
        return _parts(cells["mask_function"])
    return None


def _cell(function: Any, name: str) -> Any:
    return inspect.getclosurevars(function).nonlocals[name]


def _window_or_packed(
    parts: dict[str, Any], padding: Tensor | None, rows: int, keys: int, first: Any, device: Any
) -> Tensor | None:
    """A window of batches that are padded on the right or not at all, packed sequences of whole
    ones, both without a cache; None where only a mask says it."""
    window, sequences = parts.get("window"), parts.get("sequences")
    if sequences is None:  # a causal row sees no padding behind it
        said = padding is None or _right_padded_lengths(padding) is not None
    else:
        said = padding is None or bool(padding.all())
    if not said or not isinstance(first, int) or first != 0 or rows != keys:
        return None
    if window is not None and window < 1:
        return None
    if sequences is None:
        if window is None or window >= keys:
            return None
        return torch.empty(1, device=device).expand(1, 1, 1, window).as_subclass(_Window)
    begins = torch.ones_like(sequences, dtype=torch.bool)
    begins[:, 1:] = sequences[:, 1:] != sequences[:, :-1]
    offsets = begins.flatten().nonzero().flatten().int()
    offsets = torch.cat([offsets, offsets.new_tensor([sequences.numel()])])
    return offsets.expand(1, 2, 1 + (window or 0), -1).as_subclass(_Packed)


def _left_padded(
    window: int | None, padding: Tensor | None, rows: int, keys: int, first: Any, causal: bool
) -> Tensor | None:
    """Packed sequences for batches that are padded on the left; None where the padding is not.

    Three for each entry: its padding, what follows, the keys behind the last row. Rows of padding
    see each other: nobody reads what comes of them.
    """
    if padding is None or not isinstance(first, int) or (window is not None and window < 1):
        return None
    end = first + rows
    if padding.shape[-1] < end or keys < end or not (causal or (first == 0 and rows == keys)):
        return None
    places = torch.arange(end, device=padding.device, dtype=torch.int32)
    seen = padding[:, :end].bool()
    pads = end - seen.sum(-1, dtype=torch.int32)
    if not torch.equal(seen, places >= pads[:, None]):
        return None
    ends_q = (pads - first).clamp(min=0), torch.full_like(pads, rows), torch.full_like(pads, rows)
    ends_k = pads, torch.full_like(pads, end), torch.full_like(pads, keys)
    entries = torch.arange(len(pads), device=pads.device, dtype=torch.int32)[:, None]
    offsets = [
        torch.cat([pads.new_zeros(1), (torch.stack(ends, 1) + length * entries).flatten()])
        for ends, length in ((ends_q, rows), (ends_k, keys))
    ]
    said = torch.stack(offsets)[None, :, None].expand(1, 2, 1 + (window or 0), -1)
    return said.as_subclass(_Padded if causal else _PaddedBothWays)


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
    """The mask for attention_forward: None, bool (B, 1, Sq, Sk), or a type of this module."""
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
            if lengths is None:
                return None
            return lengths.reshape(batch_size, 1, 1, -1).as_subclass(_Lengths)
        parts = _parts(mask_function)
        said = None
        if parts:
            device = options.get("device", "cpu")
            said = _window_or_packed(parts, attention_mask, q_length, kv_length, q_offset, device)
        causal, window = parts is not None, None if parts is None else parts.get("window")
        alone = (
            mask_function is bidirectional_mask_function
            if parts is None
            else ("sequences" not in parts)
        )
        if said is None and alone and q_length > 1:
            sizes = q_length, kv_length, q_offset
            said = _left_padded(window, attention_mask, *sizes, causal)
        if said is not None:
            return said
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
    if mask is None or isinstance(mask, _Window | _Packed):
        return options
    if isinstance(mask, _Lengths):
        options["key_lengths"] = mask.as_subclass(Tensor)[:, 0, 0, 0]
    elif mask.dtype == torch.bool:
        options["mask"] = mask
    elif not mask.is_floating_point():
        raise ValueError(f"attention_mask is {mask.dtype}: expected bool or a float type")
    elif position_bias is None:
        options["bias"] = mask
    else:
        options["bias"] = position_bias + mask
    return options


def _packed_options(
    mask: Tensor | None, rows: int, keys: int, given: dict[str, Any]
) -> dict[str, Any]:
    """The offsets of packed sequences from the mask or the model's arguments, or {}."""
    offsets_q, offsets_k = given.get("cu_seq_lens_q"), given.get("cu_seq_lens_k")
    if (offsets_q is None) != (offsets_k is None):
        raise ValueError("one of cu_seq_lens_q and cu_seq_lens_k is given: expected both, or none")
    if offsets_q is not None:
        if mask is not None and (
            isinstance(mask, _Padded) or not isinstance(mask, _Window | _Packed)
        ):
            raise ValueError(
                "attention_mask is given with cu_seq_lens_q: expected only one of them"
            )
        most_q, most_k = (given.get(f"max_length_{side}") or rows for side in "qk")
        found = {"cu_seqlens_q": offsets_q, "cu_seqlens_k": offsets_k}
        return found | {"max_seqlen_q": int(most_q), "max_seqlen_k": int(most_k)}
    if not isinstance(mask, _Packed):
        return {}
    offsets_q, offsets_k = mask.as_subclass(Tensor)[0, :, 0]
    found = {"cu_seqlens_q": offsets_q, "cu_seqlens_k": offsets_k}
    return found | {"max_seqlen_q": rows, "max_seqlen_k": keys}


def _pairs(mask: _Packed, batch: int, rows: int, keys: int) -> Tensor:
    """The full mask, bool (B, 1, Sq, Sk), of packed sequences."""
    offsets_q, offsets_k = mask.as_subclass(Tensor)[0, :, 0]
    i, j = (
        torch.arange(batch * count, dtype=torch.int32, device=mask.device) for count in (rows, keys)
    )
    of_i = torch.searchsorted(offsets_q, i, right=True)
    of_j = torch.searchsorted(offsets_k, j, right=True)
    # Bottom-right: a sequence's last row sees its last key.
    diagonal = (offsets_k[of_i] - offsets_q[of_i] + i).view(batch, rows, 1)
    j = j.view(batch, 1, keys)
    visible = of_i.view(batch, rows, 1) == of_j.view(batch, 1, keys)
    if not isinstance(mask, _PaddedBothWays):
        visible &= j <= diagonal
    if mask.shape[-2] > 1:
        visible &= j > diagonal - (mask.shape[-2] - 1)
    return visible[:, None]


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
    """One layer's attention: query (B, Hq, Sq, D), key, value (B, Hk, Sk, D) -> (B, Sq, Hq, D).

    cu_seq_lens_q and _k, max_length_q and _k describe packed sequences in a batch of 1. Raises
    ValueError for a mask of an integer type, and for a mask together with cu_seq_lens.
    """
    rows, keys = query.shape[2], key.shape[2]
    if isinstance(attention_mask, _Packed) and position_bias is not None:
        attention_mask = _pairs(attention_mask, query.shape[0], rows, keys)
    decoder = getattr(module, "is_causal", True) if is_causal is None else is_causal
    packed = _packed_options(attention_mask, rows, keys, kwargs)
    causal: bool | str = bool(decoder) and attention_mask is None and rows > 1
    window = None
    if isinstance(attention_mask, _Window):
        causal, window = True, (attention_mask.shape[-1] - 1, None)
    elif isinstance(attention_mask, _Packed):
        causal = not isinstance(attention_mask, _PaddedBothWays)
        width = attention_mask.shape[-2] - 1
        window = (width - 1, None) if width else None
    elif isinstance(attention_mask, _Lengths):
        causal = "top_left" if attention_mask.shape[-1] == 2 else False
    elif packed:
        causal = bool(decoder)
    elif causal and rows != keys:
        # A first pass over a cache that is longer than what has been written.
        causal = "top_left"
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    batch = q.shape[0]
    if packed:
        if batch != 1 and not isinstance(attention_mask, _Packed):
            raise ValueError(f"cu_seq_lens_q is given in a batch of {batch}: expected 1")
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    out = attention(
        q,
        k,
        v,
        causal=causal,
        window=window,
        scale=scaling,
        softcap=softcap or 0.0,
        sinks=None if s_aux is None else s_aux.float(),
        dropout_p=dropout,
        **_mask_options(attention_mask, position_bias),
        **packed,
    )
    return out.unflatten(0, (batch, rows)) if packed else out, None


def _for_transformers(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """A function of tilewise.flash_attn with transformers' s_aux, of any float type, for sinks.

    transformers reads from the signature which options it may give.
    """

    def renamed(*tensors: Tensor, s_aux: Tensor | None = None, **options: Any) -> Tensor:
        sinks = None if s_aux is None else s_aux.float()
        out: Tensor = function(*tensors, sinks=sinks, **options)
        return out

    given = inspect.signature(function)
    parameters = [
        p.replace(name="s_aux") if p.name == "sinks" else p for p in given.parameters.values()
    ]
    renamed.__signature__ = given.replace(parameters=parameters)  # type: ignore[attr-defined]
    return renamed


_flash = _for_transformers(flash_attn_func)
_flash_varlen = _for_transformers(flash_attn_varlen_func)


def _flash_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor,
    v: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    s_aux: Tensor | None = None,
) -> Tensor:
    """flash_attn_with_kvcache with sinks, for decoding in transformers, which rotates K before."""
    _, lengths, _ = append_kv(k, v, k_cache, v_cache, cache_seqlens, block_table=block_table)
    out: Tensor = attention(
        q,
        k_cache,
        v_cache,
        causal=causal,
        window=flash_window(window_size),
        scale=softmax_scale,
        softcap=softcap,
        sinks=None if s_aux is None else s_aux.float(),
        key_lengths=lengths,
        block_table=block_table,
    )
    return out


_flash_names: set[str] = set()
_transformers_imports = modeling_flash_attention_utils._lazy_imports


def _lazy_imports(implementation: str | None, *arguments: Any, **options: Any) -> tuple[Any, ...]:
    """The FlashAttention loader of transformers, extended by our name."""
    if implementation not in _flash_names:
        found: tuple[Any, ...] = _transformers_imports(implementation, *arguments, **options)
        return found
    pads = modeling_flash_attention_utils._pad_input, modeling_flash_attention_utils._unpad_input
    return _flash, _flash_varlen, _flash_with_kvcache, *pads


# Before, its paged cache refuses names that are not its own, or reads a window as one key more.
_CONTINUOUS_BATCHING_FROM = Version("5.21")


def register(name: str = "tilewise", continuous_batching: bool = False) -> None:
    """Makes attn_implementation=name available to every model that takes attention functions.

    continuous_batching also registers name + "_flash_2" for generate_batch and its managers. It
    replaces the function of transformers that loads FlashAttention by one that knows this name.
    NotImplementedError with a transformers before 5.21.
    """
    if continuous_batching and Version(transformers.__version__) < _CONTINUOUS_BATCHING_FROM:
        raise NotImplementedError(
            f"continuous_batching: transformers is {transformers.__version__},"
            f" expected {_CONTINUOUS_BATCHING_FROM} or later"
        )
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    if not continuous_batching:
        return
    flash_name = f"{name}_flash_2"
    _flash_names.add(flash_name)
    modeling_flash_attention_utils._lazy_imports = _lazy_imports
    AttentionInterface.register(flash_name, flash_attention_forward)
    AttentionMaskInterface.register(flash_name, flash_attention_mask)
