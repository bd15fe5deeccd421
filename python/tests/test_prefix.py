"""prefix_attention beside attention over all keys, and tree_mask beside a mask of all pairs."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from derivatives import expect_refused  # noqa: E402
from tilewise import attention, plan, prefix_attention, tree_mask, tree_words  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

BATCH, QUERIES, PREFIX, OWN, HEADS, KV_HEADS, DIM = 3, 4, 21, 9, 4, 2, 16


def tensors(device: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """q, k_prefix, v_prefix, k, v."""
    sizes = (
        (BATCH, QUERIES, HEADS, DIM),
        *[(PREFIX, KV_HEADS, DIM)] * 2,
        *[(BATCH, OWN, KV_HEADS, DIM)] * 2,
    )
    return tuple(torch.randn(size, device=device, dtype=dtype) for size in sizes)


def joined(prefix: Tensor, own: Tensor) -> Tensor:
    return torch.cat((prefix.expand(len(own), *prefix.shape), own), 1)


def assert_same(got: Any, want: Any) -> None:
    exact = got[0].dtype == torch.float32
    for one, other in zip(got, want, strict=True):
        bound = 2e-6 if exact else 2e-2
        torch.testing.assert_close(one, other, atol=bound, rtol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_attention_over_all_keys(device: str, causal: bool, dtype: torch.dtype) -> None:
    q, k_prefix, v_prefix, k, v = tensors(device, dtype)
    lengths = torch.tensor([9, 4, 6], dtype=torch.int32, device=device)
    options: dict[str, Any] = {"causal": causal, "scale": 0.2, "softcap": 3.0, "return_lse": True}
    got = prefix_attention(q, k_prefix, v_prefix, k, v, key_lengths=lengths, **options)
    keys, values = joined(k_prefix, k), joined(v_prefix, v)
    assert_same(got, attention(q, keys, values, key_lengths=lengths + PREFIX, **options))


def test_packed_queries_over_pages_with_sinks(device: str) -> None:
    q, k_prefix, v_prefix, k, v = tensors(device)
    lengths = torch.tensor([9, 5, 6], dtype=torch.int32, device=device)
    options: dict[str, Any] = {
        "causal": True,
        "cu_seqlens_q": torch.tensor([0, 7, 8, 12], dtype=torch.int32, device=device),
        "max_seqlen_q": 7,
        "sinks": torch.randn(HEADS, device=device),
        "return_lse": True,
    }
    rows = q.flatten(0, 1)
    table = torch.tensor([[5, 2], [0, 8], [4, 1]], dtype=torch.int32, device=device)
    pools = [torch.full((9, 5, KV_HEADS, DIM), torch.nan, device=device) for _ in range(2)]
    for pool, own in zip(pools, (k, v), strict=True):
        for b in range(BATCH):
            pool[table[b].long()] = torch.nn.functional.pad(own[b], (0, 0, 0, 0, 0, 1)).unflatten(
                0, (2, 5)
            )
    paged = {"key_lengths": lengths, "block_table": table}
    got = prefix_attention(rows, k_prefix, v_prefix, *pools, **paged, **options)
    entry = torch.arange(BATCH, dtype=torch.int32, device=device)[:, None]
    keys, values = joined(k_prefix, k), joined(v_prefix, v)
    whole = {"key_lengths": lengths + PREFIX, "block_table": entry}
    assert_same(got, attention(rows, keys, values, **whole, **options))


def test_a_compiler_takes_it(device: str) -> None:
    given = tensors(device)
    graphs: list[str] = []

    def look(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.print_readable(print_output=False))
        return graph.forward

    def step(*arguments: Tensor) -> Tensor:
        out: Tensor = prefix_attention(*arguments)
        return out * 2.0

    compiled = torch.compile(step, backend=look, fullgraph=True)(*given)
    torch.testing.assert_close(compiled, step(*given))
    assert "tilewise.prefix_attention" in "".join(graphs)


def test_it_names_what_is_wrong(device: str) -> None:
    q, k_prefix, v_prefix, k, v = tensors(device)
    with pytest.raises(ValueError, match="k_prefix is"):
        prefix_attention(q, k_prefix[:, :1], v_prefix, k, v)
    with pytest.raises(ValueError, match="batch and sequence axes"):
        prefix_attention(q.transpose(0, 1).contiguous().transpose(0, 1), k_prefix, v_prefix, k, v)
    with pytest.raises(NotImplementedError, match="no gradient"):
        prefix_attention(q.requires_grad_(), k_prefix, v_prefix, k, v)


PARENTS = [-1, 0, 0, 1, 1, 2, 5, -1, 7]


def visible(parents: list[int], queries: int, keys: int) -> Tensor:
    seen = torch.zeros(queries, keys, dtype=torch.bool)
    seen[:, : keys - queries] = True
    for i in range(queries):
        node = i
        while node >= 0:
            seen[i, keys - queries + node] = True
            node = parents[node]
    return seen


def test_words_are_ancestors() -> None:
    words = tree_words(PARENTS)
    assert words.dtype == np.int32 and words.shape == (9, 1)
    seen = visible(PARENTS, 9, 9)
    assert [[bool(words[i, 0] >> t & 1) for t in range(9)] for i in range(9)] == seen.tolist()
    chain = tree_words([list(range(-1, 39)), [-1] * 40])
    assert chain.shape == (2, 40, 2)
    assert chain[0, 39].tolist() == [-1, 0xFF] and chain[1, 39].tolist() == [0, 0x80]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tree_is_a_mask_of_ancestors(device: str, dtype: torch.dtype) -> None:
    queries, keys = len(PARENTS), 30
    q = torch.randn(2, queries, HEADS, DIM, device=device, dtype=dtype)
    k, v = (torch.randn(2, keys, KV_HEADS, DIM, device=device, dtype=dtype) for _ in range(2))
    mask = visible(PARENTS, queries, keys).to(device)
    want = attention(q, k, v, mask=mask, return_lse=True)
    tree = tree_mask(PARENTS, device=device)
    assert_same(attention(q, k, v, mask_mod=tree, return_lse=True), want)
    chain = tree_mask(words=torch.as_tensor(tree_words([range(-1, 8)] * 2), device=device))
    causal = attention(q, k, v, causal=True, return_lse=True)
    assert_same(attention(q, k, v, mask_mod=chain, return_lse=True), causal)
    # Behind a prefix, which all nodes see.
    prefix = k[0, : keys - queries], v[0, : keys - queries]
    own = k[:, keys - queries :], v[:, keys - queries :]
    got = prefix_attention(q[:1], *prefix, own[0][:1], own[1][:1], mask_mod=tree, causal=False)
    assert_same((got,), (want[0][:1],))


def test_a_hopper_kernel_reads_the_words() -> None:
    """Planned without a card: the kernel that a tree takes is the one that causal takes."""
    if not torch.cuda.is_available():
        pytest.skip("plans for a card need one in Python")
    q = torch.empty(4, 64, 32, 128, device="cuda", dtype=torch.bfloat16)
    k = torch.empty(4, 8192, 4, 128, device="cuda", dtype=torch.bfloat16)
    tree = tree_mask([-1, *range(63)], device="cuda")
    assert plan(q, k, k, mask_mod=tree).kernel == plan(q, k, k, causal=True).kernel


def test_a_tree_names_what_is_wrong() -> None:
    for parents in ([0], [-1, 1], [[-1], [2]]):
        with pytest.raises(ValueError, match="expected a node before it"):
            tree_words(parents)
    with pytest.raises(ValueError, match="expected integers"):
        tree_words([0.5])
    with pytest.raises(ValueError, match="exactly one"):
        tree_mask()
    for words in (np.zeros((4, 3), np.int32), np.int32(3), np.zeros((1, 1, 4, 1), np.int32)):
        with pytest.raises(ValueError, match="words has shape"):
            tree_mask(words=words)
    with pytest.raises(ValueError, match="words is of type list"):
        tree_mask(words=[[1], [3]])


def test_trees_without_nodes() -> None:
    assert tree_words([]).shape == (0, 1)
    assert tree_words(np.zeros((2, 0), np.int64)).shape == (2, 0, 1)
    assert tree_words(np.zeros((0, 3), np.int64)).shape == (0, 3, 1)


@pytest.mark.parametrize("empty", ["batch", "queries", "heads"])
def test_no_queries(empty: str) -> None:
    q, k_prefix, v_prefix, k, v = tensors("cpu")
    if empty == "batch":
        q, k, v = q[:0], k[:0], v[:0]
    else:
        q = q[:, :0] if empty == "queries" else q[:, :, :0]
    o, lse = prefix_attention(q, k_prefix, v_prefix, k, v, return_lse=True)
    assert o.shape == q.shape and lse.shape == (q.shape[0], q.shape[2], q.shape[1])


@pytest.mark.parametrize("name", ["q", "k_prefix", "v_prefix", "k", "v", "sinks"])
def test_no_derivative_is_dropped(name: str) -> None:
    """An operator of Python's would give tangents of 0 and gradients of nothing."""
    names = ("q", "k_prefix", "v_prefix", "k", "v", "sinks")
    given = dict(zip(names, (*tensors("cpu"), torch.zeros(HEADS)), strict=True))

    def call(x: Tensor) -> Tensor:
        return prefix_attention(**given | {name: x})

    expect_refused(call, name, given[name])


def test_compiles_beside_a_tree() -> None:
    """torch.compile stops where it meets the mask, as with attention."""
    tree = tree_mask([-1, 0, 0, 1])

    def call(q: Tensor, *others: Tensor) -> Tensor:
        return prefix_attention(q, *others, mask_mod=tree) * 2.0

    given = tensors("cpu")
    assert torch.equal(torch.compile(call, backend="eager")(*given), call(*given))


def test_flop_counter_counts_packed_queries_once() -> None:
    """Over pages, with or without a prefix: each query beside each key that a table can name."""
    q, pool = torch.randn(7, 4, 16), torch.randn(6, 5, 2, 16)
    options: dict[str, Any] = {
        "cu_seqlens_q": torch.tensor([0, 3, 7], dtype=torch.int32),
        "key_lengths": torch.tensor([9, 8], dtype=torch.int32),
        "block_table": torch.tensor([[0, 3], [1, 2]], dtype=torch.int32),
    }
    of_a_key = 4 * 16 * 4 * 7  # two products of dim 16, 4 heads, 7 queries
    with FlopCounterMode(display=False) as counter:
        attention(q, pool, pool, **options)
    assert counter.get_total_flops() == of_a_key * 10
    with FlopCounterMode(display=False) as counter:
        prefix_attention(q, pool[0], pool[0], pool, pool, **options)
    assert counter.get_total_flops() == of_a_key * 15
