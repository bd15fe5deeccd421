"""Operations on traced values: operators, methods, functions of torch and NumPy, by their names."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _trace_activations, _trace_composed, _trace_kinds

if TYPE_CHECKING:
    from ._trace import Captured, Traced

Make = Callable[..., Any]

_BINARY = {
    "add": "+",
    "sub": "-",
    "subtract": "-",
    "mul": "*",
    "multiply": "*",
    "floor_divide": "//",
    "floordiv": "//",
    "remainder": "%",
    "mod": "%",
    "eq": "==",
    "equal": "==",
    "ne": "!=",
    "not_equal": "!=",
    "lt": "<",
    "less": "<",
    "le": "<=",
    "less_equal": "<=",
    "gt": ">",
    "greater": ">",
    "ge": ">=",
    "greater_equal": ">=",
    "and": "&",
    "bitwise_and": "&",
    "or": "|",
    "bitwise_or": "|",
    "xor": "^",
    "bitwise_xor": "^",
    "lshift": "<<",
    "bitwise_left_shift": "<<",
    "left_shift": "<<",
    "rshift": ">>",
    "bitwise_right_shift": ">>",
    "right_shift": ">>",
}
_TEMPLATES: dict[str, tuple[str, int]] = {
    **{name: (f"({{0}} {sign} {{1}})", 2) for name, sign in _BINARY.items()},
    **{
        name: (f"(bool({{0}}) {sign} bool({{1}}))", 2)
        for name, sign in (("logical_and", "&"), ("logical_or", "|"), ("logical_xor", "^"))
    },
    "logical_not": ("(~bool({0}))", 1),
    "bitwise_not": ("(~{0})", 1),
    "invert": ("(~{0})", 1),
    "neg": ("(-{0})", 1),
    "negative": ("(-{0})", 1),
    "pos": ("{0}", 1),
    "positive": ("{0}", 1),
    "square": ("pow({0}, 2)", 1),
    "reciprocal": ("(1.0 / {0})", 1),
    "float_power": ("pow(float({0}), {1})", 2),
    "clamp_min": ("max({0}, {1})", 2),
    "clamp_max": ("min({0}, {1})", 2),
    "expit": ("sigmoid({0})", 1),
    "rint": ("round({0})", 1),
    "sgn": ("sign({0})", 1),
    "absolute": ("abs({0})", 1),
    "arctan": ("atan({0})", 1),
    "fabs": ("abs({0})", 1),
    "log2": ("(log({0}) * 1.4426950408889634)", 1),
    "log10": ("(log({0}) * 0.4342944819032518)", 1),
    "isinf": ("(abs({0}) == inf)", 1),
    "isnan": ("({0} != {0})", 1),
    "isfinite": ("(abs({0}) < inf)", 1),
    "fmin": ("where({0} != {0}, {1}, where({1} != {1}, {0}, min({0}, {1})))", 2),
    "fmax": ("where({0} != {0}, {1}, where({1} != {1}, {0}, max({0}, {1})))", 2),
    **_trace_activations.TEMPLATES,
    **_trace_composed.TEMPLATES,
    **{
        name: (f"{name}({{0}})", 1)
        for name in (
            "abs exp exp2 log sqrt rsqrt tanh sigmoid sin cos atan erf relu silu floor ceil sign"
        ).split()
    },
    "true_divide": ("({0} / {1})", 2),
    "truediv": ("({0} / {1})", 2),
}
_CASTS = {
    "float": "float({0})",
    "double": "float({0})",
    "half": "float({0})",
    "bfloat16": "float({0})",
    "int": "int({0})",
    "long": "int({0})",
    "short": "int({0})",
    "bool": "bool({0})",
}
# What gives another value of the same meaning.
_SAME = frozenset({"clone", "contiguous", "squeeze", "type_as", "item_", "requires_grad_"})
_RANDOM = frozenset(
    "rand randn randint rand_like randn_like randint_like randperm bernoulli normal multinomial "
    "poisson dropout random_ uniform_ normal_ bernoulli_ exponential_ log_normal_ cauchy_ "
    "geometric_ native_dropout alpha_dropout feature_dropout".split()
)
_READERS = frozenset("index_select take gather embedding take_along_dim index".split())
_REDUCTIONS = ("any", "all", "sum", "mean")
_types: dict[str, Any] = {}


def install(traced: type, captured: type) -> None:
    """Gives the classes their operators. Called once, by their module."""
    from . import _trace

    _types["Traced"], _types["Captured"] = traced, captured
    _types.update(make=_trace.make, error=_trace.TraceError, operand=_trace.operand)
    comparisons = "lt le gt ge eq ne".split()
    for name in (
        "add sub mul matmul truediv floordiv mod pow and or xor lshift rshift".split()
    ) + comparisons:
        function = _FUNCTIONS[name]
        own = getattr(operator, f"__{name}__")
        setattr(traced, f"__{name}__", _operator(function))
        setattr(captured, f"__{name}__", _array_operator(function, own))
        if name not in comparisons:
            setattr(traced, f"__r{name}__", _reflected(function))
            setattr(
                captured, f"__r{name}__", _array_operator(_reflected(function), _reflected(own))
            )
    for name in ("neg", "pos", "abs", "invert", "floor", "ceil", "round", "trunc"):
        setattr(traced, f"__{name}__", _FUNCTIONS[name])


def _array_operator(function: Make, own: Make) -> Make:
    """An operator of captured arrays: traced beside a traced value, else the array's own."""

    def operate(self: Any, other: Any) -> Any:
        from ._trace import unwrap, wrap

        if isinstance(other, _types["Traced"]):
            return function(self, other)
        return wrap(own(self.array, unwrap(other)))

    return operate


def _operator(function: Make) -> Make:
    return lambda self, other: function(self, other)


def _reflected(function: Make) -> Make:
    return lambda self, other: function(other, self)


def _make(template: str, *arguments: Any) -> Any:
    return _types["make"](template, *arguments)


def _error(text: str) -> Exception:
    made: Exception = _types["error"](text)
    return made


def _no_options(name: str, options: dict[str, Any]) -> None:
    for option, value in options.items():
        if option == "alpha" and value == 1:
            continue
        if value is not None and value is not False:
            raise _error(f"{name}'s {option} is not traced")


def _simple(name: str, template: str, count: int) -> Make:
    def function(*arguments: Any, **options: Any) -> Any:
        if len(arguments) + ("other" in options) != count:
            raise _error(f"{name} is given {len(arguments)} operands: expected {count}")
        if "other" in options:
            arguments = (*arguments, options.pop("other"))
        _no_options(name, options)
        return _make(template, *arguments)

    return function


def _where(*arguments: Any, **options: Any) -> Any:
    if options or len(arguments) != 3:
        raise _error("where takes a condition and two values")
    return _make("where(bool({0}), {1}, {2})", *arguments)


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    if min is not None:
        x = _make("max({0}, {1})", x, min)
    return x if max is None else _make("min({0}, {1})", x, max)


def _div(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return _make("({0} / {1})", a, b)
    if rounding_mode == "floor":
        return _make("({0} // {1})", a, b)
    if rounding_mode == "trunc":
        return _make("((sign({0}) * sign({1})) * (abs({0}) // abs({1})))", a, b)
    raise _error(f"div's rounding_mode is {rounding_mode!r}: expected 'floor' or 'trunc'")


def _of_booleans(boolean: str, template: str, a: Any, b: Any) -> Any:
    """As torch has it, sums and products of booleans are booleans."""
    a, b = _types["operand"](a), _types["operand"](b)
    return _make(boolean if _trace_kinds.are_booleans(a, b) else template, a, b)


def _add(a: Any, b: Any, alpha: Any = 1) -> Any:
    return _of_booleans("({0} | {1})", "({0} + {1})", a, b if alpha == 1 else b * alpha)


def _pow(a: Any, b: Any) -> Any:
    a, b = _types["operand"](a), _types["operand"](b)
    exponent = _trace_kinds.power_of_two(a)
    if exponent is not None and b.arguments and _trace_kinds.are_integers(b):
        return _make("(1 << ({0} * {1}))", b, exponent)
    return _make("pow({0}, {1})", a, b)


def _trunc(x: Any) -> Any:
    return _make("(sign({0}) * floor(abs({0})))", x)


def _round(x: Any, decimals: int = 0) -> Any:
    if decimals:
        raise _error("round to decimals is not traced")
    return _make("round({0})", x)


def _lerp(a: Any, b: Any, weight: Any) -> Any:
    return _make("({0} + ({2} * ({1} - {0})))", a, b, weight)


def _addcmul(a: Any, b: Any, c: Any, value: Any = 1) -> Any:
    return _make("({0} + (({3} * {1}) * {2}))", a, b, c, value)


def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return _make("where(bool({1}), {2}, {0})", x, mask, value)


def _fmod(a: Any, b: Any) -> Any:
    a, b = _types["operand"](a), _types["operand"](b)
    if _trace_kinds.are_integers(a, b):
        return _make("({0} - ({1} * ((sign({0}) * sign({1})) * (abs({0}) // abs({1})))))", a, b)
    return _make("({0} - ({1} * (sign({0} / {1}) * floor(abs({0} / {1})))))", a, b)


def _to(x: Any, *kinds: Any, **options: Any) -> Any:
    given = [*kinds, *(options[name] for name in ("dtype", "other") if name in options)]
    for kind in given:
        kind = getattr(kind, "dtype", kind)
        name = getattr(kind, "__name__", None) or str(kind).rpartition(".")[2]
        if name.startswith(("float", "bfloat", "double", "half")):
            return _make("float({0})", x)
        if name.startswith("bool"):
            return _make("bool({0})", x)
        if name.startswith(("int", "uint", "long", "short")):
            return _make("int({0})", x)
    return x


def _as_vector(x: Any, name: str) -> Any:
    value = _types["operand"](x)
    if not value.lanes:
        raise _error(
            f"{name} of one number: it reduces a row of a captured tensor, which is indexed once "
            "less than it has axes"
        )
    return value


def _reduce(name: str, x: Any, axis: Any = -1, **options: Any) -> Any:
    axis = options.pop("dim", axis)
    _no_options(name, {k: v for k, v in options.items() if k != "dtype"})
    if axis not in (None, -1, 0, (-1,), (0,), [-1], [0]):
        raise _error(f"{name} over axis {axis}: a short vector has one axis")
    value = _as_vector(x, name)
    inside = {"any": "bool({0})", "all": "bool({0})"}.get(name, "{0}")
    over = "sum" if name == "mean" else name
    made = _types["Traced"](f"{over}({value.lanes}, {inside})", (value,))
    return _make("({0} / {1})", made, value.lanes) if name == "mean" else made


def _dot(a: Any, b: Any) -> Any:
    return _reduce("sum", _make("({0} * {1})", _as_vector(a, "dot"), _as_vector(b, "dot")))


def _least(name: str, template: str, *arguments: Any, **options: Any) -> Any:
    if len(arguments) + len(options) != 2:
        raise _error(f"{name} of one value is not traced: short vectors have any, all, sum, mean")
    boolean = "({0} & {1})" if "min" in template else "({0} | {1})"
    return _of_booleans(boolean, template, *arguments, *options.values())


def _isin(x: Any, among: Any, **options: Any) -> Any:
    _no_options("isin", options)
    return _reduce("any", _make("({0} == {1})", x, among))


def _same(x: Any, *_: Any, **__: Any) -> Any:
    return x


def _unsqueeze(x: Any, dim: Any = -1) -> Any:
    """Beside a short vector one number is taken as it is: an axis of one entry changes nothing."""
    value = _types["operand"](x)
    if value.lanes or dim not in (-1, 0):
        raise _error("unsqueeze is traced for one number, by axis -1 or 0")
    return value


def _full_like(x: Any, value: Any, dtype: Any = None, **_: Any) -> Any:
    made = _types["operand"](value)
    if dtype is not None:
        return _to(made, dtype)
    x = _types["operand"](x)
    if _trace_kinds.are_booleans(x):
        return _make("bool({0})", made)
    return _make("int({0})" if _trace_kinds.are_integers(x) else "float({0})", made)


def _like(value: int) -> Make:
    return lambda x, dtype=None, **_: _full_like(x, value, dtype)


_FUNCTIONS: dict[str, Make] = {
    **{name: _simple(name, template, count) for name, (template, count) in _TEMPLATES.items()},
    **{name: _simple(name, template, 1) for name, template in _CASTS.items()},
    **{name: functools.partial(_reduce, name) for name in _REDUCTIONS},
    **dict.fromkeys(_SAME, _same),
    "sub": lambda a, b, alpha=1: _make("({0} - {1})", a, b if alpha == 1 else b * alpha),
    "add": _add,
    **{
        name: functools.partial(_of_booleans, "({0} & {1})", "({0} * {1})")
        for name in ("mul", "multiply")
    },
    "pow": _pow,
    "power": _pow,
    "where": _where,
    "clamp": _clamp,
    "clip": _clamp,
    "div": _div,
    "divide": _div,
    "trunc": _trunc,
    "fix": _trunc,
    "round": _round,
    "lerp": _lerp,
    "addcmul": _addcmul,
    "masked_fill": _masked_fill,
    "fmod": _fmod,
    "to": _to,
    "type": _to,
    "astype": _to,
    "dot": _dot,
    "inner": _dot,
    "matmul": _dot,
    "vdot": _dot,
    **{
        name: functools.partial(_least, name, f"{name[:3]}({{0}}, {{1}})")
        for name in ("min", "max", "minimum", "maximum")
    },
    "isin": _isin,
    "unsqueeze": _unsqueeze,
    "zeros_like": _like(0),
    "ones_like": _like(1),
    "full_like": _full_like,
}


_FUNCTIONS.update(_trace_activations.functions(_make, _error))


def call_named(name: str, arguments: Any, options: Any) -> Any:
    """A function of torch or NumPy on traced values."""
    name = name.strip("_") if name.startswith("__") else name
    function = _FUNCTIONS.get(name)
    if function is None and name[:1] == "r" and name[1:] in _BINARY:
        function = _reflected(_FUNCTIONS[name[1:]])
    if function is None:
        raise _error(_unknown(name))
    try:
        return function(*arguments, **options)
    except TypeError as error:
        raise _error(f"{name} is not traced with these arguments: {error}") from error


_FUNCTIONS.update(_trace_composed.functions(_make, _error, call_named))


def _unknown(name: str) -> str:
    if name in _RANDOM:
        return f"{name} is random: draw it before, and capture the tensor"
    if name.startswith("detach"):
        return (
            "detach of a traced value is not traced: a formula's derivative is its own; index the "
            "tensor that is detached, table.detach()[i]"
        )
    if name == "item":
        return "item() cannot see its value: leave it out"
    if name in _READERS:
        return f"{name} is not traced: index the tensor, table[i] with an integer for each axis"
    if name.endswith("_") or name == "setitem":
        return (
            f"{name} writes in place, which is not traced: use its value, or "
            "torch.where(condition, new, old)"
        )
    return f"{name} is not traced (docs/expressions.md lists what is)"


def method(value: Traced, name: str) -> Any:
    """A method of a traced value."""
    if name in ("dtype", "device", "shape", "ndim", "layout", "T"):
        cure = {
            "dtype": "; write x.float() or x.int()",
            "device": "; name the device, where captured tensors lie beside the query",
        }
        said = f"a traced value has no {name}: it is one number of one pair"
        raise _error(said + cure.get(name, ""))
    if name not in _FUNCTIONS:
        raise _error(_unknown(name))
    return _Method(value, name)


class _Method:
    __slots__ = ("name", "value")

    def __init__(self, value: Any, name: str) -> None:
        self.value, self.name = value, name

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return call_named(self.name, (self.value, *arguments), options)


def array_method(captured: Captured, name: str, *arguments: Any, **options: Any) -> Any:
    """A method of a captured array: traced when an argument is, else the array's own."""
    if any(isinstance(a, _types["Traced"]) for a in (*arguments, *options.values())):
        return call_named(name, (captured, *arguments), options)
    from ._trace import wrap

    return wrap(getattr(captured.array, name)(*arguments, **options))


def call(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A function of torch of which an argument is traced."""
    name = getattr(function, "__name__", str(function))
    if name == "__getitem__":
        captured, index = arguments
        if isinstance(captured, _types["Traced"]):
            return captured[index]
        return _types["Captured"](captured).load(index if isinstance(index, tuple) else (index,))
    if name == "__get__":  # an attribute of a traced value
        raise _error("attributes of traced values are not traced")
    if name == "__rpow__":
        return _FUNCTIONS["pow"](arguments[1], arguments[0])
    return call_named(name, arguments, options)


@functools.cache
def _mode_class() -> Any:
    from torch.overrides import TorchFunctionMode

    class TraceMode(TorchFunctionMode):
        """Sees a plain tensor indexed by a traced value, which no class of ours is asked about."""

        def __torch_function__(
            self, function: Any, kinds: Any, arguments: Any = (), options: Any = None
        ) -> Any:
            options = options or {}
            name = getattr(function, "__name__", "")
            if name == "__getitem__" and _is_traced_index(arguments[1]):
                return call(function, arguments, options)
            if name in _RANDOM or (name == "__setitem__" and _is_traced_index(arguments[1])):
                raise _error(_unknown(name.strip("_") if name[:2] == "__" else name))
            if any(isinstance(a, _types["Traced"]) for a in (*arguments, *options.values())):
                return call(function, arguments, options)
            return function(*arguments, **options)

    return TraceMode


def _is_traced_index(index: Any) -> bool:
    traced = _types["Traced"]
    return isinstance(index, traced) or (
        isinstance(index, tuple) and any(isinstance(i, traced) for i in index)
    )


def torch_mode() -> Any:
    """Active while a function is traced."""
    return _mode_class()()
