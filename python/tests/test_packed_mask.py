"""packed_mask beside the same mask as bool, and what its words are."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
from tilewise import (  # noqa: E402
    _packed_mask,
    attention,
    mask_words,
    packed_mask,
)

SQ, SK = 40, 70
SHAPES = [(SQ, SK), (4, SQ, SK), (2, 4, SQ, SK), (1, 4, SQ, SK), (2, 1, SQ, SK)]


def inputs(device: str = "cpu") -> list[torch.Tensor]:
    sizes = ((4, SQ), (2, SK), (2, SK))
    made = [torch.randn(2, heads, rows, 16, device=device) for heads, rows in sizes]
    return [t.requires_grad_() for t in made]


def seen(*shape: int) -> torch.Tensor:
    mask = torch.rand(shape) > 0.4
    mask[..., 3, :] = False  # a row that sees nothing
    return mask


@pytest.mark.parametrize("shape", SHAPES)
def test_is_the_mask(shape: tuple[int, ...], device: str) -> None:
    mask = seen(*shape).to(device)
    tensors = inputs(device)
    o = attention(*tensors, layout="bhsd", mask=mask)
    packed = attention(*tensors, layout="bhsd", mask_mod=packed_mask(mask))
    torch.testing.assert_close(packed, o, atol=1e-5, rtol=1e-5)
    d_o = torch.randn_like(o)
    for ours, theirs in zip(
        torch.autograd.grad(packed, tensors, d_o), torch.autograd.grad(o, tensors, d_o), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_words_are_the_bits() -> None:
    mask = seen(2, SQ, SK)
    words = mask_words(mask)
    assert words.dtype == torch.int32 and words.shape == (2, SQ, 3)
    bits = (words[..., None] >> torch.arange(32)) & 1
    assert torch.equal(bits.flatten(-2)[..., :SK].bool(), mask)
    assert not bits.flatten(-2)[..., SK:].any()
    # The same from an array, from a view, and as a device would pack them.
    np.testing.assert_array_equal(mask_words(mask.numpy()), words.numpy())
    assert torch.equal(mask_words(mask.mT.contiguous().mT), words)
    assert torch.equal(_packed_mask._torch_words(torch, mask, 3), words)
    square = torch.ones(512, 512, dtype=torch.bool)
    assert 8 * mask_words(square).nbytes == square.nbytes


def test_words_may_change_and_join_other_masks() -> None:
    tensors = inputs()
    words = mask_words(seen(SQ, SK))
    packed = packed_mask(words=words)
    for _ in range(2):
        mask = seen(SQ, SK)
        words.copy_(mask_words(mask))
        joined = tilewise.and_masks(packed, lambda b, h, i, j: i + 5 >= j)
        blocks = tilewise.create_block_mask(joined, 2, 4, SQ, SK, device="cpu", BLOCK_SIZE=16)
        o = tilewise.flex_attention(*tensors, block_mask=blocks, enable_gqa=True)
        near = torch.arange(SQ)[:, None] + 5 >= torch.arange(SK)
        expected = attention(*tensors, layout="bhsd", mask=mask & near)
        torch.testing.assert_close(o, expected, atol=1e-5, rtol=1e-5)


def test_wrong_masks_are_named() -> None:
    for mask in (torch.ones(3, 3), torch.ones(3, dtype=torch.bool), np.ones((1,) * 5, bool)):
        with pytest.raises(ValueError, match=r"mask is .*: expected bool \(\.\.\., Sq, Sk\)"):
            packed_mask(mask)
    with pytest.raises(ValueError, match="expected exactly one of them"):
        packed_mask()
    with pytest.raises(ValueError, match=r"words is int64 \(3, 1\): expected int32"):
        packed_mask(words=torch.ones(3, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="words is list"):
        packed_mask(words=[[1]])
