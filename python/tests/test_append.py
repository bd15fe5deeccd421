"""append_kv, and what flash_attn_with_kvcache makes of it: positions, padding, packed rows."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from derivatives import expect_refused  # noqa: E402
from kv_caches import (  # noqa: E402
    BATCH,
    CAPACITY,
    DIM,
    HEADS,
    LENGTHS,
    assert_rows,
    caches,
    lengths,
    new,
    run,
)
from tilewise import append_kv  # noqa: E402
from tilewise.flash_attn import flash_attn_with_kvcache  # noqa: E402
from torch import Tensor  # noqa: E402


def tables(device: str, rotary_dim: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    angle = torch.arange(CAPACITY + 4.0)[:, None] / 10.0 ** torch.linspace(0, 2, rotary_dim // 2)
    return tuple(t.to(device, dtype) for t in (angle.cos(), angle.sin()))


def turn(x: Tensor, cos: Tensor, sin: Tensor, positions: list[int], interleaved: bool) -> Tensor:
    """Rows of x (S, H, D) at positions, pair by pair."""
    half = cos.shape[1]
    c, s = (t[positions, None].to(x.dtype) for t in (cos, sin))
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if interleaved
        else (slice(0, half), slice(half, 2 * half))
    )
    y = x.clone()
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., first] * s + x[..., second] * c
    return y


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [6, 16])
@pytest.mark.parametrize("given", [{"causal": True}, {"window_size": (3, 0)}, {}])
@pytest.mark.parametrize("paged", [False, True])
def test_rotary_positions(
    device: str, paged: bool, given: dict[str, Any], rotary_dim: int, interleaved: bool
) -> None:
    rows = 3
    cos, sin = tables(device, rotary_dim)
    entries = BATCH * 4 if paged else BATCH
    k_cache, v_cache = caches(device, entries, 4 if paged else CAPACITY)
    table = torch.randperm(entries, dtype=torch.int32).reshape(BATCH, -1) if paged else None
    q, k, v = new(device, rows, 4 * HEADS), new(device, rows), new(device, rows)
    if table is not None:
        old = [[t[table[b].long()].flatten(0, 1) for b in range(BATCH)] for t in (k_cache, v_cache)]
    else:
        old = [[t[b].clone() for b in range(BATCH)] for t in (k_cache, v_cache)]
    o = run(
        device,
        q,
        k_cache,
        v_cache,
        k,
        v,
        cos,
        sin,
        cache_seqlens=lengths(device),
        block_table=None if table is None else table.to(device),
        rotary_interleaved=interleaved,
        **given,
    )
    parts: list[list[Tensor]] = [[], []]
    turned = torch.empty_like(q)
    for b, length in enumerate(LENGTHS):
        at = list(range(length, length + rows))
        turned[b] = turn(q[b], cos, sin, at if given else [length] * rows, interleaved)
        added = turn(k[b], cos, sin, at, interleaved), v[b]
        for part, whole, fresh in zip(parts, old, added, strict=True):
            part.append(torch.cat([whole[b][:length], fresh]))
    meaning = {"window": given["window_size"]} if "window_size" in given else given
    assert_rows(o, turned, *parts, **meaning)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rotary_is_rounded_once(device: str, dtype: torch.dtype) -> None:
    cos, sin = tables(device, 16, dtype)
    k_cache, v_cache = (t.to(dtype) for t in caches(device))
    q, k, v = (new(device, 2).to(dtype) for _ in range(3))
    turned, after, skipped = append_kv(
        k, v, k_cache, v_cache, lengths(device), q=q, rotary_cos=cos, rotary_sin=sin
    )
    assert after.tolist() == [n + 2 for n in LENGTHS] and not skipped.any()
    assert turned is not None
    for b, length in enumerate(LENGTHS):
        at = [length, length + 1]
        wide = (x[b].float() for x in (q, k))
        for got, x in zip((turned[b], k_cache[b, at]), wide, strict=True):
            exact = turn(x, cos.float(), sin.float(), at, False)
            torch.testing.assert_close(got, exact.to(dtype), atol=0, rtol=torch.finfo(dtype).eps)
        assert torch.equal(v_cache[b, at], v[b])


@pytest.mark.parametrize("form", ["contiguous", "heads first", "pages", "entries"])
def test_left_padding_is_not_read(device: str, form: str) -> None:
    leftpad, filled = [3, 0, 5], [11, 4, 5]
    size = 4 if form == "pages" else CAPACITY
    entries = BATCH * 4 if form == "pages" else 5
    k_cache, v_cache = caches(device, entries, size)
    if form == "heads first":
        k_cache, v_cache = (
            t.transpose(1, 2).contiguous().transpose(1, 2) for t in (k_cache, v_cache)
        )
    options: dict[str, Any] = {}
    table = torch.arange(BATCH)[:, None]
    if form == "pages":
        table = torch.randperm(entries).reshape(BATCH, 4)
        options["block_table"] = table.int().to(device)
    elif form == "entries":
        table = torch.tensor([[4], [0], [2]])
        options["cache_batch_idx"] = table[:, 0].to(device)
    for b, pad in enumerate(leftpad):
        for j in range(pad):
            for cache in (k_cache, v_cache):
                cache[table[b, j // size], j % size] = torch.nan
    q, k, v = new(device, 2, 2 * HEADS), new(device, 2), new(device, 2)
    o = run(
        device,
        q,
        k_cache,
        v_cache,
        k,
        v,
        cache_seqlens=torch.tensor(filled, dtype=torch.int32, device=device),
        cache_leftpad=torch.tensor(leftpad, dtype=torch.int32, device=device),
        causal=True,
        window_size=(6, -1),
        **options,
    )
    parts: list[list[Tensor]] = [[], []]
    for b, (pad, length) in enumerate(zip(leftpad, filled, strict=True)):
        for part, cache in zip(parts, (k_cache, v_cache), strict=True):
            part.append(cache[table[b]].flatten(0, 1)[pad : length + 2])
    assert torch.equal(parts[0][0][-2:], k[0]) and not o.isnan().any()
    assert_rows(o, q, *parts, causal=True, window=(6, None))


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_packed_rows(device: str, layout: str) -> None:
    """New rows behind each other, as engines that mix prefill and decoding have them."""
    rows, filled, size = [3, 0, 6, 1], [5, 2, 0, 15], 4
    offsets = torch.tensor([0, 3, 3, 9, 10], dtype=torch.int32, device=device)
    table = torch.randperm(16, dtype=torch.int32).reshape(4, 4)
    pools = torch.randn(2, 16, size, HEADS, DIM, device=device)
    k, v = torch.randn(2, 10, HEADS, DIM, device=device)
    wanted = pools.clone()
    begin = 0
    for b, count in enumerate(rows):
        for i in range(count):
            j = filled[b] + i
            place = int(table[b, j // size]), j % size
            wanted[0][place], wanted[1][place] = k[begin + i], v[begin + i]
        begin += count
    given = [k, v, *pools]
    if layout == "bhsd":
        given = [t.transpose(-3, -2) for t in given]
    _, after, _ = append_kv(
        *given,
        torch.tensor(filled, dtype=torch.int32, device=device),
        block_table=table.to(device),
        cu_seqlens=offsets,
        max_seqlen=6,
        layout=layout,
    )
    assert after.tolist() == [8, 2, 6, 16]
    assert torch.equal(pools, wanted)


def test_a_compiler_sees_what_is_written(device: str) -> None:
    """Compiled and eager write alike, and the graph holds the operator."""
    cos, sin = tables(device, 16)
    first = caches(device)
    second = tuple(t.clone() for t in first)
    q, k, v = new(device, 2, 4 * HEADS), new(device, 2), new(device, 2)

    def step(k_cache: Tensor, v_cache: Tensor, filled: Tensor) -> Tensor:
        out: Tensor = flash_attn_with_kvcache(
            q, k_cache, v_cache, k, v, cos, sin, filled, causal=True
        )
        return out + k_cache.sum() * 0

    graphs: list[str] = []

    def look(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.print_readable(print_output=False))
        return graph.forward

    eager = step(*first, lengths(device))
    compiled = torch.compile(step, backend=look, fullgraph=True)(*second, lengths(device))
    torch.testing.assert_close(compiled, eager)
    aot = tuple(t.clone() for t in second)
    for cache in aot:  # as before the call
        for b, length in enumerate(LENGTHS):
            cache[b, length : length + 2] = 0
    again = torch.compile(step, backend="aot_eager", fullgraph=True)(*aot, lengths(device))
    torch.testing.assert_close(again, eager)
    for a, b, c in zip(first, second, aot, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)
    assert "tilewise.append_kv" in "".join(graphs)


def test_writes_are_counted(device: str) -> None:
    """What autograd has kept of a cache is found to have changed."""
    k_cache, v_cache = caches(device)
    before = k_cache._version
    append_kv(new(device, 1), new(device, 1), k_cache, v_cache, lengths(device))
    assert k_cache._version > before


@pytest.mark.parametrize("name", ["k", "v", "k_cache", "v_cache", "q", "rotary_cos", "rotary_sin"])
def test_no_derivative_is_dropped(name: str) -> None:
    """An operator of Python's would give tangents of 0 and gradients of nothing."""
    names = ("k_cache", "v_cache", "k", "v", "q", "rotary_cos", "rotary_sin")
    given = dict(
        zip(names, (*caches("cpu"), *[new("cpu", 2)] * 3, *tables("cpu", 16)), strict=True)
    )

    def call(x: Tensor) -> Tensor:
        made = append_kv(lengths=lengths("cpu"), **given | {name: x})
        assert made.q is not None
        return made.q

    expect_refused(call, name, given[name])
