"""The published gate, and the one that sees the input (docs/asam.md, "The gate")."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._block_scores import pooled


class AdaptiveGate(nn.Module):
    """How far each head attends sparsely: g = sigmoid((t - c) p / |tau|).

    forward: x (B, n, dim) -> g (B, heads, n), confidence (B, heads), pattern logits (B, 4).
    c is the estimated complexity and p the confidence, both from pooled features. t and tau are
    learned. The input is LayerNorm's output, whose features sum to 0 (for gamma = 1, beta = 0).
    Pooling sums over that axis, so the published gate is a constant.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        hidden_dim: int = 128,
        num_pools: int = 4,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.temperature = temperature  # published, and read by no published code
        self.bins = [max(1, dim // 2**i) for i in range(num_pools)]
        self.feature_proj = nn.Sequential(
            nn.Linear(sum(self.bins), hidden_dim),
            nn.LayerNorm(hidden_dim),
            nn.GELU(),
            nn.Dropout(0.1),
        )
        self.complexity_estimator = _head(hidden_dim, num_heads)
        self.confidence_predictor = _head(hidden_dim, num_heads, nn.Sigmoid())
        self.pattern_selector = _head(hidden_dim, 4)
        self.sparse_threshold = nn.Parameter(torch.full((num_heads,), 0.5))
        self.gate_temp = nn.Parameter(torch.full((1,), 0.1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.feature_proj(self._pooled(x))
        complexity = self.complexity_estimator(features)
        confidence = self.confidence_predictor(features)
        gate = ((self.sparse_threshold - complexity) * confidence / self.gate_temp.abs()).sigmoid()
        gate = gate.unsqueeze(-1).expand(-1, -1, x.shape[1])
        return gate, confidence, self.pattern_selector(features)

    def _pooled(self, x: Tensor) -> Tensor:
        """The weighted sum over features of each pooled token, (B, sum of bins)."""
        tokens = x.transpose(1, 2).contiguous()  # its strides' kernel fails at long n
        bins = torch.cat([functional.adaptive_avg_pool1d(tokens, b) for b in self.bins], -1)
        bins = bins.transpose(1, 2)
        # mean_j(bins . x_j) = bins . mean_j(x_j): no (bins, n) matrix.
        weights = (bins @ x.mean(1).unsqueeze(-1)).softmax(1)
        return (bins * weights).sum(2)


class InputGate(nn.Module):
    """The published gate's formula on features that the input changes.

    forward: x (B, n, dim) -> g (B, heads), confidence (B, heads), pattern logits
    (B, heads, choices). Features: mean over tokens, and maximum and variance over tokens of x
    averaged in windows of each of WINDOWS tokens; all dim features are kept.
    """

    WINDOWS = (1, 8, 64)

    def __init__(self, dim: int, num_heads: int, hidden_dim: int, choices: int) -> None:
        super().__init__()
        self.choices = choices
        self.feature_proj = nn.Sequential(
            nn.Linear(dim * (1 + 2 * len(self.WINDOWS)), hidden_dim),
            nn.LayerNorm(hidden_dim),
            nn.GELU(),
            nn.Dropout(0.1),
        )
        self.complexity_estimator = _head(hidden_dim, num_heads)
        self.confidence_predictor = _head(hidden_dim, num_heads, nn.Sigmoid())
        self.pattern_selector = _head(hidden_dim, num_heads * choices)
        self.sparse_threshold = nn.Parameter(torch.full((num_heads,), 0.5))
        self.gate_temp = nn.Parameter(torch.full((1,), 0.1))

    def forward(self, x: Tensor, key_lengths: Tensor | None = None) -> tuple[Tensor, ...]:
        features = self.feature_proj(self._pooled(x, key_lengths))
        complexity = self.complexity_estimator(features)
        confidence = self.confidence_predictor(features)
        gate = ((self.sparse_threshold - complexity) * confidence / self.gate_temp.abs()).sigmoid()
        logits = self.pattern_selector(features).unflatten(-1, (-1, self.choices))
        return gate, confidence, logits

    def _pooled(self, x: Tensor, key_lengths: Tensor | None) -> Tensor:
        """(B, dim (1 + 2 windows)); tokens at and past key_lengths (B) do not count."""
        if key_lengths is not None:
            return self._pooled_within(x, key_lengths)
        statistics = [x.mean(1)]
        for window in self.WINDOWS:
            means = x if window == 1 else pooled(x, window, dim=1)
            statistics += [means.amax(1), means.var(1, correction=0)]
        return torch.cat(statistics, -1)

    def _pooled_within(self, x: Tensor, key_lengths: Tensor) -> Tensor:
        n = x.shape[1]
        at = torch.arange(n, device=x.device)
        counts = (at < key_lengths[:, None]).to(x.dtype).unsqueeze(-1)
        statistics = [(x * counts).sum(1) / counts.sum(1).clamp_min(1)]
        for window in self.WINDOWS:
            shares = pooled(counts, window, dim=1)  # of the window's tokens that count
            seen = shares > 0
            means = pooled(x * counts, window, dim=1) / shares.where(seen, 1.0)
            highest = means.masked_fill(~seen, -torch.inf).amax(1)
            weights = seen.to(x.dtype) / seen.sum(1, keepdim=True).clamp_min(1)
            mean = (means * weights).sum(1, keepdim=True)
            variance = ((means - mean).square() * weights).sum(1)
            statistics += [highest.where(highest.isfinite(), 0.0), variance]
        return torch.cat(statistics, -1)


def _head(hidden_dim: int, outputs: int, *last: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(hidden_dim, hidden_dim // 2),
        nn.ReLU(),
        nn.Linear(hidden_dim // 2, outputs),
        *last,
    )
