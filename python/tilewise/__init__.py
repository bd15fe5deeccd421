"""Tilewise: exact attention, forward and backward, for torch, NumPy and anything with DLPack.

    import tilewise
    o = tilewise.attention(q, k, v, causal=True)

tilewise.sdpa and tilewise.flash_attn are drop-ins for torch's and FlashAttention's functions;
tilewise.hf.register() makes attn_implementation="tilewise" work in Hugging Face transformers.
"""

from ._attention import Gradients, attention, attention_backward, plan
from ._native import KernelInfo, Plan, kernels
from ._native import version as __version__
from ._spec import BlockList

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
]
