"""Tilewise: exact attention, forward and backward, for torch, NumPy and DLPack arrays.

    import tilewise
    o = tilewise.attention(q, k, v, causal=True)

- attention, attention_backward, plan, kernels: the core functions.
- tilewise.sdpa, tilewise.flash_attn: drop-ins for torch's and FlashAttention's functions.
- tilewise.hf.register(): attn_implementation="tilewise" in Hugging Face transformers.
- flex_attention, create_block_mask and others: FlexAttention's functions.
- select_blocks: block lists by scores of blocks. block_scores, block_gate: how a selector learns.
- cluster_attention: attention between tokens of the same clusters.
- append_kv: appends keys and values to a contiguous or paged cache.
- prefix_attention: attention over a prefix that all sequences share.
- tree_mask: the mask of a tree of speculative tokens.
- packed_mask: a bool mask in one bit a pair.
- tilewise.asam: layers with adaptive sparse attention.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._attention import Gradients, attention, attention_backward, plan
from ._native import KernelInfo, Plan, kernels
from ._native import version as __version__
from ._packed_mask import mask_words, packed_mask
from ._spec import BlockList
from ._tree import tree_mask, tree_words

__all__ = [
    "BlockList",
    "Gradients",
    "KernelInfo",
    "Plan",
    "__version__",
    "attention",
    "attention_backward",
    "kernels",
    "mask_words",
    "packed_mask",
    "plan",
    "tree_mask",
    "tree_words",
]

_OF_FLEX = (
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "and_masks",
    "create_block_mask",
    "flex_attention",
    "noop_mask",
    "or_masks",
)

_OF_BLOCK_SCORES = (
    "ClusterRoute",
    "block_gate",
    "block_scores",
    "cluster_attention",
    "cluster_route",
)

if TYPE_CHECKING:
    from . import asam as asam
    from . import flash_attn as flash_attn
    from . import hf as hf
    from . import sdpa as sdpa
    from ._append import Appended as Appended
    from ._append import append_kv as append_kv
    from ._block_scores import ClusterRoute as ClusterRoute
    from ._block_scores import block_gate as block_gate
    from ._block_scores import block_scores as block_scores
    from ._block_scores import cluster_attention as cluster_attention
    from ._block_scores import cluster_route as cluster_route
    from ._flex import AuxOutput as AuxOutput
    from ._flex import AuxRequest as AuxRequest
    from ._flex import BlockMask as BlockMask
    from ._flex import and_masks as and_masks
    from ._flex import create_block_mask as create_block_mask
    from ._flex import flex_attention as flex_attention
    from ._flex import noop_mask as noop_mask
    from ._flex import or_masks as or_masks
    from ._prefix import prefix_attention as prefix_attention
    from ._select import PoolWeights as PoolWeights
    from ._select import select_block_mask as select_block_mask
    from ._select import select_blocks as select_blocks
else:

    def __getattr__(name: str) -> Any:
        """Imports the functions that need torch at their first use."""
        if name in ("asam", "flash_attn", "hf", "sdpa"):
            return importlib.import_module(f".{name}", __name__)
        if name in ("Appended", "append_kv"):
            return getattr(importlib.import_module("._append", __name__), name)
        if name == "prefix_attention":
            return importlib.import_module("._prefix", __name__).prefix_attention
        if name in ("PoolWeights", "select_block_mask", "select_blocks"):
            return getattr(importlib.import_module("._select", __name__), name)
        if name in _OF_BLOCK_SCORES:
            return getattr(importlib.import_module("._block_scores", __name__), name)
        if name in _OF_FLEX:
            return getattr(importlib.import_module("._flex", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
