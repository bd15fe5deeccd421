"""flash_attn_with_kvcache: what it appends, what each entry sees, what it refuses."""

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
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
from oracle import paper  # noqa: E402
from tilewise import append_kv  # noqa: E402
from tilewise.flash_attn import flash_attn_with_kvcache  # noqa: E402
from torch import Tensor  # noqa: E402

SIGNATURE = (
    *("q", "k_cache", "v_cache", "k", "v", "rotary_cos", "rotary_sin", "cache_seqlens"),
    *("cache_batch_idx", "cache_leftpad", "block_table", "softmax_scale", "causal", "window_size"),
    *("softcap", "rotary_interleaved", "alibi_slopes", "num_splits", "return_softmax_lse"),
)


def test_signature() -> None:
    parameters = inspect.signature(flash_attn_with_kvcache).parameters
    assert tuple(parameters) == SIGNATURE
    assert parameters["window_size"].default == (-1, -1)


@pytest.mark.parametrize(
    ("given", "meaning"),
    [
        ({}, {}),
        ({"causal": True}, {"causal": True}),
        ({"causal": True, "window_size": (4, -1)}, {"causal": True, "window": (4, None)}),
        ({"window_size": (3, 1), "num_splits": 4}, {"window": (3, 1)}),
        ({"softcap": 2.0, "softmax_scale": 0.4}, {"softcap": 2.0, "scale": 0.4}),
    ],
)
@pytest.mark.parametrize("rows", [1, 3])
def test_appends_and_attends(
    device: str, rows: int, given: dict[str, Any], meaning: dict[str, Any]
) -> None:
    k_cache, v_cache = caches(device)
    before = k_cache.clone(), v_cache.clone()
    q, k, v = new(device, rows, 4 * HEADS), new(device, rows), new(device, rows)
    o, lse = run(
        device,
        q,
        k_cache,
        v_cache,
        k,
        v,
        cache_seqlens=lengths(device),
        return_softmax_lse=True,
        **given,
    )
    assert lse.shape == (BATCH, 4 * HEADS, rows) and lse.dtype == torch.float32
    wanted = [old.clone() for old in before]
    for b, length in enumerate(LENGTHS):
        wanted[0][b, length : length + rows] = k[b]
        wanted[1][b, length : length + rows] = v[b]
    assert torch.equal(k_cache, wanted[0]) and torch.equal(v_cache, wanted[1])
    ends = [length + rows for length in LENGTHS]
    keys, values = ([cache[b, :end] for b, end in enumerate(ends)] for cache in wanted)
    assert_rows(o, q, keys, values, **meaning)


def test_alibi(device: str) -> None:
    k_cache, v_cache = caches(device)
    q, slopes = new(device, 2), torch.rand(BATCH, HEADS, device=device)
    filled = torch.tensor([11, 4, 5], dtype=torch.int32, device=device)
    o = run(device, q, k_cache, v_cache, cache_seqlens=filled, causal=True, alibi_slopes=slopes)
    parts = [[cache[b, :n] for b, n in enumerate([11, 4, 5])] for cache in (k_cache, v_cache)]
    assert_rows(o, q, *parts, causal=True, alibi_slopes=slopes)


@pytest.mark.parametrize("filled", [None, 7])
def test_one_length_for_all(device: str, filled: int | None) -> None:
    k_cache, v_cache = caches(device, BATCH + 1)  # more entries than q has
    q = new(device, 2)
    o = run(device, q, k_cache, v_cache, cache_seqlens=filled, causal=True)
    exact, _ = paper(q, k_cache[:BATCH, :filled], v_cache[:BATCH, :filled], causal=True)
    torch.testing.assert_close(o.double(), exact, atol=1e-5, rtol=0)


def test_entries_of_the_cache(device: str) -> None:
    k_cache, v_cache = caches(device, 5)
    before = k_cache.clone()
    index = torch.tensor([4, 0, 2], device=device)
    q, k, v = new(device, 2), new(device, 2), new(device, 2)
    o = run(device, q, k_cache, v_cache, k, v, cache_seqlens=lengths(device), cache_batch_idx=index)
    entries = [4, 0, 2]
    parts = [
        [cache[entry, : length + 2] for entry, length in zip(entries, LENGTHS, strict=True)]
        for cache in (k_cache, v_cache)
    ]
    assert torch.equal(parts[0][0][-2:], k[0]) and torch.equal(k_cache[[1, 3]], before[[1, 3]])
    assert_rows(o, q, *parts)


def test_pages(device: str) -> None:
    size = 4
    k_pool, v_pool = caches(device, 9, size)
    table = torch.tensor(
        [[3, 0, 8, 5], [1, -1, -1, -1], [7, 2, -1, -1]], dtype=torch.int32, device=device
    )
    q, k, v = new(device, 3), new(device, 3), new(device, 3)
    o = run(
        device,
        q,
        k_pool,
        v_pool,
        k,
        v,
        cache_seqlens=lengths(device),
        block_table=table,
        causal=True,
    )
    parts: list[list[Tensor]] = [[], []]
    for b, length in enumerate(LENGTHS):
        pages = table[b, : -(-(length + 3) // size)].long()
        for part, pool in zip(parts, (k_pool, v_pool), strict=True):
            part.append(pool[pages].flatten(0, 1)[: length + 3])
    assert torch.equal(parts[0][0][11:14], k[0]) and torch.equal(parts[1][2][5:8], v[2])
    assert_rows(o, q, *parts, causal=True)


def guarded(device: str, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two caches between rows that must stay NaN, and the memory of all."""
    memory = torch.full((2, BATCH * rows + 2, HEADS, DIM), torch.nan, device=device)
    inside = memory[:, 1:-1].unflatten(1, (BATCH, rows))
    inside.normal_()
    return inside[0], inside[1], memory


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_c102_a_full_cache_is_not_written(device: str, rows: int, as_tensor: bool) -> None:
    k_cache, v_cache, memory = guarded(device, CAPACITY)
    before = memory.clone()
    filled: int | Tensor = CAPACITY
    if as_tensor:
        filled = torch.full((BATCH,), CAPACITY, dtype=torch.int32, device=device)
    q, k, v = new(device, rows), new(device, rows), new(device, rows)
    if device == "cuda" and as_tensor:  # which the host does not read
        o = run(device, q, k_cache, v_cache, k, v, cache_seqlens=filled)
        assert_rows(o, q, list(k_cache), list(v_cache))
    else:
        named = f"sequence 0 has {CAPACITY} keys and gets {rows} more; its cache holds {CAPACITY}"
        message = named if as_tensor else f"cache_seqlens is {CAPACITY} and {rows} keys"
        with pytest.raises(ValueError, match=message):
            flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=filled)
    assert torch.equal(memory.isnan(), before.isnan())
    assert torch.equal(memory.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_c102_only_entries_with_room_are_written(device: str, rows: int) -> None:
    """A GPU skips entries whose lengths nobody has read; a CPU names the first of them."""
    k_cache, v_cache, memory = guarded(device, CAPACITY)
    wanted = memory.clone()
    filled = [CAPACITY - rows, CAPACITY - rows + 1, CAPACITY]
    k, v = new(device, rows), new(device, rows)
    lengths = torch.tensor(filled, dtype=torch.int32, device=device)
    if device == "cpu":
        with pytest.raises(ValueError, match=f"sequence 1 has {filled[1]} keys"):
            append_kv(k, v, k_cache, v_cache, lengths)
    else:
        for cache, added in zip(
            wanted[:, 1:-1].unflatten(1, (BATCH, CAPACITY)), (k, v), strict=True
        ):
            cache[0, filled[0] :] = added[0]
        _, after, skipped = append_kv(k, v, k_cache, v_cache, lengths)
        assert after.dtype == torch.int32 and after.tolist() == [CAPACITY, *filled[1:]]
        assert skipped.tolist() == [False, True, True]
    assert torch.equal(memory.isnan(), wanted.isnan())
    assert torch.equal(memory.nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize(
    ("table", "filled", "rows", "wanted"),
    [
        ([[0, 2**31 - 1]], [3], 6, [3]),  # a tail that names no page
        ([[0], [0]], [0, 4], 1, [1, 4]),  # a page of two entries
        ([[2**31 - 1], [1], [-1]], [-1, 2, 2**31 - 1], 2, [-1, 4, 2**31 - 1]),
        ([[-1], [-1]], [4, 5], 2, [4, 5]),
        ([[1], [0]], [0, 0], 5, [0, 0]),  # more rows than any entry has
    ],
)
def test_c102_an_entry_without_room_reads_no_tail_and_spoils_no_page(
    device: str, table: list[list[int]], filled: list[int], rows: int, wanted: list[int]
) -> None:
    size = 4
    pools = caches(device, 2, size)
    k, v = torch.randn(2, len(filled), rows, HEADS, DIM, device=device)
    expected = [pool.clone() for pool in pools]
    pages, lengths = (torch.tensor(x, dtype=torch.int32, device=device) for x in (table, filled))
    if device == "cpu":
        with pytest.raises(ValueError, match=r"sequence \d has -?\d+ keys and gets"):
            append_kv(k, v, *pools, lengths, block_table=pages)
    else:
        for b, (before, after) in enumerate(zip(filled, wanted, strict=True)):
            for pool, added in zip(expected, (k, v), strict=True):
                for row in range(before, after):
                    pool[table[b][row // size], row % size] = added[b, row - before]
        _, after, skipped = append_kv(k, v, *pools, lengths, block_table=pages)
        assert after.tolist() == wanted
        assert skipped.tolist() == [a == b for a, b in zip(filled, wanted, strict=True)]
    for pool, whole in zip(pools, expected, strict=True):
        assert torch.equal(pool, whole)


def test_c061_entries_2_to_the_30_elements_apart(device: str) -> None:
    """The last entry begins at element 2^31; what nobody names is not touched, nor paged in."""
    stride, rows, filled = 2**30, 4096, [4, 0, 3]
    k_cache, v_cache = (
        torch.empty(2 * stride + rows * HEADS * DIM, dtype=torch.float16, device=device).as_strided(
            (BATCH, rows, HEADS, DIM), (stride, HEADS * DIM, DIM, 1)
        )
        for _ in range(2)
    )
    for cache in (k_cache, v_cache):
        cache[:, :8] = new(device, 8)
    before = [cache[:, :8].clone() for cache in (k_cache, v_cache)]
    q, k, v = (new(device, 1).half() for _ in range(3))
    lengths = torch.tensor(filled, dtype=torch.int32, device=device)
    o = run(device, q, k_cache, v_cache, k, v, cache_seqlens=lengths)
    for cache, wanted, added in zip((k_cache, v_cache), before, (k, v), strict=True):
        for b, end in enumerate(filled):
            wanted[b, end] = added[b, 0]
        assert torch.equal(cache[:, :8], wanted)
    parts = [[w[b, : n + 1].float() for b, n in enumerate(filled)] for w in before]
    for b in range(BATCH):
        exact, _ = paper(q[b, None].float(), parts[0][b][None], parts[1][b][None])
        torch.testing.assert_close(o[b, None].double(), exact, atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rotary_cos": torch.ones(1)}, ValueError, "rotary_cos is given without k"),
        (
            dict.fromkeys("kv", torch.zeros(3, 1, 2, 16))
            | {"cache_seqlens": 1, "rotary_cos": torch.ones(4, 8)},
            ValueError,
            "rotary.sin is not given",
        ),
        (
            dict.fromkeys("kv", torch.zeros(3, 1, 2, 16))
            | {"cache_seqlens": 4}
            | dict.fromkeys(("rotary_cos", "rotary_sin"), torch.ones(4, 8)),
            ValueError,
            "sequence 0 has 4 keys and gets 1 more; its last position is 4",
        ),
        ({"k": torch.zeros(3, 1, 2, 16)}, ValueError, "one of k and v"),
        (dict.fromkeys("kv", torch.zeros(3, 1, 2, 16)), ValueError, "cache_seqlens is None"),
        (
            dict.fromkeys("kv", torch.zeros(3, 6, 2, 16)) | {"cache_seqlens": 11},
            ValueError,
            "cache's 16",
        ),
        (
            dict.fromkeys("kv", torch.zeros(3, 1, 1, 16)) | {"cache_seqlens": 1},
            ValueError,
            r"k_cache is float32 \(3, 2, 16, 16\)",
        ),
        (
            dict.fromkeys("kv", torch.zeros(3, 1, 2, 16).half()) | {"cache_seqlens": 1},
            ValueError,
            "k_cache is float32",
        ),
        ({"cache_seqlens": torch.ones(3).long()}, ValueError, "cache_seqlens is torch.int64"),
        ({"cache_seqlens": torch.ones(2).int()}, ValueError, "cache_seqlens is torch.int32"),
        (
            {"cache_seqlens": 4, "cache_leftpad": torch.tensor([0, -2, 0])},
            ValueError,
            r"cache_leftpad is \[0, -2, 0\]",
        ),
        (
            {"cache_seqlens": 4, "cache_leftpad": torch.zeros(2).int()},
            ValueError,
            "cache_leftpad has shape",
        ),
        (
            dict.fromkeys(("block_table", "cache_batch_idx"), torch.zeros(3, 1).int()),
            ValueError,
            "one of them",
        ),
        # Refused before anything is written.
        (
            dict.fromkeys("kv", torch.zeros(3, 1, 2, 16)) | {"cache_seqlens": 1, "softcap": -1.0},
            ValueError,
            "softcap",
        ),
    ],
)
def test_refusals(options: dict[str, Any], error: type[Exception], message: str) -> None:
    k_cache, v_cache = caches("cpu")
    before = k_cache.clone()
    with pytest.raises(error, match=message):
        flash_attn_with_kvcache(new("cpu", 1), k_cache, v_cache, **options)
    assert torch.equal(k_cache, before)


def test_no_gradient() -> None:
    k_cache, v_cache = caches("cpu")
    q = new("cpu", 1).requires_grad_()
    with pytest.raises(NotImplementedError, match="no gradient"):
        flash_attn_with_kvcache(q, k_cache, v_cache)
    with torch.no_grad():
        assert flash_attn_with_kvcache(q, k_cache, v_cache).shape == q.shape


def test_one_split_is_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry's bits do not depend on the rest of the batch, as flash_attn's num_splits=1."""
    from tilewise import _kv_cache

    asked = []

    def watch(*arguments: Any, **options: Any) -> Any:
        asked.append(options["deterministic"])
        return tilewise.attention(*arguments, **options)

    monkeypatch.setattr(_kv_cache, "attention", watch)
    generator = torch.Generator().manual_seed(8)
    q = torch.randn(3, 1, 4, 32, generator=generator)
    k, v = (torch.randn(3, 2048, 2, 32, generator=generator) for _ in range(2))
    lengths = torch.tensor([2048, 700, 1], dtype=torch.int32)
    all_three = _kv_cache.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, num_splits=1)
    for b in range(3):
        one = slice(b, b + 1)
        alone = _kv_cache.flash_attn_with_kvcache(
            q[one], k[one], v[one], cache_seqlens=lengths[one], num_splits=1
        )
        assert torch.equal(alone, all_three[one])
    _kv_cache.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths)
    assert asked == [True] * 4 + [False]
