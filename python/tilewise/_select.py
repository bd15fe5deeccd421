"""select_blocks: block lists that scores choose, by the operator tilewise::select_blocks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _native
from ._spec import BlockList
from ._torch_onlookers import check_tensors


class PoolWeights(NamedTuple):
    """The weights of the statistics that score a block of tokens, per feature."""

    mean: float = 1.0
    maximum: float = 0.0
    minimum: float = 0.0
    variance: float = 0.0


_MEANS = PoolWeights()
_TOP_K, _MASS, _ABOVE = range(3)
_SCHEMA = (
    "(Tensor q, Tensor k, Tensor? key_lengths, SymInt block_q, SymInt block_k, float[] weights, "
    "float? scale, bool causal, int rule, SymInt count, float share, bool keep_diagonal, "
    "bool keep_first, str layout, bool as_mask, int scorer=0, SymInt stride=8) -> (Tensor, Tensor)"
)
_DEFAULTS = (0, 8)  # of scorer and stride
SCORERS = ("pooled", "antidiagonal", "vertical_slash")


def _outputs(q: Tensor, k: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """Row offsets and indices with room for the largest selection; or a mask, and nothing."""
    block_q, block_k, _, _, _, rule, count, _, keep_diagonal, keep_first, layout = options[:11]
    as_mask = options[11]
    scorer = options[12] if len(options) > 12 else 0  # torch leaves defaults out
    heads, tokens = (1, 2) if layout == "bhsd" else (2, 1)
    rows = -(-q.shape[tokens] // block_q)
    columns = most = -(-k.shape[tokens] // block_k)
    shape = (q.shape[0], q.shape[heads])
    if as_mask:
        return q.new_empty((*shape, rows, columns), dtype=torch.bool), q.new_empty(0)
    if SCORERS[scorer] == "vertical_slash":  # a distance touches so many blocks of a row
        count = count * (2 + (block_q + block_k - 2) // block_k)
    if rule == _TOP_K and count < columns:
        beside = (block_q - 1) // block_k + 2 if keep_diagonal else 0
        most = min(columns, count + beside + int(keep_first))
    offsets = q.new_empty((*shape, rows + 1), dtype=torch.int32)
    return offsets, q.new_zeros(shape[0] * shape[1] * rows * most, dtype=torch.int32)


@torch.library.custom_op(
    "tilewise::select_blocks", mutates_args=(), device_types=("cpu", "cuda"), schema=_SCHEMA
)
def _operator(
    q: Tensor, k: Tensor, key_lengths: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor]:
    first, second = _outputs(q, k, *options)
    as_mask = options[11]
    given = [*options[:11], *options[12:], *_DEFAULTS[len(options) - 12 :]]
    given[2] = tuple(given[2])
    outputs = (None, None, first) if as_mask else (first, second, None)
    _native.select_blocks((q, k, key_lengths), outputs, tuple(given))
    return first, second


@_operator.register_fake
def _fake(q: Tensor, k: Tensor, key_lengths: Tensor | None, *options: Any) -> tuple[Tensor, Tensor]:
    return _outputs(q, k, *options)


def _choose(
    q: Tensor,
    k: Tensor,
    block_q: int,
    block_k: int | None,
    count: int | None,
    mass: float | None,
    threshold: float | None,
    causal: bool,
    weights: PoolWeights,
    scale: float | None,
    key_lengths: Tensor | None,
    keep_diagonal: bool,
    keep_first: bool,
    layout: str,
    scorer: str,
    stride: int,
    as_mask: bool,
) -> tuple[Tensor, Tensor]:
    rules = [
        rule
        for rule, given in ((_TOP_K, count), (_MASS, mass), (_ABOVE, threshold))
        if given is not None
    ]
    if len(rules) != 1:
        raise ValueError("count, mass and threshold: expected one of them")
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f"layout is {layout!r}: expected bshd or bhsd")
    if scorer not in SCORERS:
        raise ValueError(f"scorer is {scorer!r}: expected one of {', '.join(SCORERS)}")
    check_tensors(q=q, k=k, key_lengths=key_lengths)
    if q.dim() != 4 or k.dim() != 4:
        raise ValueError(f"q has {q.dim()} axes and k {k.dim()}: expected 4")
    block_k = block_q if block_k is None else block_k
    if block_q < 1 or block_k < 1:
        raise ValueError(f"block_q is {block_q} and block_k {block_k}: expected at least 1")
    if len(weights) != len(PoolWeights._fields):
        raise ValueError(f"weights has {len(weights)} numbers: expected {PoolWeights._fields}")
    share = mass if mass is not None else threshold
    with torch.no_grad():
        chosen: tuple[Tensor, Tensor] = torch.ops.tilewise.select_blocks(
            q.detach(),
            k.detach(),
            key_lengths,
            block_q,
            block_k,
            [float(x) for x in weights],
            scale,
            causal,
            rules[0],
            count or 0,
            float(share or 0.0),
            keep_diagonal,
            keep_first,
            layout,
            as_mask,
            SCORERS.index(scorer),
            stride,
        )
    return chosen


def select_blocks(
    q: Tensor,
    k: Tensor,
    block_q: int = 64,
    block_k: int | None = None,
    *,
    count: int | None = None,
    mass: float | None = None,
    threshold: float | None = None,
    causal: bool = False,
    weights: PoolWeights = _MEANS,
    scale: float | None = None,
    key_lengths: Tensor | None = None,
    keep_diagonal: bool = True,
    keep_first: bool = True,
    layout: str = "bshd",
    scorer: str = "pooled",
    stride: int = 8,
) -> BlockList:
    """Selects the key blocks that each query block attends to, by scores of blocks.

    q is (B, Sq, Hq, D) and k (B, Sk, Hk, D). With layout "bhsd", heads come before tokens. A score
    is scale (by default 1 / sqrt(D)) times the sum over statistics of weight times the product of
    the blocks' statistics. A softmax over a row's blocks turns scores into probabilities. Give
    exactly one rule:

    - count: the `count` largest blocks.
    - mass: the fewest blocks whose sum is at least `mass`.
    - threshold: all blocks above `threshold`.

    causal excludes blocks past the diagonal, which is attention's bottom_right. key_lengths is
    int32 (B).

    scorer "antidiagonal" sums logits along the antidiagonal of every tile of stride x stride pairs.
    It takes a softmax over a row of tiles. stride divides both blocks. "vertical_slash" uses the
    last block of queries. Its rule selects key blocks and distances by their probabilities, and
    every row attends to both. Only "pooled" reads weights.

    No buffer has an element per pair of tokens, and the call never waits for a GPU. There is no
    gradient. Raises ValueError (wrong argument) or NotImplementedError (on a GPU: head dims above
    256, or more than 8192 key blocks).
    """
    offsets, index = _choose(
        q, k, block_q, block_k, count, mass, threshold, causal, weights, scale, key_lengths,
        keep_diagonal, keep_first, layout, scorer, stride, as_mask=False,
    )  # fmt: skip
    return BlockList(offsets, index, None, block_q, block_q if block_k is None else block_k)


def select_block_mask(
    q: Tensor,
    k: Tensor,
    block_q: int = 64,
    block_k: int | None = None,
    *,
    count: int | None = None,
    mass: float | None = None,
    threshold: float | None = None,
    causal: bool = False,
    weights: PoolWeights = _MEANS,
    scale: float | None = None,
    key_lengths: Tensor | None = None,
    keep_diagonal: bool = True,
    keep_first: bool = True,
    layout: str = "bshd",
    scorer: str = "pooled",
    stride: int = 8,
) -> Tensor:
    """The same selection as a mask of blocks: bool (B, Hq, query blocks, key blocks)."""
    return _choose(
        q, k, block_q, block_k, count, mass, threshold, causal, weights, scale, key_lengths,
        keep_diagonal, keep_first, layout, scorer, stride, as_mask=True,
    )[0]  # fmt: skip
