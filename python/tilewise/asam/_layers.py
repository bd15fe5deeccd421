"""ASAM's layers on tilewise's attention, published and working (docs/asam.md).

Every layer takes x (B, n, dim) and an optional mask: bool, True = attend, broadcast to
(B, heads, n, n). It returns (y, info): y is (B, n, dim), and info is a dict if return_info is set,
else None. Parameters have the published names, so published checkpoints load.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from .._attention import attention
from ._config import ASAMConfig
from ._gate import AdaptiveGate
from ._heads import both, feed_forward, masked_attention, merge_heads, split_heads
from ._patterns import Pattern, make_pattern
from ._routed import RoutedAttention

Info = dict[str, Any]
# As large as the layer's input, and half of the forward's time on a CPU: kept there, not run again
# in backward. A GPU would wait for Python, which is asked about every operator.
_KEPT = ("tilewise::attention_forward", "tilewise::select_blocks")


def _kept_by_checkpoints(
    context: Any, operator: Any, *arguments: Any, **options: Any
) -> CheckpointPolicy:
    kept = operator.name() in _KEPT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


class DynamicSparseDenseAttention(nn.Module):
    """a = g Sparse(q, k, v) + (1 - g) Dense(q, k, v), g from the gate; then the projection."""

    def __init__(
        self, dim: int, num_heads: int = 8, dim_head: int = 64, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        inner = num_heads * dim_head
        self.to_qkv = nn.Linear(dim, 3 * inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))
        self.gate = AdaptiveGate(dim, num_heads)

    def forward(
        self, x: Tensor, pattern: Pattern, mask: Tensor | None = None
    ) -> tuple[Tensor, Info]:
        gate, confidence, pattern_logits = self.gate(x)
        q, k, v = split_heads(self.to_qkv(x), self.num_heads)
        sparse = masked_attention(q, k, v, both(pattern.mask(q, k), mask))
        dense = masked_attention(q, k, v, mask)
        g = gate.unsqueeze(-1).to(sparse.dtype)
        y = self.to_out(merge_heads(g * sparse + (1 - g) * dense))
        info = {
            "gate_values": gate,
            "confidence": confidence,
            "pattern_logits": pattern_logits,
            "sparse_ratio": (gate > 0.5).float().mean().item(),
        }
        return y, info


class ASAMLayer(nn.Module):
    """Pre-norm attention and feed-forward network: x + A(LN x), then x + F(LN x).

    mode "faithful" is the published layer, the report's "Original". Its "sparse" path computes n^2
    scores. mode "adaptive" is RoutedAttention, with key_lengths, int32 (B): tokens of each
    sequence. No token attends to padding, and no choice reads it.
    """

    def __init__(self, config: ASAMConfig) -> None:
        super().__init__()
        self.config = config
        inner = config.dim_head * config.num_heads
        self.to_qkv = nn.Linear(config.dim, inner * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, config.dim), nn.Dropout(config.dropout))
        self.norm = nn.LayerNorm(config.dim)
        self.ffn = feed_forward(config.dim, config.dropout)
        self.ffn_norm = nn.LayerNorm(config.dim)
        self.adaptive_attn: nn.Module | None = None
        if config.mode == "adaptive":
            self.adaptive_attn = RoutedAttention(config)
        elif config.use_adaptive_gate:
            self.adaptive_attn = DynamicSparseDenseAttention(
                config.dim, config.num_heads, config.dim_head, config.dropout
            )
        self._pattern_modules = nn.ModuleDict()

    def pattern(self, n: int, device: torch.device) -> Pattern:
        """The published pattern for n tokens, made at the first call with n.

        As published, its parameters come into being there: an optimizer made earlier does not
        train them, and each length has its own.
        """
        key = f"{self.config.pattern_type}_{n}"
        if key not in self._pattern_modules:
            self._pattern_modules[key] = make_pattern(self.config, n).to(device)
        pattern = self._pattern_modules[key]
        assert isinstance(pattern, Pattern)
        return pattern

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        return_info: bool = False,
        key_lengths: Tensor | None = None,
    ) -> tuple[Tensor, Info | None]:
        again = self.config.use_gradient_checkpointing
        if self.config.mode == "faithful":
            if key_lengths is not None:
                raise ValueError("key_lengths is given: the published layer has none")
            y, info = self._forward(x, mask, None, return_info)
        elif again and again != "ffn" and self.training:
            keeping: Any = partial(create_selective_checkpoint_contexts, _kept_by_checkpoints)
            y, info = checkpoint(
                self._forward,
                x,
                mask,
                key_lengths,
                return_info,
                use_reentrant=False,
                context_fn=keeping if x.device.type == "cpu" else noop_context_fn,
            )
        else:
            y, info = self._forward(x, mask, key_lengths, return_info)
        return y, info if return_info else None

    def _forward(
        self, x: Tensor, mask: Tensor | None, key_lengths: Tensor | None, return_info: bool
    ) -> tuple[Tensor, Info | None]:
        h = self.norm(x)
        info: Info | None = {}
        if self.config.mode == "adaptive":
            assert self.adaptive_attn is not None
            a, info = self.adaptive_attn(h, mask, key_lengths, return_info)
        elif self.adaptive_attn is not None:
            a, info = self.adaptive_attn(h, self.pattern(x.shape[1], x.device), mask)
        else:
            q, k, v = split_heads(self.to_qkv(h), self.config.num_heads)
            pattern = self.pattern(x.shape[1], x.device)
            o = masked_attention(q, k, v, both(pattern.mask(q, k), mask))
            a = self.to_out(merge_heads(o))
        x = x + a
        again = self.config.mode == "adaptive" and self.training
        if again and self.config.use_gradient_checkpointing == "ffn":
            fed: Tensor = checkpoint(self._feed, x, use_reentrant=False)
            return x + fed, info
        return x + self._feed(x), info

    def _feed(self, x: Tensor) -> Tensor:
        y: Tensor = self.ffn(self.ffn_norm(x))
        return y

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Loads the other mode's checkpoint too: what only one mode has keeps its value here.

        Makes the pattern modules that a published checkpoint has, and drops the masks in it.
        """
        for name in [n for n in state if n.startswith(f"{prefix}_pattern_modules.")]:
            kind, _, n = name[len(prefix) :].split(".")[1].rpartition("_")
            faithful = self.config.mode == "faithful" and kind == self.config.pattern_type
            if faithful and not name.endswith("_cached_pattern"):
                self.pattern(int(n), self.norm.weight.device)
            else:
                del state[name]
        own = self.state_dict(prefix=prefix)
        if f"{prefix}adaptive_attn.centroids" in state:  # the adaptive mode's: it has no patterns
            patterns = f"{prefix}_pattern_modules."
            state.update({n: x for n, x in own.items() if n.startswith(patterns)})
        mixed = [f"{prefix}adaptive_attn.{part}" for part in ("gate.", "centroids", "temperature")]
        for name in [n for n in {**state, **own} if n.startswith(tuple(mixed))]:
            if name not in own:
                del state[name]
            elif name not in state or state[name].shape != own[name].shape:
                state[name] = own[name]
        super()._load_from_state_dict(state, prefix, *arguments)


class ASAMEncoder(nn.Module):
    """A stack of ASAMLayer and a LayerNorm: x -> y (B, n, dim), or every layer's output."""

    def __init__(self, config: ASAMConfig, num_layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            ASAMLayer(replace(config, use_gradient_checkpointing=again))
            for again in layers_run_again(num_layers, config.use_gradient_checkpointing)
        )
        self.norm = nn.LayerNorm(config.dim)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        return_all_layers: bool = False,
        key_lengths: Tensor | None = None,
    ) -> Tensor | list[Tensor]:
        outputs = []
        for layer in self.layers:
            x, _ = layer(x, mask, key_lengths=key_lengths)
            outputs.append(x)
        return outputs if return_all_layers else self.norm(x)


class _OneNormLayer(nn.Module):
    """What the published layers without a second norm share: x + W_o A(LN x), then x + F(x).

    Takes x (B, n, dim). bias: of the projections.
    """

    def __init__(
        self, dim: int, num_heads: int, window_size: int, dropout: float, bias: bool
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.window_size = window_size
        self.qkv = nn.Linear(dim, dim * 3, bias=bias)
        self.out_proj = nn.Linear(dim, dim, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(dim)
        self.ffn = feed_forward(dim, dropout)
        for projection in (self.qkv, self.out_proj):
            nn.init.xavier_uniform_(projection.weight)
            if bias:
                nn.init.zeros_(projection.bias)

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Attention (B, heads, n, d) with dropout on the probabilities in training."""
        p = self.dropout.p if self.training else 0.0
        o: Tensor = attention(q, k, v, layout="bhsd", dropout_p=p, **options)
        return o

    def _close(self, x: Tensor, o: Tensor) -> Tensor:
        """The rest of the layer behind attention's O (B, heads, n, d)."""
        x = x + self.dropout(self.out_proj(merge_heads(o)))
        y: Tensor = x + self.ffn(x)
        return y


class EfficientASAMLayer(_OneNormLayer):
    """Attention over a local window, by a window where the published code builds an n x n mask.

    As published, the projections have no bias and the feed-forward network no norm before it.
    Dropout acts on the probabilities too. The window applies only to more than window_size tokens.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        window_size: int = 128,
        dropout: float = 0.1,
        use_local_attention: bool = True,
    ) -> None:
        super().__init__(dim, num_heads, window_size, dropout, bias=False)
        self.use_local_attention = use_local_attention

    def forward(
        self, x: Tensor, mask: Tensor | None = None, return_info: bool = False
    ) -> tuple[Tensor, Info | None]:
        n = x.shape[1]
        q, k, v = split_heads(self.qkv(self.norm(x)), self.num_heads)
        half = self.window_size // 2
        window = (half, half) if self.use_local_attention and n > self.window_size else None
        y = self._close(x, self._attention(q, k, v, window=window, mask=mask))
        local = self.use_local_attention
        info = {"sparse_ratio": 1.0 - self.window_size / n if local else 1.0}
        return y, info if return_info else None


class FlashASAMLayer(EfficientASAMLayer):
    """The report's "Flash": dense attention. window_size changes nothing, as published."""

    def __init__(
        self, dim: int, num_heads: int = 8, window_size: int = 128, dropout: float = 0.1
    ) -> None:
        super().__init__(dim, num_heads, window_size, dropout, use_local_attention=False)


class OptimizedASAMLayer(_OneNormLayer):
    """Local attention, or the mean of local attention and attention to every stride-th key.

    As published, keys before the first and after the last token are zeros that take probability.
    The gate is computed and not used. mask is not read. Dropout acts on the probabilities.
    """

    STRIDE, LOCAL_WINDOW = 32, 16

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        window_size: int = 128,
        dropout: float = 0.1,
        use_adaptive_gate: bool = True,
        pattern_type: str = "local",
    ) -> None:
        super().__init__(dim, num_heads, window_size, dropout, bias=True)
        self.pattern_type = pattern_type
        self.adaptive_gate = AdaptiveGate(dim) if use_adaptive_gate else None

    def forward(
        self, x: Tensor, mask: Tensor | None = None, return_info: bool = False
    ) -> tuple[Tensor, Info | None]:
        batch, n, _ = x.shape
        h = self.norm(x)
        q, k, v = split_heads(self.qkv(h), self.num_heads)
        if self.pattern_type == "strided":
            o = (self._local(q, k, v, self.LOCAL_WINDOW) + self._strided(q, k, v)) / 2
        else:
            o = self._local(q, k, v, self.window_size // 2)
        y = self._close(x, o)
        if not return_info:
            return y, None
        if self.adaptive_gate is not None:
            gate, confidence, _ = self.adaptive_gate(h)
        else:
            gate = confidence = torch.full((batch, n, 1), 0.5, device=x.device)
        ratio = 1.0 - self.window_size / n if n > self.window_size else 0.5
        return y, {"gate_values": gate, "confidence": confidence, "sparse_ratio": ratio}

    def _local(self, q: Tensor, k: Tensor, v: Tensor, half: int) -> Tensor:
        """Attention to the keys at most `half` away, zeros beyond either end among them."""
        k = functional.pad(k, (0, 0, half, half))
        v = functional.pad(v, (0, 0, half, half))
        # Row i sees the padded keys i .. i + 2 half: the diagonal is shifted by 2 half.
        return self._attention(q, k, v, window=(2 * half, 0))

    def _strided(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._attention(q, k[:, :, :: self.STRIDE], v[:, :, :: self.STRIDE])


class HybridASAM(nn.Module):
    """Local windows mixed with every 32nd key: c Local + (1 - c) Strided. Returns y alone.

    Window w of local_window_size rows sees its own keys and half a window on either side. The
    published class never makes its gate and fails at the first call; here it is `combine_gate`,
    Linear(dim -> 1), one c per token.
    """

    STRIDE = 32

    def __init__(self, config: ASAMConfig, local_window_size: int = 512) -> None:
        super().__init__()
        self.config = config
        self.local_window_size = local_window_size
        inner = config.dim_head * config.num_heads
        self.to_qkv = nn.Linear(config.dim, inner * 3, bias=False)
        self.to_out = nn.Linear(inner, config.dim)
        self.combine_gate = nn.Linear(config.dim, 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = split_heads(self.to_qkv(x), self.config.num_heads)
        n, window = x.shape[1], self.local_window_size
        windows = []
        for begin in range(0, n, window):
            keys = slice(max(0, begin - window // 2), begin + window + window // 2)
            rows = q[:, :, begin : begin + window]
            windows.append(masked_attention(rows, k[:, :, keys], v[:, :, keys], None))
        local = merge_heads(torch.cat(windows, 2))
        step = slice(None, None, self.STRIDE)
        strided = merge_heads(masked_attention(q, k[:, :, step], v[:, :, step], None))
        c = self.combine_gate(x).sigmoid()
        y: Tensor = self.to_out(c * local + (1 - c) * strided)
        return y


def layers_run_again(count: int, checkpointing: bool | str) -> list[bool | str]:
    """use_gradient_checkpointing of each layer of a stack: all but the last run again in backward.

    The last layer's backward follows its forward: running it again would save nothing.
    """
    return [checkpointing if n + 1 < count else False for n in range(count)]


def check_heads(dim: int, num_heads: int) -> None:
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f"num_heads is {num_heads}: it must divide dim, {dim}")
