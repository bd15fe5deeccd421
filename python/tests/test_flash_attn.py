"""The drop-ins for flash_attn's functions."""

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
import tilewise.flash_attn as ours  # noqa: E402
from oracle import paper  # noqa: E402
from torch import Tensor  # noqa: E402

COMMON = (
    *("dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes"),
    *("deterministic", "return_attn_probs"),
)
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
SIGNATURES = {
    "flash_attn_func": ("q", "k", "v", *COMMON),
    "flash_attn_qkvpacked_func": ("qkv", *COMMON),
    "flash_attn_kvpacked_func": ("q", "kv", *COMMON),
    "flash_attn_varlen_func": ("q", "k", "v", *LENGTHS, *COMMON, "block_table"),
    "flash_attn_varlen_qkvpacked_func": ("qkv", "cu_seqlens", "max_seqlen", *COMMON),
    "flash_attn_varlen_kvpacked_func": ("q", "kv", *LENGTHS, *COMMON),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    parameters = inspect.signature(getattr(ours, name)).parameters
    own = ("seqused_q", "seqused_k", "sinks") if "varlen" in name else ("sinks",)
    # The packed forms take a table of pages too.
    pages = ("block_table",) if "varlen" in name and "packed" in name else ()
    assert tuple(parameters) == (*SIGNATURES[name], *pages, *own, "fallback")
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert all(parameters[name].kind == positional for name in SIGNATURES[name])
    assert parameters["window_size"].default == (-1, -1)


def skip_refusal(device: str, error: NotImplementedError) -> None:
    if device == "cpu":
        raise error
    pytest.skip(f"on {device}: {error}")


@pytest.mark.parametrize(
    ("options", "meaning"),
    [
        ({}, {}),
        ({"causal": True}, {"causal": True}),
        ({"window_size": (-1, -1), "causal": True}, {"causal": True}),
        ({"window_size": (5, -1)}, {"window": (5, None)}),
        ({"window_size": (-1, 0)}, {"window": (None, 0)}),
        ({"window_size": (4, 2)}, {"window": (4, 2)}),
        ({"window_size": torch.tensor([4, -1])}, {"window": (4, None)}),  # as in its own tests
        ({"softcap": 3.0, "softmax_scale": 0.5}, {"softcap": 3.0, "scale": 0.5}),
    ],
)
def test_meaning(device: str, options: dict[str, Any], meaning: dict[str, Any]) -> None:
    q = torch.randn(2, 9, 8, 16, device=device, requires_grad=True)
    k, v = (torch.randn(2, 13, 2, 16, device=device, requires_grad=True) for _ in range(2))
    o, lse, dropped = ours.flash_attn_func(q, k, v, return_attn_probs=True, **options)
    exact, exact_lse = paper(q, k, v, **meaning)
    assert dropped is None and lse.shape == (2, 8, 9) and lse.dtype == torch.float32
    torch.testing.assert_close(o.double(), exact, atol=1e-5, rtol=0)
    torch.testing.assert_close(lse.double(), exact_lse, atol=1e-4, rtol=0)
    d_o = torch.randn_like(o)
    got = torch.autograd.grad(o, (q, k, v), d_o)
    for a, b in zip(got, torch.autograd.grad(exact, (q, k, v), d_o.double()), strict=True):
        torch.testing.assert_close(a, b, atol=5e-5, rtol=0)


def test_packed_forms_are_the_plain_one(device: str) -> None:
    qkv = torch.randn(2, 9, 3, 4, 16, device=device)
    q, k, v = qkv.unbind(2)
    exact = ours.flash_attn_func(q, k, v, causal=True)
    assert torch.equal(ours.flash_attn_qkvpacked_func(qkv, causal=True), exact)
    assert torch.equal(ours.flash_attn_kvpacked_func(q, qkv[:, :, 1:], causal=True), exact)


def test_varlen(device: str) -> None:
    lengths = [9, 0, 4]
    cu = torch.tensor([0, 9, 9, 13], dtype=torch.int32, device=device)
    qkv = torch.randn(13, 3, 4, 16, device=device)
    q, k, v = qkv.unbind(1)
    try:
        o, lse, _ = ours.flash_attn_varlen_func(
            q, k, v, cu, cu, 9, 9, causal=True, return_attn_probs=True
        )
    except NotImplementedError as error:
        return skip_refusal(device, error)
    assert lse.shape == (4, 13)
    begin = 0
    for length in lengths:
        part = slice(begin, begin + length)
        exact = ours.flash_attn_func(q[None, part], k[None, part], v[None, part], causal=True)
        torch.testing.assert_close(o[part], exact[0], atol=1e-6, rtol=0)
        begin += length
    packed = ours.flash_attn_varlen_qkvpacked_func(qkv, cu, 9, causal=True)
    assert torch.equal(packed, o)
    packed = ours.flash_attn_varlen_kvpacked_func(q, qkv[:, 1:], cu, cu, 9, 9, causal=True)
    assert torch.equal(packed, o)
    return None


def test_alibi_and_dropout(device: str) -> None:
    q, k, v = (torch.randn(2, 9, 4, 16, device=device) for _ in range(3))
    slopes = torch.rand(2, 4, device=device)
    exact, _ = paper(q, k, v, alibi_slopes=slopes, causal=True)
    o: Tensor = ours.flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes)
    torch.testing.assert_close(o.double(), exact, atol=1e-5, rtol=0)
    try:
        torch.manual_seed(0)
        a = ours.flash_attn_func(q, k, v, 0.4)
        torch.manual_seed(0)
        assert torch.equal(a, ours.flash_attn_func(q, k, v, 0.4))
    except NotImplementedError as error:
        skip_refusal(device, error)


@pytest.mark.parametrize("options", [{"causal": True}, {"window_size": (6, 0)}, {}])
def test_varlen_over_pages(device: str, options: dict[str, Any]) -> None:
    """Packed queries of ragged lengths; pages in any order, NaN wherever no key is."""
    queries, lengths, size = [3, 0, 7, 1], [11, 5, 7, 30], 4
    table = torch.full((4, 8), 2**31 - 1, dtype=torch.int32)
    pools = torch.full((2, 20, size, 2, 16), torch.nan)
    pages = iter(torch.randperm(20).tolist())
    parts = []
    for b, length in enumerate(lengths):
        k, v = torch.randn(2, length, 2, 16)
        parts.append((k, v))
        for j in range(length):
            if j % size == 0:
                table[b, j // size] = next(pages)
            pools[0, table[b, j // size], j % size] = k[j]
            pools[1, table[b, j // size], j % size] = v[j]
    q = torch.randn(sum(queries), 4, 16)
    cu_q, cu_k = (
        torch.tensor([0, *torch.tensor(n).cumsum(0).tolist()], dtype=torch.int32)
        for n in (queries, lengths)
    )
    given = [t.to(device) for t in (q, *pools, cu_q, cu_k)]
    try:
        o, lse, _ = ours.flash_attn_varlen_func(
            *given,
            max(queries),
            max(lengths),
            block_table=table.to(device),
            return_attn_probs=True,
            **options,
        )
    except NotImplementedError as error:
        return skip_refusal(device, error)
    assert lse.shape == (4, sum(queries))
    window = options.get("window_size")
    meaning = {"window": window} if window else options
    for b, (k, v) in enumerate(parts):
        rows = slice(int(cu_q[b]), int(cu_q[b + 1]))
        exact, exact_lse = paper(q[None, rows], k[None], v[None], **meaning)
        torch.testing.assert_close(o[rows].cpu().double(), exact[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(lse[:, rows].cpu().double(), exact_lse[0], atol=1e-4, rtol=0)
    return None


@pytest.mark.parametrize(
    "window",
    [
        *((0, -2), (7, -8), (-1, -3), (-2, -1), None, 3, (1,), (None, 0), (0.5, 1)),
        *(torch.tensor(3), torch.tensor([1]), torch.tensor([0, -2]), torch.ones(2)),
    ],
)
def test_minus_one_alone_is_an_open_side(window: Any) -> None:
    from tilewise.flash_attn import flash_attn_func, flash_attn_with_kvcache

    q = torch.zeros(1, 4, 2, 16)
    for attention in (flash_attn_func, flash_attn_with_kvcache):
        with pytest.raises(ValueError, match="window_size"):
            attention(q, q, q, window_size=window)


def test_packed_forms_name_their_axis() -> None:
    packed, rows = torch.zeros(1, 4, 2, 2, 16), torch.zeros(4, 3, 2, 16)
    offsets = torch.tensor([0, 4], dtype=torch.int32)
    lengths = (offsets, offsets, 4, 4)
    with pytest.raises(ValueError, match=r"qkv has shape \(1, 4, 2, 2, 16\): expected 3 in axis 2"):
        ours.flash_attn_qkvpacked_func(packed)
    with pytest.raises(ValueError, match="kv has shape .*: expected 2 in axis 2"):
        ours.flash_attn_kvpacked_func(rows[None], rows[None])
    with pytest.raises(ValueError, match="qkv has shape .*: expected 3 in axis 1"):
        ours.flash_attn_varlen_qkvpacked_func(packed[0], offsets, 4)
    with pytest.raises(ValueError, match="kv has shape .*: expected 2 in axis 1"):
        ours.flash_attn_varlen_kvpacked_func(packed[0, :, 0], rows, *lengths)


def test_sinks_and_rows_in_use_of_packed_forms() -> None:
    """sinks are attention()'s; a packed form passes seqused_q on."""
    qkv, sinks = torch.randn(2, 9, 3, 4, 16), torch.randn(4)
    q, k, v = qkv.unbind(2)
    exact = tilewise.attention(q, k, v, sinks=sinks)
    assert torch.equal(ours.flash_attn_func(q, k, v, sinks=sinks), exact)
    assert torch.equal(ours.flash_attn_qkvpacked_func(qkv, sinks=sinks), exact)
    offsets, used = (torch.tensor(n, dtype=torch.int32) for n in ([0, 9, 18], [5, 9]))
    o = ours.flash_attn_varlen_qkvpacked_func(
        qkv.flatten(0, 1), offsets, 9, seqused_q=used, seqused_k=used, sinks=sinks
    )
    first = tilewise.attention(q[:1, :5], k[:1, :5], v[:1, :5], sinks=sinks)
    torch.testing.assert_close(o[:5], first[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(o[9:], exact[1], atol=1e-6, rtol=0)
    assert not o[5:9].any()
