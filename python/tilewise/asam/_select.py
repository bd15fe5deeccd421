"""Which blocks of pairs a head attends: the working layer's patterns, as masks of blocks.

A mask of blocks is bool (B|1, H|1, query blocks, key blocks); nothing here is as large as n x n.
A layer adds ends() to what a pattern chose, so that no row is left without keys.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ._config import CHOICES, ASAMConfig


def local(blocks: int, block: int, window: int, device: torch.device) -> Tensor:
    """Blocks that hold a pair at most window // 2 apart: (blocks, blocks)."""
    return _apart(blocks, device) <= -(-(window // 2) // block)


def strided(blocks: int, stride: int, device: torch.device) -> Tensor:
    """The neighbouring blocks and every stride-th one."""
    every = torch.arange(blocks, device=device) % stride == 0
    return (_apart(blocks, device) <= 1) | every


def hierarchical(blocks: int, device: torch.device) -> Tensor:
    """Blocks a power of two apart: 2 log2(blocks) a row, LogSparse's distances (Li et al. 2019)."""
    apart = _apart(blocks, device)
    return (apart & (apart - 1)) == 0


def clustered(q: Tensor, k: Tensor, centroids: Tensor, temperature: Tensor) -> Tensor:
    """How far blocks share clusters: (B, H, query blocks, key blocks), with gradients.

    The affinity is the sum over c of a_q a_k, a = softmax over clusters of the cosine to each
    centroid (H, clusters, d), divided by |temperature|. q, k: pooled tokens (B, H, blocks, d).
    """
    both = functional.normalize(torch.stack([q, k]).float(), dim=-1)
    axes = functional.normalize(centroids, dim=-1) / temperature.abs()
    of_q, of_k = (both @ axes.float().mT).softmax(-1)
    affinity: Tensor = of_q @ of_k.mT
    return affinity


def above_mean(affinity: Tensor, counted: Tensor | None = None) -> Tensor:
    """Pairs above their row's mean, so that the threshold follows 1 / clusters.

    counted: bool, pairs of blocks that are no padding; the others are in no mean.
    """
    affinity = affinity.detach()
    if counted is None:
        return affinity > affinity.mean(-1, keepdim=True)
    mean = (affinity * counted).sum(-1, keepdim=True) / counted.sum(-1, keepdim=True).clamp_min(1)
    return (affinity > mean) & counted


def best(scores: Tensor, count: Tensor, counted: Tensor, causal: bool) -> Tensor:
    """The `count` (B, 1, 1, 1) largest scores of each row, of pairs that are no padding."""
    may = counted & lower(scores.shape[-1], scores.device) if causal else counted
    scores = scores.detach().masked_fill(~may, -torch.inf)
    rank = scores.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return (rank < count) & may


def ends(blocks: int, device: torch.device) -> Tensor:
    """The diagonal and the first key block: (blocks, blocks)."""
    kept = torch.eye(blocks, dtype=torch.bool, device=device)
    kept[:, 0] = True
    return kept


def lower(blocks: int, device: torch.device) -> Tensor:
    """Blocks on the diagonal and below it."""
    return torch.ones(blocks, blocks, dtype=torch.bool, device=device).tril()


def _apart(blocks: int, device: torch.device) -> Tensor:
    at = torch.arange(blocks, device=device)
    return (at[:, None] - at).abs()


class FixedBlocks:
    """The patterns that position alone decides, made once for a number of blocks and a device."""

    def __init__(self, config: ASAMConfig) -> None:
        self.config = config
        self.masks: Tensor | None = None

    def of(self, blocks: int, device: torch.device) -> Tensor:
        """bool (CHOICES + 1, blocks, blocks): each choice's pattern, then ends().

        A pattern that q and k decide is empty here.
        """
        masks = self.masks
        if masks is None or masks.shape[-1] != blocks or masks.device != device:
            masks = self._make(blocks, device)
            # A tensor of a trace (FakeTensor and its like) must not outlive it.
            self.masks = masks if type(masks) is Tensor else None
        return masks

    def _make(self, blocks: int, device: torch.device) -> Tensor:
        size = self.config.block_size
        stride = max(2, self.config.stride // size)
        made = {
            "local": local(blocks, size, self.config.window_size, device),
            "strided": strided(blocks, stride, device),
            "hierarchical": hierarchical(blocks, device),
        }
        nothing = torch.zeros(blocks, blocks, dtype=torch.bool, device=device)
        return torch.stack([made.get(name, nothing) for name in CHOICES] + [ends(blocks, device)])
