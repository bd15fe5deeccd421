"""Tilewise: exact attention, forward and backward, for torch, NumPy and anything with DLPack.

    import tilewise
    o = tilewise.attention(q, k, v, causal=True)

tilewise.sdpa and tilewise.flash_attn are drop-ins for torch's and FlashAttention's functions;
tilewise.hf.register() makes attn_implementation="tilewise" work in Hugging Face transformers.
tilewise.asam holds layers whose attention is sparse where the input lets it.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from . import asam as asam
    from . import flash_attn as flash_attn
    from . import hf as hf
    from . import sdpa as sdpa
else:

    def __getattr__(name: str) -> ModuleType:
        """The modules that need torch, imported when they are first asked for."""
        if name in ("asam", "flash_attn", "hf", "sdpa"):
            return importlib.import_module(f".{name}", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
