"""FlexAttention's functions: tilewise beside torch's own, from files with one import changed."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
import zoo  # noqa: E402
from tilewise import and_masks, create_block_mask, flex_attention, noop_mask, or_masks  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn.attention import flex_attention as torch_s  # noqa: E402
from zoo import MASKS, SCORES, B, H, S  # noqa: E402

CLOSE = {"atol": 2e-5, "rtol": 1e-5}


def inputs(heads: int = H, rows: int = S, keys: int = S) -> list[Tensor]:
    generator = torch.Generator().manual_seed(9)
    shapes = [(B, H, rows, 8), (B, heads, keys, 8), (B, heads, keys, 8), (B, H, rows, 8)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def block_mask(module: Any, mask_mod: Any, **options: Any) -> Any:
    return module.create_block_mask(mask_mod, B, H, S, S, device="cpu", BLOCK_SIZE=16, **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", ["alibi", "t5_relative"])
def test_as_torch_s(mask: str, score: str) -> None:
    """O and LSE; torch's own has no gradients on a CPU (test_expressions.py has ours)."""
    q, k, v, _ = inputs()
    found = []
    with torch.no_grad():
        for module in (tilewise, torch_s):
            mask_of = block_mask(module, MASKS[mask].function)
            score_mod = SCORES[score].function
            found.append(module.flex_attention(q, k, v, score_mod, mask_of, 0.3, return_lse=True))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.filterwarnings("ignore")
def test_grouped_heads_and_outputs() -> None:
    q, k, v, _ = inputs(heads=2, rows=33)
    with pytest.raises(ValueError, match="enable_gqa=True"):
        flex_attention(q, k, v)
    o = flex_attention(q, k, v, enable_gqa=True, kernel_options={"BLOCK_M": 64})
    wanted = torch_s.flex_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(o, wanted, **CLOSE)
    again, aux = flex_attention(q, k, v, enable_gqa=True, return_aux=tilewise.AuxRequest(lse=True))
    assert torch.equal(o, again) and aux.lse.shape == (B, H, 33) and aux.max_scores is None
    _, aux = flex_attention(q, k, v, enable_gqa=True, return_aux=torch_s.AuxRequest())
    assert aux.lse is None
    with pytest.raises(NotImplementedError, match="max_scores"):
        flex_attention(q, k, v, enable_gqa=True, return_aux=torch_s.AuxRequest(max_scores=True))


def test_masks_join() -> None:
    q, k, v, _ = inputs()

    def o(mask_mod: Any) -> Tensor:
        made: Tensor = flex_attention(q, k, v, block_mask=block_mask(tilewise, mask_mod))
        return made

    plain = tilewise.attention(q, k, v, layout="bhsd")
    torch.testing.assert_close(o(noop_mask), plain, **CLOSE)
    torch.testing.assert_close(o(and_masks()), plain, **CLOSE)
    window = and_masks(zoo.causal, lambda b, h, i, j: i - j <= 9)
    torch.testing.assert_close(o(window), o(zoo.sliding_window), **CLOSE)
    either = or_masks(zoo.causal, lambda b, h, i, j: i < j, MASKS["prefix"].function)
    torch.testing.assert_close(o(either), plain, **CLOSE)
    with pytest.raises(ValueError, match="mask_mods hold 4"):
        or_masks(zoo.causal, 4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MASKS)
def test_maps_are_torch_s(name: str) -> None:
    ours, theirs = (block_mask(module, MASKS[name].function) for module in (tilewise, torch_s))
    assert ours.shape == theirs.shape and ours.numel() == theirs.numel()
    assert ours.sparsity() == pytest.approx(theirs.sparsity())
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    for kind in ("kv", "full_kv"):
        counts = getattr(theirs, f"{kind}_num_blocks")
        assert torch.equal(getattr(ours, f"{kind}_num_blocks"), counts)
        used = torch.arange(theirs.kv_indices.shape[-1]) < counts[..., None]
        a, b = (getattr(m, f"{kind}_indices").masked_fill(~used, 0) for m in (ours, theirs))
        assert torch.equal(a, b)
    assert ours.to_string(limit=B * H) == theirs.to_string(limit=B * H)


def test_a_mask_of_fewer_blocks_than_its_sizes() -> None:
    made = create_block_mask(zoo.causal, None, None, 100, 37, BLOCK_SIZE=(16, 64))
    assert made.shape == (1, 1, 100, 37) and made.blocks == (7, 1)
    assert made.to_dense().tolist() == [[[[1]] * 7]] and made.sparsity() == 0.0
    assert "sparsity=0.00%" in str(made)


def test_parts_of_a_mask() -> None:
    q, k, v, _ = inputs()
    whole = block_mask(tilewise, MASKS["documents_by_id"].function)
    o = flex_attention(q, k, v, block_mask=whole)
    part = whole[1, :, 1:3]
    assert part.shape == (1, H, 32, S)
    assert torch.equal(part.to_dense(), whole.to_dense()[1:, :, 1:3])
    got = flex_attention(q[1:, :, 16:48], k[1:], v[1:], block_mask=part)
    torch.testing.assert_close(got, o[1:, :, 16:48], **CLOSE)
    assert torch.equal(whole[:, -1].to_dense(), whole.to_dense()[:, -1:])
    assert whole.to("cpu").to_dense().device.type == "cpu"
    for index in ((0, 0, 0, 0), 2, slice(0, 2, 2), [0], (0, slice(3, 3))):
        with pytest.raises(IndexError, match="BlockMask"):
            whole[index]


def test_masks_that_are_refused() -> None:
    q, k, v, _ = inputs()
    with pytest.raises(ValueError, match=r"block_mask is of \(2, 4, 64, 64\): expected \(1 or 2"):
        flex_attention(q[:, :, :5], k, v, block_mask=block_mask(tilewise, zoo.causal))
    with pytest.raises(ValueError, match="expected one of tilewise.create_block_mask"):
        flex_attention(q, k, v, block_mask=zoo.causal)
    with pytest.raises(ValueError, match="mask_mod: a traced value: if, and"):
        create_block_mask(lambda b, h, i, j: i > 2 and j > 2, None, None, S, S)
    for sizes, name in (((0, S), "Q_LEN"), ((S, 1.5), "KV_LEN")):
        with pytest.raises(ValueError, match=f"{name} is"):
            create_block_mask(zoo.causal, None, None, *sizes)


@pytest.mark.filterwarnings("ignore")
def test_compiled() -> None:
    """torch.compile(flex_attention) is how files for it begin."""
    q, k, v, _ = inputs()
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, backend="aot_eager")
    mask = block_mask(tilewise, MASKS["prefix"].function)
    score_mod = SCORES["t5_relative"].function
    wanted = flex_attention(q, k, v, score_mod, mask)
    assert torch.equal(compiled(q, k, v, score_mod, mask), wanted)

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = block_mask(tilewise, MASKS["prefix"].function)
        return flex_attention(q, k, v, score_mod, made)

    assert torch.equal(torch.compile(step, backend="aot_eager")(q, k, v), wanted)
    torch._dynamo.reset()
    whole = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert torch.equal(whole(q, k, v), wanted)
