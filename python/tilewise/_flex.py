"""FlexAttention's functions, with its names, argument order and layout.

To use a file written for torch.nn.attention.flex_attention, change its import. Differences: score
functions and masks are traced, not compiled (docs/expressions.md). A BlockMask keeps its mask and
makes its block map on request. kernel_options is ignored.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import _native, _torch
from ._attention import attention

MaskMod = Callable[[Any, Any, Any, Any], Any]
ScoreMod = Callable[[Any, Any, Any, Any, Any], Any]
_SHADES = {0.0: " ", 1.0: "█"}


class AuxRequest(NamedTuple):
    """The extra outputs to request from flex_attention."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """The extra outputs of flex_attention."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def noop_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Every pair is visible."""
    return True


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


class _Map(NamedTuple):
    """Blocks with a visible pair, by rows of blocks, for one batch entry and head or for all."""

    batch: int
    heads: int
    row_offsets: np.ndarray[Any, Any]  # (batch * heads * (rows of blocks + 1))
    block_index: np.ndarray[Any, Any]  # key block of each
    block_full: np.ndarray[Any, Any]  # nonzero = every pair is visible


class BlockMask:
    """A mask of (B, H, Q_LEN, KV_LEN) pairs. Its block map is made on request.

    seq_lengths: (Q_LEN, KV_LEN). BLOCK_SIZE: (rows, keys) of a block. mask_mod: a function of
    positions within this mask. Raises the errors of create_block_mask.
    """

    def __init__(
        self,
        mask_mod: MaskMod,
        batch: int,
        heads: int,
        seq_lengths: tuple[int, int],
        block_size: tuple[int, int],
        device: torch.device,
    ) -> None:
        self.mask_mod = mask_mod
        self.seq_lengths = seq_lengths
        self.BLOCK_SIZE = block_size
        self.device = device
        self._batch_and_heads = batch, heads

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, Q_LEN, KV_LEN), with 1 for a B or H that was None."""
        return (*self._batch_and_heads, *self.seq_lengths)

    @property
    def blocks(self) -> tuple[int, int]:
        """The numbers of block rows and block columns of the map."""
        rows, keys = (
            -(-n // size) for n, size in zip(self.seq_lengths, self.BLOCK_SIZE, strict=True)
        )
        return rows, keys

    def numel(self) -> int:
        """The number of pairs of the mask."""
        return math.prod(self.shape)

    def _map(self) -> _Map:
        _, text, captures = _torch.trace(None, self.mask_mod)
        arrays = tuple(np.atleast_1d(_on_host(array)) for array in captures)
        sizes = *self.shape, *self.BLOCK_SIZE
        batch, heads, offsets, index, full = _native.block_map(text, arrays, *sizes)
        rows, blocks = (np.frombuffer(table, np.int32) for table in (offsets, index))
        return _Map(batch, heads, rows, blocks, np.frombuffer(full, np.uint8))

    def _tables(self) -> tuple[Tensor, Tensor]:
        """Blocks with a visible pair, and blocks without a hidden pair: bool, (B, H, query blocks,
        key blocks)."""
        made = self._map()
        rows, columns = self.blocks
        offsets = made.row_offsets.reshape(made.batch * made.heads, rows + 1)
        row = np.repeat(np.arange(made.batch * made.heads * rows), np.diff(offsets).ravel())
        tables = []
        for values in (np.ones_like(made.block_full), made.block_full):
            table = np.zeros((made.batch * made.heads * rows, columns), np.bool_)
            table[row, made.block_index] = values != 0
            shaped = torch.from_numpy(table).reshape(made.batch, made.heads, rows, columns)
            tables.append(shaped.expand(*self._batch_and_heads, rows, columns))
        return tables[0], tables[1]

    def sparsity(self) -> float:
        """The percentage of blocks without a visible pair."""
        made = self._map()
        return 100.0 * (
            1.0 - len(made.block_index) / (made.batch * made.heads * math.prod(self.blocks))
        )

    def to_dense(self) -> Tensor:
        """Blocks with a visible pair: int32 (B, H, query blocks, key blocks), 1 or 0."""
        return self._tables()[0].int().to(self.device)

    def _ordered(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        counts = blocks.sum(-1, dtype=torch.int32)
        order = blocks.int().argsort(dim=-1, descending=True, stable=True)
        return counts.to(self.device), order.int().to(self.device)

    @property
    def kv_num_blocks(self) -> Tensor:
        """Number of partially visible blocks in each block row: int32 (B, H, query blocks)."""
        visible, full = self._tables()
        return self._ordered(visible & ~full)[0]

    @property
    def kv_indices(self) -> Tensor:
        """Their indices first: int32 (B, H, query blocks, key blocks)."""
        visible, full = self._tables()
        return self._ordered(visible & ~full)[1]

    @property
    def full_kv_num_blocks(self) -> Tensor:
        """Number of fully visible blocks in each block row: int32 (B, H, query blocks)."""
        return self._ordered(self._tables()[1])[0]

    @property
    def full_kv_indices(self) -> Tensor:
        """Their indices first: int32 (B, H, query blocks, key blocks)."""
        return self._ordered(self._tables()[1])[1]

    def to(self, device: torch.device | str) -> BlockMask:
        """The same mask with its maps on a device. Tensors that mask_mod reads do not move."""
        place = torch.device(device)
        return BlockMask(
            self.mask_mod, *self._batch_and_heads, self.seq_lengths, self.BLOCK_SIZE, place
        )

    def __getitem__(self, index: Any) -> BlockMask:
        """The part of a batch entry, a head and query blocks, by integers and slices of step 1.

        The part's mask_mod takes positions within the part. Raises IndexError for other indices and
        for indices outside.
        """
        indices = index if isinstance(index, tuple) else (index,)
        sizes = *self._batch_and_heads, self.blocks[0]
        if len(indices) > len(sizes):
            raise IndexError(f"a BlockMask is indexed {len(indices)} times: expected at most 3")
        ranges = [_range_of(i, n) for i, n in zip(indices, sizes, strict=False)]
        ranges += [range(n) for n in sizes[len(ranges) :]]
        b0, h0, block0 = (r.start for r in ranges)
        rows, keys = self.seq_lengths
        size = self.BLOCK_SIZE[0]
        i0, i1 = (min(row, rows) for row in (block0 * size, ranges[2].stop * size))
        mask_mod = self.mask_mod

        def part(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return mask_mod(b + b0, h + h0, q_idx + i0, kv_idx)

        moved = mask_mod if (b0, h0, i0) == (0, 0, 0) else part
        return BlockMask(
            moved, len(ranges[0]), len(ranges[1]), (i1 - i0, keys), self.BLOCK_SIZE, self.device
        )

    def to_string(self, grid_size: int | tuple[int, int] = (20, 20), limit: int = 4) -> str:
        """A picture with a solid cell where everything is visible and a light cell where a part is.

        grid_size: the maximum number of rows and columns; -1 = all. limit: the maximum number of
        maps.
        """
        dense = self.to_dense().double().cpu()
        rows, keys = self.blocks
        most = (grid_size, grid_size) if isinstance(grid_size, int) else grid_size
        steps = [
            max(1, -(-n // m)) if m > 0 else 1 for n, m in zip((rows, keys), most, strict=True)
        ]
        pictures = []
        for b, h in itertools.islice(itertools.product(*map(range, self._batch_and_heads)), limit):
            lines = [f"({b}, {h})"]
            for r in range(0, rows, steps[0]):
                cells = (
                    dense[b, h, r : r + steps[0], c : c + steps[1]]
                    for c in range(0, keys, steps[1])
                )
                lines.append("".join(2 * _SHADES.get(cell.mean().item(), "░") for cell in cells))
            pictures.append("\n".join(lines) + "\n")
        if math.prod(self._batch_and_heads) > limit:
            pictures.append("...")
        return "\n".join(pictures)

    def __str__(self) -> str:
        return f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%)\n{self.to_string()}"

    def __repr__(self) -> str:
        return f"BlockMask(shape={self.shape}, BLOCK_SIZE={self.BLOCK_SIZE})"


def _on_host(array: Any) -> np.ndarray[Any, Any]:
    if not isinstance(array, Tensor):
        return np.asarray(array)
    host = array.detach().cpu()
    return (host.float() if host.dtype is torch.bfloat16 else host).numpy()


def _range_of(index: Any, size: int) -> range:
    if isinstance(index, slice):
        found = range(*index.indices(size))
        if found.step == 1 and len(found) > 0:
            return found
    elif isinstance(index, int) and -size <= index < size:
        return range(index % size, index % size + 1)
    raise IndexError(
        f"a BlockMask's index is {index!r}: expected an integer or a slice of step 1 within {size}"
    )


def _sizes(**sizes: Any) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} is {size!r}: expected an integer from 1 on")


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
    block_size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
    if len(block_size) != 2:
        raise ValueError(f"BLOCK_SIZE is {BLOCK_SIZE!r}: expected one integer or two")
    _sizes(Q_LEN=Q_LEN, KV_LEN=KV_LEN, B=1 if B is None else B, H=1 if H is None else H)
    _sizes(**{f"BLOCK_SIZE[{n}]": size for n, size in enumerate(block_size)})
    if not _torch.is_dynamo_compiling():
        _torch.trace(None, mask_mod)
    return BlockMask(
        mask_mod, B or 1, H or 1, (Q_LEN, KV_LEN), block_size, torch.device(device or "cpu")
    )


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
    if not isinstance(block_mask, BlockMask):
        raise ValueError(
            f"block_mask is of {type(block_mask)}: expected one of tilewise.create_block_mask"
        )
    mask = block_mask.shape
    if mask[0] not in (1, batch) or mask[1] not in (1, heads) or mask[2:] != (rows, key.shape[2]):
        wanted = f"(1 or {batch}, 1 or {heads}, {rows}, {key.shape[2]})"
        raise ValueError(f"block_mask is of {mask}: expected {wanted}")


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: BlockMask | None = None,
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
    - block_mask: from create_block_mask.
    - scale: by default 1/sqrt(D). enable_gqa: allows Hq to be a multiple of Hk.
    - return_lse: also return LSE, float32 (B, Hq, Sq). return_aux: an AuxRequest; the result is
      then (output, AuxOutput).
    - kernel_options: ignored.

    query, key, value and float tensors that score_mod reads have gradients. Fully masked rows are
    0. Raises ValueError (wrong argument, or a function that cannot be traced) or
    NotImplementedError (no kernel supports the call; max_scores).
    """
    _check(query, key, block_mask, enable_gqa)
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
        mask_mod=None if block_mask is None else block_mask.mask_mod,
        return_lse=with_lse,
    )
    if return_aux is None:
        return made
    o, lse = made if with_lse else (made, None)
    return o, AuxOutput(lse=lse)
