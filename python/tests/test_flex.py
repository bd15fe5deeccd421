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


def listed(seed: int, most: int) -> tuple[Tensor, Tensor]:
    """Numbers of key blocks, and these blocks of 16 in any order."""
    generator = torch.Generator().manual_seed(seed)
    blocks = S // 16
    order = torch.rand(B, H, blocks, blocks, generator=generator).argsort(-1).int()
    counts = torch.randint(0, most + 1, (B, H, blocks), generator=generator).int()
    return counts, order


def shown(lists: tuple[Tensor, Tensor]) -> Tensor:
    """The pairs of listed blocks."""
    counts, order = lists
    ranks = torch.empty_like(order).scatter_(
        -1, order.long(), torch.arange(S // 16).int() + 0 * order
    )
    return (ranks < counts[..., None]).repeat_interleave(16, -1).repeat_interleave(16, -2)


def exact(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    scores = (q.double() @ k.double().mT) / q.shape[-1] ** 0.5
    sees = visible.any(-1, keepdim=True)
    p = scores.masked_fill(~visible, -torch.inf).where(sees, 0.0).softmax(-1)
    return p.where(sees, 0.0) @ v.double()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", [tilewise, torch_s], ids=["ours", "torch_s"])
def test_masks_of_listed_blocks(module: Any) -> None:
    """O and gradients; mask_mod counts in partial blocks alone, also where it would hide pairs of
    full ones, and in the parts of a mask."""
    q, k, v, d_o = inputs()
    partial, full = listed(1, 3), listed(2, 1)
    mask = module.BlockMask.from_kv_blocks(*partial, *full, 16, zoo.causal)
    at = torch.arange(S)
    visible = (shown(partial) & (at[:, None] >= at)) | shown(full)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    o = flex_attention(*leaves, block_mask=mask)
    wanted = exact(*leaves, visible)
    torch.testing.assert_close(o.double(), wanted, **CLOSE)
    found = torch.autograd.grad(o, leaves, d_o)
    for ours, right in zip(found, torch.autograd.grad(wanted, leaves, d_o.double()), strict=True):
        torch.testing.assert_close(ours, right, **CLOSE)
    compiled = torch.compile(flex_attention, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(q, k, v, block_mask=mask), o)


def test_parts_of_listed_blocks() -> None:
    q, k, v, _ = inputs()
    partial, full = listed(1, 3), listed(2, 1)
    mask = tilewise.BlockMask.from_kv_blocks(*partial, *full, 16, zoo.causal)
    o = flex_attention(q, k, v, block_mask=mask)
    part = flex_attention(q[1:, :, 16:48], k[1:], v[1:], block_mask=mask[1, :, 1:3].to("cpu"))
    torch.testing.assert_close(part, o[1:, :, 16:48], **CLOSE)
    dense = (shown(partial) | shown(full))[..., ::16, ::16]
    assert torch.equal(mask.to_dense(), dense.int())
    assert mask.sparsity() == pytest.approx(100 * (1 - dense.double().mean().item()))
    again = tilewise.BlockMask.from_kv_blocks(mask.kv_num_blocks, mask.kv_indices, BLOCK_SIZE=16)
    assert torch.equal(again.kv_num_blocks + mask.full_kv_num_blocks, dense.sum(-1))


@pytest.mark.parametrize("name", ["documents_by_id", "listed"])
def test_rows_that_a_tensor_names(name: str) -> None:
    """A decoder takes one block row of its mask by a position on the device."""
    q, k, v, _ = inputs()
    if name == "listed":
        mask = tilewise.BlockMask.from_kv_blocks(*listed(1, 3), *listed(2, 1), 16, zoo.causal)
    else:
        mask = block_mask(tilewise, MASKS[name].function)
    o = flex_attention(q, k, v, block_mask=mask)
    rows = torch.tensor([3, 0])
    some = torch.cat([q[:, :, 48:64], q[:, :, :16]], 2)
    part = flex_attention(some, k, v, block_mask=mask[:, :, rows])
    torch.testing.assert_close(part, torch.cat([o[:, :, 48:64], o[:, :, :16]], 2), **CLOSE)
    one = mask[:, :, torch.tensor(2)]
    assert one.shape == (B, H, 16, S)
    last = flex_attention(q[:, :, 48:], k, v, block_mask=mask[:, :, torch.tensor([-1])])
    torch.testing.assert_close(last, o[:, :, 48:], **CLOSE)
    for outside in (4, -5):
        with pytest.raises(IndexError, match="outside its 4"):
            mask[:, :, torch.tensor(outside)]
    for index in (torch.tensor([0.0]), torch.tensor([True]), torch.zeros(1, 1, dtype=torch.int64)):
        with pytest.raises(IndexError, match="integers of at most one axis"):
            mask[:, :, index]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", [tilewise, torch_s], ids=["ours", "torch_s"])
def test_a_decoder_s_step(module: Any) -> None:
    """A static cache: the caller takes a block row, and sets the mask and the lengths of one
    query."""
    q, k, v, _ = inputs()
    whole = module.create_block_mask(zoo.causal, 1, 1, S, S, device="cpu", BLOCK_SIZE=16)
    wanted = flex_attention(q, k, v, block_mask=whole)
    for place in (0, 37, S - 1):
        position = torch.tensor([place])
        mask = whole[:, :, position // 16]
        mask.mask_mod = lambda b, h, i, j, at=position[0]: zoo.causal(b, h, i + at, j)
        mask.seq_lengths = (1, S)
        o = flex_attention(q[:, :, place : place + 1], k, v, block_mask=mask)
        torch.testing.assert_close(o, wanted[:, :, place : place + 1], **CLOSE)


def test_one_cache_for_all_entries() -> None:
    """Keys without a batch, as a cache of pages has them."""
    q, k, v, _ = inputs()
    whole = flex_attention(q, k[:1].expand(B, -1, -1, -1), v[:1].expand(B, -1, -1, -1))
    o = flex_attention(q, k[:1], v[:1], block_mask=block_mask(tilewise, noop_mask))
    torch.testing.assert_close(o, whole, **CLOSE)
    with pytest.raises(ValueError, match="its batch must equal q"):
        flex_attention(q, k[:1], v[:1])
    for value in (v[:1].expand(3, -1, -1, -1), v[0]):
        with pytest.raises(ValueError, match="must equal those of k"):
            flex_attention(q, k[:1], value, block_mask=block_mask(tilewise, noop_mask))


def test_lists_that_are_refused() -> None:
    counts, order = listed(1, 3)
    make = tilewise.BlockMask.from_kv_blocks
    with pytest.raises(ValueError, match="kv_indices lists a block outside 0 to 2"):
        make(counts.clamp(min=3), order, BLOCK_SIZE=16, seq_lengths=(S, 48))
    with pytest.raises(ValueError, match="one of full_kv_num_blocks"):
        make(counts, order, counts)
    with pytest.raises(ValueError, match="the counts of kv_indices are of"):
        make(counts[0], order)
    with pytest.raises(ValueError, match="kv_indices has 3 axes"):
        make(counts[0], order[0])
    with pytest.raises(ValueError, match="rows of blocks: expected Q_LEN 65"):
        make(counts, order, BLOCK_SIZE=16, seq_lengths=(65, 64))
    with pytest.raises(ValueError, match="full_kv_indices is of"):
        make(counts, order, counts[:1], order[:1])
    for kinds in ((counts.float(), order), (counts, order.double()), (counts, order.bool())):
        with pytest.raises(ValueError, match="expected integers"):
            make(*kinds, BLOCK_SIZE=16)
    with pytest.raises(TypeError, match="block_size"):
        make(counts, order, block_size=16)


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
