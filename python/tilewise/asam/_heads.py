"""The pieces that every layer shares."""

from torch import Tensor, nn

from .._attention import attention


def feed_forward(dim: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(dim, dim * 4),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Linear(dim * 4, dim),
        nn.Dropout(dropout),
    )


def split_heads(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """(B, n, 3 heads d) -> q, k, v (B, heads, n, d), views."""
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return q, k, v


def merge_heads(o: Tensor) -> Tensor:
    """(B, heads, n, d) -> (B, n, heads d)."""
    return o.transpose(1, 2).flatten(2)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention (B, heads, n, d), scale 1/sqrt(d); rows that see no key are 0."""
    o: Tensor = attention(q, k, v, mask=mask, layout="bhsd")
    return o


def both(pattern: Tensor, mask: Tensor | None) -> Tensor:
    return pattern if mask is None else pattern & mask
