"""Scores of blocks, gates of blocks and routing by clusters, against torch's own operators."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional  # noqa: E402

BLOCK = 16
EVERY = tilewise.PoolWeights(0.5, 1.0, 2.0, 0.25)


def tensors(device: str, rows: int = 100, keys: int = 130) -> tuple[Tensor, Tensor, Tensor]:
    """Four heads of queries, two of keys; ragged last blocks."""
    return (
        torch.randn(2, 4, rows, 24, device=device, requires_grad=True),
        torch.randn(2, 2, keys, 24, device=device, requires_grad=True),
        torch.randn(2, 2, keys, 24, device=device, requires_grad=True),
    )


@pytest.mark.parametrize("causal", [False, True])
def test_scores_choose_what_select_blocks_chooses(device: str, causal: bool) -> None:
    q, k, _ = tensors(device)
    options: dict[str, Any] = {"causal": causal, "weights": EVERY, "layout": "bhsd"}
    p = tilewise.block_scores(q, k, BLOCK, **options).softmax(-1)
    chosen = tilewise.select_block_mask(
        q, k, BLOCK, count=3, keep_diagonal=False, keep_first=False, **options
    )
    best = torch.zeros_like(chosen).scatter_(-1, p.argsort(-1, descending=True)[..., :3], True)
    assert torch.equal(chosen, best & (p > 0))


def test_scores_have_gradients() -> None:
    q = torch.randn(1, 2, 21, 5, dtype=torch.float64, requires_grad=True)
    k = torch.randn(1, 1, 19, 5, dtype=torch.float64, requires_grad=True)

    def total(q: Tensor, k: Tensor) -> Tensor:
        return tilewise.block_scores(q, k, 8, weights=EVERY, layout="bhsd").sin().sum()

    total(q, k).backward()
    for x in (q, k):
        step = torch.randn_like(x) * 1e-2
        with torch.no_grad():
            moved = [(q + s * step, k) if x is q else (q, k + s * step) for s in (1, -1)]
            slope = (total(*moved[0]) - total(*moved[1])) / 2
        torch.testing.assert_close((x.grad * step).sum().float(), slope, atol=1e-4, rtol=5e-2)


def test_gate(device: str) -> None:
    """Output and gradients of gated attention on listed blocks; a hidden block gets none."""
    q, k, v = tensors(device)
    gate = (0.2 + torch.rand(2, 4, 7, 9, device=device)).requires_grad_()
    listed = torch.rand(2, 4, 7, 9, device=device) < 0.5
    listed[..., 0] = True
    o = tilewise.attention(
        q,
        k,
        v,
        layout="bhsd",
        block_list=tilewise.BlockList.from_blocks(listed, BLOCK),
        score_mod=tilewise.block_gate(gate.log(), BLOCK),
    )
    d_o = torch.randn_like(o)
    ours = torch.autograd.grad(o, (q, k, v, gate), d_o)

    def spread(x: Tensor) -> Tensor:
        return x.repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)[:, :, :100, :130]

    s = q @ k.repeat_interleave(2, 1).mT / 24**0.5 + spread(gate.log())
    truth = s.masked_fill(~spread(listed), -torch.inf).softmax(-1) @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(o, truth, atol=1e-5, rtol=1e-5)
    for a, b in zip(ours, torch.autograd.grad(truth, (q, k, v, gate), d_o), strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)
    assert not ours[3][~listed].any()
    assert ours[3][listed].abs().max() > 1e-3


def test_routes(device: str) -> None:
    """Order and blocks, token by token."""
    q, k, _ = tensors(device)
    clusters, top, threshold, lengths = 6, 2, 0.8, (130, 70)
    centroids = torch.randn(2, clusters, 24, device=device)
    route = tilewise.cluster_route(
        q,
        k,
        centroids,
        BLOCK,
        top=top,
        threshold=threshold,
        layout="bhsd",
        key_lengths=torch.tensor(lengths, dtype=torch.int32, device=device),
    )
    axes = functional.normalize(centroids, dim=-1)
    for b in range(2):
        for h in range(4):
            of_q = (q[b, h] @ axes[h // 2].mT).argmax(-1).tolist()
            of_k = (k[b, h // 2] @ axes[h // 2].mT).argmax(-1).tolist()
            queries = sorted(range(100), key=lambda i: of_q[i])
            keys = sorted(range(lengths[b]), key=lambda j: of_k[j])
            assert route.query_order[b, h].tolist() == queries
            assert route.key_order[b, h // 2, : lengths[b]].tolist() == keys
            for row in range(7):
                mine = [of_q[i] for i in queries[row * BLOCK :][:BLOCK]]
                counts = [mine.count(c) for c in range(clusters)]
                ranked = sorted(range(clusters), key=lambda c: (-counts[c], c))[:top]
                kept = {c for c in ranked if counts[c] > threshold / clusters * len(mine)}
                shared = []
                seen = set()
                for column in range(9):
                    theirs = [of_k[j] for j in keys[column * BLOCK :][:BLOCK]]
                    size = min(BLOCK, 130 - column * BLOCK)
                    least = threshold / clusters * size
                    if any(theirs.count(c) > least for c in kept):
                        seen.add(column)
                    share = sum(counts[c] / len(mine) * theirs.count(c) for c in range(clusters))
                    shared.append(share / size)
                best = max(shared)
                found = set(route.blocks[b, h, row].nonzero().flatten().tolist())
                extra = found - seen
                assert seen <= found
                assert len(extra) <= 1
                assert all(shared[column] > best - 1e-6 for column in extra)


def test_cluster_attention_is_attention_where_all_clusters_count(device: str) -> None:
    """With every cluster of every block, sorting changes nothing; gradients come back in order."""
    q, k, v = tensors(device)
    centroids = torch.randn(2, 3, 24, device=device)
    o = tilewise.cluster_attention(q, k, v, centroids, BLOCK, top=3, threshold=0.0, layout="bhsd")
    route = tilewise.cluster_route(q, k, centroids, BLOCK, top=3, threshold=0.0, layout="bhsd")
    visible = route.blocks.repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)
    visible = visible[:, :, :100, :130]
    back_q, back_k = route.query_order.argsort(-1), route.key_order.argsort(-1)
    back_k = back_k.repeat_interleave(2, 1)
    visible = visible.gather(2, back_q[..., None].expand_as(visible))
    visible = visible.gather(3, back_k[:, :, None].expand_as(visible))
    s = q @ k.repeat_interleave(2, 1).mT / 24**0.5
    truth = s.masked_fill(~visible, -torch.inf).softmax(-1) @ v.repeat_interleave(2, 1)
    assert 0.2 < visible.float().mean() < 1.0
    torch.testing.assert_close(o, truth, atol=1e-5, rtol=1e-5)
    d_o = torch.randn_like(o)
    ours = torch.autograd.grad(o, (q, k, v), d_o)
    for a, b in zip(ours, torch.autograd.grad(truth, (q, k, v), d_o), strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


def test_bad_arguments(device: str) -> None:
    q, k, v = tensors(device)
    centroids = torch.randn(2, 3, 24, device=device)
    with pytest.raises(ValueError, match="weights is"):
        tilewise.block_scores(q, k, weights=tilewise.PoolWeights(0.0), layout="bhsd")
    with pytest.raises(ValueError, match="block_q is 0"):
        tilewise.block_scores(q, k, 0, layout="bhsd")
    with pytest.raises(ValueError, match="log_gate has 2 axes"):
        tilewise.block_gate(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="top is 4: expected 1 to 3"):
        tilewise.cluster_route(q, k, centroids, top=4, layout="bhsd")
    with pytest.raises(ValueError, match=r"centroids is \(2, 3, 8\)"):
        tilewise.cluster_attention(q, k, v, centroids[..., :8], layout="bhsd")
    with pytest.raises(ValueError, match="it must divide"):
        tilewise.cluster_route(q[:, :3], k, centroids, layout="bhsd")
