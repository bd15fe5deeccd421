"""torch.func.vmap of attention: one call where the mapped axis folds into the batch."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
from oracle import supported  # noqa: E402
from torch import Tensor  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error:There is a performance drop")
N, B, S, H, D = 3, 2, 7, 4, 16

# Of each option: its shape without the mapped axis, whether it is mapped and at which axis, and
# whether the entries run in one call.
CASES: dict[str, tuple[tuple[int, ...], int | None, bool]] = {
    "bias": ((B, H, S, S), 0, True),
    "bias of all": ((H, S, S), None, True),
    "bias of rows": ((S, S), 1, True),
    "bias of each batch entry": ((B, 1, 1, S), None, True),
    "mask": ((1, 1, S, S), 2, True),
    "alibi_slopes": ((H,), 0, True),
    "alibi_slopes of each batch entry": ((B, H), None, True),
    "key_lengths": ((B,), 1, True),
    "key_lengths of all": ((B,), None, True),
    "sinks of all": ((H,), None, True),
    "sinks": ((H,), 0, False),
}


def option(name: str, shape: tuple[int, ...], device: str) -> Tensor:
    if name == "mask":
        return torch.rand(shape, device=device) > 0.3
    if name == "key_lengths":
        return torch.randint(1, S, shape, device=device, dtype=torch.int32)
    return torch.rand(shape, device=device)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often the library was called."""
    counts = {"forward": 0, "backward": 0}

    def count(name: str, function: str) -> None:
        original = getattr(tilewise._native, function)

        def counted(*arguments: Any) -> Any:
            counts[name] += 1
            return original(*arguments)

        monkeypatch.setattr(tilewise._native, function, counted)

    count("forward", "new_forward")
    count("forward", "new_plain_forward")
    count("backward", "backward")
    return counts


def leaves(device: str) -> list[Tensor]:
    return [torch.randn(N, B, S, H, D, device=device, requires_grad=True) for _ in range(3)]


def compare(ours: Tensor, exact: Tensor, of: list[Tensor]) -> None:
    torch.testing.assert_close(ours, exact, atol=2e-6, rtol=1e-5)
    d_o = torch.randn_like(exact)
    for a, b in zip(
        torch.autograd.grad(ours, of, d_o), torch.autograd.grad(exact, of, d_o), strict=True
    ):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dims", [(0, 0, 0), (2, 0, 1), (0, None, None), (None, 3, 0)])
def test_one_call(device: str, calls: dict[str, int], dims: tuple[int | None, ...]) -> None:
    of = leaves(device)
    given = [t[0] if dim is None else t.movedim(0, dim) for t, dim in zip(of, dims, strict=True)]

    def attention(*qkv: Tensor) -> Tensor:
        o, lse = tilewise.attention(*qkv, causal=True, return_lse=True)
        return o + lse.transpose(1, 2)[..., None]

    together = torch.func.vmap(attention, in_dims=dims)(*given)
    assert calls["forward"] == 1
    entries = [
        [t[0 if dim is None else n] for t, dim in zip(of, dims, strict=True)] for n in range(N)
    ]
    compare(together, torch.stack([attention(*entry) for entry in entries]), of)


@pytest.mark.parametrize("case", CASES)
def test_options(device: str, calls: dict[str, int], case: str) -> None:
    shape, dim, folds = CASES[case]
    name = case.partition(" ")[0]
    of = leaves(device)
    q, k, v = (t.detach() for t in of)
    whole = option(name, shape if dim is None else (*shape[:dim], N, *shape[dim:]), device)
    one = whole if dim is None else whole.select(dim, 0)
    supported(device, q[0], k[0], v[0], **{name: one})
    calls["forward"] = 0

    def attention(q: Tensor, k: Tensor, v: Tensor, value: Tensor) -> Tensor:
        o: Tensor = tilewise.attention(q, k, v, **{name: value})
        return o

    together = torch.func.vmap(attention, in_dims=(0, 0, 0, dim))(q, k, v, whole)
    assert calls["forward"] == (1 if folds else N)
    values = [whole if dim is None else whole.select(dim, n) for n in range(N)]
    exact = torch.stack([attention(q[n], k[n], v[n], values[n]) for n in range(N)])
    torch.testing.assert_close(together, exact, atol=2e-6, rtol=1e-5)


def test_lengths_of_a_batch_of_one(device: str, calls: dict[str, int]) -> None:
    """(1) is of each entry's only sequence, and does not broadcast over the folded batch."""
    q = torch.randn(N, 1, S, H, D, device=device)
    lengths = torch.tensor([3], dtype=torch.int32, device=device)

    def attention(t: Tensor) -> Tensor:
        o: Tensor = tilewise.attention(t, t, t, key_lengths=lengths)
        return o

    together = torch.func.vmap(attention)(q)
    assert calls["forward"] == 1
    exact = torch.stack([attention(t) for t in q])
    torch.testing.assert_close(together, exact, atol=2e-6, rtol=1e-5)


def test_nested(device: str, calls: dict[str, int]) -> None:
    t = torch.randn(2, 3, B, S, H, D, device=device)
    both = torch.func.vmap(torch.func.vmap(lambda x: tilewise.attention(x, x, x)))(t)
    assert calls["forward"] == 1
    exact = tilewise.attention(*(t.flatten(0, 2),) * 3).view_as(t)
    torch.testing.assert_close(both, exact, atol=2e-6, rtol=1e-5)


def test_dropout_is_each_entry_s_own(device: str, calls: dict[str, int]) -> None:
    q = torch.randn(N, B, S, H, D, device=device)

    def attention(t: Tensor) -> Tensor:
        o: Tensor = tilewise.attention(t, t, t, dropout_p=0.5, dropout_seed=3)
        return o

    try:
        exact = torch.stack([attention(t) for t in q])
    except NotImplementedError as error:
        pytest.skip(f"on {device}: {error}")
    assert torch.equal(torch.func.vmap(attention)(q), exact)


def test_many_gradients_at_once(device: str) -> None:
    x = torch.randn(1, 4, 2, 8, device=device)

    def attention(t: Tensor) -> Tensor:
        o: Tensor = tilewise.attention(t, t, t, causal=True).sum(-1)
        return o

    jacobian = torch.autograd.functional.jacobian
    together = jacobian(attention, x, vectorize=True)
    torch.testing.assert_close(together, jacobian(attention, x), atol=1e-6, rtol=1e-5)


def test_operator_s_backward(device: str, calls: dict[str, int]) -> None:
    q, k, v = (t.detach() for t in leaves(device))
    d_o = torch.randn_like(q)
    o, lse = torch.func.vmap(lambda *t: tilewise.attention(*t, return_lse=True))(q, k, v)

    def backward(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tilewise.attention_backward(*tensors)[:3])

    together = torch.func.vmap(backward)(d_o, q, k, v, o, lse)
    assert calls["backward"] == 1
    for n in range(N):
        alone = backward(*(t[n] for t in (d_o, q, k, v, o, lse)))
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[n], b, atol=1e-5, rtol=1e-5)
