"""tilewise.attention on torch tensors, forward and backward, on each device."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
from oracle import check, has_gradient, paper, supported  # noqa: E402
from torch import Tensor  # noqa: E402

TYPES = ["float32", "bfloat16", "float16"]
SHAPES = {
    "square": (2, 64, 64, 4, 4, 64, 64),
    "odd": (1, 37, 53, 3, 1, 40, 24),
    "gqa": (2, 33, 65, 8, 2, 32, 32),
    "decode": (3, 1, 77, 4, 2, 64, 64),
    "long_q": (1, 70, 19, 2, 2, 16, 16),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "top_left": {"causal": "top_left"},
    "window": {"window": (7, 3)},
    "causal_window": {"causal": True, "window": (9, None)},
    "softcap": {"softcap": 2.0, "scale": 0.3},
    "negative_scale": {"scale": -0.2},
}


def tensors(shape: str, dtype: str, device: str) -> tuple[Tensor, Tensor, Tensor]:
    b, sq, sk, hq, hk, d, dv = SHAPES[shape]
    options: dict[str, Any] = {"dtype": getattr(torch, dtype), "device": device}
    return (
        torch.randn(b, sq, hq, d, **options),
        torch.randn(b, sk, hk, d, **options),
        torch.randn(b, sk, hk, dv, **options),
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(device: str, shape: str, dtype: str) -> None:
    check(device, *tensors(shape, dtype, device), causal=True)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", ["odd", "gqa"])
def test_options(device: str, shape: str, options: str) -> None:
    check(device, *tensors(shape, "float32", device), **OPTIONS[options])


def test_alibi(device: str) -> None:
    slopes = torch.rand(8, device=device)
    check(device, *tensors("gqa", "float32", device), alibi_slopes=slopes)
    check(device, *tensors("gqa", "float32", device), alibi_slopes=torch.rand(2, 8, device=device))


@pytest.mark.parametrize("bias_shape", [(33, 65), (1, 8, 33, 65), (2, 1, 1, 65), (2, 8, 33, 1)])
def test_bias(device: str, bias_shape: tuple[int, ...]) -> None:
    bias = torch.randn(bias_shape, device=device)
    check(device, *tensors("gqa", "float32", device), bias=bias, causal=True)


def test_bias_of_another_type(device: str) -> None:
    bias = torch.randn(1, 8, 33, 65, device=device)
    q, k, v = tensors("gqa", "bfloat16", device)
    check(device, q, k, v, bias=bias)
    bias.requires_grad_()
    o = supported(device, q, k, v, bias=bias)
    if not has_gradient(device, "bias"):
        with pytest.raises(NotImplementedError, match="gradient of a bias"):
            o.sum().backward()
        return
    o.sum().backward()
    assert bias.grad is not None and bias.grad.dtype == torch.float32
    assert bool(bias.grad.isfinite().all())


def test_mask(device: str) -> None:
    mask = torch.rand(2, 1, 33, 65, device=device) > 0.4
    mask[:, :, 5] = False  # a row that sees nothing
    check(device, *tensors("gqa", "float32", device), mask=mask)


def test_sinks(device: str) -> None:
    sinks = torch.randn(8, device=device)
    check(device, *tensors("gqa", "float32", device), sinks=sinks, causal=True)


def test_key_lengths(device: str) -> None:
    lengths = torch.tensor([65, 20], dtype=torch.int32, device=device)
    check(device, *tensors("gqa", "float32", device), key_lengths=lengths)
    # Diagonals count from the end of each entry's own keys.
    check(device, *tensors("gqa", "float32", device), key_lengths=lengths, causal=True)
    options = {"window": (9, 4), "alibi_slopes": torch.rand(8, device=device)}
    check(device, *tensors("gqa", "float32", device), key_lengths=lengths, **options)


def test_layouts_agree(device: str) -> None:
    q, k, v = tensors("gqa", "float32", device)
    o = tilewise.attention(q, k, v, causal=True)
    turned = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    o2 = tilewise.attention(*turned, causal=True, layout="bhsd")
    assert o.is_contiguous() and o2.is_contiguous()
    torch.testing.assert_close(o2.transpose(1, 2), o, atol=1e-6, rtol=0)


def test_packed_sequences(device: str) -> None:
    lengths = [5, 0, 17, 1]
    cu = torch.tensor([0, 5, 5, 22, 23], dtype=torch.int32, device=device)
    q = torch.randn(23, 4, 16, device=device, requires_grad=True)
    k = torch.randn(23, 2, 16, device=device, requires_grad=True)
    v = torch.randn(23, 2, 16, device=device, requires_grad=True)
    packed = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 17, "max_seqlen_k": 17}
    o, lse = supported(device, q, k, v, causal=True, return_lse=True, **packed)
    assert lse.shape == (4, 23)
    parts = [t.split(lengths) for t in (q, k, v)]
    wanted = torch.cat(
        [
            tilewise.attention(*(t[None] for t in part), causal=True)[0]
            for part in zip(*parts, strict=True)
        ]
    )
    torch.testing.assert_close(o, wanted, atol=2e-6, rtol=0)
    try:
        ours = torch.autograd.grad(o.square().sum(), (q, k, v))
    except NotImplementedError as error:
        if device == "cpu":
            raise
        pytest.skip(f"on {device}, after a forward that agreed: {error}")
    exact = torch.autograd.grad(wanted.square().sum(), (q, k, v))
    for a, b in zip(ours, exact, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_paged_cache(device: str) -> None:
    pool_k, pool_v = torch.randn(2, 6, 4, 2, 16, device=device)
    table = torch.tensor([[3, 0, -1], [5, 1, 4]], dtype=torch.int32, device=device)
    lengths = torch.tensor([6, 11], dtype=torch.int32, device=device)
    q = torch.randn(2, 1, 4, 16, device=device)
    paged = {"block_table": table, "key_lengths": lengths}
    o = supported(device, q, pool_k, pool_v, **paged)
    for b, length in enumerate([6, 11]):
        pages = table[b][: -(-length // 4)].long()
        k, v = (pool[pages].flatten(0, 1)[None, :length] for pool in (pool_k, pool_v))
        exact, _ = paper(q[b : b + 1], k, v)
        torch.testing.assert_close(o[b : b + 1].double(), exact, atol=1e-5, rtol=0)


def test_values_in_keys(device: str) -> None:
    """Multi-head latent attention: V is the first columns of K, one memory."""
    q = torch.randn(2, 1, 16, 576, device=device, dtype=torch.bfloat16)
    k = torch.randn(2, 150, 1, 576, device=device, dtype=torch.bfloat16)
    v = k[..., :512]
    o = supported(device, q, k, v)
    torch.testing.assert_close(o.double(), paper(q, k, v)[0], atol=0.02, rtol=0)
    if device == "cuda" and torch.cuda.get_device_capability() == (9, 0):
        assert tilewise.plan(q, k, v).kernel == "flash_mla_sm90"


def test_block_list(device: str) -> None:
    q, k, v = (torch.randn(1, 32, 2, 16, device=device) for _ in range(3))
    blocks = tilewise.BlockList(
        torch.tensor([[[0, 1, 3]]], dtype=torch.int32, device=device),
        torch.tensor([0, 0, 1], dtype=torch.int32, device=device),
        None,
        16,
        16,
    )
    forced = "reference" if device == "cpu" else ""
    o = supported(device, q, k, v, block_list=blocks, implementation=forced)
    mask = torch.zeros(32, 32, dtype=torch.bool, device=device)
    mask[:16, :16] = mask[16:] = True
    torch.testing.assert_close(o.double(), paper(q, k, v, mask=mask)[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows, keys", [(0, 3), (2, 0), (0, 0)])
def test_block_list_of_no_blocks(device: str, rows: int, keys: int) -> None:
    visible = torch.ones(1, 2, rows, keys, dtype=torch.bool, device=device)
    blocks = tilewise.BlockList.from_blocks(visible, 16)
    assert blocks.row_offsets.tolist() == [[[0] * (rows + 1)] * 2]
    q = torch.randn(1, 16 * rows, 2, 16, device=device)
    k = torch.randn(1, 16 * keys, 2, 16, device=device)
    o = supported(device, q, k, k, block_list=blocks)
    assert o.shape == q.shape and not o.any()


# M07 of the hard cases: strides, those of dO too.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_c062_innermost_stride(device: str, dtype: str) -> None:
    q, k, v = (
        torch.randn(1, 2, 40, 33, device=device).to(getattr(torch, dtype)).transpose(-1, -2)
        for _ in range(3)
    )
    o = supported(device, q, k, v, layout="bhsd")
    dense = tilewise.attention(*(t.contiguous() for t in (q, k, v)), layout="bhsd")
    torch.testing.assert_close(o, dense, atol=0, rtol=0)


def _odd_gradient(kind: str, o: Tensor) -> Tensor:
    if kind == "transposed":
        return torch.randn_like(o.transpose(1, 2).contiguous()).transpose(1, 2)
    if kind == "expanded":
        return torch.ones((), device=o.device, dtype=o.dtype).expand(o.shape)
    if kind == "every_second":
        return torch.randn(*o.shape[:-1], 2 * o.shape[-1], device=o.device).to(o.dtype)[..., ::2]
    return torch.randn(o.shape[::-1], device=o.device).to(o.dtype).permute(3, 2, 1, 0)


@pytest.mark.parametrize("kind", ["transposed", "expanded", "every_second", "reversed"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_c063_strides_of_the_gradient(device: str, dtype: str, kind: str) -> None:
    q, k, v = (
        torch.randn(2, 49, 2, 32, device=device, dtype=getattr(torch, dtype), requires_grad=True)
        for _ in range(3)
    )
    o = tilewise.attention(q, k, v, deterministic=True)
    d_o = _odd_gradient(kind, o)
    ours = torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True)
    dense = torch.autograd.grad(o, (q, k, v), d_o.contiguous())
    # On a GPU another kernel may take these strides.
    tolerance = 3e-2 if device != "cpu" and dtype == "bfloat16" else 1e-6
    for a, b in zip(ours, dense, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=0)


def test_c065_packed_views(device: str) -> None:
    qkv = torch.randn(2, 40, 3, 4, 32, device=device, dtype=torch.bfloat16)
    by_sequence = torch.randn(40, 2, 3 * 4 * 32, device=device, dtype=torch.bfloat16)
    for q, k, v in (
        qkv.unbind(2),
        by_sequence.view(40, 2, 3, 4, 32).transpose(0, 1).unbind(2),
        torch.randn(3, 2, 40, 4, 40, device=device, dtype=torch.bfloat16)[..., :32].unbind(0),
    ):
        dense = tilewise.attention(q.contiguous(), k.contiguous(), v.contiguous())
        torch.testing.assert_close(tilewise.attention(q, k, v), dense, atol=0, rtol=0)


# M17: arguments are judged, nothing falls back silently.


@pytest.mark.parametrize("empty", ["batch", "rows", "keys"])
def test_empty(device: str, empty: str) -> None:
    b, sq, sk = (0 if empty == name else n for name, n in (("batch", 2), ("rows", 3), ("keys", 5)))
    q = torch.randn(b, sq, 4, 16, device=device, requires_grad=True)
    k, v = (torch.randn(b, sk, 2, 16, device=device, requires_grad=True) for _ in range(2))
    o, lse = tilewise.attention(q, k, v, return_lse=True)
    assert o.shape == q.shape and not o.any()
    assert bool(torch.isneginf(lse).all())
    for gradient in torch.autograd.grad(o.sum(), (q, k, v)):
        assert not gradient.any()


def test_c078_heads_that_do_not_divide(device: str) -> None:
    q, k = torch.randn(1, 4, 33, 8, device=device), torch.randn(1, 4, 2, 8, device=device)
    with pytest.raises(ValueError, match="33"):
        tilewise.attention(q, k, k)


def test_c105_mixed_types(device: str) -> None:
    q, k = torch.randn(1, 4, 2, 8, device=device), torch.randn(1, 4, 2, 8, device=device).half()
    with pytest.raises(ValueError, match="float16"):
        tilewise.attention(q, k, k)
    with pytest.raises(ValueError, match="bias"):
        tilewise.attention(q, q, q, bias=torch.zeros(4, 4, dtype=torch.int64, device=device))


def test_c110_lengths_beyond_the_tensors() -> None:
    q, k = torch.randn(12, 2, 8), torch.randn(10, 2, 8)
    cu_q = torch.tensor([0, 12], dtype=torch.int32)
    cu_k = torch.tensor([0, 20], dtype=torch.int32)
    with pytest.raises(ValueError, match="cu_seqlens_k"):
        tilewise.attention(q, k, k, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)


def test_c111_wide_heads_refuse_or_stay_linear(device: str) -> None:
    q = torch.randn(1, 256, 8, 512, device=device)
    k = torch.randn(1, 256, 1, 512, device=device)
    try:
        o = tilewise.attention(q, k, k, causal=True)
    except NotImplementedError as error:
        assert "512" in str(error) or "256" in str(error)
    else:
        assert_o, _ = paper(q, k, k, causal=True)
        torch.testing.assert_close(o.double(), assert_o, atol=1e-4, rtol=0)
        assert tilewise.plan(q, k, k, causal=True).implementation == "flash"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layout": "sbhd"}, ValueError, "layout"),
        ({"causal": "left"}, ValueError, "causal"),
        ({"window": 5}, ValueError, "window"),
        ({"scale": float("nan")}, ValueError, "scale"),
        ({"softcap": -1.0}, ValueError, "softcap"),
        ({"dropout_p": 1.5}, ValueError, "dropout"),
        ({"precision": "fp8"}, ValueError, "precision"),
        ({"implementation": "fast"}, ValueError, "implementation"),
        ({"kernel": "none"}, ValueError, "kernel"),
        ({"fallback": "jax"}, ValueError, "fallback"),
        ({"window": ("a", None)}, ValueError, "window"),
        ({"max_seqlen_q": "long"}, ValueError, "max_seqlen_q"),
        ({"max_seqlen_q": 4}, ValueError, "max_seqlen_q is 4: requires cu_seqlens_q"),
        ({"max_seqlen_k": 4}, ValueError, "max_seqlen_k is 4: requires cu_seqlens_k"),
        ({"scale": "half"}, ValueError, "scale is 'half': expected a number"),
        ({"softcap": [20.0]}, ValueError, r"softcap is \[20.0\]: expected a number"),
        ({"dropout_p": {}, "causal": True}, ValueError, "dropout_p is {}: expected a number"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    q = torch.randn(1, 4, 2, 8)
    with pytest.raises(error, match=message):
        tilewise.attention(q, q, q, **options)


def test_what_is_not_supported_says_why() -> None:
    q = torch.randn(1, 4, 2, 8, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="float64 is not supported by this kernel"):
        tilewise.attention(q, q, q)
    o = tilewise.attention(q, q, q, implementation="reference")
    torch.testing.assert_close(o, paper(q, q, q)[0], atol=1e-12, rtol=0)


def test_memory_that_is_not_there() -> None:
    # Sizes that planning may see, over memory of one element; no machine has addresses for O.
    q = torch.zeros(1, 1, 1, 1).expand(1, 1 << 22, 1 << 22, 64)
    with pytest.raises((MemoryError, RuntimeError)):
        tilewise.attention(q, q, q)


def test_slopes_have_no_gradient() -> None:
    q = torch.randn(1, 4, 2, 8, requires_grad=True)
    slopes = torch.rand(2, requires_grad=True)
    with pytest.raises(NotImplementedError, match="alibi_slopes"):
        tilewise.attention(q, q, q, alibi_slopes=slopes).sum().backward()


# The plan.


def test_plan_explains(device: str) -> None:
    q = torch.randn(2, 64, 4, 32, device=device, dtype=torch.bfloat16)
    plan = tilewise.plan(q, q, q, causal=True)
    assert plan.implementation == "flash" and not plan.backward
    assert plan.kernel in str(plan)
    assert plan.flops > 0 and plan.peak_bytes > 0
    others = {k.name for k in tilewise.kernels() if k.device == device and not k.backward} - {
        plan.kernel
    }
    assert {name for name, _ in plan.refusals} == others
    assert tilewise.plan(q, q, q, causal=True, backward=True).backward
    forced = tilewise.plan(q, q, q, implementation="fused")
    assert forced.implementation == "fused"


def test_plans_are_kept(device: str) -> None:
    from tilewise import _native

    q = torch.randn(2, 61, 4, 32, device=device)
    tilewise.attention(q, q, q)
    size = _native.plan_cache_size()
    for _ in range(3):
        tilewise.attention(torch.randn_like(q), q, q)
    assert _native.plan_cache_size() == size
    tilewise.attention(q, q, q, causal=True)
    assert _native.plan_cache_size() == size + 1


@pytest.mark.parametrize("heads_outside", [False, True])
def test_lse_that_nobody_reads(device: str, heads_outside: bool) -> None:
    """A call that records nothing makes none. O is the same; its heads and rows lie as q's do."""
    sizes = [(2, 61, 4, 32), (2, 61, 2, 32), (2, 61, 2, 48)]
    q, k, v = (torch.randn(size, device=device) for size in sizes)
    if heads_outside:
        q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
    with_lse, _ = tilewise.attention(q, k, v, causal=True, return_lse=True)
    alone = tilewise.attention(q, k, v, causal=True)
    assert torch.equal(alone, with_lse) and alone.stride() == with_lse.stride()
    assert (alone.stride(2) > alone.stride(1)) == heads_outside


def test_lengths_are_read_each_time() -> None:
    q = torch.randn(1, 4, 2, 8)
    for length in (4, 2, 1):
        lengths = torch.tensor([length], dtype=torch.int32)
        o = tilewise.attention(q, q, q, key_lengths=lengths)
        exact, _ = paper(q, q[:, :length], q[:, :length])
        torch.testing.assert_close(o.double(), exact, atol=1e-6, rtol=0)


# Dropout.


def test_dropout_keeps_what_philox_says(device: str) -> None:
    # With V = 1 on the diagonal, O is the dropped P.
    n, p = 32, 0.48
    q = torch.randn(1, n, 1, n, device=device)
    v = torch.eye(n, device=device)[None, :, None]
    exact = supported(device, q, q, v)
    dropped = supported(device, q, q, v, dropout_p=p, dropout_seed=7)
    kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(kept, exact / (1 - p), 0.0))
    assert 0.4 < kept.float().mean().item() < 0.65
    again = tilewise.attention(q, q, v, dropout_p=p, dropout_seed=7)
    assert torch.equal(dropped, again)
    assert torch.equal(tilewise.attention(q, q, v, dropout_p=0.0), exact)
    assert not supported(device, q, q, v, dropout_p=1.0).any()


def test_dropout_gradient_sees_the_same_bits(device: str) -> None:
    n, p = 32, 0.3
    q = torch.randn(1, n, 1, n, device=device)
    v = torch.eye(n, device=device)[None, :, None].clone().requires_grad_()
    torch.manual_seed(3)
    o = supported(device, q, q, v, dropout_p=p)
    d_o = torch.randn_like(o)
    (dv,) = torch.autograd.grad(o, v, d_o)
    dropped = o.detach()[0, :, 0]
    torch.testing.assert_close(dv[0, :, 0], dropped.T @ d_o[0, :, 0], atol=1e-5, rtol=0)
    torch.manual_seed(3)
    assert torch.equal(tilewise.attention(q, q, v, dropout_p=p), o)
