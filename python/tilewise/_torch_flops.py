"""FLOP formulas of the operators for torch's FLOP counters, as for torch's own attention.

A multiply-add counts two, and every query-key pair counts, even if masked. A compiler under a
memory budget uses the same numbers to weigh recomputation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ._spec import (
    BLOCK_TABLE,
    CU_SEQLENS_K,
    CU_SEQLENS_Q,
    LAYOUT,
    MAX_SEQLEN_K,
    MAX_SEQLEN_Q,
    Spec,
    make_spec,
)
from ._torch_onlookers import in_memory


def _heads_and_rows(t: Tensor, spec: Spec) -> tuple[int, int]:
    """Of q or k: (B, S, H, D), packed (total, H, D), or (B, S, D) without heads."""
    if t.dim() == 3 and spec[CU_SEQLENS_Q] is None:
        return 1, t.shape[1]
    first, second = t.shape[-3:-1]
    return (first, second) if spec[LAYOUT] == "bhsd" else (second, first)


def _packed_pairs(spec: Spec) -> int:
    """Pairs of a query and a key in one head of all sequences; at most so many without numbers."""
    offsets_q, offsets_k = spec[CU_SEQLENS_Q], spec[CU_SEQLENS_K]
    if not in_memory(offsets_q, offsets_k):
        sequences: int = offsets_q.shape[0] - 1
        return sequences * int(spec[MAX_SEQLEN_Q]) * int(spec[MAX_SEQLEN_K])
    rows, keys = offsets_q.long().diff(), offsets_k.long().diff()
    return int((rows * keys).sum())


def _products(q: Tensor, k: Tensor, spec: Spec) -> int:
    """Multiplications and additions of Q K^T for each element of the head dim, times two."""
    heads, rows = _heads_and_rows(q, spec)
    if spec[CU_SEQLENS_Q] is not None and spec[CU_SEQLENS_K] is not None:
        return 2 * heads * _packed_pairs(spec)
    keys = _heads_and_rows(k, spec)[1]
    if spec[BLOCK_TABLE] is not None:
        keys *= spec[BLOCK_TABLE].shape[1]  # pages of an entry
    batch = 1 if spec[CU_SEQLENS_Q] is not None else q.shape[0]
    return int(2 * batch * heads * rows * keys)


def _forward(q: Tensor, k: Tensor, v: Tensor, *spec: Any, **_: Any) -> int:
    return _products(q, k, spec) * (q.shape[-1] + v.shape[-1])


def _backward(
    d_o: Tensor | None,
    d_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    need_dbias: bool,
    need_dsinks: bool,
    *spec: Any,
    **_: Any,
) -> int:
    """S again, dP, dV, dQ and dK."""
    return _products(q, k, spec) * (3 * q.shape[-1] + 2 * v.shape[-1])


def _expression_backward(*arguments: Any, **options: Any) -> int:
    tensors, spec = arguments[:9], arguments[10:]
    return _backward(*tensors, *spec, **options)


def of_prefix(
    q: Tensor,
    k_prefix: Tensor,
    v_prefix: Tensor,
    k: Tensor,
    v: Tensor,
    key_lengths: Tensor | None,
    cu_seqlens_q: Tensor | None,
    block_table: Tensor | None,
    *options: Any,
    **_: Any,
) -> int:
    """Every query beside the prefix and beside its own keys."""
    layout = options[6]
    spec = make_spec(cu_seqlens_q=cu_seqlens_q, block_table=block_table, layout=layout)
    heads, rows = _heads_and_rows(q, spec)
    queries = rows if cu_seqlens_q is not None else rows * q.shape[0]
    shared = 2 * heads * queries * k_prefix.shape[1 if layout == "bhsd" else 0]
    return (_products(q, k, spec) + shared) * (q.shape[-1] + v.shape[-1])


def register() -> None:
    """Registers the formulas with torch."""
    operators = torch.ops.tilewise
    register_flop_formula(operators.attention_forward, get_raw=True)(_forward)
    register_flop_formula(operators.attention_backward, get_raw=True)(_backward)
    register_flop_formula(operators.expression_forward, get_raw=True)(_forward)
    register_flop_formula(operators.expression_backward, get_raw=True)(_expression_backward)
