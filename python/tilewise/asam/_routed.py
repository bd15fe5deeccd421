"""The working layer's attention: each head runs sparse, dense or both, by block lists."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._attention import attention
from .._block_scores import pooled
from .._select import PoolWeights, select_block_mask
from .._spec import BlockList
from . import _select
from ._config import CHOICES, ASAMConfig
from ._gate import InputGate
from ._heads import merge_heads, split_heads

# Of a block's statistics. Means would hide the one token of a block that others look for.
_BY_EXTREMES = PoolWeights(mean=0.0, maximum=1.0, minimum=1.0)


class Pool:
    """Statistics of blocks of a batch's tokens, padding left out.

    counted: bool (B, 1, blocks, blocks), pairs of blocks with tokens in both; None without lengths,
    which extremes() needs.
    own: (B, 1, 1, 1), blocks of each sequence.
    """

    def __init__(self, size: int, n: int, key_lengths: Tensor | None) -> None:
        self.size = size
        self.counted: Tensor | None = None
        if key_lengths is None:
            return
        at = torch.arange(n, device=key_lengths.device)
        self.inside = (at < key_lengths[:, None])[:, None, :, None]
        self.shares = pooled(self.inside.float(), size)
        there = self.shares > 0
        self.own = there.sum(-2, keepdim=True)
        self.counted = there & there.mT

    def means(self, x: Tensor) -> Tensor:
        """(B, heads, n, d) -> (B, heads, blocks, d); 0 where no token counts."""
        if self.counted is None:
            return pooled(x, self.size)
        sums = pooled(x.masked_fill(~self.inside, 0.0), self.size)
        return sums / self.shares.where(self.shares > 0, 1.0).to(x.dtype)

    def extremes(self, x: Tensor) -> Tensor:
        """Maxima, then minima: (B, heads, blocks, 2 d); 0 where no token counts."""
        highest = pooled(x.masked_fill(~self.inside, -torch.inf), self.size, "max")
        lowest = pooled(x.masked_fill(~self.inside, torch.inf), self.size, "min")
        return torch.cat([highest, lowest], -1).masked_fill(self.shares == 0, 0.0)


class RoutedAttention(nn.Module):
    """a = g Sparse(q, k, v) + (1 - g) Dense(q, k, v), each only where its weight is not 0.

    One attention call has every head twice, as two query heads of one key head. The first has the
    blocks of its pattern, the second all blocks. If the gate routes a head past a list, the list is
    empty: its output is 0 and costs nothing. Training runs both, so the gate's gradient is exact.
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
        self.fixed = _select.FixedBlocks(config)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        key_lengths: Tensor | None = None,
        return_info: bool = True,
    ) -> tuple[Tensor, dict[str, Any] | None]:
        config = self.config
        gate, confidence, logits = self.gate(x, key_lengths)
        q, k, v = split_heads(self.to_qkv(x), config.num_heads)
        chosen, one_hot = self._choose(logits)
        pool = Pool(config.block_size, x.shape[1], key_lengths)
        blocks, weight = self._blocks(q, k, pool, chosen, one_hot)
        runs_sparse, runs_dense, g = self._route(gate)
        shown = _doubled(blocks, runs_sparse, runs_dense)
        if pool.counted is not None:
            shown = shown & pool.counted
        o = attention(
            q.repeat_interleave(2, dim=1),
            k,
            v,
            mask=_of_both(mask),
            causal="top_left" if config.causal else False,
            key_lengths=key_lengths,
            layout="bhsd",
            block_list=BlockList.from_blocks(shown, config.block_size),
        )
        sparse, dense = o.unflatten(1, (-1, 2)).unbind(2)
        g = g[..., None, None].to(o.dtype)
        mixed = torch.lerp(dense, sparse if weight is None else weight.to(o.dtype) * sparse, g)
        y = self.to_out(merge_heads(mixed))
        if not return_info:
            return y, None
        density = self._density(blocks, pool)
        return y, {
            "gate_values": gate.unsqueeze(-1).expand(-1, -1, x.shape[1]),
            "confidence": confidence,
            "pattern_logits": logits,
            "sparse_ratio": (gate > 0.5).float().mean(),
            "pattern": chosen,
            "density": density,
            "density_run": (density * runs_sparse + runs_dense).mean(),
            "blocks": blocks,
        }

    def _density(self, blocks: Tensor, pool: "Pool") -> Tensor:
        """The share of the blocks that each head may see: (B, heads)."""
        count: Tensor | int = blocks.shape[-1]
        if pool.counted is not None:
            blocks = blocks & pool.counted
            count = pool.own.flatten(1).clamp_min(1)
        if not self.config.causal:
            return blocks.sum((-2, -1)) / count**2
        listed = blocks & _select.lower(blocks.shape[-1], blocks.device)
        return listed.sum((-2, -1)) / (count * (count + 1) / 2)

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """The pattern of each head, int64 (B, heads), and its one-hot where gradients are wanted.

        Fixed, the argmax, or in training a Gumbel draw of it, straight-through.
        """
        if self.config.pattern_type != "auto":
            index = torch.full_like(
                logits[..., 0], CHOICES.index(self.config.pattern_type), dtype=torch.int64
            )
            return index, None
        if not self.training:
            return logits.argmax(-1), None
        one_hot = functional.gumbel_softmax(logits, hard=True)
        return one_hot.argmax(-1), one_hot

    def _blocks(
        self, q: Tensor, k: Tensor, pool: "Pool", chosen: Tensor, one_hot: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The chosen mask of blocks (B, heads, blocks, blocks), and 1 as a weight (B, heads, 1, 1).

        The weight carries the gradients of the choice and of the centroids, straight through. It is
        None where no gradient is wanted.
        """
        config = self.config
        trained = torch.is_grad_enabled()
        may = CHOICES if config.pattern_type == "auto" else (config.pattern_type,)
        size = config.block_size
        fixed = self.fixed.of(-(-q.shape[2] // size), q.device)
        blocks = fixed[chosen] | fixed[-1]
        # DDP wants every parameter in every graph, so training always asks the centroids.
        by_clusters = trained or "clustered" in may
        if by_clusters:
            affinity = _select.clustered(
                pool.means(q), pool.means(k), self.centroids, self.temperature
            )
            near = _select.above_mean(affinity, pool.counted)
            blocks = blocks | (_picks(chosen, "clustered") & near)
        if "selected" in may:
            if pool.counted is None:
                best = select_block_mask(
                    q,
                    k,
                    size,
                    count=max(1, round(config.density * fixed.shape[-1])),
                    causal=config.causal,
                    weights=_BY_EXTREMES,
                    layout="bhsd",
                )
            else:
                count = (config.density * pool.own).round().clamp_min(1)
                scores = pool.extremes(q) @ pool.extremes(k).mT
                best = _select.best(scores, count, pool.counted, config.causal)
            blocks = blocks | (_picks(chosen, "selected") & best)
        if not trained:
            return blocks, None
        near = near | fixed[-1]
        if pool.counted is not None:
            near = near & pool.counted
        count = near.sum((-2, -1), keepdim=True).clamp_min(1)
        shared = (affinity * near).sum((-2, -1), keepdim=True) / count
        soft = _picks(chosen, "clustered") * shared
        if one_hot is not None:
            soft = soft + (one_hot * one_hot.detach()).sum(-1)[..., None, None]
        return blocks, 1 + soft - soft.detach()

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


def _of_both(mask: Tensor | None) -> Tensor | None:
    """A mask for heads that stand twice."""
    if mask is None or mask.dim() < 3 or mask.shape[-3] == 1:
        return mask
    return mask.repeat_interleave(2, dim=-3)


def _doubled(blocks: Tensor, runs_sparse: Tensor, runs_dense: Tensor) -> Tensor:
    """The blocks of both copies of each head: (B, 2 heads, blocks, blocks)."""
    sparse = blocks & runs_sparse[..., None, None]
    dense = runs_dense[..., None, None].expand_as(blocks)
    return torch.stack([sparse, dense], 2).flatten(1, 2)


def _picks(chosen: Tensor, name: str) -> Tensor:
    """Where a head chose a pattern: bool (B, heads, 1, 1)."""
    return (chosen == CHOICES.index(name))[..., None, None]
