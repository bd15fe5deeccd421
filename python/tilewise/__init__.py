"""Tilewise: exact attention, forward and backward, for torch, NumPy and anything with DLPack.

    import tilewise
    o = tilewise.attention(q, k, v, causal=True)

tilewise.sdpa and tilewise.flash_attn are drop-ins for torch's and FlashAttention's functions;
tilewise.hf.register() makes attn_implementation="tilewise" work in Hugging Face transformers.
tilewise.flex_attention and what stands beside it are FlexAttention's.
tilewise.select_blocks chooses block lists by scores of blocks.
tilewise.append_kv writes keys and values into a cache, contiguous or in pages.
tilewise.prefix_attention reads keys that sequences share once; tilewise.tree_mask is the mask of a
tree of speculative tokens.
tilewise.asam holds layers whose attention is sparse where the input lets it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._attention import Gradients, attention, attention_backward, plan
from ._native import KernelInfo, Plan, kernels
from ._native import version as __version__
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

if TYPE_CHECKING:
    from . import asam as asam
    from . import flash_attn as flash_attn
    from . import hf as hf
    from . import sdpa as sdpa
    from ._append import Appended as Appended
    from ._append import append_kv as append_kv
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
        """What needs torch, imported when it is first asked for."""
        if name in ("asam", "flash_attn", "hf", "sdpa"):
            return importlib.import_module(f".{name}", __name__)
        if name in ("Appended", "append_kv"):
            return getattr(importlib.import_module("._append", __name__), name)
        if name == "prefix_attention":
            return importlib.import_module("._prefix", __name__).prefix_attention
        if name in ("PoolWeights", "select_block_mask", "select_blocks"):
            return getattr(importlib.import_module("._select", __name__), name)
        if name in _OF_FLEX:
            return getattr(importlib.import_module("._flex", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
