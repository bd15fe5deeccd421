"""flash_attn_with_kvcache: attention over a KV cache that is extended in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._append import append_kv
from ._attention import attention, plan
from ._spec import flash_window
from ._torch_onlookers import check_without_gradient, in_memory

_ROWS = 2**31  # that the tables of _unpadded can name


def _lengths(cache_seqlens: int | Tensor | None, batch: int, capacity: int, k: Tensor) -> Tensor:
    """The keys of each entry before the call: int32 (B). Without cache_seqlens, the whole cache."""
    if isinstance(cache_seqlens, Tensor):
        if cache_seqlens.dtype != torch.int32 or cache_seqlens.shape != (batch,):
            raise ValueError(
                f"cache_seqlens is {cache_seqlens.dtype} {tuple(cache_seqlens.shape)}: expected an "
                f"int, or int32 ({batch},)"
            )
        return cache_seqlens
    filled = capacity if cache_seqlens is None else cache_seqlens
    return torch.full((batch,), filled, dtype=torch.int32, device=k.device)


def _check_room(filled: int, new: int, capacity: int) -> None:
    """Checks an integer cache_seqlens, which the host knows on a GPU too."""
    if filled < 0 or filled + new > capacity:
        raise ValueError(
            f"cache_seqlens is {filled} and {new} keys are appended: expected them to end within "
            f"the cache's {capacity}"
        )


def _table(
    k_cache: Tensor, block_table: Tensor | None, cache_batch_idx: Tensor | None, batch: int
) -> Tensor | None:
    """Pages of each entry's keys: int32 (B, pages). None: the cache entry of the same number."""
    if block_table is not None:
        if cache_batch_idx is not None:
            raise ValueError("cache_batch_idx is given with block_table: expected only one of them")
        return block_table
    if cache_batch_idx is not None:  # an entry of the cache is one page
        return cache_batch_idx.to(torch.int32)[:, None]
    if k_cache.shape[0] < batch:
        raise ValueError(f"k_cache has {k_cache.shape[0]} entries: expected q's {batch}")
    return None


def _rows_of(name: str, pool: Tensor) -> tuple[Tensor, int]:
    """A pool as pages of one row each, and the number of rows between pages."""
    pages, size = pool.shape[:2]
    step, row = pool.stride(0), pool.stride(1)
    if pages == 0 or size == 0:
        return pool.flatten(0, 1)[:, None], size
    between = size if pages == 1 else step // row if row else 0
    if between < size or (pages > 1 and step != between * row) or between * pages >= _ROWS:
        raise ValueError(
            f"{name} has strides {tuple(pool.stride())}: cache_leftpad expects its rows in equal "
            f"steps, and fewer than 2^31 of them"
        )
    count = (pages - 1) * between + size
    return pool.as_strided((count, 1, *pool.shape[2:]), (row, row, *pool.stride()[2:])), between


def _unpadded(
    pools: tuple[Tensor, Tensor], table: Tensor | None, leftpad: Tensor, batch: int
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The pools as rows, and a table of each entry's rows after its padding.

    The table has no padding rows, so no kernel reads them.
    """
    if leftpad.shape != (batch,):
        raise ValueError(f"cache_leftpad has shape {tuple(leftpad.shape)}: expected ({batch},)")
    seen = not torch.compiler.is_compiling() and in_memory(leftpad) and not leftpad.is_cuda
    if seen and bool((leftpad < 0).any()):
        raise ValueError(f"cache_leftpad is {leftpad.tolist()}: expected rows from 0 on")
    size = pools[0].shape[1]
    (k, between), (v, between_v) = (
        _rows_of(name, pool) for name, pool in zip(("k_cache", "v_cache"), pools, strict=True)
    )
    if between != between_v:
        raise ValueError("v_cache: cache_leftpad expects its rows in the steps of k_cache")
    device = leftpad.device
    if table is None:
        table = torch.arange(batch, dtype=torch.int32, device=device)[:, None]
    columns = table.shape[1]
    rows = leftpad[:, None].long() + torch.arange(columns * size, device=device)
    page = table.long().gather(1, (rows // size).clamp(0, columns - 1))
    return (k, v), (page * between + rows % size).to(torch.int32)


_allowed: set[tuple[Any, ...]] = set()


def _refuse_early(
    q: Tensor, pools: tuple[Tensor, Tensor], lengths: Tensor, options: dict[str, Any]
) -> None:
    """Raises the errors of attention() before anything is written. Checks each shape once."""
    if torch.compiler.is_compiling():
        return
    form = tuple(
        (t.shape, t.stride(), t.dtype, t.device)
        for t in (q, *pools, lengths, options["alibi_slopes"], options["block_table"])
        if t is not None
    )
    plain = (options[name] for name in ("causal", "window", "scale", "softcap", "deterministic"))
    key = (*form, options["block_table"] is None, *plain)
    if key in _allowed:
        return
    checked = dict(options, key_lengths=torch.zeros_like(lengths))
    plan(q, *pools, **checked)
    if len(_allowed) >= 4096:
        _allowed.clear()
    _allowed.add(key)


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
    """Attention of q (B, Sq, Hq, D) over a cache, without gradients, as in flash_attn.

    - k_cache, v_cache: (B_cache, S_cache, Hk, D), or pages (pages, page_size, Hk, D) with
      block_table int32 (B, max_pages).
    - k, v: (B, S_new, Hk, D). They are first appended in place, after the cache_seqlens keys (int,
      or int32 (B)) that are there. causal and window count from the end of each entry's keys.
    - cache_batch_idx: int (B), the cache entry of each entry of q.
    - cache_leftpad: int32 (B), the number of padding rows at the start of each entry. They count in
      cache_seqlens and are never read.
    - rotary_cos, rotary_sin: (positions, R / 2) of float32 or q's type. K is rotated to positions
      cache_seqlens + 0, 1, ..., and so is q with causal or a window. Otherwise all queries of an
      entry have position cache_seqlens.
    - rotary_interleaved: True rotates pairs (2p, 2p + 1), False (p, p + R / 2).
    - num_splits: 1 means deterministic: results do not depend on the rest of the batch. For other
      values the planner chooses.

    Returns O, and with return_softmax_lse also LSE (B, Hq, Sq). Raises ValueError if k has no room.
    On a GPU the host does not read lengths: an entry without room keeps its keys, and attention
    ignores its k.
    """
    check_without_gradient(
        "flash_attn_with_kvcache", q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v
    )
    batch = q.shape[0]
    table = _table(k_cache, block_table, cache_batch_idx, batch)
    capacity = (1 if table is None else table.shape[1]) * k_cache.shape[1]
    lengths = _lengths(cache_seqlens, batch, capacity, k_cache)
    if isinstance(cache_seqlens, int):
        _check_room(cache_seqlens, 0 if k is None else k.shape[1], capacity)
    if (k is None) != (v is None):
        raise ValueError("one of k and v is missing: expected both or neither")
    if k is None and (rotary_cos is not None or rotary_sin is not None):
        raise ValueError("rotary_cos is given without k: expected k and v too")
    window = flash_window(window_size)
    options: dict[str, Any] = {
        "causal": causal,
        "window": window,
        "scale": softmax_scale,
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "deterministic": num_splits == 1,
        "block_table": table,
    }
    pools = (k_cache, v_cache) if table is not None else (k_cache[:batch], v_cache[:batch])
    if cache_leftpad is not None:
        padding = cache_leftpad.to(torch.int32)
        pools, options["block_table"] = _unpadded((k_cache, v_cache), table, padding, batch)
    if k is not None and v is not None:
        if cache_seqlens is None:
            raise ValueError("cache_seqlens is None: expected the number of keys before k and v")
        _refuse_early(q, pools, lengths, options)
        turned, lengths, _ = append_kv(
            k,
            v,
            k_cache,
            v_cache,
            lengths,
            q=None if rotary_cos is None else q,
            block_table=table,
            rotary_cos=rotary_cos,
            rotary_sin=rotary_sin,
            interleaved=rotary_interleaved,
            one_query_position=not causal and window == (None, None),
        )
        q = q if turned is None else turned
    if cache_leftpad is not None:
        lengths = (lengths - padding).clamp(min=0)
    result: Tensor | tuple[Tensor, Tensor] = attention(
        q, *pools, key_lengths=lengths, return_lse=return_softmax_lse, **options
    )
    return result
