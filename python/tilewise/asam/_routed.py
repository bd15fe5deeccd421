"""The working layer's attention: each head runs sparse, dense or both, by block lists."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._attention import attention
from .._spec import BlockList
from . import _select
from ._config import CHOICES, ASAMConfig
from ._gate import InputGate
from ._heads import merge_heads, split_heads


class RoutedAttention(nn.Module):
    """a = g Sparse(q, k, v) + (1 - g) Dense(q, k, v), each only where its weight is not 0.

    Every head stands twice in one attention call, as two query heads of one key head: the first
    with the blocks of its pattern, the second with all. A list is empty where the gate routes the
    head past it; its output is 0 there and costs nothing. Training runs both, so that the gate's
    gradient is exact.
    """

    def __init__(self, config: ASAMConfig) -> None:
        super().__init__()
        self.config = config
        inner = config.num_heads * config.dim_head
        self.to_qkv = nn.Linear(config.dim, 3 * inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, config.dim), nn.Dropout(config.dropout))
        self.gate = InputGate(config.dim, config.num_heads, config.gate_hidden_dim, len(CHOICES))
        shape = (config.num_heads, config.num_clusters, config.dim_head)
        self.centroids = nn.Parameter(torch.randn(shape) * 0.02)
        self.temperature = nn.Parameter(torch.full((1,), 0.5))

    def forward(
        self, x: Tensor, mask: Tensor | None = None, key_lengths: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        config = self.config
        gate, confidence, logits = self.gate(x, key_lengths)
        q, k, v = split_heads(self.to_qkv(x), config.num_heads)
        choice = self._choose(logits)
        blocks, weight = self._blocks(*_within(q, k, key_lengths), choice)
        runs_sparse, runs_dense, g = self._route(gate)
        shown = _doubled(blocks, runs_sparse, runs_dense)
        o = attention(
            q.repeat_interleave(2, dim=1),
            k,
            v,
            mask=mask,
            causal="top_left" if config.causal else False,
            key_lengths=key_lengths,
            layout="bhsd",
            block_list=BlockList.from_blocks(shown, config.block_size),
        )
        sparse, dense = o.unflatten(1, (-1, 2)).unbind(2)
        g = g[..., None, None].to(o.dtype)
        y = self.to_out(merge_heads(g * weight.to(o.dtype) * sparse + (1 - g) * dense))
        listed = blocks & _select.lower(blocks.shape[-1], x.device) if config.causal else blocks
        every = (
            listed.shape[-1] * (listed.shape[-1] + 1) / 2 if config.causal else listed[0, 0].numel()
        )
        density = listed.sum((-2, -1)) / every
        info = {
            "gate_values": gate.unsqueeze(-1).expand(-1, -1, x.shape[1]),
            "confidence": confidence,
            "pattern_logits": logits,
            "sparse_ratio": (gate > 0.5).float().mean(),
            "pattern": choice.argmax(-1),
            "density": density,
            "density_run": (density * runs_sparse + runs_dense).mean(),
            "blocks": blocks,
        }
        return y, info

    def _choose(self, logits: Tensor) -> Tensor:
        """One-hot (B, heads, choices): fixed, the argmax, or in training a Gumbel draw of it."""
        if self.config.pattern_type != "auto":
            index = CHOICES.index(self.config.pattern_type)
            return (
                functional.one_hot(torch.tensor(index), len(CHOICES)).to(logits).expand_as(logits)
            )
        if self.training:
            return functional.gumbel_softmax(logits, hard=True)  # straight-through
        return functional.one_hot(logits.argmax(-1), len(CHOICES)).to(logits.dtype)

    def _blocks(self, q: Tensor, k: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
        """The chosen mask of blocks (B, heads, blocks, blocks), and 1 as a weight (B, heads, 1, 1).

        The weight carries the gradients of the choice and of the centroids, straight through.
        """
        config = self.config
        size, device = config.block_size, q.device
        count = -(-q.shape[2] // size)
        near, affinity = _select.clustered(q, k, self.centroids, self.temperature, size)
        masks = {
            "local": _select.local(count, size, config.window_size, device),
            "strided": _select.strided(count, max(2, config.stride // size), device),
            "clustered": near,
            "hierarchical": _select.hierarchical(count, device),
        }
        if config.pattern_type in ("auto", "selected"):  # the one pattern that costs a product
            with torch.no_grad():
                scores = _select.block_scores(q, k, size, config.causal)
            masks["selected"] = _select.top_k(scores, max(1, round(config.density * count)))
        picked = choice.detach() > 0.5
        blocks = torch.zeros_like(near)
        for name, mask in masks.items():
            blocks = blocks | (picked[..., CHOICES.index(name), None, None] & mask)
        soft = (choice * choice.detach()).sum(-1)
        shared = (affinity * near).sum((-2, -1)) / near.sum((-2, -1))
        soft = soft + choice[..., CHOICES.index("clustered")].detach() * shared
        return blocks, (1 + soft - soft.detach())[..., None, None]

    def _route(self, gate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which heads run sparse and dense, bool (B, heads), and the gate that mixes them."""
        config = self.config
        if not config.use_adaptive_gate:
            always = torch.ones_like(gate, dtype=torch.bool)
            return always, ~always, torch.ones_like(gate)
        if self.training:
            always = torch.ones_like(gate, dtype=torch.bool)
            return always, always, gate
        runs_sparse = gate > 1 - config.route_above
        runs_dense = gate < config.route_above
        return runs_sparse, runs_dense, gate.where(runs_sparse, 0.0).where(runs_dense, 1.0)


def _doubled(blocks: Tensor, runs_sparse: Tensor, runs_dense: Tensor) -> Tensor:
    """The blocks of both copies of each head: (B, 2 heads, blocks, blocks)."""
    sparse = blocks & runs_sparse[..., None, None]
    dense = runs_dense[..., None, None].expand_as(blocks)
    return torch.stack([sparse, dense], 2).flatten(1, 2)


def _within(q: Tensor, k: Tensor, key_lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """q and k with zeros past the lengths, so that nothing there takes part in a choice."""
    if key_lengths is None:
        return q, k
    at = torch.arange(q.shape[2], device=q.device)
    past = (at >= key_lengths[:, None])[:, None, :, None]
    return q.masked_fill(past, 0.0), k.masked_fill(past, 0.0)
