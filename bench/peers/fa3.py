"""FlashAttention-3 by its own torch operators, `flash_attn_3::fwd` and `flash_attn_3::bwd`.

The library comes ready in the wheel of xformers 0.0.34, as xformers/flash_attn_3/_C.so. It uses
torch's stable ABI, so that a newer torch loads it too. A CUDA runtime that lies beside it is loaded
first: the wheel's library needs libcudart.so.12, which a torch for CUDA 13 does not bring.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from .contender import RefusedError
from .problem import Problem
from .reference import Inputs, offsets_on_device

LARGEST_DIM = 256


class Fa3:
    """See contender.Contender."""

    name = "fa3"
    dtypes = ("bfloat16", "float16")

    def __init__(self, library: Path) -> None:
        self._library: Path | None = library.resolve()

    def _load(self) -> None:
        """At the first problem, so that a library that does not load is a reason in its rows."""
        if self._library is None:
            return
        for runtime in sorted(self._library.parent.glob("libcudart.so.*")):
            ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
        torch.ops.load_library(str(self._library))
        self._library = None

    def kernel(self, problem: Problem, which: str) -> str:
        del problem, which
        return "flash_attn_3, splits and packed heads by its own choice"

    def open(self, problem: Problem, inputs: Inputs) -> Fa3Session:
        if problem.dim % 8 != 0 or problem.dim > LARGEST_DIM:
            raise RefusedError(f"FlashAttention-3 takes no head dim {problem.dim}")
        if problem.dtype == "float16" and problem.dim > 128:
            # Seen at 192: the call ends the process, "device kernel image is invalid".
            raise RefusedError("float16 above head dim 128 ends the process of xformers 0.0.34")
        self._load()
        return Fa3Session(problem, inputs)


class Fa3Session:
    """See contender.Session."""

    def __init__(self, problem: Problem, inputs: Inputs) -> None:
        self._is_packed = bool(problem.packed)
        self._inputs = [self._theirs(x.detach()) for x in (inputs.q, inputs.k, inputs.v)]
        self._d_o = self._theirs(inputs.d_o)
        self._o = torch.full_like(inputs.q, torch.nan, requires_grad=False)
        self._lse = inputs.q
        self._gradients: dict[str, torch.Tensor] = {}
        left, right = (-1 if side is None else side for side in problem.window)
        offsets = offsets_on_device(problem, str(inputs.q.device))
        self._options: dict[str, object] = {
            "softmax_scale": problem.scale,
            "is_causal": problem.causal,
            "window_size_left": left,
            "window_size_right": right,
            "softcap": problem.softcap,
        }
        if offsets is not None:
            self._options |= {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets}
            self._options |= {"max_seqlen_q": problem.seq, "max_seqlen_k": problem.seq}
        if inputs.lengths is not None:
            self._options |= {"seqused_k": inputs.lengths, "max_seqlen_k": problem.keys}
        if inputs.table is not None:
            self._options |= {"page_table": inputs.table}
        # As its interfaces call it: 0 leaves the splits to it, packed sequences get one.
        self._splits = 1 if self._is_packed else 0

    def _theirs(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, seq, heads, dim), or (total, heads, dim) of packed sequences; a view."""
        return x[0].transpose(0, 1) if self._is_packed else x.transpose(1, 2)

    def forward(self) -> None:
        self._lse = torch.ops.flash_attn_3.fwd(
            *self._inputs,
            out=self._theirs(self._o),
            num_splits=self._splits,
            pack_gqa=None,
            **self._options,
        )[1]

    def forward_for_backward(self) -> None:
        self.forward()

    def backward(self) -> None:
        if not self._gradients:
            like = {"dQ": self._o, "dK": self._ours(1), "dV": self._ours(2)}
            self._gradients = {name: torch.full_like(x, torch.nan) for name, x in like.items()}
        out = {name.lower(): self._theirs(x) for name, x in self._gradients.items()}
        torch.ops.flash_attn_3.bwd(
            self._d_o,
            *self._inputs,
            self._theirs(self._o),
            self._lse,
            **out,
            **self._options,
        )

    def _ours(self, which: int) -> torch.Tensor:
        x = self._inputs[which]
        return x.transpose(0, 1)[None] if self._is_packed else x.transpose(1, 2)

    def both(self) -> None:
        self.forward()
        self.backward()

    def outputs(self) -> dict[str, torch.Tensor]:
        return {"O": self._o} | self._gradients
