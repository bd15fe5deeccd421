"""ASAM, adaptive sparse attention: the published layers on tilewise's attention (docs/asam.md).

from tilewise.asam import ASAMConfig, ASAMLayer
layer = ASAMLayer(ASAMConfig(dim=256, num_heads=4, pattern_type="local"))
y, info = layer(x, return_info=True)          # x, y (B, n, dim)
"""

from ._config import CHOICES, PATTERNS, ASAMConfig
from ._gate import AdaptiveGate, InputGate
from ._layers import (
    ASAMEncoder,
    ASAMLayer,
    DynamicSparseDenseAttention,
    EfficientASAMLayer,
    FlashASAMLayer,
    HybridASAM,
    OptimizedASAMLayer,
)
from ._patterns import (
    ClusteredPattern,
    HierarchicalPattern,
    LocalPattern,
    RandomPattern,
    StridedPattern,
)
from ._routed import RoutedAttention

__all__ = [
    "CHOICES",
    "PATTERNS",
    "ASAMConfig",
    "ASAMEncoder",
    "ASAMLayer",
    "AdaptiveGate",
    "ClusteredPattern",
    "DynamicSparseDenseAttention",
    "EfficientASAMLayer",
    "FlashASAMLayer",
    "HierarchicalPattern",
    "HybridASAM",
    "InputGate",
    "LocalPattern",
    "OptimizedASAMLayer",
    "RandomPattern",
    "RoutedAttention",
    "StridedPattern",
]
