"""Which blocks of pairs a head attends: the working layer's patterns, as masks of blocks.

A mask of blocks is bool (B|1, H|1, query blocks, key blocks); nothing here is as large as n x n.
Every pattern keeps the diagonal and the first key block, so that no row is left without keys.
"""

import torch
from torch import Tensor
from torch.nn import functional


def pooled(x: Tensor, block: int, how: str = "mean") -> Tensor:
    """One vector a block: (B, H, n, d) -> (B, H, blocks, d); the last block may be ragged.

    how: mean, max, min or variance (over the block's tokens).
    """
    n = x.shape[2]
    short = -n % block
    if how in ("max", "min"):
        sign = 1.0 if how == "max" else -1.0
        padded = functional.pad(sign * x, (0, 0, 0, short), value=-torch.inf)
        extreme: Tensor = sign * padded.unflatten(2, (-1, block)).amax(3)
        return extreme
    padded = functional.pad(x, (0, 0, 0, short))
    counts = torch.full((padded.shape[2] // block, 1), float(block), device=x.device)
    counts[-1] -= short
    mean: Tensor = padded.unflatten(2, (-1, block)).sum(3) / counts.to(x.dtype)
    if how == "mean":
        return mean
    if how != "variance":
        raise ValueError(f"how is {how!r}: expected mean, max, min or variance")
    squares: Tensor = (padded * padded).unflatten(2, (-1, block)).sum(3) / counts.to(x.dtype)
    return (squares - mean * mean).clamp_min(0)


def block_scores(q: Tensor, k: Tensor, block: int, causal: bool = False) -> Tensor:
    """softmax over key blocks of mean(q) . mean(k) / sqrt(d): float32 (B, H, blocks, blocks).

    SeerAttention's and MoBA's score without their parameters. Blocks above the diagonal have 0 with
    causal.
    """
    s: Tensor = pooled(q, block).float() @ pooled(k, block).float().mT / q.shape[-1] ** 0.5
    if causal:
        s = s.masked_fill(~lower(s.shape[-2], s.device), -torch.inf)
    return s.softmax(-1)


def top_k(scores: Tensor, count: int) -> Tensor:
    """The `count` best key blocks of each query block; fewer where there are fewer."""
    best = scores.topk(min(count, scores.shape[-1]), -1).indices
    return keep_ends(torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True))


def by_mass(scores: Tensor, mass: float) -> Tensor:
    """The fewest key blocks whose scores sum to `mass` of each row (FlexPrefill's gamma)."""
    ranked, order = scores.sort(-1, descending=True)
    before = ranked.cumsum(-1) - ranked
    return keep_ends(torch.zeros_like(order, dtype=torch.bool).scatter_(-1, order, before < mass))


def above(scores: Tensor, threshold: float) -> Tensor:
    """Key blocks with a score above `threshold`."""
    return keep_ends(scores > threshold)


def local(blocks: int, block: int, window: int, device: torch.device) -> Tensor:
    """Blocks that hold a pair at most window // 2 apart: (1, 1, blocks, blocks)."""
    return keep_ends(_apart(blocks, device) <= -(-(window // 2) // block))


def strided(blocks: int, stride: int, device: torch.device) -> Tensor:
    """The neighbouring blocks and every stride-th one."""
    every = torch.arange(blocks, device=device) % stride == 0
    return keep_ends((_apart(blocks, device) <= 1) | every)


def hierarchical(blocks: int, device: torch.device) -> Tensor:
    """Blocks a power of two apart: 2 log2(blocks) a row, LogSparse's distances (Li et al. 2019)."""
    apart = _apart(blocks, device)
    return keep_ends((apart & (apart - 1)) == 0)


def clustered(
    q: Tensor, k: Tensor, centroids: Tensor, temperature: Tensor, block: int
) -> tuple[Tensor, Tensor]:
    """Blocks whose pooled tokens share clusters, and the affinity that decides it.

    Affinity = sum over c of a_q a_k, a = softmax over clusters of the cosine to each centroid
    (H, clusters, d), divided by |temperature|. A pair is listed where it exceeds its row's mean, so
    the threshold follows 1 / clusters. affinity: (B, H, blocks, blocks), with gradients.
    """
    axes = functional.normalize(centroids, dim=-1).mT

    def assign(x: Tensor) -> Tensor:
        cosine = functional.normalize(pooled(x, block).float(), dim=-1) @ axes.float()
        return (cosine / temperature.abs()).softmax(-1)

    affinity = assign(q) @ assign(k).mT
    return keep_ends(affinity.detach() > affinity.detach().mean(-1, keepdim=True)), affinity


def keep_ends(visible: Tensor) -> Tensor:
    """The mask with its diagonal and its first key block: (..., blocks, blocks)."""
    ends = torch.eye(visible.shape[-1], dtype=torch.bool, device=visible.device)
    ends[:, 0] = True
    return visible | ends


def lower(blocks: int, device: torch.device) -> Tensor:
    """Blocks on the diagonal and below it."""
    return torch.ones(blocks, blocks, dtype=torch.bool, device=device).tril()


def _apart(blocks: int, device: torch.device) -> Tensor:
    at = torch.arange(blocks, device=device)
    return (at[:, None] - at).abs()[None, None]
