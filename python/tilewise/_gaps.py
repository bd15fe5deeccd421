"""Packed sequences with padding between them, as sequences without padding.

Each sequence becomes three: its queries and keys, its padding queries without keys, and its padding
keys without queries. A kernel for packed sequences then writes zeros to the padding, forward and
backward, and no row reads padding.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

PARTS = 3  # sequences that one becomes

_UNSUPPORTED = ("bias", "mask", "block_table", "block_list", "score_mod", "mask_mod")


class Packed(NamedTuple):
    """The options of a call with padding removed."""

    cu_seqlens_q: Any
    cu_seqlens_k: Any
    max_seqlen_q: int
    max_seqlen_k: int
    alibi_slopes: Any


def _used_lengths(xp: ModuleType, name: str, used: Any, cu: Any, read: bool) -> Any:
    """Rows in use of each sequence, in the offsets' type. read: whether values may be read."""
    lengths = cu[1:] - cu[:-1]
    if used is None:
        return lengths
    used = xp.asarray(used, dtype=cu.dtype)
    if tuple(used.shape) != tuple(lengths.shape):
        raise ValueError(
            f"{name} has the shape {tuple(used.shape)}: expected ({lengths.shape[0]},), one for "
            f"each sequence"
        )
    if read and bool(((used < 0) | (used > lengths)).any()):
        raise ValueError(f"{name}: expected 0 to each sequence's own length by its offsets")
    return xp.minimum(xp.maximum(used, xp.zeros_like(used)), lengths)


def _offsets(xp: ModuleType, cu: Any, ends: tuple[Any, ...]) -> Any:
    """The start of the parts of all sequences, from the end of each part."""
    return xp.concatenate([cu[:1], xp.stack(ends).T.reshape(-1)])


def without_gaps(
    xp: ModuleType,
    rows: tuple[int, int],
    on_host: bool,
    seqused: tuple[Any, Any],
    options: dict[str, Any],
) -> Packed:
    """xp: torch or NumPy. rows: of q and of k. on_host: the offsets' values may be read."""
    for name in _UNSUPPORTED:
        if options.get(name) is not None:
            raise NotImplementedError(f"{name} is given with seqused_q or seqused_k: not supported")
    given_q, given_k = options.get("cu_seqlens_q"), options.get("cu_seqlens_k")
    if given_q is None or given_k is None:
        raise ValueError("seqused_q or seqused_k is given: expected cu_seqlens_q and cu_seqlens_k")
    cu_q, cu_k = (cu if xp is not np else np.asarray(cu) for cu in (given_q, given_k))
    used_q = _used_lengths(xp, "seqused_q", seqused[0], cu_q, on_host)
    used_k = _used_lengths(xp, "seqused_k", seqused[1], cu_k, on_host)
    end_q, end_k = cu_q[:-1] + used_q, cu_k[:-1] + used_k
    slopes = options.get("alibi_slopes")
    if slopes is not None and slopes.ndim == 2:
        slopes = xp.repeat_interleave(slopes, PARTS, 0) if xp is not np else slopes.repeat(PARTS, 0)
    # A gap may be longer than any sequence. Nobody but the device knows.
    bounds = (0, 0) if on_host else rows
    return Packed(
        _offsets(xp, cu_q, (end_q, cu_q[1:], cu_q[1:])),
        _offsets(xp, cu_k, (end_k, end_k, cu_k[1:])),
        *bounds,
        slopes,
    )
