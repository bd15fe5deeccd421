"""The configuration of an ASAM layer."""

from dataclasses import dataclass

# What pattern_type may be: as published; and in the working mode, where "auto" chooses among the
# others by the input.
PATTERNS = ("local", "strided", "random", "clustered", "hierarchical")
CHOICES = ("local", "strided", "clustered", "hierarchical", "selected")


@dataclass
class ASAMConfig:
    """The configuration of an ASAM layer (docs/asam.md).

    mode: "adaptive" is the working layer, "faithful" the published one. The published names:

    - dim: features per token. num_heads, dim_head: attention heads and their features.
    - dropout: probability after the output projection and in the feed-forward network.
    - pattern_type: one of PATTERNS; in the adaptive mode one of CHOICES or "auto". "" means
      "hierarchical" in the published mode and "auto" in the adaptive mode.
    - window_size: keys of the local pattern. stride: stride of the strided pattern, in tokens.
      num_clusters: clusters of the clustered pattern.
    - use_adaptive_gate: mixes sparse with dense attention.
    - gate_hidden_dim: hidden features of the adaptive gate. The published gate always has 128.
    - use_gradient_checkpointing: the working layer recomputes each layer in backward. "ffn"
      recomputes only the feed-forward network and its norm: it saves less memory and less time is
      lost. The published code does not read it.

    Only the working layer reads these:

    - causal: masks later tokens. block_size: tokens per block.
    - density: fraction of the key blocks that "selected" keeps.
    - route_above: in inference, gates of this value and more run only the sparse branch. Gates of
      at most 1 - route_above run only the dense branch.
    """

    dim: int = 512
    num_heads: int = 8
    dim_head: int = 64
    dropout: float = 0.1
    pattern_type: str = ""
    window_size: int = 128
    stride: int = 32
    num_clusters: int = 32
    use_adaptive_gate: bool = True
    gate_hidden_dim: int = 128
    use_gradient_checkpointing: bool | str = False
    mode: str = "adaptive"
    causal: bool = False
    block_size: int = 64
    density: float = 0.25
    route_above: float = 0.9

    def __post_init__(self) -> None:
        for name in ("dim", "num_heads", "dim_head", "window_size", "stride", "num_clusters"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "it must be >= 1")
        _require(0.0 <= self.dropout < 1.0, "dropout", self.dropout, "it must lie in [0, 1)")
        again = self.use_gradient_checkpointing
        kinds = "expected a bool or 'ffn'"
        _require(again in (False, True, "ffn"), "use_gradient_checkpointing", again, kinds)
        modes = ("adaptive", "faithful")
        _require(self.mode in modes, "mode", self.mode, f"expected one of {', '.join(modes)}")
        known = PATTERNS if self.mode == "faithful" else (*CHOICES, "auto")
        self.pattern_type = self.pattern_type or (
            "hierarchical" if self.mode == "faithful" else "auto"
        )
        expected = f"expected one of {', '.join(known)} in mode {self.mode}"
        _require(self.pattern_type in known, "pattern_type", self.pattern_type, expected)
        if self.mode == "faithful":
            _require(
                not self.causal, "causal", self.causal, "the published layer has no causal mask"
            )
        power = self.block_size & (self.block_size - 1) == 0 and 16 <= self.block_size <= 256
        _require(power, "block_size", self.block_size, "expected a power of two from 16 to 256")
        _require(0.0 < self.density <= 1.0, "density", self.density, "it must lie in (0, 1]")
        _require(0.5 <= self.route_above <= 1.0, "route_above", self.route_above, "0.5 to 1")


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value!r}: {expected}")
