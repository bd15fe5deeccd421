"""The torch operators: registration, autograd, the compiler, autocast, memory, streams."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
import tilewise._torch  # noqa: E402  registers the operators, whoever imported tilewise first
from oracle import has_gradient, paper, supported  # noqa: E402
from tilewise._attention import _make_spec  # noqa: E402
from tilewise._spec import FIELDS, SCORE_EXPRESSION, make_spec  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def leaves(device: str, *shape: int, count: int = 3, **options: Any) -> list[Tensor]:
    return [torch.randn(*shape, device=device, requires_grad=True, **options) for _ in range(count)]


def fields(**options: Any) -> tuple[Any, ...]:
    """What the operators take behind q, k and v."""
    return make_spec(**options)[:SCORE_EXPRESSION]


@pytest.mark.parametrize("options", ["plain", "everything"])
def test_opcheck(device: str, options: str) -> None:
    q, k, v = leaves(device, 2, 9, 4, 16)
    spec = fields(causal=True)
    if options == "everything":
        spec = fields(
            window=(5, 2),
            softcap=3.0,
            bias=torch.randn(4, 9, 9, device=device, requires_grad=True),
            sinks=torch.randn(4, device=device, requires_grad=True),
            mask=torch.rand(9, 9, device=device) > 0.3,
            dropout_p=0.2,
            seed=torch.tensor([1, 2]),
        )
    operator = torch.ops.tilewise.attention_forward
    try:
        operator(q, k, v, *spec)
    except NotImplementedError as error:
        assert device == "cuda", error
        pytest.skip(f"on {device}: {error}")
    torch.library.opcheck(operator.default, (q, k, v, *spec))


def test_opcheck_backward(device: str) -> None:
    q, k, v = (t.detach() for t in leaves(device, 2, 9, 4, 16))
    spec = fields()
    o, lse = torch.ops.tilewise.attention_forward(q, k, v, *spec)
    torch.library.opcheck(
        torch.ops.tilewise.attention_backward.default,
        (torch.randn_like(o), None, q, k, v, o, lse, False, False, *spec),
        # Its autograd refuses, as test_c108 wants.
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


def _compare(f: Callable[..., Tensor], compiled: Callable[..., Tensor], of: list[Tensor]) -> None:
    o, exact = compiled(*of), f(*of)
    torch.testing.assert_close(o, exact, atol=1e-6, rtol=1e-6)
    assert o.stride() == exact.stride()
    d_o = torch.randn_like(o)
    for a, b in zip(
        torch.autograd.grad(o, of, d_o), torch.autograd.grad(exact, of, d_o), strict=True
    ):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-5)
        assert a.stride() == b.stride()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_c107_compiled(device: str, backend: str, dynamic: bool) -> None:
    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o, lse = tilewise.attention(q * 2, k, v, causal=True, layout="bhsd", return_lse=True)
        return o + lse[..., None]

    torch._dynamo.reset()
    compiled = torch.compile(block, backend=backend, fullgraph=True, dynamic=dynamic)
    for s in (128, 196, 257) if dynamic else (128,):
        rows = [torch.randn(1, s, 8, 64, device=device) for _ in range(3)]
        # q, k, v seen as (B, H, S, D), as a projection leaves them.
        of = [t.transpose(1, 2).detach().requires_grad_() for t in rows]
        _compare(block, compiled, of)


def test_compiled_with_everything(device: str) -> None:
    def block(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
        o: Tensor = tilewise.attention(
            q, k, v, causal=True, bias=bias, sinks=sinks, softcap=4.0, window=(9, None)
        )
        return o * 2

    q, k, v = leaves(device, 2, 33, 4, 16)
    (bias,), (sinks,) = leaves(device, 1, 4, 33, 33, count=1), leaves(device, 4, count=1)
    supported(device, q, k, v, bias=bias, sinks=sinks, softcap=4.0)
    of = [q, k, v]
    for name, leaf in (("bias", bias), ("sinks", sinks)):
        leaf.requires_grad_(has_gradient(device, name))
        of += [leaf] if leaf.requires_grad else []
    torch._dynamo.reset()
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)

    def of_all(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *_: f(q, k, v, bias, sinks)

    _compare(of_all(block), of_all(compiled), of)


def test_compiled_dropout_follows_the_generator(device: str) -> None:
    q, k, v = leaves(device, 1, 16, 2, 16)
    supported(device, q, k, v, dropout_p=0.4)
    torch._dynamo.reset()

    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o: Tensor = tilewise.attention(q, k, v, dropout_p=0.4)
        return o

    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(compiled(q, k, v))
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    torch.manual_seed(1)
    assert torch.equal(draws[0], block(q, k, v))


def test_export(device: str) -> None:
    class Block(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            o: Tensor = tilewise.attention(q, k, v, causal=True)
            return o

    q, k, v = (t.detach() for t in leaves(device, 1, 8, 2, 16))
    program = torch.export.export(Block(), (q, k, v))
    assert "tilewise.attention_forward" in str(program.graph)
    assert torch.equal(program.module()(q, k, v), tilewise.attention(q, k, v, causal=True))


def test_c108_double_backward_refuses(device: str) -> None:
    q, k, v = leaves(device, 1, 4, 2, 16)
    (dq,) = torch.autograd.grad(tilewise.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="double backward"):
        dq.sum().backward()


def test_forward_mode_refuses(device: str) -> None:
    q = torch.randn(1, 4, 2, 16, device=device)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises((NotImplementedError, RuntimeError)):
            tilewise.attention(dual, q, q)


def test_operator_and_short_way_agree(device: str) -> None:
    q, k, v = leaves(device, 2, 9, 4, 16)
    (sinks,) = leaves(device, 4, count=1)
    sinks.requires_grad_(has_gradient(device, "sinks"))
    of = (q, k, v, sinks) if sinks.requires_grad else (q, k, v)
    o, lse = tilewise.attention(q, k, v, sinks=sinks, return_lse=True)
    o2, lse2 = torch.ops.tilewise.attention_forward(q, k, v, *fields(sinks=sinks))
    assert torch.equal(o, o2) and torch.equal(lse, lse2)
    short = torch.autograd.grad((o.square().sum() + lse.sum()), of)
    long = torch.autograd.grad((o2.square().sum() + lse2.sum()), of)
    for a, b in zip(short, long, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def test_dispatch_modes_see_the_operator(device: str) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, arguments: Any = (), options: Any = None
        ) -> Any:
            seen.append(str(function))
            return function(*arguments, **(options or {}))

    q = torch.randn(1, 4, 2, 16, device=device)
    with Watch():
        tilewise.attention(q, q, q)
    assert any("tilewise.attention_forward" in name for name in seen)


def test_deterministic_algorithms_are_deterministic() -> None:
    """torch's setting reaches the operator in every call with torch tensors, compiled too."""
    from torch.utils._python_dispatch import TorchDispatchMode

    at, seen = 3 + FIELDS.index("deterministic"), []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, arguments: Any = (), options: Any = None
        ) -> Any:
            if "attention_forward" in str(function):
                seen.append(arguments[at])
            return function(*arguments, **(options or {}))

    def compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
        operators = (n for n in graph.graph.nodes if "attention_forward" in str(n.target))
        seen.extend(node.args[at] for node in operators)
        return graph

    def call(q: Tensor) -> Tensor:
        o: Tensor = tilewise.attention(q, q, q)
        return o

    q = torch.randn(1, 8, 2, 16)
    compiled = torch.compile(call, backend=compiler, fullgraph=True)
    for wanted in (False, True):
        torch.use_deterministic_algorithms(wanted)
        try:
            compiled(q)
            with Watch():
                call(q)
            seen.append(_make_spec(tilewise._torch, q, q, None, {})[at - 3])
        finally:
            torch.use_deterministic_algorithms(False)
    assert seen == [False] * 3 + [True] * 3


def test_gradcheck_of_the_reference() -> None:
    torch.manual_seed(0)
    q, k, v = leaves("cpu", 1, 5, 2, 4, dtype=torch.float64)

    def f(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return tilewise.attention(q, k, v, causal=True, softcap=2.0, implementation="reference")

    assert torch.autograd.gradcheck(f, (q, k, v), eps=1e-6, atol=1e-5)


def test_gradcheck_of_lse() -> None:
    torch.manual_seed(0)
    q, k, v = leaves("cpu", 1, 5, 2, 4, dtype=torch.float64)

    def f(q: Tensor, k: Tensor) -> Any:
        # LSE is float32: its steps are, too.
        return tilewise.attention(q, k, v, return_lse=True, implementation="reference")[1].double()

    assert torch.autograd.gradcheck(f, (q, k), eps=1e-2, atol=2e-3, rtol=1e-2)


@pytest.mark.filterwarnings("ignore:Input #. requires gradient")
def test_gradcheck_of_flash(device: str) -> None:
    q, k, v = leaves(device, 1, 6, 2, 8)
    assert torch.autograd.gradcheck(
        lambda *t: tilewise.attention(*t, causal=True, deterministic=True).double(),
        (q, k, v),
        eps=2e-2,
        atol=5e-3,
        rtol=1e-2,
        nondet_tol=1e-6,
    )


def test_gradient_through_lse_alone(device: str) -> None:
    q, k, v = leaves(device, 2, 7, 2, 16)
    _, lse = tilewise.attention(q, k, v, return_lse=True)
    ours = torch.autograd.grad(lse.sum(), (q, k, v))
    exact = torch.autograd.grad(paper(q, k, v)[1].sum(), (q, k))
    for a, b in zip(ours[:2], exact, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), atol=1e-5, rtol=0)
    assert not ours[2].any()


def test_only_what_is_asked_for(device: str) -> None:
    q, k, v = leaves(device, 1, 4, 2, 16)
    k.requires_grad_(False)
    tilewise.attention(q, k, v).sum().backward()
    assert q.grad is not None and v.grad is not None and k.grad is None
    with torch.no_grad():
        assert not tilewise.attention(q, k, v).requires_grad
    with torch.inference_mode():
        assert tilewise.attention(q, k, v).shape == q.shape


def test_autocast(device: str) -> None:
    q, k, v = leaves(device, 1, 8, 2, 16)
    with torch.autocast(device, dtype=torch.bfloat16):
        o = tilewise.attention(q, k, v)
    assert o.dtype == torch.bfloat16
    o.float().sum().backward()
    assert q.grad is not None and q.grad.dtype == torch.float32
    direct = tilewise.attention(*(t.bfloat16() for t in (q, k, v)))
    assert torch.equal(o, direct)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(device: str, reentrant: bool) -> None:
    q, k, v = leaves(device, 2, 16, 2, 16)
    try:
        tilewise.attention(q, k, v, dropout_p=0.3)
        p = 0.3
    except NotImplementedError:
        p = 0.0

    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tilewise.attention(q, k, v, dropout_p=p, deterministic=True).square()

    torch.manual_seed(5)
    exact = torch.autograd.grad(block(q, k, v).sum(), (q, k, v))
    torch.manual_seed(5)
    checkpoint(block, q, k, v, use_reentrant=reentrant).sum().backward()
    for leaf, gradient in zip((q, k, v), exact, strict=True):
        assert torch.equal(leaf.grad, gradient)


def test_parameters_and_subclasses(device: str) -> None:
    q = torch.nn.Parameter(torch.randn(1, 4, 2, 16, device=device))
    tilewise.attention(q, q, q).sum().backward()
    assert q.grad is not None

    class Named(torch.Tensor):
        pass

    named = q.detach().as_subclass(Named)
    torch.testing.assert_close(
        tilewise.attention(named, named, named).as_subclass(Tensor), tilewise.attention(q, q, q)
    )


def test_meta_tensors_have_shapes() -> None:
    with torch.device("meta"):
        q, k = torch.empty(2, 5, 8, 16), torch.empty(2, 9, 2, 16)
    o, lse = torch.ops.tilewise.attention_forward(q, k, k, *fields())
    assert o.shape == q.shape and lse.shape == (2, 8, 5)


def test_many_threads(device: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    inputs = [torch.randn(1, 8 + n, 2, 16, device=device) for n in range(8)]
    alone = [tilewise.attention(t, t, t, causal=True) for t in inputs]

    def again(t: Tensor) -> list[Tensor]:
        return [tilewise.attention(t, t, t, causal=True) for _ in range(50)]

    with ThreadPoolExecutor(8) as pool:
        for exact, several in zip(alone, pool.map(again, inputs), strict=True):
            assert all(torch.equal(exact, one) for one in several)


# On a GPU.


@cuda
def test_memory_is_torch_s() -> None:
    q, k, v = leaves("cuda", 1, 2048, 8, 64, dtype=torch.bfloat16)
    tilewise.attention(q, k, v).sum().backward()
    torch.cuda.synchronize()
    plan = tilewise.plan(q, k, v, backward=True)
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    o = tilewise.attention(q, k, v)
    torch.autograd.grad(o, (q, k, v), torch.ones_like(o))
    peak = torch.cuda.max_memory_allocated() - held
    tensor = q.numel() * q.element_size()
    # O, dO, three gradients, LSE, and the workspace of the plan; nothing of S x S.
    assert plan.workspace_bytes <= peak <= 6 * tensor + plan.workspace_bytes + (1 << 20)


@cuda
def test_work_goes_to_the_current_stream() -> None:
    q, k, v = (t.detach() for t in leaves("cuda", 2, 512, 8, 64, dtype=torch.bfloat16))
    exact = tilewise.attention(q, k, v)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)  # 0.2 s: others may share the card
        late = q.clone()
        o = tilewise.attention(late, k, v)
        done = torch.cuda.Event()
        done.record()
    assert not done.query()  # nothing waited
    done.synchronize()
    assert torch.equal(o, exact)


@cuda
def test_cuda_graph() -> None:
    q, k, v = leaves("cuda", 2, 256, 4, 64, dtype=torch.bfloat16)

    def step() -> tuple[Tensor, ...]:
        o = tilewise.attention(q, k, v, causal=True, deterministic=True)
        return o, *torch.autograd.grad(o, (q, k, v), torch.ones_like(o))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    with torch.no_grad():
        q.copy_(torch.randn_like(q))
    graph.replay()
    torch.cuda.synchronize()
    replayed = [t.clone() for t in recorded]
    for a, b in zip(replayed, step(), strict=True):
        assert torch.equal(a, b)


@cuda
def test_a_context_for_what_comes_next() -> None:
    """Backward of a product right after ours, which is the first work of autograd's thread."""
    code = """
import torch, tilewise
x = torch.randn(64, 128, device="cuda", requires_grad=True)
w = torch.randn(128, 128, device="cuda", requires_grad=True)
q = (x @ w).view(1, 64, 2, 64)
k = torch.randn(1, 64, 2, 64, device="cuda")
tilewise.attention(q, k, k).sum().backward()
torch.cuda.synchronize()
"""
    warns = "error:Attempting to run cuBLAS"
    done = subprocess.run(
        [sys.executable, "-W", warns, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "cuBLAS" not in done.stderr, done.stderr


@cuda
def test_c095_another_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    q, k, v = leaves("cuda:1", 1, 64, 4, 64, dtype=torch.bfloat16)
    o = tilewise.attention(q, k, v)
    gradients = torch.autograd.grad(o, (q, k, v), torch.ones_like(o))
    assert o.device == q.device and torch.cuda.current_device() == 0
    exact = paper(q, k, v)[0]
    torch.testing.assert_close(o.double(), exact, atol=2e-2, rtol=0)
    for a, b in zip(
        gradients, torch.autograd.grad(exact, (q, k, v), torch.ones_like(exact)), strict=True
    ):
        torch.testing.assert_close(a.double(), b.double(), atol=4e-2, rtol=0)
    mixed = q, k.to("cuda:0"), v
    with pytest.raises(ValueError, match="q.s device"):
        tilewise.attention(*mixed)
