"""The public functions attention, attention_backward and plan."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _arrays, _native
from ._spec import BlockList, Spec, make_spec

if TYPE_CHECKING:
    from ._gaps import Packed

_torch: ModuleType | None = None  # set once torch has been imported


class Gradients(NamedTuple):
    """Gradients of a scalar loss. Each has the shape and type of its tensor."""

    dq: Any
    dk: Any
    dv: Any
    dbias: Any | None  # when there is a bias
    dsinks: Any | None  # when there are sinks


def _torch_side() -> ModuleType | None:
    """The torch part of the package, which registers the operators. None without torch."""
    global _torch
    if _torch is None and sys.modules.get("torch") is not None:
        from . import _torch as module

        _torch = module
    return _torch


def _torch_backend(q: Any) -> ModuleType | None:
    """The torch part if q is a torch tensor."""
    side = _torch if _torch is not None else _torch_side()
    return side if side is not None and isinstance(q, side.Tensor) else None


def _traced(
    q: Any, score_mod: Callable[..., Any] | None, mask_mod: Callable[..., Any] | None
) -> tuple[str, str, tuple[Any, ...]]:
    """The text of the functions, and the tensors that they read."""
    side = _torch_side() if _torch_backend(q) is not None else None
    if side is not None:
        score, mask, captures = side.trace(score_mod, mask_mod)
        return score, mask, tuple(side.as_row(array) for array in captures)
    from . import _trace

    score, mask, captures = _trace.formulas(score_mod, mask_mod)
    # A number without axes is a row of one.
    return score, mask, tuple(t if t.ndim else t.reshape(1) for t in captures)


def _close_gaps(q: Any, k: Any, seqused: tuple[Any, Any], options: dict[str, Any]) -> Packed:
    """The options of a call with padding between packed sequences."""
    from . import _gaps

    side = _torch_backend(q)
    axis = -2 if options.get("layout") == "bhsd" else -3
    rows = (int(q.shape[axis]), int(k.shape[axis]))
    if side is None:
        import numpy as np

        return _gaps.without_gaps(np, rows, True, seqused, options)
    return _gaps.without_gaps(side.torch, rows, side.on_host(q), seqused, options)


_OPTIONS = frozenset(inspect.signature(make_spec).parameters) | {
    *("seqused_q", "seqused_k", "score_mod", "mask_mod"),
}


def _make_spec(
    backend: ModuleType, q: Any, k: Any, dropout_seed: int | None, options: dict[str, Any]
) -> Spec:
    for name in ("return_lse", "fallback"):  # of attention alone: the same options may be given
        options.pop(name, None)
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"{name!r} is no option of tilewise.attention")
    seqused = options.pop("seqused_q", None), options.pop("seqused_k", None)
    if any(used is not None for used in seqused):
        options.update(_close_gaps(q, k, seqused, options)._asdict())
    options["deterministic"] = options.get("deterministic") or backend.must_repeat()
    seed = backend.draw_seed(dropout_seed, q) if options.get("dropout_p") else None
    score_mod, mask_mod = options.pop("score_mod", None), options.pop("mask_mod", None)
    if score_mod is not None or mask_mod is not None:
        names = ("score_expression", "mask_expression", "captures")
        options.update(zip(names, _traced(q, score_mod, mask_mod), strict=True))
    return make_spec(seed=seed, **options)


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    bias: Any = None,
    mask: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    deterministic: bool = False,
    layout: str = "bshd",
    return_lse: bool = False,
    key_lengths: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    seqused_q: Any = None,
    seqused_k: Any = None,
    block_table: Any = None,
    block_list: BlockList | None = None,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    precision: str = "exact",
    implementation: str = "",
    kernel: str = "",
    fallback: str | None = None,
) -> Any:
    """Exact attention: O = dropout(softmax(mask(cap(scale Q K^T) + bias))) V.

    Shapes with layout "bshd": q (B, Sq, Hq, D), k (B, Sk, Hk, D), v (B, Sk, Hk, Dv), result (B, Sq,
    Hq, Dv). With layout "bhsd", heads come before rows. Packed sequences (cu_seqlens_q,
    cu_seqlens_k) have no batch axis: (total, H, D) or (H, total, D). Hq is a multiple of Hk.
    Strides are arbitrary.

    - causal: False, True (same as "bottom_right": j <= i + Sk - Sq) or "top_left" (j <= i).
    - window: (left, right), inclusive around the shifted diagonal. None means unbounded.
    - scale: factor of Q K^T, by default 1/sqrt(D). softcap: c in c tanh(x / c); 0 = off.
    - bias: any float type; -inf hides a key. mask: bool, True = visible. Both broadcast to (B, Hq,
      Sq, Sk), packed to (1|Hq, total_q, max_k).
    - alibi_slopes: float32 (Hq) or (B, Hq). sinks: float32 (Hq).
    - dropout_p: dropout on the probabilities. dropout_seed: by default drawn from torch's
      generator. Other arrays need it.
    - deterministic: backward is bitwise repeatable, and results do not depend on the rest of the
      batch. torch.use_deterministic_algorithms(True) turns it on for torch tensors.
    - key_lengths: int32 (B), the number of keys of each batch entry.
    - cu_seqlens_q, cu_seqlens_k: int32 or int64 (sequences + 1), offsets of packed sequences.
    - max_seqlen_q, max_seqlen_k: upper bounds of the packed lengths, -1 if no sequence has a row.
      A GPU needs them; a CPU reads the offsets. They are an error without offsets.
    - seqused_q, seqused_k: integers (sequences), the rows in use of each sequence from its offset
      on. The other rows are padding, where O and gradients are 0 and LSE is -inf.
    - block_table: int32 (B, max_pages). k and v are then pools of pages (pages, page_size, Hk, D),
      and key_lengths is required. max_seqlen_k may bound it. With cu_seqlens_q, q is packed and B
      counts sequences.
    - block_list: the visible blocks.
    - score_mod(score, b, h, i, j): returns the score for softmax, from the score after all options
      above. mask_mod(b, h, i, j): returns True for visible pairs. Both are traced at each call
      (docs/expressions.md).
    - return_lse: also return LSE, float32 (B, Hq, Sq), packed (Hq, total_q). It is differentiable.
    - precision: "exact", "tf32" (for float32) or "refined" (for 16-bit types: backward computes
      delta from P, see docs/numerics.md).
    - implementation, kernel: force one (see kernels()). "FORWARD+BACKWARD" names a kernel per pass.
    - fallback: "torch" runs torch's attention if no Tilewise kernel supports the call, and warns
      once per reason.

    For torch tensors, autograd provides gradients of q, k, v, bias, sinks and tensors that
    score_mod reads, also through LSE. Autocast casts q, k and v.

    Raises ValueError (wrong argument), NotImplementedError (no kernel supports the call; the
    message gives every kernel's reason), MemoryError or RuntimeError.
    """
    backend = _torch_backend(q) or _arrays
    score, mask_text, captures = "", "", ()
    compiled = False
    if score_mod is not None or mask_mod is not None:
        compiled = backend is not _arrays and backend.is_dynamo_compiling()
        if not compiled:
            score, mask_text, captures = _traced(q, score_mod, mask_mod)
    if seqused_q is not None or seqused_k is not None:
        given = {
            "bias": bias,
            "mask": mask,
            "alibi_slopes": alibi_slopes,
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_k": cu_seqlens_k,
            "block_table": block_table,
            "block_list": block_list,
            "score_mod": score_mod,
            "mask_mod": mask_mod,
            "layout": layout,
        }
        packed = _close_gaps(q, k, (seqused_q, seqused_k), given)
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, alibi_slopes = packed
    spec = make_spec(
        causal,
        window,
        scale,
        softcap,
        bias,
        mask,
        alibi_slopes,
        sinks,
        dropout_p,
        backend.draw_seed(dropout_seed, q) if dropout_p else None,
        key_lengths,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        block_table,
        block_list,
        deterministic or backend.must_repeat(),
        precision,
        layout,
        implementation,
        kernel,
        score,
        mask_text,
        captures,
    )
    return_lse = bool(return_lse)
    if compiled:
        o, lse = backend.attend(q, k, v, score_mod, mask_mod, spec)
    elif fallback is None:
        o, lse = backend.attention(q, k, v, spec, return_lse)
    elif fallback != "torch":
        raise ValueError(f'fallback is {fallback!r}: expected None or "torch"')
    elif backend is _arrays:
        raise ValueError('fallback is "torch": q must be a torch tensor')
    else:
        from . import _fallback

        o, lse = _fallback.attention(q, k, v, spec, return_lse)
    return (o, lse) if return_lse else o


def attention_backward(
    d_o: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    *,
    d_lse: Any = None,
    dropout_seed: int | None = None,
    **options: Any,
) -> Gradients:
    """The gradients of a scalar loss from those of O and LSE, for arrays without autograd.

    o and lse come from attention(..., return_lse=True) with the same options. Shapes, options and
    errors are those of attention. Dropout needs the dropout_seed of the forward.
    """
    if options.get("dropout_p") and dropout_seed is None:
        raise ValueError("dropout_seed is None: backward needs the seed of its forward")
    backend = _torch_backend(q) or _arrays
    spec = _make_spec(backend, q, k, dropout_seed, options)
    return Gradients(*backend.gradients(d_o, d_lse, q, k, v, o, lse, spec))


def plan(q: Any, k: Any, v: Any, *, backward: bool = False, **options: Any) -> _native.Plan:
    """The kernel that attention would run on these arrays, with memory, time and reasons.

    Print it to see them. Options and errors are those of attention.
    """
    backend = _torch_backend(q) or _arrays
    found: _native.Plan = backend.plan(q, k, v, _make_spec(backend, q, k, 0, options), backward)
    return found


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Registers the operators if torch is imported after this package."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        if found is None or found.loader is None:
            return None
        execute = found.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            # A torch that is too old must not fail here: the first call says it.
            with contextlib.suppress(Exception):
                _torch_side()

        found.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return found


# So that torch.ops.tilewise is there in either order of the imports.
if "torch" not in sys.modules:
    sys.meta_path.insert(0, _AfterTorch())
_torch_side()
