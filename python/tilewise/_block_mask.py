"""FlexAttention's BlockMask: a mask function, and a list of blocks if the caller gives one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import _native, _torch
from ._spec import BlockList
from ._torch_blocks import csr

MaskMod = Callable[[Any, Any, Any, Any], Any]
_SHADES = {0.0: " ", 1.0: "█"}


def noop_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Every pair is visible."""
    return True


class _Map(NamedTuple):
    """Blocks with a visible pair, by rows of blocks, for one batch entry and head or for all."""

    batch: int
    heads: int
    row_offsets: np.ndarray[Any, Any]  # (batch * heads * (rows of blocks + 1))
    block_index: np.ndarray[Any, Any]  # key block of each
    block_full: np.ndarray[Any, Any]  # nonzero = every pair is visible


class _Given(NamedTuple):
    """The blocks that the caller lists, bool (B, H, query blocks, key blocks)."""

    visible: Tensor
    full: Tensor | None  # those without a mask


class BlockMask:
    """A mask of (B, H, Q_LEN, KV_LEN) pairs. Its block map is made on request.

    seq_lengths: (Q_LEN, KV_LEN). BLOCK_SIZE: (rows, keys) of a block. mask_mod: a function of
    positions within this mask. block_list: the blocks of from_kv_blocks, else None. Raises the
    errors of create_block_mask.
    """

    def __init__(
        self,
        mask_mod: MaskMod,
        batch: int,
        heads: int,
        seq_lengths: tuple[int, int],
        block_size: tuple[int, int],
        device: torch.device,
        given: _Given | None = None,
    ) -> None:
        self.mask_mod = mask_mod
        self.seq_lengths = seq_lengths
        self.BLOCK_SIZE = block_size
        self.device = device
        self.block_list = None if given is None else _block_list(given, block_size)
        self._batch_and_heads = batch, heads
        self._given = given

    @classmethod
    def from_kv_blocks(
        cls,
        kv_num_blocks: Tensor,
        kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None = None,
        full_kv_indices: Tensor | None = None,
        BLOCK_SIZE: int | tuple[int, int] = 128,
        mask_mod: MaskMod | None = None,
        seq_lengths: tuple[int, int] | None = None,
        compute_q_blocks: bool = True,
        *,
        dq_write_order: Tensor | None = None,
        dq_write_order_full: Tensor | None = None,
        dq_kv_order: Tensor | bool | None = None,
    ) -> BlockMask:
        """A mask of listed blocks: nothing outside them is visible.

        - kv_num_blocks, kv_indices: integers (B|1, H|1, query blocks) and (B|1, H|1, query blocks,
          n), the number of key blocks of each block row, and these blocks first, in any order.
          mask_mod, by default noop_mask, decides inside them.
        - full_kv_num_blocks, full_kv_indices: likewise blocks in which all pairs are visible.
        - seq_lengths: (Q_LEN, KV_LEN), by default that many whole blocks.
        - The other arguments are ignored.

        Raises ValueError for tensors that do not fit each other, and on a CPU for a block outside
        the mask. A GPU skips this block.
        """
        if (full_kv_num_blocks is None) != (full_kv_indices is None):
            raise ValueError("one of full_kv_num_blocks and full_kv_indices is None: expected both")
        size = sizes_of_block(BLOCK_SIZE)
        if kv_indices.dim() != 4:
            raise ValueError(f"kv_indices has {kv_indices.dim()} axes: expected (B, H, rows, n)")
        batch, heads, rows, most = kv_indices.shape
        lengths = (rows * size[0], most * size[1]) if seq_lengths is None else seq_lengths
        if rows != -(-lengths[0] // size[0]):
            raise ValueError(f"kv_indices has {rows} rows of blocks: expected Q_LEN {lengths[0]}")
        columns = -(-lengths[1] // size[1])
        partial = _listed("kv_indices", kv_num_blocks, kv_indices, columns)
        given = _Given(partial, None)
        if full_kv_num_blocks is not None and full_kv_indices is not None:
            full = _listed("full_kv_indices", full_kv_num_blocks, full_kv_indices, columns)
            if full.shape != partial.shape:
                shape = tuple(full_kv_indices.shape)
                raise ValueError(f"full_kv_indices is of {shape}: expected kv_indices' rows")
            given = _Given(partial | full, full)
        mask_mod = noop_mask if mask_mod is None else mask_mod
        return cls(mask_mod, batch, heads, lengths, size, kv_indices.device, given)

    @property
    def visible(self) -> MaskMod:
        """mask_mod, or True in blocks that the caller lists as full: kernels skip it there."""
        full = None if self._given is None else self._given.full
        if full is None:
            return self.mask_mod
        mask_mod, (rows, keys) = self.mask_mod, self.BLOCK_SIZE
        one_entry, one_head = full.shape[0] == 1, full.shape[1] == 1

        def visible(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            shown = mask_mod(b, h, q_idx, kv_idx)
            place = 0 if one_entry else b, 0 if one_head else h
            return shown if shown is True else shown | full[*place, q_idx // rows, kv_idx // keys]

        return visible

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
        key blocks). Listed blocks are as listed."""
        if self._given is not None:
            visible, full = self._given
            return visible, torch.zeros_like(visible) if full is None else full
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
        if self._given is not None:
            return 100.0 * (1.0 - float(self._given.visible.double().mean()))
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
        given = _of_each(self._given, lambda table: table.to(place))
        return self._like(self.mask_mod, self._batch_and_heads, self.seq_lengths, given, place)

    def __getitem__(self, index: Any) -> BlockMask:
        """The part of a batch entry, a head and query blocks, by integers and slices of step 1.

        Query blocks may also be a tensor of integers. The part's mask_mod takes positions within
        the part. Raises IndexError for other indices and for indices outside, which a tensor of a
        GPU must not hold.
        """
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) == 3 and isinstance(indices[2], Tensor):
            return self[indices[:2]]._query_blocks(indices[2])
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
        slices = tuple(slice(r.start, r.stop) for r in ranges)
        given = _of_each(self._given, lambda table: table[slices])
        entries = len(ranges[0]), len(ranges[1])
        return self._like(moved, entries, (i1 - i0, keys), given)

    def _query_blocks(self, blocks: Tensor) -> BlockMask:
        if not _are_integers(blocks) or blocks.dim() > 1:
            kind = f"{blocks.dtype} {tuple(blocks.shape)}"
            raise IndexError(
                f"a BlockMask's index is {kind}: expected integers of at most one axis"
            )
        rows, size, mask_mod = blocks.reshape(-1), self.BLOCK_SIZE[0], self.mask_mod
        count = self.blocks[0]
        if _torch.on_host(rows) and bool(((rows < -count) | (rows >= count)).any()):
            raise IndexError(f"a BlockMask's index names a block of queries outside its {count}")

        def part(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            row = rows[q_idx // size]
            row = torch.where(row < 0, row + count, row)
            return mask_mod(b, h, row * size + q_idx % size, kv_idx)

        given = _of_each(self._given, lambda table: table[:, :, rows.to(table.device).long()])
        lengths = rows.numel() * size, self.seq_lengths[1]
        return self._like(part, self._batch_and_heads, lengths, given)

    def _like(
        self,
        mask_mod: MaskMod,
        entries: tuple[int, int],
        lengths: tuple[int, int],
        given: _Given | None,
        device: torch.device | None = None,
    ) -> BlockMask:
        place = self.device if device is None else device
        return BlockMask(mask_mod, *entries, lengths, self.BLOCK_SIZE, place, given)

    def to_string(self, grid_size: int | tuple[int, int] = (20, 20), limit: int = 4) -> str:
        """A picture: a cell is solid if each of its blocks has a visible pair, light if some have.

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


def sizes_of_block(given: int | tuple[int, int]) -> tuple[int, int]:
    """BLOCK_SIZE as (rows, keys). Raises ValueError for other forms."""
    sizes = (given, given) if isinstance(given, int) else tuple(given)
    if len(sizes) != 2:
        raise ValueError(f"BLOCK_SIZE is {given!r}: expected one integer or two")
    for n, size in enumerate(sizes):
        check_size(f"BLOCK_SIZE[{n}]", size)
    return sizes


def check_size(name: str, size: Any) -> None:
    """Raises ValueError for all but positive integers, which a compiler may know as symbols."""
    if not isinstance(size, int | torch.SymInt) or size < 1:
        raise ValueError(f"{name} is {size!r}: expected an integer from 1 on")


def _of_each(given: _Given | None, change: Callable[[Tensor], Tensor]) -> _Given | None:
    if given is None:
        return None
    return _Given(change(given.visible), None if given.full is None else change(given.full))


def _are_integers(values: Tensor) -> bool:
    return not (values.is_floating_point() or values.dtype == torch.bool)


def _listed(name: str, counts: Tensor, indices: Tensor, columns: int) -> Tensor:
    """Of each row, its first `counts` entries of indices: bool (B, H, query blocks, columns)."""
    if counts.shape != indices.shape[:-1]:
        wanted = tuple(indices.shape[:-1])
        raise ValueError(f"the counts of {name} are of {tuple(counts.shape)}: expected {wanted}")
    if not (_are_integers(counts) and _are_integers(indices)):
        kinds = f"{indices.dtype}, its counts {counts.dtype}"
        raise ValueError(f"{name} is of {kinds}: expected integers")
    place = torch.arange(indices.shape[-1], device=indices.device)
    used = place < counts[..., None]
    inside = (indices >= 0) & (indices < columns)
    if _torch.on_host(indices) and bool((used & ~inside).any()):
        raise ValueError(f"{name} lists a block outside 0 to {columns - 1}")
    place = torch.where(used & inside, indices, columns).long()  # the last column is dropped
    table = torch.zeros(*counts.shape, columns + 1, dtype=torch.bool, device=indices.device)
    return table.scatter(-1, place, True)[..., :columns]


def _block_list(given: _Given, block_size: tuple[int, int]) -> BlockList:
    full = () if given.full is None else (given.full,)
    offsets, index, *flags = csr(given.visible, *full)
    return BlockList(offsets, index, flags[0] if flags else None, *block_size)


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
