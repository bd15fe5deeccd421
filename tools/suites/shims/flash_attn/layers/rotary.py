"""Rotary positions, which the tests' reference needs: the original is a Triton kernel."""

import torch
from torch import Tensor


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
) -> Tensor:
    """x (B, S, H, D) turned by the tables' rows (positions, R / 2) from each entry's offset on."""
    batch, rows = x.shape[:2]
    begin = torch.as_tensor(seqlen_offsets, device=x.device).expand(batch)
    position = begin[:, None].long() + torch.arange(rows, device=x.device)
    c, s = (table[position][:, :, None].float() for table in (cos, sin))  # (B, S, 1, R / 2)
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    pairs = turned.unflatten(-1, (half, 2) if interleaved else (2, half))
    axis = -1 if interleaved else -2
    a, b = pairs.unbind(axis)
    both = torch.stack((a * c - b * s, a * s + b * c), axis).flatten(-2)
    return torch.cat((both.to(x.dtype), rest), -1)
