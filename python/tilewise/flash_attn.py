"""Drop-ins for the functions of the package flash_attn (version 2), with its signatures.

    from tilewise.flash_attn import flash_attn_func

The meaning is the same: causal is bottom-right, -1 in window_size means unbounded, and LSE is
float32 (batch, heads, rows), packed (heads, total). Differences:

- Any float type and any strides work, also on a CPU.
- Dropout has Tilewise's own random bits. The third value of return_attn_probs, the test matrix
  S_dmask, is None.
- With ALiBi the LSE is that of -slope * |distance|, causal or not.
- A call that no kernel supports raises NotImplementedError with the reasons, unless
  fallback="torch".
- sinks, float32 (Hq), is one score per head that takes probability and has no value. seqused_q and
  seqused_k belong to all varlen functions.

Source: flash_attn/flash_attn_interface.py of Dao-AILab/flash-attention 2.8.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from ._attention import attention
from ._kv_cache import flash_attn_with_kvcache
from ._spec import flash_window

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

Result: TypeAlias = Tensor | tuple[Tensor, Tensor, None]
Function = TypeVar("Function", bound=Callable[..., Any])


def _parts(name: str, packed: Tensor, count: int, axis: int) -> Any:
    """q, k and v of one tensor, or k and v: a tuple of Tensor."""
    if packed.dim() <= axis or packed.shape[axis] != count:
        raise ValueError(f"{name} has shape {tuple(packed.shape)}: expected {count} in axis {axis}")
    return packed.unbind(axis)


def _form_of(
    function: Callable[..., Any], count: int, *names: str
) -> Callable[[Function], Function]:
    """A decorator: the signature of function, whose first `count` parameters `names` replace."""

    def give(packed: Function) -> Function:
        given = inspect.signature(function)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        own = [inspect.Parameter(name, kind) for name in names]
        rest = list(given.parameters.values())[count:]
        packed.__signature__ = given.replace(parameters=[*own, *rest])  # type: ignore[attr-defined]
        return packed

    return give


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    return_attn_probs: bool,
    window_size: tuple[int, int],
    softmax_scale: float | None,
    **options: Any,
) -> Result:
    common = {"window": flash_window(window_size), "scale": softmax_scale, **options}
    if not return_attn_probs:
        out: Tensor = attention(q, k, v, **common)
        return out
    out, lse = attention(q, k, v, return_lse=True, **common)
    return out, lse, None


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    sinks: Tensor | None = None,
    fallback: str | None = None,
) -> Result:
    """Attention of q (B, Sq, Hq, D) over k and v (B, Sk, Hk, D): O is (B, Sq, Hq, D).

    - window_size: (left, right) around the bottom-right diagonal, -1 = unbounded.
    - return_attn_probs: the result is (O, LSE, None), with LSE float32 (B, Hq, Sq).
    - sinks, fallback: as in tilewise.attention, which names the errors too.
    """
    return _attend(
        q,
        k,
        v,
        return_attn_probs,
        window_size,
        softmax_scale,
        dropout_p=dropout_p,
        causal=causal,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        sinks=sinks,
        fallback=fallback,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    sinks: Tensor | None = None,
    fallback: str | None = None,
) -> Result:
    """Attention of packed sequences: q (total_q, Hq, D), k and v (total_k, Hk, D).

    - cu_seqlens_q, cu_seqlens_k: int32 (sequences + 1), the start of each sequence.
    - block_table: int32 (sequences, max_pages). k and v are then pools (pages, page_size, Hk, D),
      and the differences of cu_seqlens_k are the key lengths.
    - seqused_q, seqused_k: int32 (sequences), the rows in use of each sequence from its offset on.
      O and gradients of the other rows are 0. With block_table, seqused_k gives the key lengths.
    """
    keys: dict[str, Any] = {"cu_seqlens_k": cu_seqlens_k}
    if block_table is not None:
        lengths = (cu_seqlens_k.diff() if seqused_k is None else seqused_k).to(torch.int32)
        seqused_k = None
        keys = {"block_table": block_table, "key_lengths": lengths}
    return _attend(
        q,
        k,
        v,
        return_attn_probs,
        window_size,
        softmax_scale,
        **keys,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        dropout_p=dropout_p,
        causal=causal,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        sinks=sinks,
        fallback=fallback,
    )


@_form_of(flash_attn_func, 3, "qkv")
def flash_attn_qkvpacked_func(qkv: Tensor, *options: Any, **named: Any) -> Result:
    """flash_attn_func for qkv (B, S, 3, H, D)."""
    return flash_attn_func(*_parts("qkv", qkv, 3, 2), *options, **named)


@_form_of(flash_attn_func, 3, "q", "kv")
def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *options: Any, **named: Any) -> Result:
    """flash_attn_func for q (B, Sq, Hq, D) and kv (B, Sk, 2, Hk, D)."""
    return flash_attn_func(q, *_parts("kv", kv, 2, 2), *options, **named)


@_form_of(flash_attn_varlen_func, 7, "qkv", "cu_seqlens", "max_seqlen")
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *options: Any, **named: Any
) -> Result:
    """flash_attn_varlen_func for qkv (total, 3, H, D)."""
    lengths: Any = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(*_parts("qkv", qkv, 3, 1), *lengths, *options, **named)


@_form_of(flash_attn_varlen_func, 3, "q", "kv")
def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *options: Any, **named: Any) -> Result:
    """flash_attn_varlen_func for q (total_q, Hq, D) and kv (total_k, 2, Hk, D)."""
    return flash_attn_varlen_func(q, *_parts("kv", kv, 2, 1), *options, **named)
