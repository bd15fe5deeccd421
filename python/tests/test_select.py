"""Block lists that scores of blocks choose, against torch's own operators."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
from tilewise._block_scores import pooled  # noqa: E402
from torch import Tensor  # noqa: E402

BLOCK = 16


def tensors(device: str, *, rows: int = 100, keys: int = 130) -> tuple[Tensor, Tensor]:
    return (
        torch.randn(2, 4, rows, 24, device=device),
        torch.randn(2, 2, keys, 24, device=device),
    )


def probabilities(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """A softmax of the means' products: (B, Hq, blocks, blocks)."""
    s = pooled(q, BLOCK) @ pooled(k.repeat_interleave(2, 1), BLOCK).mT / q.shape[-1] ** 0.5
    if causal:
        last = (torch.arange(s.shape[-2]) + 1) * BLOCK
        last = last.clamp(max=q.shape[2]) - 1 + k.shape[2] - q.shape[2]
        seen = torch.arange(s.shape[-1]) * BLOCK <= last[:, None]
        s = s.masked_fill(~seen.to(s.device), -torch.inf)
    return s.softmax(-1)


@pytest.mark.parametrize("causal", [False, True])
def test_rules(device: str, causal: bool) -> None:
    q, k = tensors(device)
    p = probabilities(q, k, causal)
    ranked, order = p.sort(-1, descending=True)
    options: dict[str, Any] = {
        "causal": causal,
        "layout": "bhsd",
        "keep_diagonal": False,
        "keep_first": False,
    }
    best = tilewise.select_block_mask(q, k, BLOCK, count=3, **options)
    expected = torch.zeros_like(best).scatter_(-1, order[..., :3], True)
    assert torch.equal(best, expected & (p > 0))
    mass = tilewise.select_block_mask(q, k, BLOCK, mass=0.7, **options)
    before = ranked.cumsum(-1) - ranked
    assert torch.equal(mass, torch.zeros_like(mass).scatter_(-1, order, before < 0.7) & (p > 0))
    threshold = tilewise.select_block_mask(q, k, BLOCK, threshold=0.12, **options)
    assert torch.equal(threshold, p > 0.12)


def test_antidiagonals(device: str) -> None:
    """Against torch: tiles of 4 x 4 pairs, ragged ends, grouped heads."""
    q, k = tensors(device)
    s = q @ k.repeat_interleave(2, 1).mT / q.shape[-1] ** 0.5
    s = torch.nn.functional.pad(s, (0, -130 % 4, 0, 0)).unflatten(-1, (-1, 4)).unflatten(2, (-1, 4))
    tiles = s.flip(-1).diagonal(dim1=3, dim2=5).sum(-1) / 4  # (B, Hq, rows, columns) of tiles
    last = torch.arange(25, device=device) * 4 + 3 + 30
    seen = torch.arange(33, device=device) * 4 <= last[:, None]
    p = tiles.masked_fill(~seen, -torch.inf).softmax(-1)
    p = torch.nn.functional.pad(p, (0, 3, 0, 3)).unflatten(-1, (9, 4)).sum(-1)
    p = p.unflatten(2, (7, 4)).sum(3)
    got = tilewise.select_block_mask(
        q, k, BLOCK, count=3, causal=True, layout="bhsd", scorer="antidiagonal", stride=4,
        keep_diagonal=False, keep_first=False,
    )  # fmt: skip
    expected = torch.zeros_like(got).scatter_(-1, p.topk(3, -1).indices, True)
    assert torch.equal(got, expected)


def test_vertical_and_slash(device: str) -> None:
    """Against torch: the best key block and the best distance of the last queries, everywhere."""
    q, k = tensors(device, rows=128, keys=128)
    s = q[:, :, -BLOCK:] @ k.repeat_interleave(2, 1).mT / q.shape[-1] ** 0.5
    at, rows = torch.arange(128, device=device), torch.arange(112, 128, device=device)
    p = s.masked_fill(at > rows[:, None], -torch.inf).softmax(-1)
    vertical = p.unflatten(-1, (8, BLOCK)).sum((2, -1)).argmax(-1)
    distances = torch.div(rows[:, None] - at, BLOCK, rounding_mode="floor")
    by_distance = [(p * (distances == d)).sum((2, 3)) for d in range(8)]
    slash = torch.stack(by_distance, -1).argmax(-1)
    got = tilewise.select_block_mask(
        q, k, BLOCK, count=1, causal=True, layout="bhsd", scorer="vertical_slash",
        keep_diagonal=False, keep_first=False,
    )  # fmt: skip
    blocks = torch.arange(8, device=device)
    apart = blocks[:, None] - blocks
    crossed = (apart == slash[..., None, None]) | (apart == slash[..., None, None] + 1)
    expected = (crossed | (blocks == vertical[..., None, None])) & (apart >= 0)
    assert torch.equal(got, expected)


def test_list_drives_attention(device: str) -> None:
    q, k = tensors(device, rows=128, keys=128)
    v = torch.randn_like(k)
    listed = tilewise.select_blocks(q, k, BLOCK, count=2, causal=True, layout="bhsd")
    mask = tilewise.select_block_mask(q, k, BLOCK, count=2, causal=True, layout="bhsd")
    assert bool(mask[..., 0].all())
    assert bool(mask.diagonal(dim1=-2, dim2=-1).all())
    o = tilewise.attention(q, k, v, causal=True, block_list=listed, layout="bhsd")
    seen = mask.repeat_interleave(BLOCK, -1).repeat_interleave(BLOCK, -2)
    expected = tilewise.attention(q, k, v, causal=True, mask=seen, layout="bhsd")
    torch.testing.assert_close(o, expected)


def test_lengths_layout_and_compile(device: str) -> None:
    q, k = tensors(device)
    lengths = torch.tensor([130, 40], dtype=torch.int32, device=device)
    weights = tilewise.PoolWeights(1.0, 0.5, 0.25, 0.5)
    given: dict[str, Any] = {"count": 3, "key_lengths": lengths, "weights": weights}
    mask = tilewise.select_block_mask(q, k, BLOCK, layout="bhsd", **given)
    assert not bool(mask[1, :, :, 3:].any())
    others = (x.transpose(1, 2) for x in (q, k))
    assert torch.equal(mask, tilewise.select_block_mask(*others, BLOCK, **given))
    compiled = torch.compile(
        lambda q, k: tilewise.select_block_mask(q, k, BLOCK, count=3, layout="bhsd") & True,
        backend="eager",
        fullgraph=True,
    )
    expected = tilewise.select_block_mask(q, k, BLOCK, count=3, layout="bhsd")
    assert torch.equal(compiled(q, k), expected)


def test_bad_input_is_named() -> None:
    q, k = tensors("cpu")
    with pytest.raises(ValueError, match="count, mass and threshold"):
        tilewise.select_blocks(q, k, layout="bhsd")
    with pytest.raises(ValueError, match="layout"):
        tilewise.select_blocks(q, k, count=1, layout="sbhd")
    with pytest.raises(ValueError, match="block_q"):
        tilewise.select_blocks(q, k, 0, count=1, layout="bhsd")
    with pytest.raises(ValueError, match="count"):
        tilewise.select_blocks(q, k, count=-1, layout="bhsd")
    with pytest.raises(ValueError, match="k is"):
        tilewise.select_blocks(q, k[..., :8], count=1, layout="bhsd")
    for weights in ((1.0, 2.0, 3.0), (1.0,) * 5):
        with pytest.raises(ValueError, match="weights has"):
            tilewise.select_blocks(q, k, count=1, weights=weights, layout="bhsd")
    given = (64, 64, [1.0], None, False, 0, 1, 0.0, True, True, "bhsd", False)
    with pytest.raises(ValueError, match="weights has 1 numbers"):
        torch.ops.tilewise.select_blocks(q, k, None, *given)
    with pytest.raises(ValueError, match="k is of type ndarray"):
        tilewise.select_blocks(q, k.numpy(), count=1, layout="bhsd")


def test_nothing_to_choose_from() -> None:
    q, k = tensors("cpu")
    for no_q, no_k, blocks in (
        (q, k[:, :, :0], (7, 0)),
        (q[:, :0], k, (7, 9)),
        (q[:0], k[:0], (7, 9)),
    ):
        mask = tilewise.select_block_mask(no_q, no_k, BLOCK, count=2, layout="bhsd")
        assert mask.shape == (*no_q.shape[:2], *blocks)
        chosen = tilewise.select_blocks(no_q, no_k, BLOCK, count=2, layout="bhsd")
        assert chosen.row_offsets.shape == (*no_q.shape[:2], 8)
