"""append_kv: appends keys and values to a cache, by the operator tilewise::append_kv.

The operator declares that it writes the caches. torch.compile, torch.export and autograd's version
counters therefore see it. A plain eager call without an observer calls the same function directly.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _native
from ._spec import FIELDS, TENSOR_FIELDS
from ._torch_onlookers import check_without_gradient, is_plain_call


class Appended(NamedTuple):
    """The result of append_kv. The keys and values are in the caches."""

    q: Tensor | None  # the queries turned to their positions, in the shape of q
    lengths: Tensor  # int32 (B): keys of each entry after the call
    skipped: Tensor  # bool (B): True = the entry had no room, and has kept its keys


_SCHEMA = (
    "(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor lengths, Tensor? q, "
    "Tensor? block_table, Tensor? cu_seqlens, SymInt max_seqlen, Tensor? rotary_cos, "
    "Tensor? rotary_sin, Tensor? positions, bool interleaved, bool one_query_position, str layout) "
    "-> (Tensor q, Tensor lengths, Tensor skipped)"
)


def _outputs(k: Tensor, lengths: Tensor, q: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    turned = k.new_empty(0) if q is None else torch.empty_like(q)
    return turned, torch.empty_like(lengths), torch.empty_like(lengths, dtype=torch.bool)


# Behind the tensors of a call, what makes them a spec whose tensors is_plain_call looks at.
_TENSORS = 8
_REST = (*(None,) * (len(FIELDS) - _TENSORS - 1), ())
assert len(TENSOR_FIELDS) >= _TENSORS


@torch.library.custom_op(
    "tilewise::append_kv",
    mutates_args=("k_cache", "v_cache"),
    device_types=("cpu", "cuda"),
    schema=_SCHEMA,
)
def _operator(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    q: Tensor | None,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    turned, after, skipped = _outputs(k, lengths, q)
    inputs = (k, v, k_cache, v_cache, lengths, q)
    _native.append(inputs, (after, skipped, None if q is None else turned), options)
    return turned, after, skipped


@_operator.register_fake
def _fake(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    q: Tensor | None,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(k, lengths, q)


def append_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    *,
    q: Tensor | None = None,
    block_table: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int = 0,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    positions: Tensor | None = None,
    interleaved: bool = False,
    one_query_position: bool = False,
    layout: str = "bshd",
) -> Appended:
    """Appends new keys and values to a cache in place.

    - k, v: (B, S, Hk, D) and (B, S, Hk, Dv), or with cu_seqlens packed: (total, Hk, D). With layout
      "bhsd", heads come before rows, in the caches too.
    - k_cache, v_cache: (entries, capacity, Hk, D), or pools of pages (pages, page_size, Hk, D).
    - lengths: int32 (B), the number of keys of each entry before the call.
    - block_table: int32 (B, max_pages). For a contiguous cache, (B, 1) selects its entries.
    - cu_seqlens: int32 or int64 (B + 1). max_seqlen: upper bound of the packed lengths, which a GPU
      needs.
    - rotary_cos, rotary_sin: (positions, R / 2) of float32 or k's type. They rotate K, and q if
      given, to positions lengths + 0, 1, .... positions, int32 (B), replaces lengths there.
    - interleaved: True rotates pairs (2p, 2p + 1), False (p, p + R / 2).
    - one_query_position: all queries of an entry have its first position.
    - q: (B, Sq, Hq, D), or packed like k.

    Raises ValueError for a wrong argument. On a CPU it also raises ValueError if an entry has no
    room, and writes nothing. On a GPU such an entry is skipped as a whole, and `skipped` reports
    it. There is no gradient: tensors that require one raise NotImplementedError.
    """
    check_without_gradient(
        "append_kv",
        k=k,
        v=v,
        k_cache=k_cache,
        v_cache=v_cache,
        lengths=lengths,
        q=q,
        block_table=block_table,
        cu_seqlens=cu_seqlens,
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        positions=positions,
    )
    inputs = (k, v, k_cache, v_cache, lengths, q)
    options = (
        *(block_table, cu_seqlens, max_seqlen, rotary_cos, rotary_sin, positions),
        *(interleaved, one_query_position, layout),
    )
    others = (v_cache, lengths, q, block_table, cu_seqlens, rotary_cos, rotary_sin, positions)
    if is_plain_call(k, v, k_cache, (*others, *_REST)):
        turned, after, skipped = _outputs(k, lengths, q)
        _native.append(inputs, (after, skipped, None if q is None else turned), options)
        torch.autograd.graph.increment_version((k_cache, v_cache))
    else:
        turned, after, skipped = torch.ops.tilewise.append_kv(*inputs, *options)
    return Appended(None if q is None else turned, after, skipped)
