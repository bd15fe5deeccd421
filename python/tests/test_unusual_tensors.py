"""Tensors that are not plain numbers in memory, and arguments of another library than q's."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
import tilewise.flash_attn  # noqa: E402
import tilewise.sdpa  # noqa: E402
from torch import Tensor  # noqa: E402


def negated(device: str, *shape: int) -> Tensor:
    """A view whose numbers have the other sign in memory."""
    view: Tensor = torch.randn(*shape, dtype=torch.complex64, device=device).conj().imag
    assert view.is_neg()
    return view.requires_grad_()


@pytest.mark.parametrize("which", ["q", "k", "v", "bias"])
def test_negative_bit(device: str, which: str) -> None:
    """The sign that torch keeps beside the numbers counts, in O and in every gradient."""
    tensors = {n: torch.randn(1, 8, 2, 16, device=device, requires_grad=True) for n in "qkv"}
    shape = (2, 8, 8) if which == "bias" else (1, 8, 2, 16)
    tensors[which] = negated(device, *shape)
    plain = {n: t.detach().resolve_neg().clone().requires_grad_() for n, t in tensors.items()}
    found = []
    for given in (tensors, plain):
        q, k, v, *bias = given.values()
        try:
            o = tilewise.attention(q, k, v, bias=bias[0] if bias else None)
            gradients = torch.autograd.grad(o.square().sum(), list(given.values()))
        except NotImplementedError as error:
            assert device == "cuda" and which == "bias", error
            pytest.skip(f"on {device}: {error}")
        found.append((o, *gradients))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_negative_bit_of_a_gradient(device: str) -> None:
    q = torch.randn(1, 8, 2, 16, device=device, requires_grad=True)
    o = tilewise.attention(q, q, q)
    d_o = negated(device, *o.shape).detach()
    (ours,) = torch.autograd.grad(o, q, d_o, retain_graph=True)
    (expected,) = torch.autograd.grad(o, q, d_o.resolve_neg())
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["d_o", "q", "k", "v", "o", "lse", "d_lse"])
def test_negative_bit_of_what_backward_takes(device: str, name: str) -> None:
    """attention_backward reads o and lse from the caller, who may give any view of them."""
    given = {n: torch.randn(1, 8, 2, 16, device=device) for n in ("d_o", "q", "k", "v")}
    q, k, v = given["q"], given["k"], given["v"]
    given["o"], given["lse"] = tilewise.attention(q, k, v, return_lse=True)
    given["d_lse"] = torch.randn(1, 2, 8, device=device)
    expected = tilewise.attention_backward(**given)
    given[name] = torch._neg_view(-given[name])
    ours = tilewise.attention_backward(**given)
    for a, b in zip(ours[:3], expected[:3], strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_negative_bit_of_lengths() -> None:
    q = torch.randn(1, 8, 2, 16)
    lengths = torch.tensor([5], dtype=torch.int32)
    o = tilewise.attention(q, q, q, key_lengths=torch._neg_view(-lengths))
    assert torch.equal(o, tilewise.attention(q, q, q, key_lengths=lengths))


def test_meta_tensors_run_nothing() -> None:
    q = torch.empty(2, 5, 8, 16, device="meta", requires_grad=True)
    k = torch.empty(2, 9, 2, 16, device="meta")
    o, lse = tilewise.attention(q, k, k, causal=True, return_lse=True)
    assert o.is_meta and o.shape == q.shape and lse.shape == (2, 8, 5)
    o.sum().backward()
    assert q.grad is not None and q.grad.is_meta


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("layout", ["sparse", "mkldnn"])
def test_other_layouts_are_refused(layout: str, name: str) -> None:
    q = torch.randn(1, 4, 2, 8)
    given = {"q": q, "k": q, "v": q, name: q.to_sparse() if layout == "sparse" else q.to_mkldnn()}
    with pytest.raises(ValueError, match=f"^{name} cannot be read: [^\n]*$"):
        tilewise.attention(**given)


NUMBERS = ["scale", "softcap", "dropout_p"]


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_have_no_gradient(name: str) -> None:
    """A learned scale would stay at its first value without a word."""
    q, number = torch.randn(1, 4, 2, 8), torch.tensor(0.5, requires_grad=True)
    given: dict[str, Any] = {name: number, "dropout_seed": 1}
    with pytest.raises(NotImplementedError, match=f"{name} is a tensor with a derivative"):
        tilewise.attention(q, q, q, **given)
    with torch.no_grad():
        o = tilewise.attention(q, q, q, **given)
    assert torch.equal(o, tilewise.attention(q, q, q, **given | {name: 0.5}))
    assert torch.equal(o, tilewise.attention(q, q, q, **given | {name: number.detach()}))


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_have_no_derivative_in_torch_func(name: str) -> None:
    q, number = torch.randn(1, 4, 2, 8), torch.tensor(0.5)

    def loss(number: Tensor) -> Tensor:
        given: dict[str, Any] = {name: number}
        return tilewise.attention(q, q, q, dropout_seed=1, **given).sum()

    for derive in (torch.func.grad(loss), lambda x: torch.func.jvp(loss, (x,), (x,))):
        with pytest.raises(NotImplementedError, match=f"{name} is a tensor with a derivative"):
            derive(number)


def test_drop_ins_have_no_gradient_of_the_scale() -> None:
    q, scale = torch.randn(1, 4, 2, 8), torch.tensor(0.5, requires_grad=True)
    for call in (
        lambda: tilewise.sdpa.scaled_dot_product_attention(q, q, q, scale=scale),
        lambda: tilewise.flash_attn.flash_attn_func(q, q, q, softmax_scale=scale),
        lambda: tilewise.flex_attention(q, q, q, scale=scale),
        lambda: tilewise.prefix_attention(q, q, q, q, q, scale=scale),
    ):
        with pytest.raises(NotImplementedError, match="scale is a tensor with a derivative"):
            call()


def some_array(name: str) -> np.ndarray[Any, Any]:
    """An argument that fits q (1, 4, 2, 8)."""
    lengths = np.array([3], np.int32)
    return {"mask": np.ones((4, 4), np.bool_), "key_lengths": lengths}.get(
        name, np.ones((4, 4) if name == "bias" else (1, 4, 2, 8), np.float32)
    )


@pytest.mark.parametrize("name", ["k", "v", "bias", "mask", "key_lengths"])
@pytest.mark.parametrize("gradients", [False, True])
def test_numpy_beside_torch(name: str, gradients: bool) -> None:
    q = torch.randn(1, 4, 2, 8, requires_grad=gradients)
    given: dict[str, Any] = {"k": q, "v": q, name: some_array(name)}
    for call in (tilewise.attention, tilewise.plan):
        with pytest.raises(ValueError, match=f"^{name} is ndarray: expected a torch tensor"):
            call(q, **given)


@pytest.mark.parametrize("name", ["d_o", "k", "o", "lse", "mask"])
def test_numpy_beside_torch_backward(name: str) -> None:
    q = torch.randn(1, 4, 2, 8)
    o, lse = tilewise.attention(q, q, q, return_lse=True)
    given: dict[str, Any] = {"d_o": o, "k": q, "v": q, "o": o, "lse": lse}
    given[name] = lse.numpy() if name == "lse" else some_array(name)
    with pytest.raises(ValueError, match=f"^{name} is ndarray: expected a torch tensor"):
        tilewise.attention_backward(q=q, **given)


@pytest.mark.parametrize("name", ["k", "v", "bias", "mask", "key_lengths"])
def test_torch_beside_numpy(name: str) -> None:
    """Its negative bit and its gradient would be lost."""
    q = np.ones((1, 4, 2, 8), np.float32)
    tensor = torch.from_numpy(some_array(name))
    if name in ("k", "v", "bias"):
        tensor = torch._neg_view(-tensor)
    given: dict[str, Any] = {"k": q, "v": q, name: tensor}
    for call in (tilewise.attention, tilewise.plan):
        with pytest.raises(ValueError, match=f"^{name} is a torch tensor: expected an array"):
            call(q, **given)


@pytest.mark.parametrize("name", ["d_o", "v", "o", "lse", "d_lse", "bias"])
def test_torch_beside_numpy_backward(name: str) -> None:
    q = np.ones((1, 4, 2, 8), np.float32)
    o, lse = tilewise.attention(q, q, q, return_lse=True)
    given: dict[str, Any] = {"d_o": o, "k": q, "v": q, "o": o, "lse": lse}
    given[name] = torch.from_numpy(lse if name in ("lse", "d_lse") else some_array(name))
    with pytest.raises(ValueError, match=f"^{name} is a torch tensor: expected an array"):
        tilewise.attention_backward(q=q, **given)


@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "mask"])
def test_masked_arrays_are_refused(name: str) -> None:
    """Their memory holds the elements that the mask hides."""
    q = np.ones((1, 4, 2, 8), np.float32)
    given: dict[str, Any] = {"q": q, "k": q, "v": q}
    given[name] = np.ma.masked_array(some_array(name), some_array(name) > 0)
    for call in (tilewise.attention, tilewise.plan):
        with pytest.raises(ValueError, match=f"^{name} is a masked array"):
            call(**given)


def test_scalars_and_nested_tensors_are_refused_by_name() -> None:
    x, scalar = torch.zeros(1, 4, 2, 8), torch.tensor(1.0)
    for i, name in enumerate("qkv"):
        given = [x, x, x]
        given[i] = scalar
        with pytest.raises(ValueError, match=f"^{name}.* has 0 axes"):
            tilewise.attention(*given)
        with pytest.raises(ValueError, match=f"^{name}.* has 0 axes"):
            tilewise.attention(*(t.numpy() for t in given))
    parts = [torch.zeros(3, 2, 8), torch.zeros(4, 2, 8)]
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor(parts, layout=layout)
        with pytest.raises(NotImplementedError, match="^q is a nested tensor: .*cu_seqlens_q"):
            tilewise.attention(nested, nested, nested)
    for name in ("k", "mask"):
        with pytest.raises(NotImplementedError, match=f"^{name} is a nested tensor"):
            tilewise.attention(**({"q": x, "k": x, "v": x} | {name: nested}))
