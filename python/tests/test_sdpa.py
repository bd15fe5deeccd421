"""The drop-in for torch's scaled_dot_product_attention, on a sample of torch's own test shapes."""

import inspect
import itertools
import warnings
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewise.sdpa  # noqa: E402
import torch.nn.functional as functional  # noqa: E402
from oracle import has_gradient  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402


def ours(device: str, *arguments: Any, **options: Any) -> Tensor:
    try:
        return tilewise.sdpa.scaled_dot_product_attention(*arguments, **options)
    except NotImplementedError as error:
        if device == "cpu":
            raise
        pytest.skip(f"on {device}: {error}")


def exact(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
    """torch's own, in float64 by its mathematical backend."""
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.double()
    while mask is not None and mask.dim() > q.dim():  # torch 2.11 refuses what 2.15 takes
        mask = mask.squeeze(0)
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), mask, **options
        )


def compare(device: str, q: Tensor, k: Tensor, v: Tensor, mask: Any = None, **options: Any) -> None:
    of = [q, k, v]
    if mask is not None and mask.is_floating_point() and has_gradient(device, "bias"):
        of.append(mask)
    for leaf in of:
        leaf.requires_grad_()
    o = ours(device, q, k, v, mask, **options)
    wanted = exact(q, k, v, mask, **options)
    bound = {torch.float32: 1e-5, torch.float16: 6e-3, torch.bfloat16: 5e-2}[q.dtype]
    torch.testing.assert_close(o.double(), wanted, atol=bound, rtol=bound)
    d_o = torch.randn_like(o)
    got = torch.autograd.grad(o, of, d_o)
    for a, b in zip(got, torch.autograd.grad(wanted, of, d_o.double()), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=4 * bound, rtol=4 * bound)


# test_transformers.py of torch: batch, lengths, heads, dims.
TORCH_SHAPES = list(
    itertools.chain(
        itertools.product([1, 8], [4, 143, 256], [4, 127, 256], [2], [8, 40, 64]),
        itertools.product([2], [33], [7], [4], [16, 96, 128]),
    )
)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("b", "sq", "sk", "h", "d"), TORCH_SHAPES[::4])
def test_torch_shapes(
    device: str, b: int, sq: int, sk: int, h: int, d: int, is_causal: bool
) -> None:
    q = torch.randn(b, h, sq, d, device=device)
    k, v = torch.randn(2, b, h, sk, d, device=device)
    compare(device, q, k.clone(), v.clone(), is_causal=is_causal)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types(device: str, dtype: Any) -> None:
    q, k, v = (torch.randn(2, 4, 65, 64, device=device, dtype=dtype) for _ in range(3))
    compare(device, q, k, v, is_causal=True)


@pytest.mark.parametrize("axes", [2, 3, 5])
def test_other_ranks(device: str, axes: int) -> None:
    shape = {2: (9, 16), 3: (3, 9, 16), 5: (2, 3, 2, 9, 16)}[axes]
    q, k, v = (torch.randn(shape, device=device) for _ in range(3))
    compare(device, q, k, v)
    mask = torch.randn(*shape[:-1], 9, device=device)
    compare(device, q, k, v, mask)


@pytest.mark.parametrize("shape", [(9, 12), (2, 1, 9, 12), (1, 4, 1, 12), (2, 4, 9, 12)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(device: str, kind: str, shape: tuple[int, ...]) -> None:
    q = torch.randn(2, 4, 9, 16, device=device)
    k, v = (torch.randn(2, 4, 12, 16, device=device) for _ in range(2))
    mask = torch.randn(shape, device=device)
    if kind == "bool":
        mask = mask > -0.5
        mask[..., 0] = True
    compare(device, q, k, v, mask)


def test_infinite_mask(device: str) -> None:
    q, k, v = (torch.randn(1, 2, 6, 16, device=device) for _ in range(3))
    mask = torch.zeros(6, 6, device=device).masked_fill_(
        torch.ones(6, 6, device=device).triu(1).bool(), float("-inf")
    )
    o = ours(device, q, k, v, mask)
    torch.testing.assert_close(o.double(), exact(q, k, v, None, is_causal=True), atol=1e-5, rtol=0)


def test_fully_masked_rows_are_zero(device: str) -> None:
    q, k, v = (torch.randn(1, 2, 6, 16, device=device) for _ in range(3))
    mask = torch.ones(6, 6, dtype=torch.bool, device=device)
    mask[2] = False
    o = ours(device, q, k, v, mask)
    assert not o[:, :, 2].any() and bool(o.isfinite().all())


def test_grouped_queries(device: str) -> None:
    q = torch.randn(2, 8, 9, 16, device=device)
    k, v = (torch.randn(2, 2, 12, 16, device=device) for _ in range(2))
    compare(device, q, k, v, enable_gqa=True)
    with pytest.raises(ValueError, match="enable_gqa"):
        tilewise.sdpa.scaled_dot_product_attention(q, k, v)


def test_scale_and_value_dim(device: str) -> None:
    q, k = (torch.randn(2, 4, 9, 16, device=device) for _ in range(2))
    v = torch.randn(2, 4, 9, 24, device=device)
    compare(device, q, k, v, scale=0.7)


def test_signature() -> None:
    # Arguments after attn_mask in torch's documented order; ours has one keyword more.
    parameters = list(inspect.signature(tilewise.sdpa.scaled_dot_product_attention).parameters)
    assert parameters == [
        *("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"),
        "fallback",
    ]


def test_errors() -> None:
    q = torch.randn(1, 2, 4, 8)
    attention = tilewise.sdpa.scaled_dot_product_attention
    with pytest.raises(ValueError, match="is_causal"):
        attention(q, q, q, torch.ones(4, 4, dtype=torch.bool), is_causal=True)
    with pytest.raises(ValueError, match="attn_mask"):
        attention(q, q, q, torch.ones(4, 4, dtype=torch.int32))
    with pytest.raises(NotImplementedError, match="float64"):
        attention(q.double(), q.double(), q.double())


def test_who_catches_torch_s_errors_catches_ours() -> None:
    """torch's own function raises RuntimeError; `attention` finds the second and third of these."""
    q = torch.randn(1, 2, 4, 8)
    for arguments, name in (
        ((q, q, q, torch.ones(4, 4, dtype=torch.bool), 0.0, True), "is_causal"),
        ((q, q[..., :6], q), "k is"),
        ((q, q.half(), q), "k"),
        ((q, torch.randn(3, 2, 4, 8), torch.randn(2, 2, 4, 8)), "broadcast"),
    ):
        for kind in (RuntimeError, ValueError):
            with pytest.raises(kind, match=name):
                tilewise.sdpa.scaled_dot_product_attention(*arguments)


def test_compiled_whole() -> None:
    """The handler of errors is no break of the graph."""
    q = torch.randn(1, 2, 4, 8)
    attention = tilewise.sdpa.scaled_dot_product_attention
    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    torch.testing.assert_close(
        compiled(q, q, q, is_causal=True), attention(q, q, q, is_causal=True)
    )


@pytest.mark.parametrize(
    ("shape", "dim"),
    [((2, 3, 4, 0), 0), ((3, 4, 0), 5), ((4, 8), 0), ((2, 3, 0, 8), 8), ((0, 3, 4, 8), 8)],
)
def test_empty_axes(shape: tuple[int, ...], dim: int) -> None:
    """Without a dim of query and key every score is 0: the mean of the values, as torch has it."""
    q = torch.ones(shape, requires_grad=True)
    v = torch.randn(*shape[:-1], dim, requires_grad=True)
    found = []
    for module in (tilewise.sdpa, torch.nn.functional):
        o = module.scaled_dot_product_attention(q, q, v)
        found.append((o, *torch.autograd.grad(o.sum(), (q, v))))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_fallback_is_torch_s_and_warns_once() -> None:
    q = torch.randn(1, 2, 4, 8, dtype=torch.float64, requires_grad=True)
    attention = tilewise.sdpa.scaled_dot_product_attention
    with pytest.warns(UserWarning, match="torch's attention runs instead") as given:
        o = attention(q, q, q, is_causal=True, fallback="torch")
    assert [warning.filename for warning in given] == [__file__]  # where the caller stands
    torch.testing.assert_close(o, functional.scaled_dot_product_attention(q, q, q, is_causal=True))
    assert o.requires_grad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention(q, q, q, is_causal=True, fallback="torch")


def test_fallback_has_every_word_it_can(device: str) -> None:
    q = torch.randn(2, 9, 8, 16, device=device)
    k, v = (torch.randn(2, 12, 2, 16, device=device) for _ in range(2))
    lengths = torch.tensor([12, 10], dtype=torch.int32, device=device)
    from tilewise import _fallback
    from tilewise._spec import make_spec

    for options in (
        {"causal": True},
        {"causal": "top_left", "scale": 0.3},
        {"window": (3, 1)},
        {"alibi_slopes": torch.rand(8, device=device)},
        {"bias": torch.randn(8, 9, 12, device=device), "causal": True},
        {"mask": torch.rand(9, 12, device=device) > 0.2, "bias": torch.randn(12, device=device)},
        {"key_lengths": lengths},
        # Diagonals count from the end of each entry's own keys.
        {"key_lengths": lengths, "causal": True},
        {"key_lengths": lengths, "window": (3, 1), "alibi_slopes": torch.rand(8, device=device)},
    ):
        theirs = _fallback.torch_attention(q, k, v, make_spec(**options))
        from oracle import paper

        torch.testing.assert_close(theirs.double(), paper(q, k, v, **options)[0], atol=1e-5, rtol=0)
    for beyond in ("softcap", "implementation", "score_expression", "mask_expression"):
        given: Any = 1.0 if beyond == "softcap" else "given"
        with pytest.raises(NotImplementedError, match=beyond):
            _fallback.torch_attention(q, k, v, make_spec(**{beyond: given}))


def test_fallback_leaves_no_function_out() -> None:
    """torch computed the call without the functions, and no word was said."""
    q = torch.randn(1, 4, 2, 8, dtype=torch.float64)
    functions: dict[str, Any] = {
        "score_mod": lambda score, b, h, i, j: score * 3,
        "mask_mod": lambda b, h, i, j: j < 2,
    }
    for name, function in functions.items():
        with pytest.raises(NotImplementedError, match="_expression either"):
            tilewise.attention(q, q, q, fallback="torch", **{name: function})


_END = 2**63


@pytest.mark.parametrize("left", [None, 1, _END - 1, -_END])
@pytest.mark.parametrize("right", [None, 0, _END - 1, -_END])
@pytest.mark.filterwarnings("ignore:torch's attention runs")
def test_fallback_of_the_widest_windows(left: int | None, right: int | None) -> None:
    """Bounds at the ends of int64, where position and bound together have no int64."""
    q = torch.randn(1, 7, 2, 8, dtype=torch.float64)
    k = torch.randn(1, 4, 2, 8, dtype=torch.float64)
    window = (left, right)
    o = tilewise.attention(q, k, k, window=window, fallback="torch")
    exact = tilewise.attention(q, k, k, window=window, implementation="reference")
    torch.testing.assert_close(o, exact)


def test_fallback_gives_no_lse() -> None:
    q = torch.randn(1, 4, 2, 8, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="LSE"):
        tilewise.attention(q, q, q, return_lse=True, fallback="torch")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fallback_of_tensors_without_memory(dtype: torch.dtype) -> None:
    """Nothing is planned for them, whether a kernel would run (float32) or none (float64)."""
    from torch._subclasses import FakeTensorMode

    def shape_of_o(q: Tensor) -> torch.Size:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            o = tilewise.attention(q, q, q, layout="bhsd", fallback="torch")
        assert (o.device, o.dtype, type(o)) == (q.device, q.dtype, type(q))
        return o.shape

    meta = torch.empty(2, 4, 5, 16, device="meta", dtype=dtype)
    assert shape_of_o(meta) == meta.shape
    with FakeTensorMode():
        fake = torch.empty(2, 4, 5, 16, dtype=dtype)
        assert shape_of_o(fake) == fake.shape
    assert shape_of_o(fake) == fake.shape  # behind its mode


def test_fallback_in_vmap_and_in_subclasses() -> None:
    class Named(Tensor):
        """A subclass that dispatches nothing of its own."""

    q = torch.randn(3, 1, 2, 4, 8)
    attention = partial(tilewise.attention, layout="bhsd", fallback="torch")
    o = torch.func.vmap(lambda t: attention(t, t, t))(q)
    torch.testing.assert_close(o, functional.scaled_dot_product_attention(q, q, q))
    with pytest.raises(NotImplementedError, match="float64"):
        torch.func.vmap(lambda t: attention(t, t, t))(q.double())
    named = q[0].double().as_subclass(Named)
    torch.testing.assert_close(attention(named, named, named), o[0].double().as_subclass(Named))


# Leading axes of query, key, value, mask.
BROADCASTS = [
    ((2, 1, 1), (1, 2, 1), (1, 2, 1), None),
    ((5, 2), (1, 2), (1, 2), None),
    ((1, 2), (5, 2), (5, 2), (5, 1)),
    ((2,), (3, 2), (3, 2), (2,)),
    ((3, 2), (2,), (2,), (3, 1)),
    ((), (3, 2), (2,), ()),
    ((1,), (1,), (4, 3), None),
    ((2, 1, 3), (3, 1), (1, 1, 3), (2, 3, 3)),
    ((2, 2, 3), (2, 2, 3), (2, 2, 3), (2, 1)),
    ((3,), (3,), (1,), (1, 1)),
    ((2, 1), (2, 1), (1, 3), (2, 1)),
]


@pytest.mark.parametrize("kind", ["none", "bool", "float"])
@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
def test_leading_axes_broadcast_as_in_torch(device: str, shapes: Any, kind: str) -> None:
    of_q, of_k, of_v, of_mask = shapes
    q = torch.randn(*of_q, 4, 16, device=device)
    k, v = torch.randn(*of_k, 6, 16, device=device), torch.randn(*of_v, 6, 16, device=device)
    mask = None
    if kind != "none":
        mask = torch.randn(*(of_mask or ()), 4, 6, device=device)
        if kind == "bool":
            mask = mask > -1
            mask[..., 0] = True
    compare(device, q, k, v, mask)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 2), (3, 2, 2), (3, 2, 2)),  # as many entries, and others
        ((2, 1), (3, 1), (3, 1)),
        ((4, 2), (4, 2), (3, 2)),
    ],
)
def test_leading_axes_that_do_not_broadcast(shapes: Any) -> None:
    q, k, v = (torch.zeros(*shape, 4, 8) for shape in shapes)
    with pytest.raises(ValueError, match="do not broadcast"):
        tilewise.sdpa.scaled_dot_product_attention(q, k, v)
    for wrong in ((5, 1, 4, 4), (3, 4), (7, 4, 4)):
        with pytest.raises(ValueError, match="broadcast"):
            tilewise.sdpa.scaled_dot_product_attention(q, q, q, torch.zeros(wrong))


@pytest.mark.parametrize(("rows", "keys"), [(6, 9), (9, 6), (7, 7)])
def test_causal_masks_of_torch(device: str, rows: int, keys: int) -> None:
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    q = torch.randn(2, 2, rows, 16, device=device)
    k, v = (torch.randn(2, 2, keys, 16, device=device) for _ in range(2))
    i, j = torch.arange(rows, device=device)[:, None], torch.arange(keys, device=device)
    for make, shift in ((causal_upper_left, 0), (causal_lower_right, keys - rows)):
        o = ours(device, q, k, v, make(rows, keys))
        seen = j <= i + shift
        wanted = exact(q, k, v, seen)
        wanted[:, :, ~seen.any(1)] = 0.0
        torch.testing.assert_close(o.double(), wanted, atol=1e-5, rtol=0)
        with pytest.raises(ValueError, match="attn_mask"):
            tilewise.sdpa.scaled_dot_product_attention(q, k, v, make(rows + 1, keys))


def test_fallback_behind_a_patched_name(monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(1, 2, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wanted = functional.scaled_dot_product_attention(q, q, q)
    patched = partial(tilewise.sdpa.scaled_dot_product_attention, fallback="torch")
    monkeypatch.setattr(functional, "scaled_dot_product_attention", patched)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(functional.scaled_dot_product_attention(q, q, q), wanted)
