"""Attention on torch tensors: the operators tilewise::attention_forward and ..._backward.

The rule: any part of torch that observes a call sees the operator or gets an error. A call without
an observer takes a shorter path to the same functions, because an operator written in Python costs
about 15 us of dispatch and its generated autograd 200 us. Memory comes from torch's allocator.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._library import autograd as library_autograd
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.compiler import is_dynamo_compiling as is_dynamo_compiling

from . import _append as _append  # registers its operator
from . import _native, _torch_flops, _torch_vmap, _trace
from ._spec import (
    ALIBI_SLOPES,
    BIAS,
    CAPTURES,
    FIELDS,
    MASK_EXPRESSION,
    SCORE_EXPRESSION,
    SINKS,
    TENSOR_FIELDS,
    Spec,
)
from ._torch_compiled import attend as attend
from ._torch_compiled import leaf as leaf
from ._torch_dropout import draw_seed as draw_seed
from ._torch_fields import EXPRESSIONS, SPEC_SCHEMA, expression_fields, padded, whole
from ._torch_onlookers import (
    FORWARD_MODE,
    SECOND_DERIVATIVE,
    TRANSFORMED_EXPRESSIONS,
    check_kinds,
    in_forward_mode,
    in_grad,
    in_transform,
    is_plain_call,
    is_special,
    refuse_tangents,
)

_library = torch.library.Library("tilewise", "DEF")
for _kind, _needs, _spec, _made in (
    ("attention", "", SPEC_SCHEMA, ""),
    (
        "expression",
        ", bool[] need_dcaptures",
        f"{SPEC_SCHEMA}, {EXPRESSIONS}",
        ", Tensor[] dcaptures",
    ),
):
    _library.define(
        f"{_kind}_forward(Tensor q, Tensor k, Tensor v, {_spec}) -> (Tensor o, Tensor lse)"
    )
    _library.define(
        f"{_kind}_backward(Tensor? d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor o, "
        f"Tensor lse, bool need_dbias, bool need_dsinks{_needs}, {_spec}) "
        f"-> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsinks{_made})"
    )


def _empty_outputs(q: Tensor, k: Tensor, v: Tensor, *spec: Any) -> tuple[Tensor, Tensor]:
    return _native.empty_outputs(q, v, spec, True)


def _forward(q: Tensor, k: Tensor, v: Tensor, *fields: Any) -> tuple[Tensor, Tensor]:
    return _native.new_forward(q, k, v, whole(fields), True)


def _run_backward(
    tensors: tuple[Any, ...], needed: tuple[bool, bool, tuple[bool, ...]], spec: Spec
) -> tuple[Any, ...]:
    """tensors: d_o, d_lse, q, k, v, o, lse. needed: dbias, dsinks, each dcapture."""
    d_o, d_lse, q, k, v, o, lse = tensors
    gradients = _native.empty_gradients(q, k, v, *needed, spec)
    if d_o is None:
        d_o = o.new_zeros(()).expand(o.shape)
    if q.is_cuda:
        torch.cuda.is_current_stream_capturing()  # as make_context_current() of torch_side.h
    _native.backward((q, k, v, o, lse, d_o, d_lse), gradients, whole(spec))
    return gradients


def _backward_parts(
    arguments: tuple[Any, ...],
) -> tuple[tuple[Any, ...], tuple[bool, bool, tuple[bool, ...]], Spec]:
    """Tensors, what is needed and the spec, of a backward operator's arguments."""
    tensors, (need_dbias, need_dsinks, *rest) = arguments[:7], arguments[7:]
    with_captures = len(rest) > len(FIELDS)
    captures = tuple(rest.pop(0)) if with_captures else ()
    return tensors, (need_dbias, need_dsinks, captures), padded(tuple(rest))


def _as_outputs(q: Tensor, gradients: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """An operator's outputs are tensors: an empty one stands for a gradient that nobody wants."""
    *own, dcaptures = gradients
    given = tuple(q.new_empty(0) if g is None else g for g in own)
    return (
        given if count <= 0 else (*given, [q.new_empty(0) if g is None else g for g in dcaptures])
    )


def _empty_gradients(*arguments: Any) -> tuple[Any, ...]:
    tensors, needed, spec = _backward_parts(arguments)
    q, k, v = tensors[2:5]
    gradients = _native.empty_gradients(q, k, v, *needed, spec)
    return _as_outputs(q, gradients, len(arguments) - _OWN_ARGUMENTS)


def _backward(*arguments: Any) -> tuple[Any, ...]:
    gradients = _run_backward(*_backward_parts(arguments))
    return _as_outputs(arguments[2], gradients, len(arguments) - _OWN_ARGUMENTS)


_OWN_ARGUMENTS = 9 + SCORE_EXPRESSION  # of attention_backward; expression_backward has more


class _Needed(NamedTuple):
    """The gradients that autograd requests."""

    bias: bool
    sinks: bool
    slopes: bool
    captures: Sequence[bool]


def _needed_captures(spec: Spec, wanted: Sequence[bool]) -> tuple[bool, ...]:
    """The captured tensors that the score reads. The others have gradient 0, reported as None."""
    if not any(wanted):
        return (False,) * len(wanted)
    read = set(re.findall(r"\bc\d+\b", spec[SCORE_EXPRESSION]))
    return tuple(needed and f"c{n}" in read for n, needed in enumerate(wanted))


def _gradients(
    saved: tuple[Tensor, ...],
    spec: Spec,
    needed: _Needed,
    d_o: Tensor | None,
    d_lse: Tensor | None,
) -> tuple[Any, ...]:
    """dq, dk, dv, dbias, dsinks, and the captured tensors' as a list."""
    if needed.slopes:
        raise NotImplementedError("tilewise: alibi_slopes has no gradient: detach it")
    if d_o is None and d_lse is None:
        return *(None,) * 5, [None] * len(needed.captures)
    q, k, v, o, lse = saved
    captures = _needed_captures(spec, needed.captures)
    tensors, wanted = (d_o, d_lse, *saved), (needed.bias, needed.sinks, captures)
    # With create_graph the operator is recorded, so that its own backward can refuse.
    short = is_plain_call(q, k, v, spec) and not torch.is_grad_enabled()
    if short and not in_forward_mode() and not is_special(d_o, d_lse, o, lse):
        return _run_backward(tensors, wanted, spec)
    if _has_expressions(spec):
        *own, made = _expression_backward(*tensors, *wanted, *expression_fields(spec))
        dcaptures = [g if keep else None for g, keep in zip(made, captures, strict=True)]
    else:
        operator = _TransformedBackward.apply if in_grad() else _backward_operator
        own, dcaptures = operator(*tensors, *wanted[:2], *spec[:SCORE_EXPRESSION]), []
    dq, dk, dv, dbias, dsinks = own
    return dq, dk, dv, dbias if needed.bias else None, dsinks if needed.sinks else None, dcaptures


def _has_expressions(spec: Spec) -> bool:
    return bool(spec[SCORE_EXPRESSION] or spec[MASK_EXPRESSION])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *fields = inputs
    spec = padded(tuple(fields))
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output, *spec[: len(TENSOR_FIELDS)], *spec[CAPTURES])
    ctx.plain = spec[len(TENSOR_FIELDS) : CAPTURES]
    ctx.sizes = spec[len(FIELDS) :]


def _differentiate(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    wanted = ctx.needs_input_grad[3:]
    tensors, captures = saved[5 : 5 + len(TENSOR_FIELDS)], saved[5 + len(TENSOR_FIELDS) :]
    spec = (*tensors, *ctx.plain, captures, *ctx.sizes)
    asked = wanted[CAPTURES] if captures else ()
    needed = _Needed(wanted[BIAS], wanted[SINKS], wanted[ALIBI_SLOPES], asked)
    dq, dk, dv, dbias, dsinks, dcaptures = _gradients(saved[:5], spec, needed, d_o, d_lse)
    rest: list[Any] = [None] * len(wanted)
    rest[BIAS], rest[SINKS] = dbias, dsinks
    if len(rest) > CAPTURES:
        rest[CAPTURES] = list(dcaptures)
        if not ctx.sizes[0]:
            rest[-1] = []  # torch takes no sizes for no tensors
    return dq, dk, dv, *rest


def _refuse(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
    raise NotImplementedError(SECOND_DERIVATIVE)


def _refuse_jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
    raise NotImplementedError(FORWARD_MODE)


def _register_autograd(name: str, backward: Callable[..., Any], setup: Any, refusal: str) -> Any:
    """torch.library.register_autograd, with refusals where torch would drop a derivative or speak
    of its own parts: of tangents, and in a transform of torch.func, which `refusal` is about."""
    operator = getattr(torch.ops.tilewise, name).default
    recorded = library_autograd.make_autograd_impl(
        operator, library_autograd.Info(_backward_fn=backward, _setup_context_fn=setup)
    )

    def kernel(keyset: Any, *arguments: Any) -> Any:
        refuse_tangents(arguments)
        transformed = in_transform() and torch.is_grad_enabled()
        if transformed and any(isinstance(t, Tensor) and t.requires_grad for t in arguments):
            raise NotImplementedError(refusal)
        return recorded(keyset, *arguments)

    _library.impl(name, kernel, "Autograd", with_keyset=True)
    return operator


for _kind in ("attention", "expression"):
    for _device in ("CPU", "CUDA"):
        _library.impl(f"{_kind}_forward", _forward, _device)
        _library.impl(f"{_kind}_backward", _backward, _device)
    torch.library.register_fake(f"tilewise::{_kind}_forward", _empty_outputs, lib=_library)
    torch.library.register_fake(f"tilewise::{_kind}_backward", _empty_gradients, lib=_library)
_forward_operator = _register_autograd(
    "attention_forward",
    _differentiate,
    _save,
    "torch.ops.tilewise.attention_forward has no gradient in torch.func: call tilewise.attention",
)
_backward_operator = _register_autograd("attention_backward", _refuse, None, SECOND_DERIVATIVE)
_expression_forward = _register_autograd(
    "expression_forward", _differentiate, _save, TRANSFORMED_EXPRESSIONS
)
_expression_backward = _register_autograd("expression_backward", _refuse, None, SECOND_DERIVATIVE)
_torch_vmap.register(_library)
_torch_flops.register()


class _Transformed(torch.autograd.Function):
    """The operator in a transform of torch.func, which records no operator of Python's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, *spec: Any) -> Any:
        return _forward_operator(q, k, v, *spec)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _save(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> tuple[Any, ...]:
        return _differentiate(ctx, d_o, d_lse)

    jvp = staticmethod(_refuse_jvp)


class _TransformedBackward(torch.autograd.Function):
    """The backward operator in a transform of torch.func; its own derivative is refused."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return _backward_operator(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return _refuse(ctx, *gradients)

    jvp = staticmethod(_refuse_jvp)


_NOTHING_ELSE = _Needed(False, False, False, ())


class _Plain(torch.autograd.Function):
    """The short way: what the operator's autograd does, for plain tensors and O alone of a spec
    without tensors."""

    forward = staticmethod(_native.record_plain)

    @staticmethod
    def backward(ctx: Any, d_o: Tensor) -> tuple[Any, ...]:
        return *_gradients(ctx.saved_tensors, ctx.spec, _NOTHING_ELSE, d_o, None)[:3], None


_GIVEN = object()


class _Attention(torch.autograd.Function):
    """The same with LSE or with tensors in the spec."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, spec: Spec, return_lse: bool, *others: Any
    ) -> Tensor | tuple[Tensor, Tensor]:
        """others: bias, sinks and slopes, or None, and the captured tensors."""
        output = _native.new_plain_forward(q, k, v, spec, True)
        ctx.set_materialize_grads(False)
        # Tensors are kept where autograd watches over them, and leave a mark in the spec.
        tensors = spec[: len(TENSOR_FIELDS)]
        given = (t for t in tensors if t is not None)
        ctx.save_for_backward(q, k, v, *output, *others[3:], *given)
        marks = (None if t is None else _GIVEN for t in tensors)
        ctx.spec = (*marks, *spec[len(TENSOR_FIELDS) : CAPTURES], ())
        return output if return_lse else output[0]

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None = None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        bias, sinks, slopes, *asked = ctx.needs_input_grad[5:]
        given = iter(saved[5 + len(asked) :])
        fields = (next(given) if field is _GIVEN else field for field in ctx.spec[:CAPTURES])
        spec = (*fields, saved[5 : 5 + len(asked)])
        needed = _Needed(bias, sinks, slopes, asked)
        dq, dk, dv, *own, dcaptures = _gradients(saved[:5], spec, needed, d_o, d_lse)
        return dq, dk, dv, None, None, *own, None, *dcaptures


# The node calls the native function, which calls _Plain.backward where somebody looks on. A
# compiler of the backward pass reads _Plain.backward itself.
_Plain._backward_cls.apply = _native.differentiate_plain  # type: ignore[attr-defined]
# What torch.autograd.Function.apply comes to where no transform is active, as plain_forward has
# made sure.
_record_plain = super(torch.autograd.Function, _Plain).apply
_record = super(torch.autograd.Function, _Attention).apply
_any_autocast = torch._C._is_any_autocast_enabled


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Casts q, k and v under autocast, as torch's own attention does. float64 is not cast."""
    if not (isinstance(k, Tensor) and isinstance(v, Tensor)):
        return q, k, v
    device = q.device.type
    if not torch.is_autocast_enabled(device) or q.dtype == torch.float64:
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spec: Spec,
    return_lse: bool = True,
    sizes: Sequence[int] = (),
) -> tuple[Tensor, Tensor | None]:
    """O and, if requested, LSE, recorded by autograd. sizes: a compiler's symbols in the texts."""
    if _any_autocast():
        q, k, v = _autocast(q, k, v)
    if forward_ad._current_level >= 0 and not in_transform():
        refuse_tangents((q, k, v, *spec))
    # An LSE that nobody reads is not made: it costs the call a microsecond.
    made = (
        None if is_dynamo_compiling() or sizes else _native.plain_forward(q, k, v, spec, return_lse)
    )
    if made is None:
        check_kinds(spec, q=q, k=k, v=v)
        return _watched(q, k, v, spec, sizes)
    if made is False and not return_lse:
        return _record_plain(q, k, v, spec), None
    if isinstance(made, tuple):
        return made
    others = (spec[BIAS], spec[SINKS], spec[ALIBI_SLOPES], *spec[CAPTURES])
    recorded = _record(q, k, v, spec, return_lse, *others)
    return recorded if return_lse else (recorded, None)


def _watched(
    q: Tensor, k: Tensor, v: Tensor, spec: Spec, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """By an operator, which those see who look on."""
    transformed = not is_compiling() and in_grad()
    if _has_expressions(spec):
        if transformed:
            raise NotImplementedError(TRANSFORMED_EXPRESSIONS)
        fields = expression_fields(spec, sizes)
        o, lse = torch.ops.tilewise.expression_forward(q, k, v, *fields)
        return o, lse
    operator = _Transformed.apply if transformed else torch.ops.tilewise.attention_forward
    o, lse = operator(q, k, v, *spec[:SCORE_EXPRESSION])
    return o, lse


def gradients(
    d_o: Tensor | None,
    d_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    spec: Spec,
) -> tuple[Tensor | None, ...]:
    """dq, dk, dv, and dbias and dsinks if the spec has them."""
    check_kinds(spec, k=k, v=v, o=o, lse=lse, d_o=d_o, d_lse=d_lse)
    captures = [False] * len(spec[CAPTURES])
    needed = _Needed(spec[BIAS] is not None, spec[SINKS] is not None, False, captures)
    with torch.no_grad():
        return _gradients((q, k, v, o, lse), spec, needed, d_o, d_lse)[:5]


def plan(q: Tensor, k: Tensor, v: Tensor, spec: Spec, backward: bool) -> _native.Plan:
    """The plan of a pass, without running it."""
    check_kinds(spec, k=k, v=v)
    q, k, v = (t.detach() for t in _autocast(q, k, v))
    o, lse = _empty_outputs(q, k, v, *spec)
    if not backward:
        return _native.plan((q, k, v), (o, lse), spec)
    captures = (False,) * len(spec[CAPTURES])
    gradients = _native.empty_gradients(q, k, v, False, False, captures, spec)
    return _native.plan((q, k, v, o, lse, o, None), gradients, spec)


must_repeat = torch.are_deterministic_algorithms_enabled


def on_host(q: Tensor) -> bool:
    """Whether the host may read values of the call's small tensors."""
    return q.device.type == "cpu" and not is_compiling()


# A compiler stops here. It has its own way with attention's functions: _torch_compiled.attend.
trace = torch.compiler.disable(
    _trace.formulas,
    reason="mask_mod is traced at each call: leave fullgraph=True out",
)


def as_tensor(array: Any) -> Tensor:
    """An array that a traced function reads, as a tensor without a copy."""
    return array if isinstance(array, Tensor) else torch.as_tensor(array)


def as_row(array: Any) -> Tensor:
    """The same; a number without axes is a row of one."""
    t = as_tensor(array)
    return t if t.ndim else t.reshape(1)


_warned: set[str] = set()


def _level_of_caller() -> int:
    """For a warning of the function that calls this: the stack's level outside the package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("tilewise."):
        level, frame = level + 1, frame.f_back
    return level


def warn_once(reason: str) -> None:
    """Warns, once per reason, that torch computes a call that Tilewise does not support."""
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(
            f"torch's attention runs instead of tilewise's: {reason}",
            stacklevel=_level_of_caller(),
        )
