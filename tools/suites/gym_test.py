"""Each function of attention-gym: tilewise.flex_attention beside FlexAttention in float64.

Run by suites.plugin in a process that finds both copies of the package.
"""

import math
import os
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import attn_gym.masks
import attn_gym.masks.vsa
import attn_gym.mods
import attn_gym.paged_attention
import gym_of_ours.masks
import gym_of_ours.masks.vsa
import gym_of_ours.mods
import gym_of_ours.paged_attention
import pytest
import tilewise
import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention import flex_attention as torch_s

DEVICE = os.environ["SUITE_DEVICE"]
B, H, S, D = 2, 4, 64, 16


def gym(package: ModuleType, flex: ModuleType) -> SimpleNamespace:
    """A copy of the package, and the module of FlexAttention's functions that it imports."""
    masks = package.masks
    own = {"masks": masks, "vsa": masks.vsa, "mods": package.mods, "pages": package.paged_attention}
    return SimpleNamespace(**own, flex=flex)


TORCH_GYM, OUR_GYM = gym(attn_gym, torch_s), gym(gym_of_ours, tilewise)
OFFSETS = torch.tensor([0, 11, 12, 40, S], dtype=torch.int32, device=DEVICE)
# Of the largest element, by type: O and gradients are rounded to it, as P and dS are inside.
CLOSE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Entry(NamedTuple):
    function: Callable[..., Any]
    rows: int = S
    keys: int = S
    learned: tuple[Tensor, ...] = ()
    written_out: Callable[[Tensor], Tensor] | None = None  # of scores (B, H, Sq, Sk)
    block_mask: Any = None  # of the function, as the gym makes it
    cache: Any = None  # of pages, which hold the keys


Maker = Callable[
    [SimpleNamespace, torch.dtype], Entry
]  # of a gym, and the type of what a function learns


def drawn(seed: int, *shape: int, below: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(below, shape, generator=generator).to(DEVICE)


def learned(seed: int, dtype: torch.dtype, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype).requires_grad_()


def selected() -> Tensor:
    """Three tiles of 8 keys for each of 8 query tiles."""
    generator = torch.Generator().manual_seed(7)
    scores = torch.rand(B, H, 8, 8, generator=generator)
    return scores.topk(3, -1).indices.to(DEVICE, torch.int32)


def sizes() -> Tensor:
    return torch.tensor([8, 5, 8, 8, 1, 8, 7, 8], device=DEVICE)


def graph() -> Tensor:
    edges = drawn(11, B, S, S, below=20) == 0
    return (edges | edges.mT).int()


def graphormer_spatial(gym: SimpleNamespace, dtype: torch.dtype) -> Entry:
    table = learned(12, dtype, H, 7)
    distances = gym.mods.shortest_path_distances(graph(), 5)
    return Entry(gym.mods.generate_graphormer_spatial_bias(table, distances), learned=(table,))


def graphormer_edge(gym: SimpleNamespace, dtype: torch.dtype) -> Entry:
    table = learned(13, dtype, H, 3, 6)
    types, lengths = gym.mods.shortest_path_edge_types(graph(), drawn(14, B, S, S, below=6), 3)
    return Entry(gym.mods.generate_graphormer_edge_bias(table, types, lengths), learned=(table,))


def mla_rope(gym: SimpleNamespace, dtype: torch.dtype) -> Entry:
    q, k = learned(15, dtype, B, H, S, 8), learned(16, dtype, B, 1, S, 8)
    scale = 1 / math.sqrt(8)
    function = gym.mods.generate_mla_rope_score_mod(q, k, H, scale)
    # torch.vmap has no gradient of it.
    return Entry(function, learned=(q, k), written_out=lambda scores: scores + scale * q @ k.mT)


def jetspec_tree(gym: SimpleNamespace, _: torch.dtype) -> Entry:
    matrix = gym.masks.build_tree_ancestor_matrix([0, 0, 0, 1, 1, 2, 3, 5, 5, 6, 7], device=DEVICE)
    return Entry(gym.masks.generate_jetspec_tree_causal_mask_mod(20, matrix), 11, 31)


def flamingo(gym: SimpleNamespace, _: torch.dtype) -> Entry:
    intervals = torch.tensor([[0, 20], [10, 30], [30, 64], [40, 50]], device=DEVICE)
    return Entry(gym.masks.generate_vision_cross_attention_mask_mod(intervals, 16))


def shared_prefix(gym: SimpleNamespace, _: torch.dtype) -> Entry:
    owners = torch.tensor([0, 0, 0, 3], dtype=torch.int32, device=DEVICE)
    return Entry(gym.masks.generate_shared_prefix_mask_mod(OFFSETS, owners))


def vsa_map(gym: SimpleNamespace, _: torch.dtype, tiles: Tensor | None) -> Entry:
    visible = drawn(17, B, H, 8, 8, below=3) == 0
    return Entry(gym.vsa.generate_vsa_block_map_mask_mod(visible, 8, tiles))


def causal_by_blocks(gym: SimpleNamespace, _: torch.dtype, apart: bool, rows: int = S) -> Entry:
    made = gym.masks.causal.create_causal_block_mask_fast(
        1, 1, rows, S, DEVICE, block_size=16, separate_full_blocks=apart
    )
    return Entry(gym.masks.causal_mask, rows, block_mask=made)


def vsa_blocks(gym: SimpleNamespace, _: torch.dtype, keys: int, padded: bool) -> Entry:
    """Two tiles of 16 keys for each of 4 query tiles, listed as blocks of 16 x `keys`."""
    scores = torch.rand(B, H, 4, 4, generator=torch.Generator().manual_seed(7))
    tiles = scores.topk(2, -1).indices.to(DEVICE, torch.int32)
    filled = torch.tensor([16, 9, 16, 12], device=DEVICE) if padded else None
    if keys == 16:
        made = gym.vsa.create_vsa_block_mask(tiles, 16, 4, filled)
    else:
        made = gym.vsa.create_vsa_flash_block_mask(tiles, 16, 4, keys, filled)
    return Entry(gym.vsa.generate_vsa_mask_mod(tiles, 16, filled), block_mask=made)


def pages(gym: SimpleNamespace, _: torch.dtype) -> Entry:
    """The example's cache of pages of 16, taken in turns by two entries."""
    cache = gym.pages.PagedAttention(12, 16, B, device=DEVICE)
    for length in (20, S):
        for entry in (1, 0):
            cache.reserve(torch.tensor(entry, device=DEVICE), torch.tensor(length, device=DEVICE))
    logical = gym.flex.create_block_mask(
        gym.masks.causal_mask, B, 1, S, S, device=DEVICE, BLOCK_SIZE=16
    )
    made = cache.convert_logical_block_mask(logical)
    return Entry(gym.masks.causal_mask, block_mask=made, cache=cache)


def plain(make: Callable[[Any], Callable[..., Any]], rows: int = S, keys: int = S) -> Maker:
    """A function that learns nothing."""
    return lambda gym, dtype: Entry(make(gym), rows, keys)


def film(**options: int) -> dict[str, int]:
    return {"prompt_length": 6, "num_frames": 4, "token_per_frame": 14, **options}


MASKS: dict[str, Maker] = {
    "batchify": plain(lambda g: g.masks.batchify_mask_mod(g.masks.causal_mask, 16)),
    "block_diffusion": plain(lambda g: g.masks.generate_block_diffusion_mask(32, 8)),
    "causal": plain(lambda g: g.masks.causal_mask),
    "causal_wide": plain(lambda g: g.masks.causal_mask, 33, 70),
    "dilated": plain(lambda g: g.masks.generate_dilated_sliding_window(9, 3)),
    "documents": plain(lambda g: g.masks.generate_doc_mask_mod(g.masks.causal_mask, OFFSETS)),
    "documents_window": plain(
        lambda g: g.masks.generate_doc_mask_mod(g.masks.generate_sliding_window(6), OFFSETS)
    ),
    "documents_packed": plain(lambda g: g.masks.generate_packed_causal_doc_mask_mod(OFFSETS)),
    "flamingo": flamingo,
    "global_window": plain(
        lambda g: g.masks.generate_global_sliding_window(5, drawn(3, S, below=9) == 0)
    ),
    "jetspec_tree": jetspec_tree,
    "jetspec_training": plain(lambda g: g.masks.generate_jetspec_training_mask_mod(24, 8), 40),
    "natten": plain(lambda g: g.masks.generate_natten(8, 8, 3, 5)),
    "natten_tiled": plain(lambda g: g.masks.generate_tiled_natten(8, 8, 3, 3, 4, 2)),
    "natten_morton": plain(lambda g: g.masks.generate_morton_natten(8, 8, 3, 3)),
    "prefix_lm": plain(lambda g: g.masks.generate_prefix_lm_mask(17)),
    "shared_prefix": shared_prefix,
    "sliding_window": plain(lambda g: g.masks.generate_sliding_window(9)),
    "sta_2d": plain(lambda g: g.masks.generate_sta_mask_mod_2d((8, 8), (4, 6), (2, 2), 10), 74, 74),
    "sta_3d": plain(
        lambda g: g.masks.generate_sta_mask_mod_3d((4, 4, 4), (2, 4, 2), (2, 2, 2), 6), 70, 70
    ),
    "svg_spatial": plain(
        lambda g: g.masks.generate_spatial_head_mask_mod(**film(width=2, round_width=8)), 62, 62
    ),
    "svg_spatial_rows": plain(
        lambda g: g.masks.generate_spatial_head_mask_mod(
            **film(width=1, round_width=4), attn_sink=False
        ),
        62,
        62,
    ),
    "svg_temporal": plain(
        lambda g: g.masks.generate_temporal_head_mask_mod(**film(width=2)), 62, 62
    ),
    "vsa_top_k": plain(lambda g: g.masks.generate_vsa_mask_mod(selected(), 8)),
    "vsa_top_k_padded": plain(lambda g: g.masks.generate_vsa_mask_mod(selected(), 8, sizes())),
    "vsa_map": partial(vsa_map, tiles=None),
    "vsa_map_padded": partial(vsa_map, tiles=sizes()),
    "causal_blocks": partial(causal_by_blocks, apart=True),
    "causal_blocks_short": partial(causal_by_blocks, apart=True, rows=33),
    "causal_blocks_together": partial(causal_by_blocks, apart=False),
    "pages": pages,
    "vsa_blocks": partial(vsa_blocks, keys=16, padded=False),
    "vsa_blocks_padded": partial(vsa_blocks, keys=16, padded=True),
    "vsa_flash_blocks": partial(vsa_blocks, keys=8, padded=False),
    "vsa_flash_blocks_padded": partial(vsa_blocks, keys=8, padded=True),
    "vsa_padding": plain(lambda g: g.vsa.generate_vsa_padding_mask_mod(sizes(), 8)),
}
SCORES: dict[str, Maker] = {
    "gelu": plain(lambda g: g.mods.generate_activation_score_mod()),
    "relu": plain(lambda g: g.mods.generate_activation_score_mod(torch.nn.functional.relu, 0.5)),
    "softplus": plain(
        lambda g: g.mods.generate_activation_score_mod(torch.nn.functional.softplus, 0.1)
    ),
    "sigmoid": plain(lambda g: g.mods.generate_activation_score_mod(torch.sigmoid)),
    "alibi": plain(lambda g: g.mods.generate_alibi_bias(H)),
    "graphormer_spatial": graphormer_spatial,
    "graphormer_edge": graphormer_edge,
    "mla_rope": mla_rope,
    "sandwich": plain(lambda g: g.mods.generate_sandwich_bias(H, S, 16, DEVICE)),
    "softcap": plain(lambda g: g.mods.generate_tanh_softcap(2)),
    "softcap_approx": plain(lambda g: g.mods.generate_tanh_softcap(2, approx=True)),
}


def inputs(entry: Entry, key_heads: int, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v and dO, whose float64 is exact."""
    generator = torch.Generator().manual_seed(5)
    shapes = ((H, entry.rows), (key_heads, entry.keys), (key_heads, entry.keys), (H, entry.rows))
    made = [torch.randn(B, heads, n, D, generator=generator) for heads, n in shapes]
    return [t.to(DEVICE, dtype) for t in made]


def on_every_pair(function: Callable[..., Any], entry: Entry, scores: Tensor | None) -> Tensor:
    """(B, H, Sq, Sk), as FlexAttention's formula without a kernel makes it."""
    at = [torch.arange(n, device=DEVICE) for n in (B, H, entry.rows, entry.keys)]
    own = () if scores is None else (0,)
    for axis in (3, 2, 1, 0):
        of_axis = (0 if position == axis else None for position in range(4))
        function = torch.vmap(function, in_dims=(*own, *of_axis))
    with TransformGetItemToIndex():
        return function(*(() if scores is None else (scores,)), *at)


def formula(entry: Entry, is_score: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (t.repeat_interleave(H // t.shape[1], 1) for t in (k, v))
    scores = q @ k.mT / math.sqrt(D)
    if entry.written_out is not None:
        scores = entry.written_out(scores)
    elif is_score:
        scores = on_every_pair(entry.function, entry, scores)
    else:
        visible = on_every_pair(entry.function, entry, None)
        scores = torch.where(visible, scores, -torch.inf)
    # A row that sees nothing is 0, and so are its gradients.
    sees = (scores > -torch.inf).any(-1, keepdim=True)
    return torch.where(sees, torch.softmax(torch.where(sees, scores, 0.0), -1), 0.0) @ v


def in_pages(cache: object, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The cache's tensors, which keep the graph of k and v."""
    place = torch.arange(S, device=DEVICE)
    table: Tensor = cache.page_table  # type: ignore[attr-defined]
    rows = table[:, place // 16] * 16 + place % 16
    made = []
    for t in (k, v):
        flat = t.transpose(0, 1).flatten(1, 2)[None]
        empty = flat.new_zeros(1, t.shape[1], 12 * 16, D)
        made.append(empty.index_copy(2, rows.flatten(), flat))
    return made[0], made[1]


def flex(
    module: ModuleType, entry: Entry, is_score: bool, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    options: dict[str, Any] = {"enable_gqa": k.shape[1] != H}
    if is_score:
        options["score_mod"] = entry.function
    elif entry.block_mask is not None:
        options["block_mask"] = entry.block_mask
        if entry.cache is not None:
            k, v = in_pages(entry.cache, k, v)
    else:
        mask = (entry.function, B, H, entry.rows, entry.keys)
        options["block_mask"] = module.create_block_mask(*mask, device=DEVICE, BLOCK_SIZE=16)
    return module.flex_attention(q, k, v, **options)


def check(name: str, found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    error = (found.double() - wanted).abs().max().item()
    largest = max(1.0, wanted.abs().max().item())
    assert error <= CLOSE[dtype] * largest, f"{name} is off by {error} where it is {largest}"


@pytest.mark.parametrize("name", [*MASKS, *SCORES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("key_heads", [H, 1])
def test_gym(name: str, dtype: torch.dtype, key_heads: int) -> None:
    """O beside FlexAttention; dQ, dK, dV and what a function learns beside its formula."""
    is_score = name in SCORES
    make = (SCORES if is_score else MASKS)[name]
    ours, exact = make(OUR_GYM, torch.float32), make(TORCH_GYM, torch.float64)
    q, k, v, d_o = inputs(ours, key_heads, dtype)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    o = flex(tilewise, ours, is_score, *leaves)
    found = torch.autograd.grad(o, [*leaves, *ours.learned], d_o)
    wide = [t.detach().double().requires_grad_() for t in leaves]
    wanted_o = formula(exact, is_score, *wide)
    wanted = torch.autograd.grad(wanted_o, [*wide, *exact.learned], d_o.double())
    # The formula is FlexAttention's, which reads a list of blocks only where it is compiled.
    if dtype == torch.float32 and key_heads == H and exact.block_mask is None:
        torch._dynamo.reset()  # else it takes this function's numbers for sizes that vary
        theirs = flex(torch_s, exact, is_score, *(t.detach() for t in wide))
        check("FlexAttention's O", theirs, wanted_o, torch.float32)
    check("O", o, wanted_o, dtype)
    names = ("dQ", "dK", "dV", "d_learned", "d_learned")
    for what, gradient, right in zip(names, found, wanted, strict=False):
        check(what, gradient, right, dtype)
