"""ggml's flash attention (flash_attn_ext of its CPU backend) for bench/cpu: forward only.

Takes the folder that ggml was built in as shared libraries:

    git clone https://github.com/ggml-org/ggml
    cmake -S ggml -B ggml/build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON
    cmake --build ggml/build
    ./tw bench-cpu --ggml ggml/build

Q is float32, as it takes no other; K and V have the case's type; a causal mask is a float16 tensor.
"""

import ctypes
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import capi
import numpy as np

from cases import Case

TYPES = {"float32": 0, "float16": 1, "bfloat16": 30}  # ggml_type
OVERHEAD = 1 << 20  # bytes of tensors' headers and the graph


class _InitParams(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class Ggml:
    name = "ggml"

    def __init__(self, build: Path) -> None:
        base = ctypes.CDLL(str(build / "src/libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        cpu = ctypes.CDLL(str(build / "src/libggml-cpu.so"))
        for library, names in (
            (base, ("ggml_init", "ggml_new_tensor_4d", "ggml_flash_attn_ext", "ggml_get_data")),
            (base, ("ggml_new_graph",)),
            (cpu, ("ggml_backend_cpu_init",)),
        ):
            for name in names:
                getattr(library, name).restype = ctypes.c_void_p
        base.ggml_commit.restype = ctypes.c_char_p
        base.ggml_init.argtypes = [_InitParams]
        base.ggml_new_tensor_4d.argtypes = [ctypes.c_void_p, ctypes.c_int, *4 * [ctypes.c_int64]]
        base.ggml_flash_attn_ext.argtypes = [*5 * [ctypes.c_void_p], *3 * [ctypes.c_float]]
        base.ggml_get_data.argtypes = base.ggml_new_graph.argtypes = [ctypes.c_void_p]
        base.ggml_free.argtypes = [ctypes.c_void_p]
        base.ggml_build_forward_expand.argtypes = 2 * [ctypes.c_void_p]
        base.ggml_backend_graph_compute.argtypes = 2 * [ctypes.c_void_p]
        cpu.ggml_backend_cpu_set_n_threads.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self._base, self._cpu = base, cpu
        self._backend = cpu.ggml_backend_cpu_init()
        self._context: int | None = None  # of the last prepare()
        self.version = base.ggml_commit().decode()

    def threads(self, count: int) -> None:
        self._cpu.ggml_backend_cpu_set_n_threads(self._backend, count)

    def prepare(self, case: Case, *arrays: np.ndarray) -> Callable[[], Any] | None:
        if case.direction != "fwd":
            return None
        graph, output = self._graph(case, *arrays[:3])
        status = self._base.ggml_backend_graph_compute(self._backend, graph)
        if status != 0 or not np.isfinite(output).all():
            raise RuntimeError(f"ggml: status {status} at {case.label}")
        return lambda: self._base.ggml_backend_graph_compute(self._backend, graph)

    def _graph(self, case: Case, *qkv: np.ndarray) -> tuple[int, np.ndarray]:
        """The graph of one attention and its output, (B, Sq, H, D) in float32."""
        mask = causal_mask(case) if case.causal else None
        elems = sum(x.size for x in qkv) + qkv[0].size + (0 if mask is None else mask.size)
        self._base.ggml_free(self._context)
        context = self._context = self._base.ggml_init(
            _InitParams(4 * elems + OVERHEAD, None, False)
        )
        q, k, v = (
            self._tensor(context, x, dtype)
            for x, dtype in zip(qkv, ("float32", case.dtype, case.dtype), strict=True)
        )
        hidden = None if mask is None else self._tensor(context, mask, "float16")
        scale = 1.0 / math.sqrt(case.dim)
        o = self._base.ggml_flash_attn_ext(context, q, k, v, hidden, scale, 0.0, 0.0)
        graph = self._base.ggml_new_graph(context)
        self._base.ggml_build_forward_expand(graph, o)
        shape = (case.batch, case.seq_q, case.heads, case.dim)
        return graph, self._data(o, shape, np.float32)

    def _tensor(self, context: int, x: np.ndarray, dtype: str) -> int:
        """A tensor of the array's values; ggml counts dimensions from the innermost."""
        tensor = self._base.ggml_new_tensor_4d(context, TYPES[dtype], *reversed(x.shape))
        stored = capi.to_storage(x, dtype)
        self._data(tensor, stored.shape, stored.dtype)[...] = stored
        return tensor

    def _data(self, tensor: int, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        count = math.prod(shape) * np.dtype(dtype).itemsize
        memory = (ctypes.c_char * count).from_address(self._base.ggml_get_data(tensor))
        return np.frombuffer(memory, dtype).reshape(shape)


def causal_mask(case: Case) -> np.ndarray:
    """0 where a key is seen, -inf where not."""
    seen = np.tri(case.seq_q, case.seq_k, case.seq_k - case.seq_q, dtype=bool)
    return np.where(seen, 0.0, -np.inf).astype(np.float32)[None, None]
