"""Functions that a formula writes as a few operations: O and gradients beside torch's float64."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
from tilewise import create_block_mask, flex_attention  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn.attention import flex_attention as torch_s  # noqa: E402

B, H, S, D = 1, 2, 24, 8
EDGES = torch.tensor([1, 4, 9])
BINS = torch.tensor([0.3, -0.2, 0.7, -1.0])
ROWS = torch.randn(S, 5, generator=torch.Generator().manual_seed(3))
SCORES: dict[str, Callable[..., Any]] = {
    "tan": lambda s, b, h, i, j: s + torch.tan(0.3 * s),
    "atan2": lambda s, b, h, i, j: s + torch.atan2(i - j, j - 7) + torch.atan2(s, s - 1.0),
    "erfc": lambda s, b, h, i, j: s * torch.erfc(s),
    "asinh": lambda s, b, h, i, j: s + torch.asinh(2.0 * s),
    "acosh": lambda s, b, h, i, j: torch.acosh(s * s + 2.0),
    "atanh": lambda s, b, h, i, j: torch.atanh(torch.tanh(s) * 0.9),
    "frac": lambda s, b, h, i, j: s + (s * 3.0).frac(),
    "ldexp": lambda s, b, h, i, j: torch.ldexp(s, h - j % 3),
    "heaviside": lambda s, b, h, i, j: s + torch.heaviside(i - j, torch.tensor(2)),
    "xlogy": lambda s, b, h, i, j: s + torch.xlogy(i % 4, j + 2.0),
    "bucketize": lambda s, b, h, i, j: s + BINS[torch.bucketize((i - j).abs(), EDGES)],
    "right edges": lambda s, b, h, i, j: s + BINS[torch.bucketize(i - j, EDGES, right=True)],
    "searchsorted": lambda s, b, h, i, j: s + BINS[torch.searchsorted(EDGES, i - j)],
    "sides": lambda s, b, h, i, j: s + BINS[torch.searchsorted(EDGES, i - j, side="right")],
    "norm": lambda s, b, h, i, j: s - torch.linalg.vector_norm(ROWS[i] - ROWS[j], dim=-1),
    "norm by p": lambda s, b, h, i, j: s - (ROWS[i] - ROWS[j]).norm(p=2, dim=-1),
    "torch.norm": lambda s, b, h, i, j: s - torch.norm(ROWS[i] - ROWS[j], dim=-1),
    "integers": lambda s, b, h, i, j: s + torch.asinh(30000 * i) - torch.acosh(30000 * j + 1),
    "new numbers": lambda s, b, h, i, j: torch.where(
        i > j, s, s.new_tensor(-2.5) + s.new_zeros(()) + s.new_full((), 0.25)
    ),
}


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(B, H, S, D, generator=generator) for _ in range(4)]


@pytest.mark.parametrize("name", SCORES)
def test_as_torch_has_it(name: str) -> None:
    *given, d_o = inputs()
    leaves = [t.requires_grad_() for t in given]
    o = flex_attention(*leaves, SCORES[name])
    q, k, v = wide = [t.detach().double().requires_grad_() for t in given]
    h, i, j = (torch.arange(n) for n in (H, S, S))
    scores = SCORES[name](q @ k.mT / D**0.5, 0, h[:, None, None], i[:, None], j)
    wanted = scores.softmax(-1) @ v
    torch.testing.assert_close(o.double(), wanted, atol=1e-5, rtol=1e-5)
    found = torch.autograd.grad(o, leaves, d_o)
    for ours, right in zip(found, torch.autograd.grad(wanted, wide, d_o.double()), strict=True):
        torch.testing.assert_close(ours.double(), right, atol=2e-5, rtol=1e-4)


LEARNED: dict[str, Callable[..., Any]] = {
    "asinh": lambda s, c, h, i, j: s + torch.asinh(c[h] * (i - j)),
    "xlogy": lambda s, c, h, i, j: s + torch.xlogy(c[h], j + 2.0) + torch.xlogy(c[1 - h], j * 0.0),
    "atan2": lambda s, c, h, i, j: s + torch.atan2(j - 3.5, c[h] * (i + 1)),
}


@pytest.mark.parametrize("name", LEARNED)
def test_derivatives_where_forms_meet(name: str) -> None:
    """Learned numbers that begin at 0 have torch's gradient."""
    q, k, v, d_o = inputs()
    learned = torch.zeros(H, requires_grad=True)
    o = flex_attention(q, k, v, lambda s, b, h, i, j: LEARNED[name](s, learned, h, i, j))
    h, i, j = (torch.arange(n) for n in (H, S, S))
    wide = torch.zeros(H, dtype=torch.float64, requires_grad=True)
    scores = q.double() @ k.double().mT / D**0.5
    made = LEARNED[name](scores, wide, h[:, None, None], i[:, None], j)
    wanted = made.softmax(-1) @ v.double()
    torch.testing.assert_close(o.double(), wanted, atol=1e-5, rtol=1e-5)
    found, right = (torch.autograd.grad(t, c, d_o) for t, c in ((o, learned), (wanted, wide)))
    assert right[0].abs().min() > 0.01
    torch.testing.assert_close(found[0].double(), right[0], atol=1e-5, rtol=1e-4)


def test_a_norm_of_0_has_gradient_0() -> None:
    q, k, v, _ = inputs()
    rows = ROWS.clone().requires_grad_()
    flex_attention(
        q, k, v, lambda s, b, h, i, j: s - torch.linalg.vector_norm(rows[i] - rows[j], dim=-1)
    ).square().sum().backward()
    assert rows.grad is not None and rows.grad.isfinite().all() and rows.grad.abs().max() > 0


@pytest.mark.parametrize("join", [torch_s.and_masks, torch_s.or_masks], ids=["and", "or"])
def test_torch_s_own_joins(join: Callable[..., Any]) -> None:
    """They begin with a new tensor, which is a number of the formula; the causal part is found."""
    q, k, v, _ = inputs()
    parts = (lambda b, h, i, j: i >= j), (lambda b, h, i, j: (i - j) * 3 < 20)
    ours = getattr(tilewise, join.__name__)(*parts)
    wanted = flex_attention(q, k, v, block_mask=create_block_mask(ours, None, None, S, S))
    mask = create_block_mask(join(*parts), None, None, S, S)
    assert torch.equal(flex_attention(q, k, v, block_mask=mask), wanted)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "new_ones of size": (lambda s, b, h, i, j: s + s.new_ones(3), "one number"),
    "new_tensor": (lambda s, b, h, i, j: s + s.new_tensor([1.0, 2.0])[h], "make the tensor"),
    "edges": (lambda s, b, h, i, j: s + torch.bucketize(i, EDGES[0]), "one row"),
    "out_int32": (
        lambda s, b, h, i, j: s + torch.bucketize(i, EDGES, out_int32=True),
        "out_int32 is not traced",
    ),
    "side": (
        lambda s, b, h, i, j: s + torch.searchsorted(EDGES, i, side="middle"),
        "side is 'middle'",
    ),
    "norm of 1": (
        lambda s, b, h, i, j: s + torch.linalg.vector_norm(ROWS[i], 1),
        "but the Euclidean one",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    q, k, v, _ = inputs()
    function, said = REFUSED[name]
    with pytest.raises(ValueError, match=said):
        flex_attention(q, k, v, function)
