"""flash_attn_with_kvcache: attention over a cache of keys and values, appended to in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._attention import attention, plan
from ._spec import flash_window


def _lengths(cache_seqlens: int | Tensor | None, batch: int, capacity: int, k: Tensor) -> Tensor:
    """The keys of each entry before the call: int32 (B); the whole cache without cache_seqlens."""
    if isinstance(cache_seqlens, Tensor):
        return cache_seqlens
    filled = capacity if cache_seqlens is None else cache_seqlens
    return torch.full((batch,), filled, dtype=torch.int32, device=k.device)


def _check_new(name: str, new: Tensor, cache: Tensor, q: Tensor) -> None:
    expected = (q.shape[0], new.shape[1] if new.dim() > 1 else 0, *cache.shape[2:])
    if new.shape != expected or new.dtype != cache.dtype:
        raise ValueError(
            f"{name} is {new.dtype} {tuple(new.shape)}: expected {cache.dtype} (B, S_new, Hk, D) = "
            f"({expected[0]}, S_new, {', '.join(map(str, expected[2:]))})"
        )


def _check_room(filled: int | Tensor, new: int, capacity: int) -> None:
    """Judges what the host can see. Lengths on a GPU are not read: nothing waits for it."""
    least = most = filled if isinstance(filled, int) else 0
    if isinstance(filled, Tensor) and filled.device.type == "cpu" and filled.numel() > 0:
        least, most = int(filled.min()), int(filled.max())
    if least < 0 or most + new > capacity:
        raise ValueError(
            f"cache_seqlens is {least} to {most} and {new} keys are appended: expected them to end "
            f"within the cache's {capacity}"
        )


def _append(
    pools: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], table: Tensor, lengths: Tensor
) -> Tensor:
    """Writes new (B, S_new, H, D) behind each entry's keys; table (B, pages) has its pages.

    Returns the lengths after. An entry without room keeps its keys and its length: in its stead, an
    entry with room is written once more. Where none has room, row 0 of the pool is, as it is.
    """
    size, rows = pools[0].shape[1], new[0].shape[1]
    if table.shape[0] == 0 or table.shape[1] * size < rows:
        return lengths
    fits = (lengths >= 0) & (lengths <= table.shape[1] * size - rows)
    some = fits.any()
    entry = torch.where(fits, torch.arange(len(fits), device=fits.device), fits.int().argmax())
    at = lengths[entry, None].long() + torch.arange(rows, device=lengths.device)
    at = torch.where(some, at, 0)
    where = torch.where(some, table[entry].long().gather(1, at // size), 0), at % size
    for pool, added in zip(pools, new, strict=True):
        pool.index_put_(where, torch.where(some, added[entry], pool[where]))
    return torch.where(fits, lengths + rows, lengths)


def _refuse(what: dict[str, Tensor | None]) -> None:
    for name, value in what.items():
        if value is not None:
            raise NotImplementedError(
                f"{name} is given: flash_attn_with_kvcache of tilewise does not support it"
            )


def _table(
    k_cache: Tensor, block_table: Tensor | None, cache_batch_idx: Tensor | None, batch: int
) -> tuple[Tensor, bool]:
    """Where each entry's keys lie, int32 (B, pages), and whether the kernel must be told."""
    if block_table is not None:
        if cache_batch_idx is not None:
            raise ValueError("cache_batch_idx is given with block_table: expected one of them")
        return block_table, True
    if cache_batch_idx is not None:  # an entry of the cache is one page
        return cache_batch_idx.to(torch.int32)[:, None], True
    if k_cache.shape[0] < batch:
        raise ValueError(f"k_cache has {k_cache.shape[0]} entries: expected q's {batch}")
    return torch.arange(batch, dtype=torch.int32, device=k_cache.device)[:, None], False


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of q (B, Sq, Hq, D) over a cache; without gradients, as the original.

    k_cache, v_cache: (B_cache, S_cache, Hk, D), or pages (pages, page_size, Hk, D) with block_table
    int32 (B, max_pages). k, v: (B, S_new, Hk, D), first written into the cache in place behind the
    cache_seqlens (int, or int32 (B)) keys that are there; causal and window count from the end of
    each entry's keys. cache_batch_idx: int (B), the cache's entry of each of q's. Raises ValueError
    where there is no room for k; lengths on a GPU are not read, and an entry without room keeps its
    keys there and is attended to without k.

    num_splits=1 means deterministic: a result does not depend on the rest of the batch. Other
    values leave the splits to the plan. rotary_cos, rotary_sin and cache_leftpad raise
    NotImplementedError. Returns O, and LSE (B, Hq, Sq) with return_softmax_lse.
    """
    refused = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "cache_leftpad": cache_leftpad}
    _refuse(refused)
    if torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (q, k_cache, v_cache, k, v)
    ):
        raise NotImplementedError("flash_attn_with_kvcache has no gradient: call it in no_grad")
    batch = q.shape[0]
    table, paged = _table(k_cache, block_table, cache_batch_idx, batch)
    capacity = table.shape[1] * k_cache.shape[1]
    lengths = _lengths(cache_seqlens, batch, capacity, k_cache)
    if isinstance(cache_seqlens, int):
        _check_room(cache_seqlens, 0, capacity)
    if (k is None) != (v is None):
        raise ValueError("one of k and v is given: expected both, or none")
    options: dict[str, Any] = {
        "causal": causal,
        "window": flash_window(window_size),
        "scale": softmax_scale,
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "deterministic": num_splits == 1,
        "block_table": table if paged else None,
    }
    pools = (k_cache, v_cache) if paged else (k_cache[:batch], v_cache[:batch])
    if k is not None and v is not None:
        if cache_seqlens is None:
            raise ValueError("cache_seqlens is None: k and v are appended behind that many keys")
        _check_new("k", k, k_cache, q)
        _check_new("v", v, v_cache, q)
        _check_room(cache_seqlens, k.shape[1], capacity)
        plan(q, *pools, key_lengths=lengths + k.shape[1], **options)  # refuses before it writes
        lengths = _append((k_cache, v_cache), (k, v), table, lengths)
    result: Tensor | tuple[Tensor, Tensor] = attention(
        q, *pools, key_lengths=lengths, return_lse=return_softmax_lse, **options
    )
    return result
