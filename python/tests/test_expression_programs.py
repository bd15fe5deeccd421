"""Score functions and masks as users write them, beside torch in float64: O and all gradients."""

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
from torch.nn import functional  # noqa: E402

B, H, S, D = 2, 4, 40, 16
INF = math.inf


class Tensors:
    """What the functions read: the same numbers in any type. Learned ones have gradients."""

    def __init__(self, real: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(4)

        def learned(*shape: int) -> torch.Tensor:
            values = torch.randn(shape, generator=generator) * 0.5
            return values.to(real).requires_grad_()

        def whole(low: int, high: int, *shape: int) -> torch.Tensor:
            return torch.randint(low, high, shape, generator=generator)

        self.scale, self.head, self.row = learned(), learned(H), learned(B, S)
        self.matrix, self.heads = learned(S, S), learned(H, S, S)
        self.wide, self.all = learned(2 * S, 3), learned(10, 10, H, B)
        self.learned = list(vars(self).values())
        self.ones = torch.where(whole(0, 3, S) > 0, 1.0, math.nan).to(real)
        self.infinite = torch.where(whole(0, 3, S) > 0, 1.0, -INF).to(real)
        self.id, self.long = whole(0, 3, S), whole(0, 3, B, 2 * S)
        self.words = whole(0, 2**31 - 1, S)
        self.seen = whole(0, 3, 2 * S, S) > 0
        self.chosen = whole(0, 5, B, H, 5, 2)


Build = Callable[[Tensors], Callable[..., Any]]

# Booleans and integers keep torch's types; NaN compares as false; quotients floor.
MASKS: dict[str, Build] = {
    "sum of booleans": lambda t: lambda b, h, i, j: (i >= j) + (j < 5),
    "true + true is true": lambda t: lambda b, h, i, j: ((i >= j) + (j < 5)) == 1,
    "product of booleans": lambda t: lambda b, h, i, j: ((i >= j) * (j > 2)) | (i == j),
    "largest of booleans": lambda t: lambda b, h, i, j: torch.maximum(i >= j, j < 5),
    "least of booleans": lambda t: lambda b, h, i, j: torch.min(i >= j - 9, j < 30),
    "isnan": lambda t: lambda b, h, i, j: ~torch.isnan(t.ones[j]) | (i == j),
    "isfinite": lambda t: lambda b, h, i, j: torch.isfinite(t.infinite[j]) | (i == j),
    "NaN is not less": lambda t: lambda b, h, i, j: (t.ones[j] <= 2.0) | (i == j),
    "NaN is not greater": lambda t: lambda b, h, i, j: ~(t.ones[j] > 0.5) | (i == j),
    "NaN in minimum": lambda t: lambda b, h, i, j: (
        (torch.minimum(t.ones[i], t.ones[j]) <= 1) | (i == j)
    ),
    "NaN in fmin": lambda t: lambda b, h, i, j: (
        (torch.fmin(t.ones[i], t.ones[j]) <= 1) | (i == j)
    ),
    "NaN chooses": lambda t: lambda b, h, i, j: torch.where(t.ones[i] > 0, i, j + 3) >= j,
    "power of two": lambda t: lambda b, h, i, j: i - j < 4 ** (h + 1),
    "fmod as an index": lambda t: lambda b, h, i, j: t.id[torch.fmod(i, 5)] == t.id[j],
    "floor as an index": lambda t: lambda b, h, i, j: t.id[torch.floor(i)] == t.id[torch.round(j)],
    "remainders below 0": lambda t: lambda b, h, i, j: (j - i) % 3 == 1,
    "quotients below 0": lambda t: lambda b, h, i, j: (i - j) // 4 >= -2,
    "negative modulus": lambda t: lambda b, h, i, j: (i - j) % -5 == -2,
    "negative divisor": lambda t: lambda b, h, i, j: (i - j) // -4 <= 2,
    "fmod below 0": lambda t: lambda b, h, i, j: torch.fmod(i - j, 3) == -1,
    "real remainder": lambda t: lambda b, h, i, j: (i - j) % 2.5 < 1.25,
    "bits": lambda t: lambda b, h, i, j: ((t.words[i] >> (j % 31)) & 1) == 1,
    "shift": lambda t: lambda b, h, i, j: (1 << (i % 5)) > j,
    "rows of a strided matrix": lambda t: lambda b, h, i, j: t.seen[::2][i, j],
    "a view with steps": lambda t: lambda b, h, i, j: t.long[:, 1::2][b, i] == t.id[j],
    "backwards": lambda t: lambda b, h, i, j: t.seen.flip(0)[i, j] | (i == j),
    "blocks": lambda t: lambda b, h, i, j: (t.chosen[b, h, i // 8] == j // 8).any(-1),
    "empty rows": lambda t: lambda b, h, i, j: (t.id[i] == 1) & (i >= j),
    "an empty batch entry": lambda t: lambda b, h, i, j: (j < 17) & (b == 0),
    "a window by head and batch": lambda t: lambda b, h, i, j: (i - j).abs() <= 3 * h + b,
}
SCORES: dict[str, Build] = {
    "a tensor without axes": lambda t: lambda s, b, h, i, j: s * t.scale + t.scale * j * 0.1,
    "a sum of booleans": lambda t: lambda s, b, h, i, j: s + ((i // 8 == j // 8) + (i == j)) * 2.0,
    "a power of two": lambda t: lambda s, b, h, i, j: s - (i - j).abs() / 2 ** (h + 1),
    "log1p of little": lambda t: lambda s, b, h, i, j: s + 1e6 * torch.log1p((i - j).abs() * 1e-7),
    "log1p of more": lambda t: lambda s, b, h, i, j: s + torch.log1p(t.head[h].abs() * (i + j)),
    "expm1 of little": lambda t: lambda s, b, h, i, j: (
        s + 1e6 * torch.expm1((i - j).abs() * t.head[h] * 1e-7)
    ),
    "elu": lambda t: lambda s, b, h, i, j: functional.elu(40 * s, 0.7) * 0.05,
    "mish": lambda t: lambda s, b, h, i, j: functional.mish(s * t.head[h]),
    "hardsigmoid": lambda t: lambda s, b, h, i, j: functional.hardsigmoid(s * 3),
    "hardswish": lambda t: lambda s, b, h, i, j: functional.hardswish(s * 3),
    "relu6": lambda t: lambda s, b, h, i, j: functional.relu6(s * 9),
    "softsign": lambda t: lambda s, b, h, i, j: functional.softsign(s),
    "tanhshrink": lambda t: lambda s, b, h, i, j: functional.tanhshrink(s),
    "softplus": lambda t: lambda s, b, h, i, j: functional.softplus(s, 2.0),
    "sinh": lambda t: lambda s, b, h, i, j: torch.sinh(s) + torch.cosh(t.head[h]) * j * 0.1,
    "logaddexp": lambda t: lambda s, b, h, i, j: torch.logaddexp(s, torch.zeros_like(s)),
    "nan_to_num": lambda t: lambda s, b, h, i, j: s + torch.nan_to_num(t.ones[j], 0.5),
    "infinite by full_like": lambda t: lambda s, b, h, i, j: torch.where(
        i >= j, s, torch.full_like(s, -INF)
    ),
    "a matrix": lambda t: lambda s, b, h, i, j: s + t.heads[h, i, j],
    "a matrix for all heads": lambda t: lambda s, b, h, i, j: s + t.matrix[i, j],
    "a matrix both ways": lambda t: lambda s, b, h, i, j: s + t.matrix[i, j] * t.matrix[j, i],
    "a transposed matrix": lambda t: lambda s, b, h, i, j: s * t.heads.mT[h, i, j],
    "four axes, permuted": lambda t: lambda s, b, h, i, j: (
        s + t.all.permute(3, 2, 0, 1)[b, h, i // 4, j // 4]
    ),
    "a strided column": lambda t: lambda s, b, h, i, j: s + t.wide[::2, 1][(i - j) % S],
    "a negative index": lambda t: lambda s, b, h, i, j: s + t.wide[i - j, 2],
    "relu of a difference": lambda t: lambda s, b, h, i, j: s + (t.row[b, i] - t.row[b, j]).relu(),
    "Kerple": lambda t: lambda s, b, h, i, j: (
        s - functional.softplus(t.head[h]) * torch.log(1 + t.scale.abs() * (i - j).abs())
    ),
    "one tensor in four places": lambda t: lambda s, b, h, i, j: (
        s + t.row[0, i] * t.row[1, j] + t.row[b, (i - j).abs()] - t.row[b, h]
    ),
}


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def over_pairs(function: Callable[..., Any], *first: torch.Tensor) -> torch.Tensor:
    """A function's values of all (b, h, i, j), by torch's own vmap."""
    takes_score = [0] * len(first)
    for axis in reversed(range(4)):
        of_axis = [0 if n == axis else None for n in range(4)]
        function = torch.vmap(function, (*takes_score, *of_axis))
    return function(*first, *(torch.arange(size) for size in (B, H, S, S))).expand(B, H, S, S)


def inputs(real: torch.dtype) -> list[torch.Tensor]:
    """Q, K, V, dO."""
    generator = torch.Generator().manual_seed(6)
    made = [torch.randn(B, heads, S, D, generator=generator) for heads in (H, H // 2, H // 2, H)]
    return [t.to(real).requires_grad_() for t in made[:3]] + [made[3].to(real)]


def expected(score: Callable[..., Any] | None, mask: Callable[..., Any]) -> Any:
    q, k, v, _ = inputs(torch.float64)
    x = q @ k.repeat_interleave(2, 1).mT * D**-0.5
    x = x if score is None else over_pairs(score, x)
    seen = over_pairs(mask).bool() & (x != -INF)
    p = torch.softmax(x.masked_fill(~seen, -1e300), -1) * seen
    return (q, k, v), p @ v.repeat_interleave(2, 1)


def compare(build: Build, is_score: bool) -> None:
    exact, ours = Tensors(torch.float64), Tensors(torch.float32)
    score, mask = (build(exact), causal) if is_score else (None, build(exact))
    inside, o = expected(score, mask)
    *tensors, d_o = inputs(torch.float32)
    score, mask = (build(ours), causal) if is_score else (None, build(ours))
    got = tilewise.attention(*tensors, layout="bhsd", score_mod=score, mask_mod=mask)
    wanted = torch.autograd.grad(o, [*inside, *exact.learned], d_o.double(), allow_unused=True)
    grads = torch.autograd.grad(got, [*tensors, *ours.learned], d_o, allow_unused=True)
    torch.testing.assert_close(got.double(), o, atol=2e-5, rtol=2e-5)
    for ours_, theirs in zip(grads, wanted, strict=True):
        assert (ours_ is None) == (theirs is None)
        if theirs is not None:
            most = max(1.0, theirs.abs().max().item())
            torch.testing.assert_close(ours_.double(), theirs, atol=2e-5 * most, rtol=0)


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    compare(MASKS[name], is_score=False)


@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str) -> None:
    compare(SCORES[name], is_score=True)


def test_a_detached_value_is_refused() -> None:
    """Its derivative would be taken. A tensor may be detached before it is indexed."""
    q, k, v, d_o = inputs(torch.float32)
    with pytest.raises(ValueError, match=r"detach of a traced value .* table\.detach\(\)\[i\]"):
        tilewise.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (s.floor() - s).detach())
    factor = torch.rand(H, requires_grad=True)
    o = tilewise.attention(
        q, k, v, layout="bhsd", score_mod=lambda s, b, h, i, j: s * factor.detach()[h]
    )
    assert torch.autograd.grad(o, factor, d_o, allow_unused=True) == (None,)
