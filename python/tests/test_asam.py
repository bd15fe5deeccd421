"""The published ASAM layers: equal to a slow reference of their text, their unit tests' properties,
their defects with the numbers that show them."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tilewise.asam import (  # noqa: E402
    PATTERNS,
    AdaptiveGate,
    ASAMConfig,
    ASAMEncoder,
    ASAMLayer,
    ClusteredPattern,
    EfficientASAMLayer,
    FlashASAMLayer,
    HybridASAM,
    OptimizedASAMLayer,
)
from torch import Tensor, nn  # noqa: E402

SIZES: dict[str, Any] = {
    "mode": "faithful",
    "dim": 48,
    "num_heads": 3,
    "dim_head": 16,
    "dropout": 0.0,
}


def seen_by(pattern: str, i: int, j: int, config: ASAMConfig) -> bool:
    """Whether row i of a fixed pattern attends key j, from the pattern's definition."""

    def strided(stride: int, window: int) -> bool:
        return abs(i - j) <= window or j % stride == 0

    if pattern == "local":
        return abs(i - j) <= config.window_size // 2
    if pattern == "strided":
        return strided(config.stride, 16)
    assert pattern == "hierarchical"  # equal weights: two of three
    return sum(strided(s, s // 4) for s in (4, 16, 64)) >= 2


def slow_mask(layer: ASAMLayer, q: Tensor, k: Tensor) -> Tensor:
    """The pattern's mask (B, heads, n, n) for float64 q and k (B, heads, n, d)."""
    config, n = layer.config, q.shape[2]
    full = torch.zeros(*q.shape[:2], n, n, dtype=torch.bool)
    if config.pattern_type == "random":
        for h in range(config.num_heads):
            generator = torch.Generator().manual_seed(42 + h)
            for i in range(n):
                full[:, h, i, torch.randperm(n, generator=generator)[:128]] = True
    elif config.pattern_type == "clustered":
        module = layer.pattern(n, q.device)
        for h in range(config.num_heads):
            centroids = module.centroids[h].double()
            centroids = centroids / centroids.norm(dim=-1, keepdim=True)

            def assign(x: Tensor, centroids: Tensor = centroids) -> Tensor:
                cosine = x / x.norm(dim=-1, keepdim=True) @ centroids.T
                return torch.softmax(cosine / module.temperature.double().abs(), -1)

            full[:, h] = assign(q[:, h]) @ assign(k[:, h]).mT > 0.1
    else:
        rows = [[seen_by(config.pattern_type, i, j, config) for j in range(n)] for i in range(n)]
        full[:] = torch.tensor(rows)
    return full


def slow_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf)
    return torch.nan_to_num(torch.softmax(s, -1)) @ v


def slow_gate(gate: AdaptiveGate, x: Tensor) -> Tensor:
    """g (B, heads) by the published text: pools over the sequence, weights over the pools."""
    tokens = x.transpose(1, 2)
    pools = [nn.AdaptiveAvgPool1d(b)(tokens) for b in gate.bins]
    pooled = torch.cat(pools, -1).transpose(1, 2)
    weights = torch.softmax(torch.bmm(pooled, tokens).mean(-1, keepdim=True), 1)
    features = gate.feature_proj((pooled * weights).sum(2))
    c, p = gate.complexity_estimator(features), gate.confidence_predictor(features)
    return torch.sigmoid((gate.sparse_threshold - c) * p / gate.gate_temp.abs())


def slow_layer(layer: ASAMLayer, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The published layer's forward, step by step, in the layer's type."""
    part: Any = layer if layer.adaptive_attn is None else layer.adaptive_attn
    h = layer.norm(x)
    heads, d = layer.config.num_heads, layer.config.dim_head
    q, k, v = (t.unflatten(-1, (heads, d)).transpose(1, 2) for t in part.to_qkv(h).chunk(3, -1))
    pattern = slow_mask(layer, q.double(), k.double())
    a = slow_attention(q, k, v, pattern if mask is None else pattern & mask)
    if layer.adaptive_attn is not None:
        g = slow_gate(layer.adaptive_attn.gate, h)[:, :, None, None]
        a = g * a + (1 - g) * slow_attention(q, k, v, mask)
    x = x + part.to_out(a.transpose(1, 2).flatten(2))
    return x + layer.ffn(layer.ffn_norm(x))


def compare(layer: nn.Module, slow: Callable[[Any, Tensor], Tensor], x: Tensor) -> None:
    """Outputs within 1e-5 and gradients of input and parameters within 1e-4 of float64's."""
    twin = copy.deepcopy(layer).double()
    x = x.requires_grad_()
    x64 = x.detach().double().requires_grad_()
    y = layer(x)
    y = y[0] if isinstance(y, tuple) else y
    y64 = slow(twin, x64)
    weights = torch.randn_like(y64)
    assert (y - y64).abs().max() <= 1e-5 * max(1.0, float(y64.detach().abs().max()))
    (y * weights.float()).sum().backward()
    (y64 * weights).sum().backward()
    pairs = [(x, x64), *zip(layer.parameters(), twin.parameters(), strict=True)]
    for ours, theirs in pairs:
        if theirs.grad is not None:
            assert ours.grad is not None
            scale = max(1.0, float(theirs.grad.abs().max()))
            assert (ours.grad - theirs.grad).abs().max() <= 1e-4 * scale


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("n", [1, 70])
def test_layer_equals_its_text(pattern: str, gate: bool, n: int) -> None:
    config = ASAMConfig(
        **SIZES, pattern_type=pattern, use_adaptive_gate=gate, window_size=9, num_clusters=9
    )
    layer = ASAMLayer(config).eval()
    with torch.no_grad():
        layer(torch.zeros(1, n, 48))  # the pattern's parameters come with the first call
    nn.init.normal_(layer.norm.weight)  # so that the gate sees something
    compare(layer, slow_layer, torch.randn(2, n, 48))


def test_mask_joins_the_pattern() -> None:
    layer = ASAMLayer(ASAMConfig(**SIZES, pattern_type="local", window_size=9)).eval()
    mask = torch.rand(2, 1, 40, 40) > 0.5
    mask[..., 0] = True
    x = torch.randn(2, 40, 48)
    y, info = layer(x, mask)
    assert info is None
    twin = copy.deepcopy(layer).double()
    assert (y - slow_layer(twin, x.double(), mask)).abs().max() <= 1e-5


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("n", [16, 90])
def test_efficient_layer_equals_its_text(local: bool, n: int) -> None:
    layer = EfficientASAMLayer(48, 3, window_size=20, dropout=0.0, use_local_attention=local)

    def slow(layer: Any, x: Tensor) -> Tensor:
        qkv = layer.qkv(layer.norm(x)).reshape(2, n, 3, 3, 16).permute(2, 0, 3, 1, 4)
        at = torch.arange(n)
        near = (at[:, None] - at).abs() <= 10
        a = slow_attention(*qkv, near if local and n > 20 else None)
        x = x + layer.out_proj(a.transpose(1, 2).reshape(2, n, 48))
        return x + layer.ffn(x)

    compare(layer, slow, torch.randn(2, n, 48))
    info = layer(torch.randn(1, n, 48), return_info=True)[1]
    assert info == {"sparse_ratio": 1 - 20 / n if local else 1.0}


@pytest.mark.parametrize("pattern", ["local", "strided", "hierarchical"])
def test_optimized_layer_equals_its_text(pattern: str) -> None:
    n = 70
    layer = OptimizedASAMLayer(48, 3, window_size=20, dropout=0.0, pattern_type=pattern)

    def local(q: Tensor, k: Tensor, v: Tensor, half: int) -> Tensor:
        rows = []
        for i in range(n):
            at = range(i - half, i + half + 1)
            pick = [torch.zeros_like(k[:, :, 0]) if not 0 <= j < n else k[:, :, j] for j in at]
            keys = torch.stack(pick, 2)
            pick = [torch.zeros_like(v[:, :, 0]) if not 0 <= j < n else v[:, :, j] for j in at]
            rows.append(slow_attention(q[:, :, i : i + 1], keys, torch.stack(pick, 2), None))
        return torch.cat(rows, 2)

    def slow(layer: Any, x: Tensor) -> Tensor:
        q, k, v = layer.qkv(layer.norm(x)).reshape(2, n, 3, 3, 16).permute(2, 0, 3, 1, 4)
        if pattern == "strided":
            far = slow_attention(q, k[:, :, ::32], v[:, :, ::32], None)
            a = (local(q, k, v, 16) + far) / 2
        else:
            a = local(q, k, v, 10)
        x = x + layer.out_proj(a.transpose(1, 2).reshape(2, n, 48))
        return x + layer.ffn(x)

    compare(layer, slow, torch.randn(2, n, 48))
    info = layer(torch.randn(2, n, 48), return_info=True)[1]
    assert set(info) == {"gate_values", "confidence", "sparse_ratio"}


def test_hybrid_equals_its_text() -> None:
    layer = HybridASAM(ASAMConfig(**SIZES), local_window_size=32)

    def slow(layer: Any, x: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = (t.unflatten(-1, (3, 16)).transpose(1, 2) for t in layer.to_qkv(x).chunk(3, -1))
        i = torch.arange(n)
        first = i // 32 * 32
        near = (i >= first[:, None] - 16) & (i < first[:, None] + 48)
        c = torch.sigmoid(layer.combine_gate(x))
        local, far = slow_attention(q, k, v, near), slow_attention(q, k, v, i % 32 == 0)
        merged = [t.transpose(1, 2).flatten(2) for t in (local, far)]
        return layer.to_out(c * merged[0] + (1 - c) * merged[1])

    compare(layer, slow, torch.randn(2, 101, 48))


def test_flash_is_dense() -> None:
    """2.5: "Flash" ignores its window."""
    torch.manual_seed(3)
    wide = FlashASAMLayer(48, 3, window_size=128, dropout=0.0)
    narrow = FlashASAMLayer(48, 3, window_size=2, dropout=0.0)
    narrow.load_state_dict(wide.state_dict())
    x = torch.randn(2, 200, 48)
    assert torch.equal(wide(x)[0], narrow(x)[0])
    assert wide(x, return_info=True)[1] == {"sparse_ratio": 1.0}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_published_properties(pattern: str) -> None:
    """Their unit tests: shapes, every pattern, any length, gate in [0, 1], finite gradients."""
    layer = ASAMLayer(
        ASAMConfig(mode="faithful", dim=128, num_heads=4, dim_head=32, pattern_type=pattern)
    )
    for n in (1, 64, 130):
        x = torch.randn(2, n, 128, requires_grad=True)
        y, info = layer(x, return_info=True)
        assert y.shape == x.shape
        assert info["gate_values"].shape == (2, 4, n)
        assert info["confidence"].shape == (2, 4)
        assert info["pattern_logits"].shape == (2, 4)
        assert info["gate_values"].min() >= 0 and info["gate_values"].max() <= 1
        assert 0 <= info["sparse_ratio"] <= 1
        y.sum().backward()
        assert x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize(
    ("pattern", "density"),
    [("local", 129 / 2048), ("strided", 33 / 2048 + 1 / 32), ("hierarchical", 0.0686)],
)
def test_published_densities(pattern: str, density: float) -> None:
    """2.4 at n = 2048; edges take a little off the first two."""
    layer = ASAMLayer(ASAMConfig(mode="faithful", pattern_type=pattern))
    mask = layer.pattern(2048, torch.device("cpu")).mask(torch.zeros(1), torch.zeros(1))
    assert float(mask.float().mean()) == pytest.approx(density, rel=0.04)


def test_encoder_is_a_stack() -> None:
    encoder = ASAMEncoder(ASAMConfig(**SIZES, pattern_type="strided"), num_layers=3).eval()
    x = torch.randn(2, 33, 48)
    outputs = encoder(x, return_all_layers=True)
    assert len(outputs) == 3
    assert torch.equal(encoder(x), encoder.norm(outputs[-1]))


def test_checkpoint_loads_with_its_patterns() -> None:
    """A checkpoint of the published code has parameters by length, and the masks themselves."""
    config = ASAMConfig(**SIZES, pattern_type="hierarchical")
    source = ASAMLayer(config).eval()
    x = torch.randn(1, 20, 48)
    with torch.no_grad():
        source(x)
        source.pattern(20, x.device).scale_weights.copy_(torch.randn(3, 3))
    state = source.state_dict()
    state["_pattern_modules.hierarchical_20.patterns.0._cached_pattern"] = torch.ones(20, 20)
    target = ASAMLayer(config).eval()
    target.load_state_dict(state)
    assert torch.equal(source(x)[0], target(x)[0])


def test_defect_the_gate_is_a_constant() -> None:
    """2.7.1: features of LayerNorm's output sum to 0, so three kinds of input get one gate."""
    layer = ASAMLayer(ASAMConfig(mode="faithful", dim=128, num_heads=4, dim_head=32)).eval()
    noise = torch.randn(2, 64, 128)
    halves = noise.clone()
    halves[:, 32:] = 0
    gates = [
        layer(x, return_info=True)[1]["gate_values"].detach()
        for x in (noise, noise.cumsum(1), halves)
    ]
    assert max(float((g - gates[0]).abs().max()) for g in gates) < 1e-4
    raw = layer.adaptive_attn.gate
    spread = raw(noise * 3)[0] - raw(noise.cumsum(1))[0]
    assert (
        float(spread.detach().abs().max()) > 1e-3
    )  # their unit test feeds noise, and sees a spread


@pytest.mark.parametrize(("clusters", "density"), [(32, 0.0), (8, 1.0)])
def test_defect_clusters_attend_nothing_or_everything(clusters: int, density: float) -> None:
    """2.7.3: every affinity is near 1 / clusters, and the threshold is 0.1."""
    pattern = ClusteredPattern(clusters, num_heads=8, dim_head=64)
    q, k = torch.randn(2, 2, 8, 256, 64)
    assert float(pattern.mask(q, k).float().mean()) == density


def test_defect_centroids_and_scales_never_learn() -> None:
    for kind, name in (("clustered", "centroids"), ("hierarchical", "scale_weights")):
        layer = ASAMLayer(ASAMConfig(**SIZES, pattern_type=kind, num_clusters=8))
        layer(torch.randn(2, 40, 48))[0].sum().backward()
        assert getattr(layer.pattern(40, torch.device("cpu")), name).grad is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("pattern_type", "spiral"), ("dim", 0), ("dropout", 1.0), ("num_clusters", -3)],
)
def test_config_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} is"):
        ASAMConfig(**{field: value})


def test_heads_must_divide() -> None:
    with pytest.raises(ValueError, match="num_heads is 5: it must divide dim, 48"):
        FlashASAMLayer(48, 5)
