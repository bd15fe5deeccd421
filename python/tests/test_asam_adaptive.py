"""The working ASAM layer: equal to dense attention under its own blocks, routed, trainable."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tilewise import BlockList  # noqa: E402
from tilewise._block_scores import pooled  # noqa: E402
from tilewise.asam import (  # noqa: E402
    CHOICES,
    ASAMConfig,
    ASAMEncoder,
    ASAMLayer,
    _select,
)
from tilewise.asam._gate import InputGate  # noqa: E402
from tilewise.asam._models import Classifier  # noqa: E402
from tilewise.asam._routed import RoutedAttention  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

BLOCK = 16
SIZES: dict[str, Any] = {
    "dim": 48,
    "num_heads": 3,
    "dim_head": 16,
    "dropout": 0.0,
    "block_size": BLOCK,
    "window_size": 20,
    "num_clusters": 4,
}


def make(device: str, **options: Any) -> ASAMLayer:
    """A layer whose gate spreads over inputs and heads."""
    layer = ASAMLayer(ASAMConfig(**(SIZES | options))).to(device)
    with torch.no_grad():
        layer.adaptive_attn.gate.sparse_threshold.copy_(torch.tensor([0.3, -0.1, 0.0]))
    return layer


def dense(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    s = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf)
    return torch.nan_to_num(torch.softmax(s, -1)) @ v


def slow_layer(
    layer: ASAMLayer, x: Tensor, info: dict[str, Any], mask: Tensor | None, lengths: Tensor | None
) -> Tensor:
    """The layer in float64 on dense masks, with the blocks and the gate's route of `info`."""
    config, part = layer.config, layer.adaptive_attn
    n, h = x.shape[1], layer.norm(x)
    gate, _, _ = part.gate(h, lengths)
    q, k, v = part.to_qkv(h).unflatten(-1, (3, 3, 16)).permute(2, 0, 3, 1, 4)
    at = torch.arange(n, device=x.device)
    seen = torch.ones(1, 1, n, n, dtype=torch.bool, device=x.device)
    if config.causal:
        seen = seen & (at <= at[:, None])
    if lengths is not None:
        seen = seen & (at < lengths[:, None, None, None])
    if mask is not None:
        seen = seen & mask
    blocks = info["blocks"].repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)[..., :n, :n]
    g = gate
    if not layer.training:
        g = torch.where(gate >= config.route_above, 1.0, gate)
        g = torch.where(gate <= 1 - config.route_above, 0.0, g)
    g = g[..., None, None]
    a = g * dense(q, k, v, blocks & seen) + (1 - g) * dense(q, k, v, seen.expand_as(blocks))
    x = x + part.to_out(a.transpose(1, 2).flatten(2))
    return x + layer.ffn(layer.ffn_norm(x))


@pytest.mark.parametrize("pattern", [*CHOICES, "auto"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_layer_equals_dense_under_its_blocks(
    device: str, pattern: str, training: bool, causal: bool
) -> None:
    layer = make(device, pattern_type=pattern, causal=causal)
    for module in layer.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    layer.train(training)
    twin = copy.deepcopy(layer).double()
    x = torch.randn(2, 70, 48, device=device, requires_grad=True)
    x64 = x.detach().double().requires_grad_()
    y, info = layer(x, return_info=True)
    y64 = slow_layer(twin, x64, info, None, None)
    assert (y - y64).abs().max() <= 1e-5
    weights = torch.randn_like(y)
    (y * weights).sum().backward()
    (y64 * weights.double()).sum().backward()
    straight = ("centroids", "temperature", "pattern_selector")  # gradients beside the value's
    if pattern in ("auto", "clustered"):
        straight = (*straight, "gate", "norm", "to_qkv")
    for (name, ours), theirs in zip(layer.named_parameters(), twin.parameters(), strict=True):
        if theirs.grad is None or any(word in name for word in straight):
            continue
        scale = max(1.0, float(theirs.grad.abs().max()))
        assert (ours.grad - theirs.grad).abs().max() <= 1e-4 * scale, name


def test_masks_and_lengths_join_the_blocks(device: str) -> None:
    layer = make(device).eval()
    x = torch.randn(2, 61, 48, device=device)
    mask = torch.rand(2, 3, 61, 61, device=device) > 0.3
    lengths = torch.tensor([61, 23], dtype=torch.int32, device=device)
    y, info = layer(x, mask, True, lengths)
    twin = copy.deepcopy(layer).double()
    expected = slow_layer(twin, x.double(), info, mask, lengths)
    for b, length in enumerate(lengths.tolist()):
        assert (y - expected)[b, :length].abs().max() <= 1e-5
    poisoned = x.clone()
    poisoned[1, 23:] = 1e4
    again, _ = layer(poisoned, mask, key_lengths=lengths)
    assert torch.equal(again[1, :23], y[1, :23])  # no token past the length is seen


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pattern", CHOICES)
def test_padding_changes_nothing(device: str, pattern: str, causal: bool) -> None:
    """Gradients, too: a sequence in a padded batch is the sequence alone."""
    layer = make(device, pattern_type=pattern, causal=causal, density=0.4).train()
    for module in layer.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    x = torch.randn(2, 80, 48, device=device)
    lengths = torch.tensor([80, 37], dtype=torch.int32, device=device)
    padded, alone = x.clone().requires_grad_(), x[1:, :37].clone().requires_grad_()
    y, info = layer(padded, return_info=True, key_lengths=lengths)
    expected, of_alone = layer(alone, return_info=True)
    torch.testing.assert_close(y[1:, :37], expected)
    torch.testing.assert_close(info["density"][1:], of_alone["density"])
    weights = torch.randn_like(expected)
    (y[1:, :37] * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(padded.grad[1:, :37], alone.grad)
    assert not padded.grad[:1].any() and not padded.grad[1:, 37:].any()


def test_route_ends_are_exact(device: str) -> None:
    """A gate near 1 runs sparse alone, one near 0 dense alone."""
    layer = make(device, pattern_type="local").eval()
    x = torch.randn(1, 64, 48, device=device)
    with torch.no_grad():
        layer.adaptive_attn.gate.sparse_threshold.copy_(torch.tensor([9.0, -9.0, 0.0]))
        y, info = layer(x, return_info=True)
        part = layer.adaptive_attn
        sparse, is_dense, _ = part._route(info["gate_values"][:, :, 0])
    assert sparse[0].tolist()[:2] == [True, False]
    assert is_dense[0].tolist()[:2] == [False, True]
    twin = copy.deepcopy(layer).double()
    assert (y - slow_layer(twin, x.double(), info, None, None)).abs().max() <= 1e-5


def test_gate_and_choice_see_the_input() -> None:
    """The three kinds of input on which the published gate is a constant (docs/asam.md)."""
    layer = ASAMLayer(ASAMConfig(dim=128, num_heads=8, dim_head=16, block_size=16)).eval()
    noise = torch.randn(4, 128, 128)
    halves = noise.clone()
    halves[:, 64:] = 0
    kinds = [layer(x, return_info=True)[1] for x in (noise, noise.cumsum(1), halves)]
    gates = torch.stack([info["gate_values"][..., 0].mean(0).detach() for info in kinds])
    assert float(gates.std(0).max()) > 0.01
    patterns = [info["pattern"] for info in kinds]
    assert any(not torch.equal(patterns[0], other) for other in patterns[1:])


def test_choice_and_centroids_learn() -> None:
    layer = make("cpu")
    layer(torch.randn(8, 64, 48))[0].square().sum().backward()
    gate = layer.adaptive_attn.gate
    for parameter in (
        gate.pattern_selector[0].weight,
        gate.gate_temp,
        layer.adaptive_attn.centroids,
    ):
        assert float(parameter.grad.abs().max()) > 1e-5


@pytest.mark.parametrize("again", [True, "ffn"])
def test_checkpointing_changes_no_gradient(device: str, again: bool | str) -> None:
    plain = make(device, pattern_type="selected", dropout=0.2)
    saving = make(device, pattern_type="selected", dropout=0.2, use_gradient_checkpointing=again)
    saving.load_state_dict(plain.state_dict())
    x = torch.randn(2, 50, 48, device=device)
    for layer in (plain, saving):
        torch.manual_seed(1)
        layer.train()(x)[0].square().sum().backward()
    for ours, theirs in zip(saving.parameters(), plain.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_checkpointing_runs_attention_once() -> None:
    """A backward recomputes no attention and chooses no blocks again."""
    layer = make("cpu", pattern_type="selected", use_gradient_checkpointing=True).train()
    y, _ = layer(torch.randn(2, 50, 48))
    with Operators() as seen:
        y.sum().backward()
    assert "aten.addmm.default" in seen.names
    assert "tilewise.attention_backward.default" in seen.names
    assert "tilewise.attention_forward.default" not in seen.names
    assert "tilewise.select_blocks.default" not in seen.names


def test_checkpointing_of_the_feed_forward_network_alone() -> None:
    """Backward runs the second norm again, and not the first. Less is kept than without."""
    runs = {"norm": 0, "ffn_norm": 0}
    kept = []
    for again in (False, "ffn", True):
        layer = make("cpu", pattern_type="local", use_gradient_checkpointing=again).train()
        for name in runs if again == "ffn" else ():

            def hook(*_: object, name: str = name) -> None:
                runs[name] += 1

            getattr(layer, name).register_forward_hook(hook)
        sizes: dict[int, int] = {}
        seen = lambda t, sizes=sizes: sizes.__setitem__(t.data_ptr(), t.nbytes) or t  # noqa: E731
        x = torch.randn(2, 50, 48, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(seen, lambda t: t):
            y, _ = layer(x)
        kept.append(sum(sizes.values()))
        y.sum().backward()
    assert runs == {"norm": 1, "ffn_norm": 2}
    assert kept[2] < kept[1] < kept[0]
    with pytest.raises(ValueError, match="use_gradient_checkpointing is 'all'"):
        ASAMConfig(use_gradient_checkpointing="all")


def test_classifier_and_encoder_have_one_rule_of_the_last_layer() -> None:
    config = ASAMConfig(**SIZES, use_gradient_checkpointing=True)
    for model in (Classifier("working", use_gradient_checkpointing=True), ASAMEncoder(config, 2)):
        assert [la.config.use_gradient_checkpointing for la in model.layers] == [True, False]
    assert not any(la.config.use_gradient_checkpointing for la in Classifier("working").layers)


def test_encoder_runs_its_last_layer_once() -> None:
    """A checkpoint of the last layer would save nothing: its backward comes first."""
    config = ASAMConfig(**SIZES, pattern_type="local")
    plain = ASAMEncoder(config, 3).train()
    saving = ASAMEncoder(replace(config, use_gradient_checkpointing=True), 3).train()
    saving.load_state_dict(plain.state_dict())
    runs = [0, 0, 0]

    def count(n: int) -> Callable[..., None]:
        def hook(*_: object) -> None:
            runs[n] += 1

        return hook

    for n, layer in enumerate(saving.layers):
        layer.ffn_norm.register_forward_hook(count(n))
    x, dy = torch.randn(2, 1, 64, 48)
    for encoder in (plain, saving):
        torch.manual_seed(1)
        (encoder(x) * dy).sum().backward()
    assert runs == [2, 2, 1]
    for a, b in zip(plain.parameters(), saving.parameters(), strict=True):
        if a.grad is not None:
            torch.testing.assert_close(b.grad, a.grad)


def test_checkpoints_load_between_modes() -> None:
    working = make("cpu")
    published = ASAMLayer(ASAMConfig(mode="faithful", dim=48, num_heads=3, dim_head=16))
    working.load_state_dict(published.state_dict())
    assert torch.equal(working.adaptive_attn.to_qkv.weight, published.adaptive_attn.to_qkv.weight)
    published.load_state_dict(working.state_dict())
    encoder = ASAMEncoder(ASAMConfig(**SIZES), 2)
    encoder.load_state_dict(ASAMEncoder(ASAMConfig(**SIZES), 2).state_dict())


@pytest.mark.parametrize("pattern", ["hierarchical", "clustered"])
def test_a_published_layer_that_has_run_loads_a_working_one(pattern: str) -> None:
    """Its pattern's parameters are there by then, and keep their values."""
    sizes: dict[str, Any] = {"dim": 32, "num_heads": 2, "dim_head": 16}
    published = ASAMLayer(ASAMConfig(mode="faithful", pattern_type=pattern, **sizes))
    published(torch.randn(1, 40, 32))
    kept = {n: p.clone() for n, p in published.named_parameters() if "_pattern_modules" in n}
    working = ASAMLayer(ASAMConfig(**sizes))
    published.load_state_dict(working.state_dict())
    assert torch.equal(published.norm.weight, working.norm.weight)
    assert kept and all(torch.equal(published.get_parameter(n), p) for n, p in kept.items())


def test_autocast_and_scaler_train(device: str) -> None:
    """The loss falls under bf16 autocast; an overflow leaves the weights alone (D12)."""
    torch.manual_seed(2)
    layer = make(device)
    head = nn.Linear(48, 2).to(device)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    scaler = torch.amp.GradScaler(torch.device(device).type)
    x = torch.randn(16, 32, 48, device=device)
    y = (x[:, 0, 0] > 0).long()
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            logits = head(layer(x)[0].mean(1))
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
    before = [p.detach().clone() for p in parameters]
    scale = scaler.get_scale()
    optimizer.zero_grad()
    scaler.scale(head(layer(x)[0].mean(1)).sum() * math.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == scale / 2
    assert all(torch.equal(p, q) for p, q in zip(parameters, before, strict=True))


def test_pools_and_ends() -> None:
    q = torch.randn(2, 3, 100, 16)
    means = torch.stack([q[:, :, i : i + BLOCK].mean(2) for i in range(0, 100, BLOCK)], 2)
    torch.testing.assert_close(pooled(q, BLOCK), means)
    torch.testing.assert_close(
        pooled(q, BLOCK, "variance")[:, :, -1], q[:, :, 96:].var(2, correction=0)
    )
    torch.testing.assert_close(pooled(q, BLOCK, "min")[:, :, -1], q[:, :, 96:].amin(2))
    assert _select.ends(4, torch.device("cpu")).tolist() == [
        [i == j or j == 0 for j in range(4)] for i in range(4)
    ]


@pytest.mark.parametrize("padded", [False, True])
def test_selected_finds_a_token_that_a_mean_hides(device: str, padded: bool) -> None:
    """Block 9 looks for a token of block 5, and is a little like block 3 on average."""
    config = ASAMConfig(
        dim=16, num_heads=1, dim_head=16, pattern_type="selected", density=0.1, block_size=16
    )
    layer = RoutedAttention(config).to(device).eval()
    with torch.no_grad():
        layer.to_qkv.weight.copy_(torch.eye(16).repeat(3, 1))
    signs = torch.where(torch.arange(16, device=device) % 2 == 0, 1.0, -1.0)
    x = 0.1 * torch.randn(1, 160, 16, device=device)
    x[:, 9 * 16 :] += 0.5
    x[:, 3 * 16 : 4 * 16] += 0.5
    for block in (5, 9):
        x[:, 16 * block + 3] = 6 * signs
        x[:, 16 * block + 4] = -6 * signs
    lengths = torch.tensor([160], dtype=torch.int32, device=device) if padded else None
    with torch.no_grad():
        _, info = layer(x, key_lengths=lengths)
    assert info is not None
    assert info["blocks"][0, 0, 9].nonzero().flatten().tolist() == [0, 5, 9]


@pytest.mark.parametrize("n", [64, 100, 129])
def test_gate_sees_the_same_with_lengths(n: int) -> None:
    gate = InputGate(16, 2, 8, 3)
    x = torch.randn(2, n, 16)
    longer = torch.cat([x, torch.full((2, 37, 16), 9.0)], 1)
    torch.testing.assert_close(gate._pooled(longer, torch.tensor([n, n])), gate._pooled(x, None))


class Operators(TorchDispatchMode):
    """Counts the operators that move data: a kernel each on a GPU."""

    VIEWS = ("view", "expand", "slice", "transpose", "permute", "squeeze", "select", "alias")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        self.names.add(name)
        free = (*self.VIEWS, "detach", "split", "unbind", "empty", "aten.t.")
        self.count += not any(word in name for word in free)
        return func(*args, **(kwargs or {}))


def test_a_layer_is_few_operators() -> None:
    """Short sequences are launches: 2.6 ms at every length in seed 003."""
    layer = ASAMLayer(ASAMConfig(dim=64, num_heads=4, dim_head=16)).eval()
    x = torch.randn(2, 512, 64)
    with torch.no_grad():
        layer(x)  # makes the fixed patterns
        with Operators() as operators:
            layer(x)
    assert operators.count <= 95  # 92; it was 264


def test_block_list_of_a_mask(device: str) -> None:
    visible = torch.rand(2, 3, 5, 4, device=device) > 0.5
    visible[0, 1, 2] = False
    blocks = BlockList.from_blocks(visible, 32, 16)
    assert (blocks.block_q, blocks.block_k) == (32, 16)
    offsets, index = blocks.row_offsets.cpu(), blocks.block_index.cpu()
    for b in range(2):
        for h in range(3):
            for row in range(5):
                listed = index[offsets[b, h, row] : offsets[b, h, row + 1]]
                assert listed.tolist() == visible[b, h, row].cpu().nonzero().flatten().tolist()
    with pytest.raises(ValueError, match=r"visible is torch.float32 \(2, 2\): expected bool"):
        BlockList.from_blocks(torch.ones(2, 2), 32)


@pytest.mark.parametrize(
    ("field", "value"),
    [("mode", "fast"), ("block_size", 48), ("density", 0.0), ("route_above", 0.2)],
)
def test_config_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} is"):
        ASAMConfig(**{field: value})
    with pytest.raises(ValueError, match="pattern_type is 'random'"):
        ASAMConfig(pattern_type="random")
