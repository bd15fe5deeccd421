"""Padding between packed sequences: zeros there, forward and backward, whatever it holds."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
import tilewise  # noqa: E402
from oracle import paper  # noqa: E402
from tilewise.flash_attn import flash_attn_varlen_func  # noqa: E402
from torch import Tensor  # noqa: E402

# Rows of each sequence with its padding, and those in use: full, empty, all padding, neither.
ROWS_Q, USED_Q = [9, 0, 70, 5, 6], [9, 0, 40, 0, 3]
ROWS_K, USED_K = [7, 3, 90, 5, 8], [7, 2, 33, 5, 0]
HEADS, HEADS_K, DIM = 4, 2, 16


def _offsets(rows: list[int], device: str = "cpu") -> Tensor:
    return torch.tensor([0, *np.cumsum(rows).tolist()], dtype=torch.int32, device=device)


def _tensors(device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """q, k, v and dO, NaN in the padding."""
    made = []
    for rows, used, heads in (
        (ROWS_Q, USED_Q, HEADS),
        *[(ROWS_K, USED_K, HEADS_K)] * 2,
        (ROWS_Q, USED_Q, HEADS),
    ):
        t = torch.full((sum(rows), heads, DIM), torch.nan, dtype=dtype, device=device)
        for begin, count in zip(_offsets(rows).tolist(), used, strict=False):
            t[begin : begin + count] = torch.randn(count, heads, DIM).to(t)
        made.append(t)
    return tuple(made)


def _expected(
    tensors: tuple[Tensor, ...], slopes: Tensor | None = None, **options: Any
) -> tuple[Tensor, ...]:
    """O, LSE, dQ, dK, dV, sequence by sequence in float64."""
    q, k, v, d_o = (t.double().cpu() for t in tensors)
    o, dq, dk, dv = (torch.zeros_like(t) for t in (d_o, q, k, v))
    lse = torch.full((HEADS, len(q)), -torch.inf, dtype=torch.float64)
    begins = _offsets(ROWS_Q).tolist(), _offsets(ROWS_K).tolist()
    for b, (q0, k0, n, m) in enumerate(zip(*begins, USED_Q, USED_K, strict=False)):
        if n == 0 or m == 0:
            continue
        rows, keys = slice(q0, q0 + n), slice(k0, k0 + m)
        own = [
            t[None, part].clone().requires_grad_() for t, part in ((q, rows), (k, keys), (v, keys))
        ]
        if slopes is not None:
            options["alibi_slopes"] = slopes[b : b + 1].cpu()
        out, of_rows = paper(*own, **options)
        o[rows], lse[:, rows] = out[0].detach(), of_rows[0].detach()
        grads = torch.autograd.grad(out, own, d_o[None, rows])
        dq[rows], dk[keys], dv[keys] = (g[0] for g in grads)
    return o, lse, dq, dk, dv


def _call(tensors: tuple[Tensor, ...], **options: Any) -> tuple[Tensor, ...]:
    q, k, v, d_o = tensors
    device = q.device.type
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    o, lse = tilewise.attention(
        *leaves,
        cu_seqlens_q=_offsets(ROWS_Q, device),
        cu_seqlens_k=_offsets(ROWS_K, device),
        max_seqlen_q=max(ROWS_Q),
        max_seqlen_k=max(ROWS_K),
        seqused_q=torch.tensor(USED_Q, dtype=torch.int32, device=device),
        seqused_k=torch.tensor(USED_K, dtype=torch.int32, device=device),
        return_lse=True,
        **options,
    )
    return (o, lse, *torch.autograd.grad(o, leaves, d_o))


def _gaps(rows: Tensor) -> Tensor:
    """Which rows of O or a gradient are padding."""
    of_queries = len(rows) == sum(ROWS_Q)
    begins = _offsets(ROWS_Q if of_queries else ROWS_K).tolist()
    gaps = torch.ones(len(rows), dtype=torch.bool)
    for begin, count in zip(begins, USED_Q if of_queries else USED_K, strict=False):
        gaps[begin : begin + count] = False
    return gaps


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"window": (10, 3)}, {"softcap": 2.0, "deterministic": True}]
)
def test_zeros_in_the_gaps(device: str, options: dict[str, Any]) -> None:
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 4e-2)):
        tensors = _tensors(device, dtype)
        meaning = {name: x for name, x in options.items() if name != "deterministic"}
        for got, exact in zip(
            _call(tensors, **options), _expected(tensors, **meaning), strict=True
        ):
            got = got.cpu().double()
            torch.testing.assert_close(got, exact, atol=tolerance, rtol=0)
            if got.dim() == 3:  # not LSE
                assert (got[_gaps(got)] == 0).all()


def test_slopes_of_each_sequence(device: str) -> None:
    tensors, slopes = _tensors(device), torch.rand(5, HEADS, device=device)
    made = _call(tensors, alibi_slopes=slopes)
    for got, exact in zip(made, _expected(tensors, slopes=slopes), strict=True):
        torch.testing.assert_close(got.cpu().double(), exact, atol=2e-5, rtol=0)


def test_numpy_and_the_drop_in() -> None:
    q, k, v, d_o = _tensors()
    exact, exact_lse, *_ = _expected((q, k, v, d_o))
    used = np.array(USED_Q, np.int64), np.array(USED_K, np.int32)
    o = tilewise.attention(
        *(t.numpy() for t in (q, k, v)),
        cu_seqlens_q=_offsets(ROWS_Q).numpy(),
        cu_seqlens_k=_offsets(ROWS_K).numpy(),
        seqused_q=used[0],
        seqused_k=used[1],
    )
    np.testing.assert_allclose(o, exact.numpy(), atol=1e-5)
    # Keys alone may be padded.
    whole = torch.randn(sum(USED_Q), HEADS, DIM)
    padded = flash_attn_varlen_func(
        whole,
        k,
        v,
        _offsets(USED_Q),
        _offsets(ROWS_K),
        max(USED_Q),
        max(ROWS_K),
        seqused_k=torch.tensor(USED_K, dtype=torch.int32),
    )
    keys = torch.cat(
        [torch.arange(b, b + n) for b, n in zip(_offsets(ROWS_K).tolist(), USED_K, strict=False)]
    )
    packed = flash_attn_varlen_func(
        whole, k[keys], v[keys], _offsets(USED_Q), _offsets(USED_K), max(USED_Q), max(USED_K)
    )
    torch.testing.assert_close(padded, packed, atol=1e-6, rtol=0)


def test_compiled() -> None:
    tensors = _tensors()
    compiled = torch.compile(_call, backend="aot_eager")(tensors)
    for got, exact in zip(compiled, _expected(tensors), strict=True):
        torch.testing.assert_close(got.double(), exact, atol=2e-5, rtol=0)


def test_refusals() -> None:
    q, k, v, _ = _tensors()
    cu = {"cu_seqlens_q": _offsets(ROWS_Q), "cu_seqlens_k": _offsets(ROWS_K)}
    one = torch.ones(5, dtype=torch.int32)
    for options, error, words in (
        (
            {**cu, "seqused_q": one[:4]},
            ValueError,
            r"seqused_q has the shape \(4,\): expected \(5,\)",
        ),
        ({**cu, "seqused_k": 9 * one}, ValueError, "seqused_k: expected 0 to each"),
        ({**cu, "seqused_k": -one}, ValueError, "seqused_k: expected 0 to each"),
        ({"seqused_k": one}, ValueError, "expected cu_seqlens_q and cu_seqlens_k"),
        ({**cu, "seqused_k": one, "mask": one > 0}, NotImplementedError, "mask is given with"),
    ):
        with pytest.raises(error, match=words):
            tilewise.attention(q, k, v, **options)
        with pytest.raises(error, match=words):
            tilewise.plan(q, k, v, **options)
