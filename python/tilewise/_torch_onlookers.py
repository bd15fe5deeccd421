"""Detects observers of a call in torch, and refuses calls where torch would drop a derivative.

The rule of docs/python.md: any part of torch that observes a call sees the operator or gets an
error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _native
from ._spec import BIAS, MASK, Spec, named_arrays

FORWARD_MODE = (
    "tilewise.attention has no forward-mode derivative (jvp, jacfwd, linearize, duals of "
    "torch.autograd.forward_ad): use reverse mode, or torch's scaled_dot_product_attention"
)
SECOND_DERIVATIVE = (
    "tilewise.attention has no second derivative (double backward): call backward without "
    "create_graph, or use torch's scaled_dot_product_attention"
)
TRANSFORMED_EXPRESSIONS = (
    "tilewise.attention: score_mod and mask_mod are not supported in the derivatives of "
    "torch.func: use autograd"
)

_PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})

# Not public, and worth it: who they tell of would otherwise be passed by unseen.
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._functorch.maybe_current_level
_tracing = torch._C._get_tracing_state
_profiling = torch._C._autograd._profiler_enabled
_is_batched = torch._C._functorch.is_legacy_batchedtensor
_no_dispatch = Tensor.__torch_dispatch__


_native.use_torch(
    (Tensor, torch.nn.Parameter),
    (_dispatch_modes, _function_modes, _transforms, _tracing, _profiling),
    torch.is_grad_enabled,
    forward_ad,
    _is_batched,
    torch.cuda.is_current_stream_capturing,
    torch.empty_like,
    torch.float32,
)


def is_plain_call(q: Tensor, k: Tensor, v: Tensor, spec: Spec) -> bool:
    """True if only autograd observes the call and the tensors are plain.

    Observers are a compiler or exporter, TorchScript's tracer, a dispatch or function mode, a
    torch.func transform, and a profiler.
    """
    return not torch.compiler.is_compiling() and _native.is_plain_call(q, k, v, spec)


def is_special(*tensors: Tensor | None) -> bool:
    """True for the many gradients at once of torch.autograd.grad(is_grads_batched=True), and for
    tensors that are not plain."""
    return any(t is not None and _native.is_special(t) for t in tensors)


def in_transform() -> bool:
    """True in a transform of torch.func: vmap, grad, jvp and the like."""
    return _transforms() is not None


def in_grad() -> bool:
    """True where torch.func's grad or vjp records, which takes a Function and no operator of
    Python's; its functionalize takes operators alone."""
    if not in_transform():
        return False
    kinds = {level.key() for level in torch._C._functorch.get_interpreter_stack()}
    kind = torch._C._functorch.TransformType
    return kind.Grad in kinds and kind.Functionalize not in kinds


def in_memory(*tensors: Tensor) -> bool:
    """True when all have memory to plan on, and so has what is made like them: none on the meta
    device, none fake or of another subclass that dispatches, no transform of torch.func."""
    return (
        all(type(t).__torch_dispatch__ is _no_dispatch and not t.is_meta for t in tensors)
        and _transforms() is None
        and torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None
    )


def in_forward_mode() -> bool:
    """True in a level of torch.autograd.forward_ad, where tensors may have tangents."""
    return forward_ad._current_level >= 0


def check_tensors(**arguments: Any) -> None:
    """For a function of torch tensors alone: names the argument that is none."""
    for name, t in arguments.items():
        if t is not None and not isinstance(t, Tensor):
            raise ValueError(f"{name} is of type {type(t).__name__}: expected a torch tensor")


def check_without_gradient(function: str, **arguments: Any) -> None:
    """For a function of torch tensors without derivatives: refuses them, which would be zeros."""
    check_tensors(**arguments)
    if torch.is_grad_enabled():
        for name, t in arguments.items():
            if t is not None and t.requires_grad:
                raise NotImplementedError(
                    f"{function} has no gradient, and {name} requires one: call it in no_grad"
                )
    if in_forward_mode():
        for name, t in arguments.items():
            if t is not None and forward_ad.unpack_dual(t).tangent is not None:
                raise NotImplementedError(f"{function} has no forward-mode derivative of {name}")


def check_no_derivative(name: str, number: Tensor) -> None:
    """Refuses a derivative of an option that is a number: it would be zero without a word."""
    tracked = number.requires_grad and torch.is_grad_enabled()
    if tracked or (in_forward_mode() and forward_ad.unpack_dual(number).tangent is not None):
        raise NotImplementedError(
            f"tilewise.attention: {name} is a tensor with a derivative, which is not supported: "
            "detach it; for a learned scale, multiply q by it"
        )


def refuse_tangents(arguments: Sequence[Any]) -> None:
    """Refuses forward-mode AD: torch drops the tangents of an operator registered in Python."""
    if not in_forward_mode():
        return
    for t in arguments:
        if isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None:
            raise NotImplementedError(FORWARD_MODE)


def _function_of(kind: type) -> Any:
    function = kind.__torch_function__  # type: ignore[attr-defined]
    return getattr(function, "__func__", function)


_NO_FUNCTION = (_function_of(Tensor), torch._C._disabled_torch_function_impl)


def check_mask_type(name: str, mask: Tensor | None) -> None:
    """Refuses a subclass that may say by its type, and not in its memory, what it hides."""
    if mask is None or type(mask) in _PLAIN_TYPES or not in_memory(mask):
        return
    if _function_of(type(mask)) not in _NO_FUNCTION:
        raise ValueError(
            f"{name} is {type(mask).__name__}, whose memory need not hold what it hides: expected "
            "a torch tensor; say causal for torch's causal_upper_left and causal_lower_right"
        )


def check_kinds(spec: Spec, **arrays: Any) -> None:
    """Names the argument that is no tensor beside a q that is one, or whose sizes are nested."""
    for name, value in named_arrays(spec, arrays):
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} is {type(value).__name__}: expected a torch tensor, as q is")
        if value.is_nested:
            raise NotImplementedError(
                f"{name} is a nested tensor: tilewise takes its values() packed, with cu_seqlens_q "
                "and cu_seqlens_k its offsets()"
            )
    check_mask_type("mask", spec[MASK])
    check_mask_type("bias", spec[BIAS])
