"""The published sparse patterns as boolean masks, True = the pair attends (docs/asam.md).

Each costs O(n^2) memory, as published; the working layer uses block lists instead.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from ._config import ASAMConfig


class Pattern(nn.Module):
    """A pattern for one length. mask: bool, broadcasts to (B, heads, n, n), on the device of q."""

    def mask(self, q: Tensor, k: Tensor) -> Tensor:
        """q, k: (B, heads, n, d), read by patterns that depend on them."""
        raise NotImplementedError

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.mask(q, k)


class FixedPattern(Pattern):
    """A pattern that position alone decides: make(*arguments)."""

    pattern: Tensor

    def __init__(self, make: Callable[..., Tensor], *arguments: int) -> None:
        super().__init__()
        self._recipe = make, arguments
        self.register_buffer("pattern", make(*arguments), persistent=False)

    def renew(self) -> None:
        """Makes the mask again, in place: no file holds it."""
        make, arguments = self._recipe
        self.pattern.copy_(make(*arguments))

    def mask(self, q: Tensor, k: Tensor) -> Tensor:
        if self.pattern.device != q.device:  # it stays where it is needed
            self.pattern = self.pattern.to(q.device)
        return self.pattern


class LocalPattern(FixedPattern):
    """Pairs at most window_size // 2 apart. mask: (n, n)."""

    def __init__(self, n: int, window_size: int = 128) -> None:
        super().__init__(_local, n, window_size)


class StridedPattern(FixedPattern):
    """Pairs at most local_window apart, and every stride-th key. mask: (n, n)."""

    def __init__(self, n: int, stride: int = 32, local_window: int = 16) -> None:
        super().__init__(_strided, n, stride, local_window)


class RandomPattern(FixedPattern):
    """num_random keys a row, drawn anew for each row and head. mask: (heads, n, n).

    Head h draws from a generator seeded with 42 + h. The published code seeds torch's global
    generator instead, which makes every later draw of the program repeat.
    """

    def __init__(self, n: int, num_heads: int = 8, num_random: int = 128) -> None:
        super().__init__(_random, n, num_heads, num_random)


class ClusteredPattern(Pattern):
    """Pairs whose soft cluster assignments have a product above 0.1. mask: (B, heads, n, n).

    With 32 clusters every product is near 1/32, and no pair attends; with 8 clusters it is near
    1/8, and all do. The threshold passes no gradient to the centroids.
    """

    def __init__(self, num_clusters: int = 32, num_heads: int = 8, dim_head: int = 64) -> None:
        super().__init__()
        self.centroids = nn.Parameter(torch.randn(num_heads, num_clusters, dim_head) * 0.02)
        self.temperature = nn.Parameter(torch.full((1,), 0.5))

    def assign(self, x: Tensor) -> Tensor:
        """Cluster probabilities (B, heads, n, clusters) of queries or keys (B, heads, n, d)."""
        centroids = functional.normalize(self.centroids, dim=-1)
        similarity = functional.normalize(x, dim=-1) @ centroids.transpose(-2, -1)
        return (similarity / self.temperature.abs()).softmax(-1)

    def mask(self, q: Tensor, k: Tensor) -> Tensor:
        with torch.no_grad():
            return self.assign(q) @ self.assign(k).transpose(-2, -1) > 0.1


class HierarchicalPattern(Pattern):
    """A vote of three strided patterns with softmax weights per head. mask: (heads, n, n)."""

    SCALES = (4, 16, 64)

    def __init__(self, n: int, num_heads: int = 8) -> None:
        super().__init__()
        strided = [StridedPattern(n, stride=s, local_window=s // 4) for s in self.SCALES]
        self.patterns = nn.ModuleList(strided)
        self.scale_weights = nn.Parameter(torch.ones(len(self.SCALES), num_heads))

    def mask(self, q: Tensor, k: Tensor) -> Tensor:
        with torch.no_grad():
            weights = self.scale_weights.softmax(0)
            votes = torch.stack([p(q, k) for p in self.patterns])
            return torch.einsum("sh,sij->hij", weights, votes.to(weights.dtype)) > 0.5


def make_pattern(config: ASAMConfig, n: int) -> Pattern:
    """The pattern of a layer for sequences of n tokens."""
    match config.pattern_type:
        case "local":
            return LocalPattern(n, config.window_size)
        case "strided":
            return StridedPattern(n, config.stride)
        case "random":
            return RandomPattern(n, config.num_heads)
        case "clustered":
            return ClusteredPattern(config.num_clusters, config.num_heads, config.dim_head)
        case _:
            return HierarchicalPattern(n, config.num_heads)


def _local(n: int, window_size: int) -> Tensor:
    return _distance(n) <= window_size // 2


def _strided(n: int, stride: int, local_window: int) -> Tensor:
    return (_distance(n) <= local_window) | (torch.arange(n) % stride == 0)


def _random(n: int, num_heads: int, num_random: int) -> Tensor:
    pattern = torch.zeros(num_heads, n, n, dtype=torch.bool)
    for h in range(num_heads):
        generator = torch.Generator().manual_seed(42 + h)
        for i in range(n):
            pattern[h, i, torch.randperm(n, generator=generator)[:num_random]] = True
    return pattern


def _distance(n: int) -> Tensor:
    at = torch.arange(n)
    return (at[:, None] - at).abs()
