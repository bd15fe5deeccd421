"""What an ASAM layer is made of."""

from dataclasses import dataclass

# What pattern_type may be: as published; and in the working mode, where "auto" chooses among the
# others by the input.
PATTERNS = ("local", "strided", "random", "clustered", "hierarchical")
CHOICES = ("local", "strided", "clustered", "hierarchical", "selected")


@dataclass
class ASAMConfig:
    """What a layer is made of; the published names and defaults first (docs/asam.md).

    dim: features of a token. num_heads, dim_head: attention's heads and their features.
    dropout: probability, after the output projection and in the feed-forward network.
    pattern_type: one of PATTERNS; mode "adaptive": one of CHOICES or "auto". "" is "hierarchical"
    as published, "auto" in the adaptive mode. window_size: keys of the local pattern. stride: of
    the strided one, in tokens. num_clusters: of the clustered one. use_adaptive_gate: mix the
    sparse with dense attention. gate_hidden_dim: of the adaptive gate (the published one has 128
    whatever it says). use_gradient_checkpointing: the working mode recomputes each layer in
    backward; published, and read by no published code.

    mode: "adaptive", the working layer, or "faithful", the published one. Further, for the working
    layer alone: causal; block_size, tokens of a block; density, the share of key blocks that
    "selected" keeps; route_above: a gate from there on runs sparse alone, one from 1 - route_above
    down runs dense alone (inference).
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
    use_gradient_checkpointing: bool = False
    mode: str = "adaptive"
    causal: bool = False
    block_size: int = 64
    density: float = 0.25
    route_above: float = 0.9

    def __post_init__(self) -> None:
        for name in ("dim", "num_heads", "dim_head", "window_size", "stride", "num_clusters"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "it must be >= 1")
        _require(0.0 <= self.dropout < 1.0, "dropout", self.dropout, "it must lie in [0, 1)")
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
