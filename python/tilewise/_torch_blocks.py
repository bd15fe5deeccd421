"""Masks of blocks as CSR, by torch."""

import torch
from torch import Tensor


def csr(visible: Tensor, *tables: Tensor) -> tuple[Tensor, ...]:
    """row_offsets int32 (B, H, rows + 1) and block_index int32 (pairs) of bool (B, H, rows, cols).

    `pairs` is the number of all blocks, so the host need not know how many are visible. Entries
    past row_offsets are 0. tables: of visible's shape; their values of each pair follow. Raises
    ValueError for another rank or type, or for 2^31 blocks or more.
    """
    if visible.dim() != 4 or visible.dtype != torch.bool:
        shape = tuple(visible.shape)
        raise ValueError(
            f"visible is {visible.dtype} {shape}: expected bool (B|1, Hq|1, blocks, blocks)"
        )
    if visible.numel() >= 2**31:
        raise ValueError(f"visible has {visible.numel()} blocks: int32 offsets end at 2^31 - 1")
    batch, heads, rows, cols = visible.shape
    counts = visible.sum(-1, dtype=torch.int32).reshape(batch, heads * rows)
    ends = counts.flatten().cumsum(0).reshape(batch, heads, rows)
    begins = ends - counts.reshape(batch, heads, rows)
    first = begins[..., :1] if rows else begins.new_zeros(batch, heads, 1)  # no query blocks: [0]
    offsets = torch.cat([first, ends], -1).to(torch.int32)
    column = torch.arange(cols, device=visible.device, dtype=torch.int32).expand(visible.shape)
    flat = visible.flatten()
    place = torch.where(flat, flat.cumsum(0) - 1, flat.numel())  # what is hidden goes past the end
    values = (column, *tables)
    made = (t.new_zeros(flat.numel() + 1).scatter_(0, place, t.flatten())[:-1] for t in values)
    return offsets, *made
