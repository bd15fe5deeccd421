"""packed_mask: a mask of any shape in one bit a pair."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _trace

_MOST_BYTES = 1 << 26  # of what packing takes besides, on a device


def _torch_words(torch: Any, mask: Any, width: int) -> Any:
    rows = mask.reshape(-1, mask.shape[-1])
    words = torch.zeros(len(rows), width, dtype=torch.int32, device=mask.device)
    places = torch.arange(32, dtype=torch.int32, device=mask.device)
    step = max(1, _MOST_BYTES // (128 * max(width, 1)))
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        bits = part.new_zeros((len(part), 32 * width), dtype=torch.int32)
        bits[:, : mask.shape[-1]] = part
        bits = bits.reshape(len(part), width, 32) << places
        words[first : first + step] = bits.sum(-1, dtype=torch.int32)
    return words.reshape(*mask.shape[:-1], width)


def mask_words(mask: Any) -> Any:
    """The words of packed_mask: int32 (..., Sq, W) with W = ceil(Sk / 32), an eighth of the mask.

    mask: bool (..., Sq, Sk), a torch tensor on any device or a NumPy array. The words are of the
    same kind, on the same device. Bit j % 32 of word j / 32 of row i is 1 where query i sees
    key j. Raises ValueError for another type and for fewer than two axes.
    """
    torch = sys.modules.get("torch")
    of_torch = torch is not None and isinstance(mask, torch.Tensor)
    given: Any = mask if of_torch else np.asarray(mask)
    if str(given.dtype).rpartition(".")[2] != "bool" or not 2 <= given.ndim <= 4:
        found = f"{given.dtype} {tuple(given.shape)}"
        raise ValueError(f"mask is {found}: expected bool (..., Sq, Sk) of 2 to 4 axes")
    width = -(-int(given.shape[-1]) // 32)
    if of_torch and given.device.type != "cpu":
        return _torch_words(torch, given, width)
    host = given.detach().numpy() if of_torch else given
    packed = np.packbits(host, axis=-1, bitorder="little")
    whole = np.zeros((*packed.shape[:-1], 4 * width), np.uint8)
    whole[..., : packed.shape[-1]] = packed
    words = whole.view("<i4")
    return torch.from_numpy(words) if torch is not None and of_torch else words


def packed_mask(mask: Any = None, *, words: Any = None) -> Callable[..., Any]:
    """The mask_mod of a mask in one bit a pair, for attention and create_block_mask.

    The mask is packed once and may serve any number of calls: 16,384 x 16,384 pairs take 32 MiB,
    as bool they take 256. Gradients, other masks and `&` in a mask_mod of your own are as for any
    mask_mod.

    - mask: as for mask_words. Axes before (Sq, Sk) are the batch and the query head, or the query
      head alone; an axis of 1 broadcasts.
    - words: instead of mask, int32 from mask_words, on the device of q. Values may change between
      calls.

    Queries past Sq see as the last one does, so a mask has the rows and keys of its call. Raises
    ValueError unless exactly one of mask and words is given, and the errors of mask_words.
    """
    if (mask is None) == (words is None):
        raise ValueError("mask and words: expected exactly one of them")
    if words is None:
        words = mask_words(mask)
    shape = tuple(getattr(words, "shape", ()))
    kind = str(getattr(words, "dtype", type(words).__name__)).rpartition(".")[2]
    if kind != "int32" or not 2 <= len(shape) <= 4:
        raise ValueError(f"words is {kind} {shape}: expected int32 (..., Sq, W) of 2 to 4 axes")

    def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        side = sys.modules.get("tilewise._torch")
        table: Any
        if side is not None and side.is_dynamo_compiling():  # which traces tensors alone
            table = side.as_tensor(words)
        else:
            table = _trace.Captured(words)
        before = ((b, h) if len(shape) == 4 else (h,))[: len(shape) - 2]
        first = [0 if size == 1 else index for index, size in zip(before, shape, strict=False)]
        return ((table[(*first, i, j >> 5)] >> (j & 31)) & 1) == 1

    return mask_mod
