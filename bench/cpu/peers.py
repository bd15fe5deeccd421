"""The libraries that bench/cpu measures beside ours. Each gives a call, or None where it has none.

Inputs are q, k, v, dO: numpy arrays (B, H, S, D) in float32; each peer gets them in the layout it
likes best, which is the case's for PyTorch.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ggml_peer import Ggml

from cases import Case

Call = Callable[[], Any]


def grouped(case: Case, *arrays: np.ndarray) -> list[np.ndarray]:
    """Query heads that share a key head as rows of one head: no peer reads shared keys once."""
    q, k, v, d_o = arrays
    if case.causal and case.heads != case.kv_heads:
        raise ValueError("rows of grouped heads see what their query sees")
    shape = (case.batch, case.kv_heads, -1, case.dim)
    return [q.reshape(shape), k, v, d_o.reshape(shape)]


class Torch:
    """aten's flash attention for CPU, forward and backward, without the dispatch above it."""

    name = "torch"

    def __init__(self) -> None:
        # Idle threads that spin would take the cores from whoever is measured next.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        import torch

        self._torch = torch
        self.version = torch.__version__

    def prepare(self, case: Case, *arrays: np.ndarray) -> Call | None:
        torch = self._torch
        dtype = getattr(torch, case.dtype)
        q, k, v, d_o = (torch.from_numpy(x).to(dtype) for x in grouped(case, *arrays))
        if case.layout == "bshd":
            q, k, v, d_o = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, d_o))
        forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        with torch.no_grad():
            if case.direction == "fwd":
                return lambda: forward(q, k, v, 0.0, case.causal)
            o, lse = forward(q, k, v, 0.0, case.causal)
        return lambda: backward(d_o, q, k, v, o, lse, 0.0, case.causal)

    def threads(self, count: int) -> None:
        self._torch.set_num_threads(count)


class OnnxRuntime:
    """MultiHeadAttention of com.microsoft on (B, S, H * D): float32, forward only."""

    name = "onnxruntime"

    def __init__(self) -> None:
        import onnxruntime

        self._ort = onnxruntime
        self.version = onnxruntime.__version__
        self._threads = 1

    def threads(self, count: int) -> None:
        self._threads = count

    def prepare(self, case: Case, *arrays: np.ndarray) -> Call | None:
        if case.direction != "fwd" or case.dtype != "float32":
            return None
        options = self._ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = self._ort.InferenceSession(
            self._model(case), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        for name, x in zip("qkv", grouped(case, *arrays)[:3], strict=True):
            rows = np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(x.shape[0], x.shape[2], -1)
            binding.bind_cpu_input(name, rows)
        binding.bind_output("o", "cpu")
        return lambda: session.run_with_iobinding(binding)

    @staticmethod
    def _model(case: Case) -> bytes:
        import onnx
        from onnx import TensorProto, helper

        hidden = case.kv_heads * case.dim
        rows = case.seq_q * (case.heads // case.kv_heads)
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [case.batch, seq, hidden])
            for name, seq in (("q", rows), ("k", case.seq_k), ("v", case.seq_k))
        ]
        output = helper.make_tensor_value_info("o", TensorProto.FLOAT, [case.batch, rows, hidden])
        node = helper.make_node(
            "MultiHeadAttention",
            ["q", "k", "v"],
            ["o"],
            domain="com.microsoft",
            num_heads=case.kv_heads,
            unidirectional=int(case.causal),
            scale=1.0 / math.sqrt(case.dim),
        )
        graph = helper.make_graph([node], "attention", inputs, [output])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(model, skip_opset_compatibility_check=True)
        return model.SerializeToString()


def available(names: list[str], ggml: Path | None) -> tuple[list, dict[str, str]]:
    """The peers that can be loaded here, and for each name its version or why it is missing."""
    peers, notes = [], {}
    for kind in (Torch, OnnxRuntime):
        if kind.name not in names:
            continue
        try:
            peers.append(kind())
        except (ImportError, OSError) as error:
            notes[kind.name] = f"not here: {error}"
    if ggml is not None:
        peers.append(Ggml(ggml))  # a path was given: what is wrong with it is an error
    return peers, notes | {peer.name: peer.version for peer in peers}
