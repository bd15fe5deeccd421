"""Masks and score functions that people publish, each written from its definition.

Sizes: B batch entries, H heads, S positions, which some masks see as an 8 x 8 picture or as a
4 x 4 x 4 film. Tensors that a function reads hang on it as closures do.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

B, H, S = 2, 4, 64
SIDE = 8  # of the picture
FILM = 4  # of the film
INF = float("inf")


class Entry(NamedTuple):
    function: Callable[..., Any]
    learned: tuple[Tensor, ...] = ()  # tensors that the function reads and training changes


_made = torch.Generator().manual_seed(18)


def ints(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=_made)


def reals(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_made).requires_grad_()


# Masks.


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def sliding_window(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= j) & (i - j <= 9)


def prefix() -> Entry:
    lengths = torch.tensor([7, 30], dtype=torch.int32)
    return Entry(lambda b, h, i, j: (j < lengths[b]) | (i >= j))


def documents_by_id() -> Entry:
    document = ints(0, 4, B, S).sort(-1).values
    return Entry(lambda b, h, i, j: (document[b, i] == document[b, j]) & (i >= j))


def documents_by_offset() -> Entry:
    offsets = torch.tensor([0, 11, 12, 40, S])
    document = torch.repeat_interleave(torch.arange(4), offsets.diff())

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        local_i, local_j = i - offsets[document[i]], j - offsets[document[j]]
        return (document[i] == document[j]) & (local_i - local_j < 6) & (local_i >= local_j)

    return Entry(mask)


def batchified() -> Entry:
    """Sequences of 16 behind each other, each causal by itself."""
    return Entry(lambda b, h, i, j: (i // 16 == j // 16) & (i % 16 >= j % 16))


def block_diffusion() -> Entry:
    """Noisy tokens before clean ones, blocks of 8."""
    half, block = S // 2, 8

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        clean_i, clean_j = i >= half, j >= half
        block_i = torch.where(clean_i, i - half, i) // block
        block_j = torch.where(clean_j, j - half, j) // block
        same = (block_i == block_j) & (clean_i == clean_j)
        before = (block_i > block_j) & clean_j & ~clean_i
        return same | before | ((block_i >= block_j) & clean_i & clean_j)

    return Entry(mask)


def dilated(b: Any, h: Any, i: Any, j: Any) -> Any:
    return ((i - j).abs() <= 4 * 3) & ((i - j) % 3 == 0)


def flamingo() -> Entry:
    """Text sees the picture before it, tokens of 16 a picture."""
    seen = ints(0, 3, S).cumsum(0) % 5
    return Entry(lambda b, h, i, j: torch.eq(seen[i], j // 16 + 1).logical_and(seen[i] > 0))


def global_and_sliding(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i < 3) | (j < 3) | (torch.abs(i - j) <= 5)


def _neighbours(xi: Any, yi: Any, xj: Any, yj: Any, side: int, reach: int) -> Any:
    cx, cy = xi.clamp(reach, side - 1 - reach), torch.clamp(yi, min=reach, max=side - 1 - reach)
    return ((cx - xj).abs() <= reach) & ((cy - yj).abs() <= reach)


def natten(b: Any, h: Any, i: Any, j: Any) -> Any:
    return _neighbours(i // SIDE, i % SIDE, j // SIDE, j % SIDE, SIDE, 2)


def natten_tiled(b: Any, h: Any, i: Any, j: Any) -> Any:
    def place(t: Any) -> tuple[Any, Any]:
        tile, inside = t // 16, t % 16
        return (tile // 2) * 4 + inside // 4, (tile % 2) * 4 + inside % 4

    return _neighbours(*place(i), *place(j), SIDE, 2)


def natten_morton(b: Any, h: Any, i: Any, j: Any) -> Any:
    def every_second_bit(t: Any) -> Any:
        t = t & 0x55555555
        t = (t | (t >> 1)) & 0x33333333
        return (t | (t >> 2)) & 0x0F0F0F0F

    def place(t: Any) -> tuple[Any, Any]:
        return every_second_bit(t), every_second_bit(t >> 1)

    return _neighbours(*place(i), *place(j), SIDE, 1)


def shared_prefix() -> Entry:
    """Samples that go on from one prompt of 20 tokens."""
    sample = torch.cat([torch.zeros(20, dtype=torch.int64), 1 + ints(0, 4, S - 20).sort().values])
    return Entry(lambda b, h, i, j: (i >= j) & ((j < 20) | (sample[i] == sample[j])))


def sliding_tiles_2d(b: Any, h: Any, i: Any, j: Any) -> Any:
    """Tiles of 2 x 2 in the picture, a window of 3 x 3 tiles."""

    def tile(t: Any) -> tuple[Any, Any]:
        return (t // SIDE) // 2, (t % SIDE) // 2

    return _neighbours(*tile(i), *tile(j), SIDE // 2, 1)


def sliding_tiles_3d() -> Entry:
    """Tiles of 2 x 2 x 2 in the film, tokens of a tile behind each other, text of 8 at the end."""

    def near(t: Any, u: Any) -> Any:
        return (t.clamp(0, FILM // 2 - 1) - u).abs() <= 0

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        film = S - 8
        ti, tj = i // 8, j // 8
        close = near(ti // 4, tj // 4) & ((ti % 4) // 2 == (tj % 4) // 2)
        return torch.where((i < film) & (j < film), close, True)

    return Entry(mask)


def svg_spatial(b: Any, h: Any, i: Any, j: Any) -> Any:
    """Frames of 16: near frames and the first one."""
    return ((i // 16 - j // 16).abs() <= 1) | (j < 16)


def svg_temporal(b: Any, h: Any, i: Any, j: Any) -> Any:
    """The same place in all frames, give or take 2."""
    return ((i % 16 - j % 16).abs() <= 2) | (j < 16)


def draft_tree() -> Entry:
    """A tree of drafts behind a context of 32: a node sees the context and its ancestors (bits)."""
    context, nodes = 32, S - 32
    ancestors = []
    for node in range(nodes):
        parent = int(ints(0, max(node, 1), 1))
        ancestors.append(1 << node | (ancestors[parent] if node else 0))
    bits = torch.tensor(ancestors, dtype=torch.int64)

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        node, other = (i - context).clamp(min=0), (j - context).clamp(min=0)
        drawn = (i >= context) & (j >= context) & (((bits[node] >> other) & 1) == 1)
        return torch.where(j < context, i >= j, drawn)

    return Entry(mask)


def draft_training() -> Entry:
    """Drafts of 8 tokens, each behind its own anchor in the text of 32."""
    anchor = ints(1, 32, 4)

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        draft = (i - 32).clamp(min=0) // 8
        in_text = torch.where(i < 32, i >= j, j <= anchor[draft]) & (j < 32)
        return in_text | ((i >= 32) & (j >= 32) & (i // 8 == j // 8) & (i >= j))

    return Entry(mask)


def top_blocks() -> Entry:
    """Each block of 8 queries sees the 3 blocks of keys that were chosen for it."""
    chosen = torch.stack(
        [torch.randperm(8, generator=_made)[:3] for _ in range(B * H * 8)]
    ).reshape(B, H, 8, 3)
    return Entry(lambda b, h, i, j: (chosen[b, h, i // 8] == j // 8).any(-1))


def padded_blocks() -> Entry:
    """Blocks of 8 that are filled in part."""
    filled = ints(1, 9, 8)
    return Entry(lambda b, h, i, j: (i % 8 < filled[i // 8]) & (j % 8 < filled[j // 8]))


# Score functions.


def alibi(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return score - torch.exp2(-8.0 * (h + 1) / H) * (i - j).abs()


def softcap(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return 5.0 * torch.tanh(score / 5.0)


def activation(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return torch.nn.functional.silu(score) + torch.nn.functional.gelu(score * 0.5)


def graphormer_spatial() -> Entry:
    distance, table = ints(0, 7, B, S, S), reals(7, H)
    return Entry(lambda s, b, h, i, j: s + table[distance[b, i, j], h], (table,))


def graphormer_edge() -> Entry:
    """The edges on the path between two nodes, five numbers, weighed by head."""
    path, weight = reals(S, S, 5).detach(), reals(H, 5)
    return Entry(lambda s, b, h, i, j: s + torch.dot(path[i, j], weight[h]) / 5, (weight,))


def sandwich() -> Entry:
    frequencies = 10000.0 ** (-torch.arange(16, dtype=torch.float64) / 16.0)

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + (8.0 / H) * (h + 1) * (torch.cos((i - j) * frequencies).sum(-1) - 16)

    return Entry(score_mod)


def mla_rope() -> Entry:
    rows, keys = reals(B, H, S, 8), reals(B, S, 8)
    return Entry(lambda s, b, h, i, j: s + (rows[b, h, i] * keys[b, j]).sum() * 0.2, (rows, keys))


def t5_relative() -> Entry:
    table = reals(H, 21)
    return Entry(lambda s, b, h, i, j: s + table[h, (j - i).clamp(-10, 10) + 10], (table,))


def t5_buckets() -> Entry:
    """32 buckets: half for either side, exact to 8, logarithmic to 128."""
    table = reals(32, H)

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        after, distance = torch.where(j > i, 16, 0), (j - i).abs()
        far = 8 + (torch.log(distance.clamp(min=1) / 8) / 2.772588722239781 * 8).to(torch.int64)
        bucket = torch.where(distance < 8, distance, torch.clamp(far, max=15))
        return s + table[after + bucket, h]

    return Entry(score_mod, (table,))


def temperature() -> Entry:
    by_head, offset = reals(H), torch.tensor(0.3, requires_grad=True)
    return Entry(lambda s, b, h, i, j: s * by_head[h] + offset, (by_head, offset))


def _entry(made: Any) -> Entry:
    return made() if made.__code__.co_argcount == 0 else Entry(made)


MASKS = {
    made.__name__: _entry(made)
    for made in (
        causal, sliding_window, prefix, documents_by_id, documents_by_offset, batchified,
        block_diffusion, dilated, flamingo, global_and_sliding, natten, natten_tiled, natten_morton,
        shared_prefix, sliding_tiles_2d, sliding_tiles_3d, svg_spatial, svg_temporal, draft_tree,
        draft_training, top_blocks, padded_blocks,
    )
}  # fmt: skip
SCORES = {
    made.__name__: _entry(made)
    for made in (
        alibi, softcap, activation, graphormer_spatial, graphormer_edge, sandwich, mla_rope,
        t5_relative, t5_buckets, temperature,
    )
}  # fmt: skip
