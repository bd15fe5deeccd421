"""The C API of tilewise.h for numpy arrays, as much of it as bench/cpu needs."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np

DTYPES = {"float32": 1, "bfloat16": 2, "float16": 3, "int32": 6}

_PARALLEL_FOR = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
)
_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)


class _Struct(ctypes.Structure):
    def __init__(self, **fields: object) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class Tensor(_Struct):
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("sizes", ctypes.c_int64 * 4),
        ("strides", ctypes.c_int64 * 4),
    ]


class Expression(_Struct):
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        ("text", ctypes.c_char_p),
        ("names", ctypes.POINTER(ctypes.c_char_p)),
        ("tensors", ctypes.POINTER(Tensor)),
        ("count", ctypes.c_int64),
    ]


class Spec(_Struct):
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        ("has_scale", ctypes.c_int32),
        ("causal", ctypes.c_int32),
        ("scale", ctypes.c_double),
        ("has_window_left", ctypes.c_int32),
        ("has_window_right", ctypes.c_int32),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("softcap", ctypes.c_double),
        ("dropout_p", ctypes.c_double),
        ("dropout_seed", ctypes.c_uint64),
        ("dropout_offset", ctypes.c_uint64),
        *((name, Tensor) for name in ("mask", "bias", "alibi_slopes", "sinks")),
        *(
            (name, Tensor)
            for name in ("key_lengths", "cu_seqlens_q", "cu_seqlens_k", "block_table")
        ),
        ("max_seqlen_q", ctypes.c_int64),
        ("max_seqlen_k", ctypes.c_int64),
        *((name, Tensor) for name in ("block_row_offsets", "block_index", "block_full")),
        ("block_q", ctypes.c_int64),
        ("block_k", ctypes.c_int64),
        ("score_mod", ctypes.c_void_p),
        ("deterministic", ctypes.c_int32),
        ("precision", ctypes.c_int32),
        ("score_expression", ctypes.POINTER(Expression)),
        ("mask_expression", ctypes.POINTER(Expression)),
    ]


class Executor(_Struct):
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        ("context", ctypes.c_void_p),
        ("concurrency", ctypes.c_int32),
        ("parallel_for", _PARALLEL_FOR),
    ]


class Launch(_Struct):
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("executor", ctypes.POINTER(Executor)),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_int64),
        ("implementation", ctypes.c_char_p),
        ("kernel", ctypes.c_char_p),
    ]


class Forward(_Struct):
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        *((name, Tensor) for name in ("q", "k", "v", "o", "lse")),
        ("saved", ctypes.c_void_p),
        ("saved_bytes", ctypes.c_int64),
    ]


class Backward(_Struct):
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        *((name, Tensor) for name in ("q", "k", "v", "o", "lse", "d_o", "d_lse")),
        *((name, Tensor) for name in ("dq", "dk", "dv", "dbias", "dsinks")),
        ("saved", ctypes.c_void_p),
        ("saved_bytes", ctypes.c_int64),
    ]


class Prefix(_Struct):
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        *((name, Tensor) for name in ("q", "k_prefix", "v_prefix", "k", "v", "o", "lse")),
    ]


class Select(_Struct):
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        *((name, Tensor) for name in ("q", "k", "key_lengths")),
        *((name, Tensor) for name in ("block_row_offsets", "block_index")),
        ("block_q", ctypes.c_int64),
        ("block_k", ctypes.c_int64),
        *((f"weight_{name}", ctypes.c_double) for name in ("mean", "maximum", "minimum")),
        ("weight_variance", ctypes.c_double),
        ("has_scale", ctypes.c_int32),
        ("causal", ctypes.c_int32),
        ("scale", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("rule", "drop_diagonal", "drop_first")),
        ("count", ctypes.c_int64),
        ("mass", ctypes.c_double),
        ("threshold", ctypes.c_double),
    ]


class Plan(_Struct):
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        ("kernel", ctypes.c_char * 64),
        ("implementation", ctypes.c_char * 32),
        *((name, ctypes.c_int32) for name in ("block_m", "block_n", "splits", "threads")),
        *((name, ctypes.c_int64) for name in ("workspace_bytes", "saved_bytes")),
        *((name, ctypes.c_int64) for name in ("live_bytes", "peak_bytes")),
        *((name, ctypes.c_double) for name in ("flops", "bytes_moved", "predicted_ms")),
    ]


@_PARALLEL_FOR
def _one_thread(_context: int, tasks: int, body: int, body_context: int) -> None:
    call = ctypes.cast(body, _BODY)
    for task in range(tasks):
        call(body_context, task, 0)


def to_storage(x: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values in the case's type; bfloat16 lies in uint16."""
    if dtype == "float16":
        return x.astype(np.float16)
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(x).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return x


def from_storage(x: np.ndarray, dtype: str) -> np.ndarray:
    """The way back, in float32."""
    if dtype == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)


def tensor(array: np.ndarray, dtype: str = "float32") -> Tensor:
    """A view of the array; half types lie in uint16 arrays."""
    view = Tensor(data=array.ctypes.data, dtype=DTYPES[dtype], rank=array.ndim)
    view.sizes[: array.ndim] = array.shape
    view.strides[: array.ndim] = [stride // array.itemsize for stride in array.strides]
    return view


class Library:
    """libtilewise; a call runs on the calling thread alone or on the default pool.

    `alone`: a native executor of one thread; a call of Python's for each region shows in short
    problems.
    """

    def __init__(self, path: Path, alone: object = _one_thread) -> None:
        self._lib = ctypes.CDLL(str(path))
        self._lib.tw_last_error.restype = ctypes.c_char_p
        run = ctypes.cast(alone, _PARALLEL_FOR)
        self._alone = Executor(concurrency=1, parallel_for=run)

    def prepare(
        self,
        args: Forward | Backward,
        *,
        causal: bool,
        one_thread: bool,
        implementation: str = "",
        kernel: str = "",
        **options: Tensor,
    ) -> tuple[Callable[[], None], Plan]:
        """A call of forward or backward with a workspace of its own, and its plan.

        `options` are fields of Spec.
        """
        name = "forward" if isinstance(args, Forward) else "backward"
        run = getattr(self._lib, f"tw_{name}")
        spec = Spec(causal=1 if causal else 0, **options)
        launch = Launch(
            executor=ctypes.pointer(self._alone) if one_thread else None,
            implementation=implementation.encode() or None,
            kernel=kernel.encode() or None,
        )
        plan = Plan()
        references = [ctypes.byref(x) for x in (args, spec, launch, plan)]
        self._check(getattr(self._lib, f"tw_plan_{name}")(*references))
        memory = np.empty(plan.workspace_bytes + 256, np.uint8)
        launch.workspace = memory.ctypes.data + -memory.ctypes.data % 256
        launch.workspace_bytes = plan.workspace_bytes

        def call(_keep: tuple = (memory, args, spec, launch, plan)) -> None:
            self._check(run(*references))

        return call, plan

    def _check(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(self._lib.tw_last_error().decode())
