"""Attention on NumPy arrays and on any other array with DLPack; no torch, no autograd."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import _native
from ._spec import BIAS, CU_SEQLENS_Q, LAYOUT, SINKS, Spec, named_arrays, seed_word


def _check_kinds(spec: Spec, **arrays: Any) -> None:
    """Refuses arrays that are more than their memory. A torch tensor beside a q that is none would
    lose its negative bit and its gradient, a masked array its mask."""
    torch = sys.modules.get("torch")
    for name, value in named_arrays(spec, arrays):
        if torch is not None and isinstance(value, torch.Tensor):
            raise ValueError(f"{name} is a torch tensor: expected an array, as q is")
        if isinstance(value, np.ma.MaskedArray):
            raise ValueError(f"{name} is a masked array: expected an array without a mask")


def must_repeat() -> bool:
    """Whether a setting of the library asks for the same bits each time: torch alone has one."""
    return False


def _shape(array: Any, name: str) -> list[int]:
    return list(array.shape) if isinstance(array, np.ndarray) else _native.describe(array, name)[0]


def _empty(like: Any, name: str, shape: list[int], dtype: str | None = None) -> Any:
    """Uninitialised: a NumPy array for one, else an array of ours on the same device."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, dtype or like.dtype)
    _, own_dtype, on_cuda, index = _native.describe(like, name)
    return _native.new_array(shape, dtype or own_dtype, on_cuda, index)


def _as_kind_of(array: Any, like: Any) -> Any:
    """Our array in the library of `like`, where that library says how; no copy."""
    if isinstance(array, np.ndarray):
        return array
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__().from_dlpack(array)
    # CuPy's arrays, say: their library is the module that their class is of.
    library = sys.modules.get(type(like).__module__.partition(".")[0])
    from_dlpack = getattr(library, "from_dlpack", None)
    return from_dlpack(array) if callable(from_dlpack) else array


def _statistics_shape(q: list[int], spec: Spec) -> list[int]:
    heads_first = spec[LAYOUT] == "bhsd"
    packed = spec[CU_SEQLENS_Q] is not None
    if len(q) not in (3, 4):
        raise ValueError(f"q has {len(q)} axes: expected (B, S, H, D), or (total, H, D) packed")
    rows = q[:-1]
    if not heads_first and (len(q) == 4 or packed):
        rows[-2], rows[-1] = rows[-1], rows[-2]
    return rows


def _outputs(q: Any, v: Any, spec: Spec) -> tuple[Any, Any]:
    shape, values = _shape(q, "q"), _shape(v, "v")
    statistics = _statistics_shape(shape, spec)
    if not values:
        raise ValueError("v has 0 axes: expected (B, S, H, D), or (total, H, D) packed")
    o = _empty(q, "q", [*shape[:-1], values[-1]])
    return o, _empty(q, "q", statistics, "float32")


def attention(q: Any, k: Any, v: Any, spec: Spec, return_lse: bool = True) -> tuple[Any, Any]:
    """O and LSE in q's own kind of array; LSE is there in any case."""
    _check_kinds(spec, q=q, k=k, v=v)
    o, lse = _outputs(q, v, spec)
    _native.forward((q, k, v), (o, lse), spec)
    return _as_kind_of(o, q), _as_kind_of(lse, q)


def gradients(
    d_o: Any, d_lse: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, spec: Spec
) -> tuple[Any, ...]:
    """dq, dk, dv, and dbias and dsinks when the spec has them."""
    _check_kinds(spec, q=q, k=k, v=v, o=o, lse=lse, d_o=d_o, d_lse=d_lse)
    wanted = {"q": q, "k": k, "v": v, "bias": spec[BIAS], "sinks": spec[SINKS]}
    made = tuple(
        None if array is None else _empty(array, name, _shape(array, name))
        for name, array in wanted.items()
    )
    _native.backward((q, k, v, o, lse, d_o, d_lse), (*made, ()), spec)
    return tuple(None if array is None else _as_kind_of(array, q) for array in made)


def plan(q: Any, k: Any, v: Any, spec: Spec, backward: bool) -> _native.Plan:
    """The plan of a pass, without running it."""
    _check_kinds(spec, q=q, k=k, v=v)
    o, lse = _outputs(q, v, spec)
    if not backward:
        return _native.plan((q, k, v), (o, lse), spec)
    made = tuple(_empty(array, "q", _shape(array, "q")) for array in (q, k, v))
    return _native.plan((q, k, v, o, lse, o, None), (*made, None, None, ()), spec)


def draw_seed(seed: int | None, q: Any) -> Any:
    """Dropout's seed and offset, int64 (2)."""
    if seed is None:
        raise ValueError("dropout_seed is None: arrays other than torch tensors need it")
    return np.array([seed_word(seed), 0], dtype=np.int64)
