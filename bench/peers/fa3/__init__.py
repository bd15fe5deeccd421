"""FlashAttention-3 by its own launches, from the library that build.sh makes; no framework."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import ClassVar

import torch

from ..contender import RefusedError
from ..problem import Problem
from ..reference import Inputs


class _Args(ctypes.Structure):
    """Fa3Args of shim.cpp."""

    _fields_: ClassVar = [
        *(
            (name, ctypes.c_int64)
            for name in ("batch", "heads", "kv_heads", "seq_q", "seq_k", "dim", "causal")
        ),
        ("scale", ctypes.c_double),
        *(
            (name, ctypes.c_void_p)
            for name in ("q", "k", "v", "o", "lse", "d_o", "dq", "dk", "dv", "workspace")
        ),
        # Last, so that a library without windows reads what it knows.
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
    ]


class Fa3:
    """See contender.Contender."""

    name = "fa3"
    dtypes = ("bfloat16",)

    def __init__(self, library: Path) -> None:
        self._lib = ctypes.CDLL(str(library.resolve()))
        self._lib.fa3_workspace_bytes.restype = ctypes.c_int64
        for name in ("fa3_forward", "fa3_backward"):
            getattr(self._lib, name).argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def kernel(self, problem: Problem, which: str) -> str:
        del problem, which
        return "FlashAttention-3, built from source"

    def open(self, problem: Problem, inputs: Inputs) -> Fa3Session:
        if problem.dtype != "bfloat16":
            raise RefusedError("this build of FlashAttention-3 has bfloat16 only")
        if not self._lib.fa3_has(ctypes.c_int64(problem.dim)):
            raise RefusedError(f"this build of FlashAttention-3 has no head dim {problem.dim}")
        if problem.softcap:
            raise RefusedError("this build of FlashAttention-3 has no softcap")
        if problem.has_window and not hasattr(self._lib, "fa3_has_windows"):
            raise RefusedError("this build of FlashAttention-3 has no windows")
        return Fa3Session(self._lib, problem, inputs)


class Fa3Session:
    """See contender.Session."""

    def __init__(self, lib: ctypes.CDLL, problem: Problem, inputs: Inputs) -> None:
        self._lib, self._inputs = lib, inputs
        self._o = torch.full_like(inputs.q, torch.nan, requires_grad=False)
        self._lse = torch.full(inputs.q.shape[:3], torch.nan, device="cuda", dtype=torch.float32)
        self._gradients: dict[str, torch.Tensor] = {}
        self._has_window = problem.has_window
        left, right = problem.window
        self._args = _Args(
            problem.batch,
            problem.heads,
            problem.kv_heads,
            problem.seq,
            problem.keys,
            problem.dim,
            int(problem.causal),
            problem.scale,
            window_left=-1 if left is None else left,
            window_right=-1 if right is None else right,
        )
        pointers = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "o": self._o, "lse": self._lse}
        self._point(pointers)
        self._reserve(0)

    def _point(self, tensors: dict[str, torch.Tensor]) -> None:
        for name, x in tensors.items():
            setattr(self._args, name, x.data_ptr())

    def _reserve(self, backward: int) -> None:
        bytes_ = self._lib.fa3_workspace_bytes(ctypes.byref(self._args), backward)
        self._workspace = torch.empty(bytes_, dtype=torch.uint8, device="cuda")
        self._args.workspace = self._workspace.data_ptr()

    def _run(self, verb: str) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        error = getattr(self._lib, verb)(ctypes.byref(self._args), stream)
        if error != 0:
            raise RuntimeError(f"{verb}: CUDA error {error}")

    def forward(self) -> None:
        self._run("fa3_forward")

    def forward_for_backward(self) -> None:
        self._run("fa3_forward")

    def backward(self) -> None:
        if self._has_window:
            raise RefusedError("this build of FlashAttention-3 has windows in the forward alone")
        if not self._gradients:
            for name in ("q", "k", "v"):
                like = getattr(self._inputs, name)
                self._gradients[f"d{name}"] = torch.full_like(like, torch.nan, requires_grad=False)
            self._point(self._gradients | {"d_o": self._inputs.d_o})
            self._reserve(1)
        self._run("fa3_backward")

    def both(self) -> None:
        self.forward()
        self.backward()

    def outputs(self) -> dict[str, torch.Tensor]:
        named = {"dq": "dQ", "dk": "dK", "dv": "dV"}
        return {"O": self._o} | {named[k]: x for k, x in self._gradients.items()}
