"""Scores of blocks with gradients, gates of blocks, and routing by clusters, as torch operations.

select_blocks chooses by the same scores, in C++ and without gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ._attention import attention
from ._select import PoolWeights
from ._spec import BlockList

REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "mean": torch.mean,
    "max": torch.amax,
    "min": torch.amin,
    "variance": partial(torch.var, correction=0),
}


def pooled(x: Tensor, block: int, how: str = "mean", dim: int = 2) -> Tensor:
    """One vector a block along `dim`: (B, H, n, d) -> (B, H, blocks, d); the last may be ragged.

    how: mean, max, min or variance (over the block's tokens).
    """
    if how not in REDUCTIONS:
        raise ValueError(f"how is {how!r}: expected {', '.join(REDUCTIONS)}")
    reduce = REDUCTIONS[how]
    n = x.shape[dim]
    whole = n - n % block
    blocks = reduce(x.narrow(dim, 0, whole).unflatten(dim, (-1, block)), dim=dim + 1)
    if whole == n:
        return blocks
    return torch.cat([blocks, reduce(x.narrow(dim, whole, n - whole), dim=dim, keepdim=True)], dim)


def block_scores(
    q: Tensor,
    k: Tensor,
    block_q: int = 64,
    block_k: int | None = None,
    *,
    causal: bool = False,
    weights: PoolWeights = PoolWeights(),  # noqa: B008, a tuple
    scale: float | None = None,
    layout: str = "bshd",
) -> Tensor:
    """The scores by which select_blocks chooses: float32 (B, Hq, query blocks, key blocks).

    They have gradients for q and k. Shapes and options are those of select_blocks with its scorer
    "pooled". A softmax over the last axis gives its probabilities. causal gives blocks past the
    diagonal -inf. No buffer has an element per pair of tokens. Raises ValueError.
    """
    block_k = block_q if block_k is None else block_k
    q, k = _heads_first(layout, q=q, k=k)
    _check_block(block_q=block_q, block_k=block_k)
    q, k = q.float(), _of_queries(k.float(), q.shape[1])
    scores = q.new_zeros(())
    for how, weight in zip(REDUCTIONS, weights, strict=True):
        if weight != 0.0:
            scores = scores + weight * (pooled(q, block_q, how) @ pooled(k, block_k, how).mT)
    if scores.dim() == 0:
        raise ValueError(f"weights is {tuple(weights)}: expected one that is not 0")
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    if not causal:
        return scores
    rows = torch.arange(scores.shape[-2], device=q.device)
    last = ((rows + 1) * block_q).clamp(max=q.shape[2]) - 1 + k.shape[2] - q.shape[2]
    first_key = torch.arange(scores.shape[-1], device=q.device) * block_k
    return scores.masked_fill(first_key > last[:, None], -torch.inf)


def block_gate(
    log_gate: Tensor, block_q: int = 64, block_k: int | None = None
) -> Callable[..., Any]:
    """A score_mod that adds one number a block: log_gate, (B, Hq, query blocks, key blocks).

    A block's probabilities are multiplied by its gate g and renormalised. The gradient of log_gate
    is the exact sum of dS over the block; with log_gate = g.log(), g gets that sum over g. So a
    selector learns from the attention that it steers. Hidden blocks get 0. Raises ValueError.
    """
    block_k = block_q if block_k is None else block_k
    _check_block(block_q=block_q, block_k=block_k)
    if log_gate.dim() != 4:
        raise ValueError(
            f"log_gate has {log_gate.dim()} axes: expected (B, Hq, query blocks, key blocks)"
        )

    def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score + log_gate[b, h, i // block_q, j // block_k]

    return score_mod


class ClusterRoute(NamedTuple):
    """What cluster_route decides. Blocks are those of sorted tokens."""

    query_order: Tensor  # int64 (B, Hq, Sq): the query at each place
    key_order: Tensor  # int64 (B, Hk, Sk): the key at each place, padding last
    blocks: Tensor  # bool (B, Hq, query blocks, key blocks)


def cluster_route(
    q: Tensor,
    k: Tensor,
    centroids: Tensor,
    block_q: int = 64,
    block_k: int | None = None,
    *,
    top: int = 2,
    threshold: float = 1.0,
    key_lengths: Tensor | None = None,
    layout: str = "bshd",
) -> ClusterRoute:
    """Sorts tokens by their nearest centroid, and pairs the blocks that share clusters.

    centroids: (Hk, C, D). A token belongs to the centroid of the largest cosine. A cluster counts
    in a block if it has more than threshold / C of the block's tokens. In a query block only the
    `top` clusters with the most tokens count. Blocks that share a cluster are paired. Every query
    block also gets the key block that shares the most tokens with it. key_lengths: int32 (B), the
    number of keys before the padding.

    No buffer has an element per pair of tokens, and the call never waits for a GPU. There is no
    gradient. Raises ValueError.
    """
    block_k = block_q if block_k is None else block_k
    q, k = _heads_first(layout, q=q, k=k)
    _check_block(block_q=block_q, block_k=block_k)
    expected = (k.shape[1], q.shape[-1])
    if centroids.dim() != 3 or (centroids.shape[0], centroids.shape[2]) != expected:
        raise ValueError(
            f"centroids is {tuple(centroids.shape)}: expected ({expected[0]}, C, {expected[1]})"
        )
    clusters = centroids.shape[1]
    if not 1 <= top <= clusters:
        raise ValueError(f"top is {top}: expected 1 to {clusters}, the number of clusters")
    if threshold < 0.0:
        raise ValueError(f"threshold is {threshold}: expected at least 0")
    with torch.no_grad():
        of_k = _nearest(k, centroids)
        if key_lengths is not None:
            at = torch.arange(k.shape[2], device=k.device)
            of_k = of_k.masked_fill(at >= key_lengths[:, None, None], clusters)
        of_q = _nearest(q, _of_queries(centroids[None], q.shape[1])[0])
        of_q, query_order = of_q.sort(dim=-1, stable=True)
        of_k, key_order = of_k.sort(dim=-1, stable=True)
        share_q = _shares(of_q, clusters, block_q)
        share_k = _of_queries(_shares(of_k, clusters, block_k), q.shape[1])
        least = threshold / clusters
        ranked = share_q.argsort(dim=-1, descending=True, stable=True)
        taken = torch.zeros_like(share_q, dtype=torch.bool)
        taken = taken.scatter(-1, ranked[..., :top], True) & (share_q > least)
        blocks = taken.float() @ (share_k > least).float().mT > 0
        nearest = (share_q @ share_k.mT).argmax(-1, keepdim=True)
        return ClusterRoute(query_order, key_order, blocks.scatter(-1, nearest, True))


def cluster_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    centroids: Tensor,
    block_q: int = 64,
    block_k: int | None = None,
    *,
    top: int = 2,
    threshold: float = 1.0,
    scale: float | None = None,
    key_lengths: Tensor | None = None,
    layout: str = "bshd",
) -> Tensor:
    """Attention between tokens of the same clusters, whatever their positions: cluster_route.

    Arguments are those of cluster_route; v is like k. The output has q's shape, with v's features,
    and gradients for q, k and v. Raises ValueError.
    """
    options: dict[str, Any] = {"top": top, "threshold": threshold, "key_lengths": key_lengths}
    route = cluster_route(q, k, centroids, block_q, block_k, layout=layout, **options)
    q, k, v = _heads_first(layout, q=q, k=k, v=v)
    order = route.query_order[..., None]
    o: Tensor = attention(
        _along(q, order),
        _along(k, route.key_order[..., None]),
        _along(v, route.key_order[..., None]),
        scale=scale,
        key_lengths=key_lengths,
        layout="bhsd",
        block_list=BlockList.from_blocks(route.blocks, block_q, block_k),
    )
    o = torch.zeros_like(o).scatter(2, order.expand_as(o), o)
    return o if layout == "bhsd" else o.transpose(1, 2)


def _heads_first(layout: str, **tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors as (B, H, S, D)."""
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f"layout is {layout!r}: expected bshd or bhsd")
    for name, x in tensors.items():
        if x.dim() != 4:
            raise ValueError(f"{name} has {x.dim()} axes: expected 4")
    given = tuple(tensors.values())
    found = given if layout == "bhsd" else tuple(x.transpose(1, 2) for x in given)
    if found[0].shape[1] % found[1].shape[1] != 0:
        raise ValueError(f"k has {found[1].shape[1]} heads: it must divide q's {found[0].shape[1]}")
    return found


def _check_block(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}: expected at least 1")


def _of_queries(x: Tensor, heads: int) -> Tensor:
    """Key heads as often as query heads use them: (B, Hk, ...) -> (B, Hq, ...)."""
    return x.repeat_interleave(heads // x.shape[1], dim=1) if x.shape[1] != heads else x


def _nearest(x: Tensor, centroids: Tensor) -> Tensor:
    """The centroid of the largest cosine: int64 (B, H, S)."""
    axes = functional.normalize(centroids.float(), dim=-1)
    return (x.float() @ axes.mT).argmax(-1)


def _shares(labels: Tensor, clusters: int, block: int) -> Tensor:
    """The share of each cluster in each block of tokens: (B, H, S) -> (B, H, blocks, clusters).

    A label of `clusters` is padding: it counts in no cluster.
    """
    n = labels.shape[-1]
    blocks = -(-n // block)
    at = torch.arange(n, device=labels.device) // block
    counts = torch.zeros((*labels.shape[:2], blocks * (clusters + 1)), device=labels.device)
    counts.scatter_add_(
        -1, at * (clusters + 1) + labels, torch.ones_like(labels, dtype=torch.float)
    )
    sizes = (n - torch.arange(blocks, device=labels.device) * block).clamp(max=block)
    shares: Tensor = counts.unflatten(-1, (blocks, -1))[..., :clusters] / sizes[:, None]
    return shares


def _along(x: Tensor, order: Tensor) -> Tensor:
    found: Tensor = x.gather(2, order.expand(*order.shape[:3], x.shape[-1]))
    return found
