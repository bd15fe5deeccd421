"""What an ASAM layer is made of."""

from dataclasses import dataclass

PATTERNS = ("local", "strided", "random", "clustered", "hierarchical")


@dataclass
class ASAMConfig:
    """The published configuration, with its names and defaults (docs/asam.md, "As published").

    dim: features of a token. num_heads, dim_head: attention's heads and their features.
    dropout: probability, after the output projection and in the feed-forward network.
    pattern_type: one of PATTERNS. window_size: keys of the local pattern. stride: of the strided
    one. num_clusters: of the clustered one. use_adaptive_gate: mix the sparse with dense attention.
    gate_hidden_dim and use_gradient_checkpointing: published, and read by no published code.
    """

    dim: int = 512
    num_heads: int = 8
    dim_head: int = 64
    dropout: float = 0.1
    pattern_type: str = "hierarchical"
    window_size: int = 128
    stride: int = 32
    num_clusters: int = 32
    use_adaptive_gate: bool = True
    gate_hidden_dim: int = 128
    use_gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        for name in ("dim", "num_heads", "dim_head", "window_size", "stride", "num_clusters"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be >= 1")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout is {self.dropout}: it must lie in [0, 1)")
        if self.pattern_type not in PATTERNS:
            expected = ", ".join(PATTERNS)
            raise ValueError(f"pattern_type is {self.pattern_type!r}: expected one of {expected}")
