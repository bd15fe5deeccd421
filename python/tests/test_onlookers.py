"""Whatever in torch looks on sees the operator or gets an error: a walk over the onlookers.

Where one is supported, its numbers and gradients are compared with the paper in float64; where it
is refused, the error names tilewise.
"""

import io
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
import tilewise._torch  # noqa: E402  registers the operators
from oracle import paper  # noqa: E402
from tilewise._spec import SCORE_EXPRESSION, make_spec  # noqa: E402
from torch import Tensor, func  # noqa: E402
from torch.autograd import forward_ad, functional  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils import flop_counter  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import (  # noqa: E402
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

Attention = Callable[..., Tensor]
# O is of order 1, gradients are sums over some ten rows: float32's rounding of either.
CLOSE = {"atol": 2e-5, "rtol": 1e-5}
OPERATOR = torch.ops.tilewise.attention_forward


def inputs(count: int = 4, dtype: Any = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(15)
    return [torch.randn(2, 5, 2, 8, generator=generator).to(dtype) for _ in range(count)]


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return paper(q, k, v, causal=True)[0]


ours = partial(tilewise.attention, causal=True)


def by_operator(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return OPERATOR(q, k, v, *make_spec(causal=True)[:SCORE_EXPRESSION])[0]


def loss(attention: Attention, w: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (attention(q, k, v) * w).sum()


# Derivatives that torch.func and torch.autograd take, as functions of the attention and of inputs.


def one_entry(attention: Attention) -> Attention:
    """Attention of (S, H, D), for a mapped batch."""
    return lambda q, k, v: attention(q[None], k[None], v[None])[0]


def of_q(attention: Attention, k: Tensor, v: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda q: attention(q, k, v)


def duals(attention: Attention, q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(attention(forward_ad.make_dual(q, w), k, v)).tangent


def duals_of_leaves(attention: Attention, q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Any:
    return duals(attention, q.clone().requires_grad_(), k, v, w)


def duals_in_backward(attention: Attention, q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Any:
    leaf = q.clone().requires_grad_()
    o = attention(leaf, k, v)
    with forward_ad.dual_level():
        return torch.autograd.grad(o, leaf, forward_ad.make_dual(w, w.clone()))[0]


def dual_bias(attention: Attention, q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Any:
    bias = torch.ones(5, 5)
    with forward_ad.dual_level():
        return attention(q, k, v, bias=forward_ad.make_dual(bias, bias))


def scalar(attention: Attention, k: Tensor, v: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda q: attention(q, k, v).square().sum()


FORWARD_MODE: dict[str, Callable[..., Any]] = {
    "jvp": lambda a, q, k, v, w: func.jvp(of_q(a, k, v), (q,), (w,)),
    "jvp of v": lambda a, q, k, v, w: func.jvp(lambda t: a(q, k, t), (v,), (w,)),
    "jacfwd": lambda a, q, k, v, w: func.jacfwd(of_q(a, k, v))(q),
    "linearize": lambda a, q, k, v, w: func.linearize(of_q(a, k, v), q)[1](w),
    "hessian": lambda a, q, k, v, w: func.hessian(scalar(a, k, v))(q),
    "jacfwd of grad": lambda a, q, k, v, w: func.jacfwd(func.grad(scalar(a, k, v)))(q),
    "vmap of jvp": lambda a, q, k, v, w: func.vmap(
        lambda t: func.jvp(of_q(a, k, v), (q,), (t,))[1]
    )(w[None]),
    "jvp of vmap": lambda a, q, k, v, w: func.jvp(
        func.vmap(lambda t: one_entry(a)(t, k[0], v[0])), (q,), (w,)
    ),
    "duals": duals,
    "duals of leaves": duals_of_leaves,
    "duals in backward": duals_in_backward,
    "jacobian, forward-mode": lambda a, q, k, v, w: functional.jacobian(
        of_q(a, k, v), q, strategy="forward-mode", vectorize=True
    ),
}
SECOND_ORDER: dict[str, Callable[..., Any]] = {
    "grad of grad": lambda a, q, k, v, w: func.grad(lambda t: func.grad(scalar(a, k, v))(t).sum())(
        q
    ),
    "jacrev of jacrev": lambda a, q, k, v, w: func.jacrev(func.jacrev(scalar(a, k, v)))(q),
    "functional.hessian": lambda a, q, k, v, w: functional.hessian(scalar(a, k, v), q),
    "functional.jvp": lambda a, q, k, v, w: functional.jvp(of_q(a, k, v), q, w),
}
REVERSE_MODE: dict[str, Callable[..., Any]] = {
    "grad": lambda a, q, k, v, w: func.grad(partial(loss, a, w), argnums=(0, 1, 2))(q, k, v),
    "vjp": lambda a, q, k, v, w: func.vjp(of_q(a, k, v), q)[1](w)[0],
    "jacrev": lambda a, q, k, v, w: func.jacrev(of_q(a, k, v))(q),
    "gradients of each sample": lambda a, q, k, v, w: func.vmap(
        func.grad(partial(loss, one_entry(a)), argnums=(1, 2, 3))
    )(w, q, k, v),
    "grad of vmap": lambda a, q, k, v, w: func.grad(
        lambda t: (func.vmap(one_entry(a))(t, k, v) * w).sum()
    )(q),
    "grad and value": lambda a, q, k, v, w: func.grad_and_value(partial(loss, a, w))(q, k, v),
    "vmap": lambda a, q, k, v, w: func.vmap(one_entry(a))(q, k, v),
    "functionalize": lambda a, q, k, v, w: func.functionalize(of_q(a, k, v))(q),
    "jvp beside attention": lambda a, q, k, v, w: func.jvp(lambda t: t * a(q, k, v), (q,), (w,)),
    "jacobian, many gradients at once": lambda a, q, k, v, w: functional.jacobian(
        of_q(a, k, v), q, vectorize=True
    ),
}


@pytest.mark.parametrize("attention", [ours, by_operator], ids=["attention", "operator"])
@pytest.mark.parametrize("name", FORWARD_MODE)
def test_forward_mode_is_refused(name: str, attention: Attention) -> None:
    with pytest.raises(NotImplementedError, match=r"tilewise\.\S* has no"):
        FORWARD_MODE[name](attention, *inputs())


def test_forward_mode_of_a_bias_and_of_drop_ins() -> None:
    q, k, v, w = inputs()
    with pytest.raises(NotImplementedError, match="tilewise.attention has no forward-mode"):
        dual_bias(tilewise.attention, q, k, v, w)
    from tilewise.flash_attn import flash_attn_func
    from tilewise.sdpa import scaled_dot_product_attention

    for drop_in in (scaled_dot_product_attention, flash_attn_func):
        for name in ("jvp", "duals"):
            with pytest.raises(NotImplementedError, match="tilewise.attention has no forward-mode"):
                FORWARD_MODE[name](drop_in, q, k, v, w)


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_second_order_is_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match="tilewise.attention has no second derivative"):
        SECOND_ORDER[name](ours, *inputs())


@pytest.mark.parametrize("name", REVERSE_MODE)
def test_reverse_mode_in_float64(name: str) -> None:
    got = REVERSE_MODE[name](ours, *inputs())
    wanted = REVERSE_MODE[name](exact, *inputs(dtype=torch.float64))
    torch.testing.assert_close(got, wanted, check_dtype=False, **CLOSE)


def test_gradients_of_bias_sinks_and_lse_in_torch_func() -> None:
    q, k, v, w = inputs()
    generator = torch.Generator().manual_seed(3)
    bias, sinks = torch.randn(2, 5, 5, generator=generator), torch.randn(2, generator=generator)

    def of(bias: Tensor, sinks: Tensor, *tensors: Tensor, attention: Any) -> Tensor:
        q, k, v, w = tensors
        o, lse = attention(q, k, v, bias=bias, sinks=sinks)
        return (o * w).sum() + lse.square().sum()

    given = (bias, sinks, q, k, v, w)
    both = partial(tilewise.attention, return_lse=True)
    got = func.grad(partial(of, attention=both), argnums=(0, 1, 2))(*given)
    doubles = [t.double() for t in given]
    wanted = func.grad(partial(of, attention=paper), argnums=(0, 1, 2))(*doubles)
    torch.testing.assert_close(got, wanted, check_dtype=False, **CLOSE)


def test_operator_in_torch_func_says_whom_to_call() -> None:
    q, k, v, w = inputs()
    with pytest.raises(NotImplementedError, match="call tilewise.attention"):
        func.grad(partial(loss, by_operator, w))(q, k, v)


# Recorders, compilers and exporters.


class Block(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ours(q, k, v)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("grad", [False, True])
def test_jit_trace(grad: bool) -> None:
    q, k, v, w = inputs()
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(Block(), (q, k, v))
    assert "tilewise::attention_forward" in str(traced.graph)
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    loaded = torch.jit.load(file)
    others = [t.flip(1).requires_grad_() for t in (q, k, v)]
    doubles = [t.detach().double().requires_grad_() for t in others]
    o, wanted = loaded(*others), exact(*doubles)
    torch.testing.assert_close(o, wanted, check_dtype=False, **CLOSE)
    torch.testing.assert_close(
        torch.autograd.grad(o, others, w),
        torch.autograd.grad(wanted, doubles, w.double()),
        check_dtype=False,
        **CLOSE,
    )


@pytest.mark.filterwarnings("ignore")
def test_jit_trace_of_a_model_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    import tilewise.hf

    tilewise.hf.register()
    torch.manual_seed(2)
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    ids = torch.randint(0, 30, (2, 7))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        wanted = model(ids)[0]
        model.set_attn_implementation("tilewise")
        traced = torch.jit.trace(model, (ids.flip(1),), strict=False)
        got = traced(ids)["last_hidden_state"]
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore")
def test_jit_script_and_fx_are_refused() -> None:
    class Scripted(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return tilewise.attention(q, k, v)

    with pytest.raises(Exception, match="tilewise"):
        torch.jit.script(Scripted())
    with pytest.raises(ValueError, match="q is of type torch.fx.proxy.Proxy: expected a torch"):
        torch.fx.symbolic_trace(Block())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [False, True])
def test_onnx_exporters_are_refused(dynamo: bool) -> None:
    if dynamo:
        pytest.importorskip("onnxscript")
    with pytest.raises(Exception, match="tilewise"):
        torch.onnx.export(Block(), tuple(inputs(3)), io.BytesIO(), dynamo=dynamo)


def test_make_fx_and_export() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    q, k, v = inputs(3)
    wanted = exact(*inputs(3, torch.float64))
    recorded = make_fx(Block())(q, k, v)
    exported = torch.export.export(Block(), (q, k, v)).module()
    for graph in (recorded, exported):
        assert "tilewise.attention_forward" in graph.code
        torch.testing.assert_close(graph(q, k, v), wanted, check_dtype=False, **CLOSE)


def _dropped(x: Tensor, v: Tensor) -> Tensor:
    h = torch.nn.functional.gelu(x * 1.1).sin()
    o: Tensor = tilewise.attention(h, h.cos(), v, dropout_p=0.4)
    return o


def _assert_one_dropout_mask(f: Callable[..., Tensor]) -> None:
    """O is linear in v: <dO, O> is <dV, v> where backward drops what forward dropped."""
    x, v, w, _ = inputs()
    x.requires_grad_()
    v.requires_grad_()
    torch.manual_seed(4)
    o = f(x, v)
    dv = torch.autograd.grad(o, (x, v), w)[1]
    torch.testing.assert_close((w * o).sum(), (dv * v).sum(), atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        torch.manual_seed(4)
        torch.testing.assert_close(o, _dropped(x, v), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("budget", [1.0, 0.5, 0.3, 0.1, 0.0])
@pytest.mark.parametrize("nested", [False, True])
def test_dropout_under_a_memory_budget(budget: float, nested: bool) -> None:
    from torch._functorch import config

    def block(x: Tensor, v: Tensor) -> Any:
        return checkpoint(_dropped, x, v, use_reentrant=False) if nested else _dropped(x, v)

    torch._dynamo.reset()
    with config.patch(activation_memory_budget=budget):
        _assert_one_dropout_mask(torch.compile(block, backend="aot_eager", fullgraph=True))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("policy", ["MUST_SAVE", "PREFER_RECOMPUTE"])
@pytest.mark.parametrize("what", ["attention_forward", "randint", "t"])
def test_checkpoint_policies(what: str, policy: str, compiled: bool) -> None:
    other = "MUST_RECOMPUTE" if policy == "MUST_SAVE" else "PREFER_SAVE"
    seen = set()

    def choose(_: Any, operator: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
        seen.add(str(operator))
        return getattr(CheckpointPolicy, policy if what in str(operator) else other)

    contexts = partial(create_selective_checkpoint_contexts, choose)

    def block(x: Tensor, v: Tensor) -> Any:
        return checkpoint(_dropped, x, v, use_reentrant=False, context_fn=contexts)

    torch._dynamo.reset()
    _assert_one_dropout_mask(
        torch.compile(block, backend="aot_eager", fullgraph=True) if compiled else block
    )
    assert compiled or "tilewise.attention_forward.default" in seen


# Modes, profilers, counters.


class DispatchWatch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        self.seen.append(str(function))
        return function(*arguments, **(options or {}))


class FunctionWatch(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        self.seen.append(str(function))
        return function(*arguments, **(options or {}))


def _run(context: AbstractContextManager[Any]) -> None:
    """Forward and backward under an onlooker, against float64."""
    q, k, v, w = inputs()
    of = [t.requires_grad_() for t in (q, k, v)]
    doubles = [t.detach().double().requires_grad_() for t in of]
    wanted = torch.autograd.grad(exact(*doubles), doubles, w.double())
    with context:
        got = torch.autograd.grad(ours(*of), of, w)
    torch.testing.assert_close(got, wanted, check_dtype=False, **CLOSE)


def test_dispatch_mode_sees_both_operators() -> None:
    watch = DispatchWatch()
    _run(watch)
    assert {"tilewise.attention_forward.default", "tilewise.attention_backward.default"} <= set(
        watch.seen
    )


def test_function_mode_sees_the_operator() -> None:
    watch = FunctionWatch()
    _run(watch)
    assert "tilewise.attention_forward" in watch.seen
    assert not any("empty" in name for name in watch.seen)


def test_default_device_is_a_mode() -> None:
    q, k, v = inputs(3)
    with torch.device("meta"):  # where new tensors go: dropout's seed stays on the CPU
        o = tilewise.attention(q, k, v, dropout_p=0.3)
        assert o.device.type == "cpu"
        o = tilewise.attention(q, k, v, dropout_p=0.3, dropout_seed=4)
    assert torch.equal(o, tilewise.attention(q, k, v, dropout_p=0.3, dropout_seed=4))


@pytest.mark.parametrize("legacy", [False, True])
def test_profilers_see_both_operators(legacy: bool) -> None:
    profile = (
        torch.autograd.profiler.profile()
        if legacy
        else torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    )
    _run(profile)
    names = {event.key for event in profile.key_averages()}
    assert {"tilewise::attention_forward", "tilewise::attention_backward"} <= names


def test_flop_counter_counts_as_for_torch_s_own() -> None:
    def flops(attention: Attention, shape: tuple[int, ...], **options: Any) -> int:
        generator = torch.Generator().manual_seed(1)
        of = [torch.randn(shape, generator=generator, requires_grad=True) for _ in range(3)]
        with flop_counter.FlopCounterMode(display=False) as counter:
            attention(*of, **options).sum().backward()
        return counter.get_total_flops()

    heads_first = (2, 3, 9, 16)  # by its formulas: torch 2.11 counts no call of its own on a CPU
    torch_s = flop_counter.sdpa_flop_count(*[heads_first] * 3)
    torch_s += flop_counter.sdpa_backward_flop_count(*[heads_first] * 4)
    assert flops(tilewise.attention, heads_first, layout="bhsd") == torch_s > 0
    assert flops(tilewise.attention, (2, 9, 3, 16)) == torch_s
    assert flops(tilewise.attention, (6, 9, 16)) == torch_s
    offsets = torch.tensor([0, 9, 18], dtype=torch.int32)
    assert torch_s == flops(ours, (18, 3, 16), cu_seqlens_q=offsets, cu_seqlens_k=offsets)


def test_anomaly_mode_and_saved_tensor_hooks() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _run(torch.autograd.detect_anomaly())
    _run(torch.autograd.graph.save_on_cpu())
    _run(nullcontext())


# Tensors that are not plain.


def test_fake_and_meta_tensors_have_shapes() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(2, 5, 2, 8, requires_grad=True)
        o = ours(fake, fake, fake)
        o.sum().backward()
        assert type(o) is type(fake) and fake.grad.shape == fake.shape
    meta = torch.empty(2, 5, 2, 8, device="meta")
    assert ours(meta, meta, meta).is_meta


class Named(Tensor):
    """A subclass that says nothing of its own."""


class Loud(Tensor):
    """A subclass that sees each call."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        cls.seen.append(str(function))
        return super().__torch_function__(function, types, arguments, options)


def test_subclasses_see_the_operator() -> None:
    q, k, v = inputs(3)
    wanted = ours(q, k, v)
    for kind in (Named, Loud):
        o = ours(*(t.as_subclass(kind) for t in (q, k, v)))
        assert type(o) is kind and torch.equal(o.as_subclass(Tensor), wanted)
    assert "tilewise.attention_forward" in Loud.seen


@pytest.mark.parametrize("option", ["mask", "bias"])
def test_masks_of_unknown_subclasses_are_refused(option: str) -> None:
    from torch.nn.attention.bias import causal_lower_right

    q, k, v = inputs(3)
    given = torch.ones(5, 5, dtype=torch.bool if option == "mask" else torch.float32)
    wanted = tilewise.attention(q, k, v, **{option: given})
    # Its memory is the mask: nothing else speaks.
    named = tilewise.attention(q, k, v, **{option: given.as_subclass(Named)})
    assert torch.equal(named.as_subclass(Tensor), wanted)
    for unknown in (given.as_subclass(Loud), causal_lower_right(5, 5)):
        with pytest.raises(ValueError, match=rf"{option} is (Loud|CausalBias)"):
            tilewise.attention(q, k, v, **{option: unknown})
