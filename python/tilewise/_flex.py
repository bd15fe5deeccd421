"""FlexAttention's functions, with its names, argument order and layout.

To use a file written for torch.nn.attention.flex_attention, change its import. Differences: score
functions and masks are traced, not compiled (docs/expressions.md). A BlockMask keeps its mask and
makes its block map on request. kernel_options is ignored.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _torch
from ._attention import attention
from ._block_mask import BlockMask as BlockMask
from ._block_mask import MaskMod, check_size, sizes_of_block
from ._block_mask import noop_mask as noop_mask

_TORCH = "torch.nn.attention.flex_attention"
ScoreMod = Callable[[Any, Any, Any, Any, Any], Any]


class AuxRequest(NamedTuple):
    """The extra outputs to request from flex_attention. max_scores is refused."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """The extra outputs of flex_attention: lse is float32 (B, Hq, Sq), max_scores is None."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    """A pair is visible if all masks show it. Raises ValueError for arguments that are not
    functions."""
    return _joined(mask_mods, operator.and_, True)


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    """A pair is visible if any mask shows it. Raises ValueError for arguments that are not
    functions."""
    return _joined(mask_mods, operator.or_, False)


def _joined(masks: tuple[MaskMod, ...], join: Callable[[Any, Any], Any], of_none: bool) -> MaskMod:
    for mask in masks:
        if not callable(mask):
            raise ValueError(f"mask_mods hold {mask!r}: expected functions (b, h, q_idx, kv_idx)")

    def joined(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        values = [mask(b, h, q_idx, kv_idx) for mask in masks]
        return functools.reduce(join, values) if values else of_none

    return joined


def create_block_mask(
    mask_mod: MaskMod,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: torch.device | str | None = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    _compile: bool = False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask:
    """A mask of (B, H, Q_LEN, KV_LEN) pairs from mask_mod(b, h, q_idx, kv_idx), True = visible.

    - B, H: None if the mask does not depend on the batch entry or head.
    - device: the device of block maps; None means the CPU. BLOCK_SIZE: the block size of these
      maps.
    - The other arguments are ignored.

    The mask is traced here to report errors early, and again at each call, so the tensors that it
    reads may change. Raises ValueError for functions that cannot be traced and for sizes below 1.
    """
    block_size = sizes_of_block(BLOCK_SIZE)
    sizes = {"Q_LEN": Q_LEN, "KV_LEN": KV_LEN, "B": 1 if B is None else B}
    for name, size in (sizes | {"H": 1 if H is None else H}).items():
        check_size(name, size)
    if not _torch.is_dynamo_compiling():
        _torch.trace(None, mask_mod)
    return BlockMask(
        mask_mod, B or 1, H or 1, (Q_LEN, KV_LEN), block_size, torch.device(device or "cpu")
    )


def _converted(block_mask: Any) -> BlockMask | None:
    """The caller's mask, which may be torch's own."""
    if block_mask is None or isinstance(block_mask, BlockMask):
        return block_mask
    kind = type(block_mask)
    if kind.__name__ != "BlockMask" or kind.__module__ != _TORCH:
        raise ValueError(
            f"block_mask is of {kind}: expected one of tilewise.create_block_mask or of torch's"
        )
    return BlockMask.from_kv_blocks(
        block_mask.kv_num_blocks,
        block_mask.kv_indices,
        block_mask.full_kv_num_blocks,
        block_mask.full_kv_indices,
        block_mask.BLOCK_SIZE,
        block_mask.mask_mod,
        block_mask.seq_lengths,
    )


def _for_each_entry(query: Tensor, t: Tensor) -> Tensor:
    return t.expand(query.shape[0], -1, -1, -1) if t.dim() == 4 and t.shape[0] == 1 else t


def _check(query: Tensor, key: Tensor, block_mask: BlockMask | None, enable_gqa: bool) -> None:
    if query.dim() != 4 or key.dim() != 4:
        raise ValueError(f"query has {query.dim()} axes, key {key.dim()}: expected (B, H, S, D)")
    batch, heads, rows, _ = query.shape
    if not enable_gqa and heads != key.shape[1]:
        raise ValueError(
            f"query has {heads} heads, key {key.shape[1]}: expected equality or enable_gqa=True"
        )
    if block_mask is None:
        return
    mask = block_mask.shape
    if mask[0] not in (1, batch) or mask[1] not in (1, heads) or mask[2:] != (rows, key.shape[2]):
        wanted = f"(1 or {batch}, 1 or {heads}, {rows}, {key.shape[2]})"
        raise ValueError(f"block_mask is of {mask}: expected {wanted}")


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any:
    """Attention with a custom score function and mask.

    query (B, Hq, Sq, D), key (B, Hk, Sk, D), value (B, Hk, Sk, Dv); the result is (B, Hq, Sq, Dv).

    - score_mod(score, b, h, q_idx, kv_idx): returns the score for softmax.
    - block_mask: of create_block_mask, BlockMask.from_kv_blocks or torch's functions of these
      names. With it, key and value may have one batch entry for all of query's.
    - scale: by default 1/sqrt(D). enable_gqa: allows Hq to be a multiple of Hk.
    - return_lse: also return LSE, float32 (B, Hq, Sq). return_aux: an AuxRequest; the result is
      then (output, AuxOutput).
    - kernel_options: ignored.

    query, key, value and float tensors that score_mod reads have gradients. Fully masked rows are
    0. Raises ValueError (wrong argument, or a function that cannot be traced) or
    NotImplementedError (no kernel supports the call; max_scores).
    """
    mask = _converted(block_mask)
    if mask is not None:  # one cache of pages may serve all entries
        key, value = (_for_each_entry(query, t) for t in (key, value))
    _check(query, key, mask, enable_gqa)
    if return_aux is not None and return_lse:
        raise ValueError("return_lse is True with return_aux: expected only AuxRequest(lse=True)")
    if return_aux is not None and return_aux.max_scores:
        raise NotImplementedError("return_aux: max_scores is not supported by any kernel")
    with_lse = return_lse or (return_aux is not None and return_aux.lse)
    made = attention(
        query,
        key,
        value,
        layout="bhsd",
        scale=scale,
        score_mod=score_mod,
        mask_mod=None if mask is None else mask.visible,
        block_list=None if mask is None else mask.block_list,
        return_lse=with_lse,
    )
    if return_aux is None:
        return made
    o, lse = made if with_lse else (made, None)
    return o, AuxOutput(lse=lse)
