"""Translates a Python score function or mask into the library's formula (docs/expressions.md).

The function runs once on Traced values, which record the operations. Tensors and arrays that it
reads become captures of the formula. No trace is cached, because a closure may change.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import _trace_functions

MOST_LANES = 64  # of a short vector: a row of a captured tensor

_PART = "part"  # the operation of a captured tensor that lacks more indices than a short vector

_CURES = {
    "__bool__": "if, and, or, not, and chained comparisons cannot see its value: "
    "write torch.where, &, |, ~, and (a < b) & (b < c); for max, min and in torch.maximum, "
    "torch.minimum and torch.isin",
    "__iter__": "it cannot be iterated",
    "__len__": "it has no length",
    "__int__": "int() cannot see its value: write x.to(torch.int32)",
    "__float__": "float() and the functions of math cannot see its value: write x.float(), "
    "torch.exp(x) and the like",
    "__complex__": "complex() cannot see its value",
    "__index__": "a list or range cannot be indexed by it: index a tensor",
    "__array__": "this NumPy array is not seen to be captured: hold it in a variable of the "
    "function or of an enclosing one",
    "__setitem__": "writes in place are not traced: write torch.where(condition, new, old)",
    "__delitem__": "writes in place are not traced: write torch.where(condition, new, old)",
}


class TraceError(ValueError):
    """A score function or mask does something that a formula cannot express. The message names the
    replacement."""


def _cure(name: str) -> Callable[..., Any]:
    def refuse(self: Traced, *_: Any, **__: Any) -> Any:
        raise TraceError(f"a traced value: {_CURES[name]}")

    return refuse


class Traced:
    """A value that depends on the pair, during tracing: an operation on other values."""

    __slots__ = ("arguments", "kind", "lanes", "operation")
    __hash__ = object.__hash__

    def __init__(self, operation: str, arguments: tuple[Any, ...], lanes: int = 0) -> None:
        self.operation = operation  # a template for the text of its arguments, or a leaf's name
        self.arguments = arguments
        self.lanes = lanes  # entries of a short vector; 0 = one number
        self.kind: int | None = None  # see _trace_kinds

    def __repr__(self) -> str:
        return f"<traced {write(self)}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python looks for and need not find
            raise AttributeError(name)
        return _trace_functions.method(self, name)

    def __getitem__(self, index: Any) -> Any:
        """An entry of a short vector, or of a captured tensor that lacks indices yet."""
        indices = index if isinstance(index, tuple) else (index,)
        if self.operation == _PART:
            captured, given, _ = self.arguments
            return captured.load((*given, *indices))
        indices = tuple(i for i in indices if i is not Ellipsis)
        if self.lanes and len(indices) == 1 and not _is_whole(indices[0]):
            return _entry(self, _lane(indices[0], self.lanes))
        if all(i is None for i in indices) and not self.lanes:
            return self  # one number, which any short vector takes as it is
        raise TraceError(
            "a traced value takes one integer as its index if it is a short vector, and no index "
            "otherwise: index the captured tensor with one index per axis"
        )

    @classmethod
    def __torch_function__(
        cls, function: Any, kinds: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        return _trace_functions.call(function, arguments, options or {})

    def __array_ufunc__(self, ufunc: Any, method: str, *arguments: Any, **options: Any) -> Any:
        if method != "__call__":
            raise TraceError(f"numpy.{ufunc.__name__}.{method} is not traced")
        return _trace_functions.call_named(ufunc.__name__, arguments, options)

    def __array_function__(self, function: Any, kinds: Any, arguments: Any, options: Any) -> Any:
        return _trace_functions.call_named(function.__name__, arguments, options)


for _name in _CURES:
    setattr(Traced, _name, _cure(_name))


def make(operation: str, *arguments: Any) -> Traced:
    """An operation on traced values, numbers and captured tensors; it broadcasts short vectors."""
    operands = tuple(operand(a) for a in arguments)
    lanes = 0
    for value in operands:
        if value.lanes and lanes and value.lanes != lanes:
            raise TraceError(f"short vectors of {lanes} and {value.lanes} entries meet")
        lanes = value.lanes or lanes
    return Traced(operation, operands, lanes)


def constant(value: Any) -> Traced:
    """A number in the text: 1 is an integer, 1.0 a real."""
    if isinstance(value, bool | np.bool_):
        return Traced("true" if value else "false", ())
    if isinstance(value, numbers.Integral):
        text = str(int(value))
    elif isinstance(value, numbers.Real):
        text = repr(float(value))
        if text not in ("inf", "-inf", "nan") and "." not in text and "e" not in text:
            text += ".0"
    else:
        raise TraceError(f"{type(value).__name__} cannot appear in a formula")
    return Traced(f"({text})" if text[0] == "-" else text, ())


def operand(value: Any) -> Traced:
    """A traced value for anything that may stand in a formula."""
    if isinstance(value, Traced):
        if value.operation == _PART:
            raise TraceError(value.arguments[2])
        return value
    if isinstance(value, Captured):
        return value.load(())
    if is_array(value):
        return Captured(value).load(())
    return constant(value)


def is_array(value: Any) -> bool:
    """True for a tensor of torch and an array of NumPy or of a library with DLPack."""
    return isinstance(value, np.ndarray) or (
        hasattr(value, "__dlpack__") and not isinstance(value, np.generic | Captured)
    )


class Captured:
    """A tensor or array that a traced function reads."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array

    def load(self, indices: tuple[Any, ...]) -> Traced:
        """The number at integer indices, or the short vector that one index fewer leaves."""
        array = self.array
        sizes = tuple(array.shape)
        if any(i is Ellipsis for i in indices):
            at = next(n for n, i in enumerate(indices) if i is Ellipsis)
            open_ = (slice(None),) * (len(sizes) - len(indices) + 1)
            indices = indices[:at] + open_ + indices[at + 1 :]
        if len(indices) == len(sizes) and indices and _is_whole(indices[-1]):
            indices = indices[:-1]
        for index in indices:
            if index is None or isinstance(index, slice | list | tuple):
                raise TraceError(
                    "a captured tensor takes an integer for each axis; slices, None and lists are "
                    "not traced, but for ':' on the last axis"
                )
        missing = len(sizes) - len(indices)
        wrong = (
            f"a captured tensor of shape {sizes} is given {len(indices)} indices: expected one "
            "for each axis, or one fewer for a short vector; at most 4 axes"
        )
        if missing < 0 or len(sizes) > 4:
            raise TraceError(wrong)
        given = tuple(operand(i) for i in indices)
        if missing == 0:
            return Traced("[]", (self, *given), max((i.lanes for i in given), default=0))
        if missing > 1:
            return Traced(_PART, (self, given, wrong))
        if any(i.lanes for i in given):
            raise TraceError("a row of a captured tensor is indexed by short vectors")
        if not 1 <= sizes[-1] <= MOST_LANES:
            wrong = (
                f"a row of {sizes[-1]} entries of a captured tensor: short vectors have 1 to "
                f"{MOST_LANES}; index its last axis too"
            )
            return Traced(_PART, (self, given, wrong))
        return Traced("[]", (self, *given, _LANE), sizes[-1])

    def __getitem__(self, index: Any) -> Any:
        indices = index if isinstance(index, tuple) else (index,)
        if any(isinstance(i, Traced | Captured) for i in indices):
            return self.load(tuple(i.load(()) if isinstance(i, Captured) else i for i in indices))
        return wrap(self.array[index])

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.array, name)
        if not callable(found):
            return wrap(found) if is_array(found) else found
        return functools.partial(_trace_functions.array_method, self, name)

    def __array_ufunc__(self, ufunc: Any, method: str, *arguments: Any, **options: Any) -> Any:
        if any(isinstance(a, Traced) for a in arguments):
            return _trace_functions.call_named(ufunc.__name__, arguments, options)
        return wrap(getattr(ufunc, method)(*map(unwrap, arguments), **options))

    def __array_function__(self, function: Any, kinds: Any, arguments: Any, options: Any) -> Any:
        if any(isinstance(a, Traced) for a in arguments):
            return _trace_functions.call_named(function.__name__, arguments, options)
        return wrap(function(*map(unwrap, arguments), **options))

    __len__ = lambda self: len(self.array)  # noqa: E731
    __int__ = lambda self: int(self.array)  # noqa: E731
    __float__ = lambda self: float(self.array)  # noqa: E731
    __bool__ = lambda self: bool(self.array)  # noqa: E731
    __index__ = lambda self: self.array.__index__()  # noqa: E731


_LANE = Traced("lane", ())


def _lane(index: Any, lanes: int) -> Traced:
    """The place of a short vector's entry, an index of its tensor's last axis."""
    if isinstance(index, numbers.Integral):
        at = int(index)
        if not -lanes <= at < lanes:
            raise TraceError(f"index {at} of a short vector of {lanes} entries")
        return constant(at % lanes)
    value = operand(index)
    if value.lanes:
        raise TraceError("a short vector is indexed by a short vector")
    return value


def _entry(value: Traced, lane: Traced) -> Traced:
    """One entry of a short vector: its formula at that lane."""
    made: dict[int, Traced] = {}

    def of(node: Traced) -> Traced:
        if node is _LANE:
            return lane
        if not node.lanes:  # the same in every lane
            return node
        if id(node) not in made:
            arguments = [of(a) if isinstance(a, Traced) else a for a in node.arguments]
            made[id(node)] = Traced(node.operation, tuple(arguments))
        return made[id(node)]

    return of(value)


_trace_functions.install(Traced, Captured)


def _is_whole(index: Any) -> bool:
    return isinstance(index, slice) and index == slice(None)


def wrap(value: Any) -> Any:
    """A NumPy array as one whose indices are seen; torch's are seen by its own modes."""
    return Captured(value) if isinstance(value, np.ndarray) else value


def unwrap(value: Any) -> Any:
    """The array of a captured one, anything else as it is."""
    return value.array if isinstance(value, Captured) else value


def _with_wrapped_arrays(function: Any, seen: dict[int, Any]) -> Any:
    """The function with the NumPy arrays that it holds (its own variables, those of enclosing
    functions and of its module, defaults) wrapped, and so with the functions that it holds."""
    if isinstance(function, np.ndarray):
        return Captured(function)
    if isinstance(function, functools.partial):
        parts = [_with_wrapped_arrays(a, seen) for a in function.args]
        named = {n: _with_wrapped_arrays(a, seen) for n, a in function.keywords.items()}
        return functools.partial(_with_wrapped_arrays(function.func, seen), *parts, **named)
    if not isinstance(function, types.FunctionType) or _is_a_library_s(function):
        return function
    if id(function) in seen:
        return seen[id(function)]
    seen[id(function)] = function  # of one that holds itself
    changed = False

    def wrapped(value: Any) -> Any:
        nonlocal changed
        made = _with_wrapped_arrays(value, seen)
        changed = changed or made is not value
        return made

    held = {n: function.__globals__[n] for n in _names(function) if n in function.__globals__}
    # Helpers of the same module; not the whole library that a module stands in.
    held = {
        n: v
        for n, v in held.items()
        if getattr(v, "__globals__", function.__globals__) is function.__globals__
    }
    globals_ = {name: wrapped(value) for name, value in held.items()}
    cells = [_contents(cell) for cell in function.__closure__ or ()]
    closure = [value if value is _EMPTY else wrapped(value) for value in cells]
    defaults = tuple(wrapped(value) for value in function.__defaults__ or ())
    named_defaults = {n: wrapped(v) for n, v in (function.__kwdefaults__ or {}).items()}
    if not changed:
        return function
    made = types.FunctionType(
        function.__code__,
        {**function.__globals__, **globals_},
        function.__name__,
        defaults or None,
        tuple(
            old if new is value else types.CellType(new)
            for old, value, new in zip(function.__closure__ or (), cells, closure, strict=True)
        ),
    )
    made.__kwdefaults__ = named_defaults or None
    seen[id(function)] = made
    return made


_EMPTY = object()


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _names(function: types.FunctionType) -> set[str]:
    """Global names of a function and of those that it makes."""
    names: set[str] = set()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return names


def _is_a_library_s(function: types.FunctionType) -> bool:
    module = (function.__module__ or "").partition(".")[0]
    return module in ("torch", "numpy", "math", "tilewise") and not function.__closure__


# Integers that the library does not read, and what is made of them. It keeps the low 32 bits.
_WIDER = {"int8": "int", "int16": "int", "uint16": "int", "uint32": "long", "uint64": "long"}


def _readable(array: Any) -> Any:
    wider = _WIDER.get(str(getattr(array, "dtype", "")).rpartition(".")[2])
    if wider is None:
        return array
    if hasattr(array, "astype"):
        return array.astype(np.int32 if wider == "int" else np.int64)
    return getattr(array, wider)()


class _Writer:
    """Text of a value. One that is used more than once gets a name, so that the text stays as short
    as the graph is."""

    def __init__(self, captures: list[Any]) -> None:
        self.captures = captures
        self.uses: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.lets: list[str] = []
        self.places: dict[int, int] = {id(c): n for n, c in enumerate(self.captures)}

    def whole(self, root: Traced) -> str:
        self._count(root)
        result = self._text(root)
        return "; ".join([*self.lets, result])

    def _count(self, value: Traced) -> None:
        stack = [value]
        uses = self.uses
        while stack:
            node = stack.pop()
            uses[id(node)] = uses.get(id(node), 0) + 1
            if uses[id(node)] == 1:
                stack += [a for a in node.arguments if isinstance(a, Traced)]

    def _capture(self, captured: Captured) -> str:
        place = self.places.get(id(captured.array))
        if place is None:
            place = self.places[id(captured.array)] = len(self.captures)
            self.captures.append(_readable(captured.array))
        return f"c{place}"

    def _text(self, value: Traced) -> str:
        if not value.arguments:
            return value.operation
        name = self.names.get(id(value))
        if name is not None:
            return name
        if value.operation == "[]":
            captured, *indices = value.arguments
            inside = ", ".join([self._text(i) for i in indices])
            text = self._capture(captured) + (f"[{inside}]" if inside else "")
        else:
            text = value.operation.format(*[self._text(a) for a in value.arguments])
        if self.uses[id(value)] < 2:
            return text
        name = self.names[id(value)] = f"t{len(self.names)}"
        self.lets.append(f"{name} = {text}")
        return name


def write(value: Traced) -> str:
    """A value's text, for people."""
    return _Writer([]).whole(value)


_LENGTHS = ("query_length", "key_length")
LEAVES = {name: Traced(name, ()) for name in ("score", "b", "h", "i", "j", *_LENGTHS)}
SCORE = ("score", "b", "h", "i", "j")
MASK = ("b", "h", "i", "j")


def _takes(function: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # nobody knows
        pass
    return True


def _result(made: Any) -> Traced:
    if made is None:
        raise TraceError("it returns nothing: return the value")
    value = operand(made)
    if value.lanes:
        raise TraceError("its value is a short vector: reduce it by .any(-1), .all(-1) or .sum(-1)")
    return value


def trace(function: Callable[..., Any], leaves: Sequence[str], name: str) -> Traced:
    """What a function makes of traced values. `name` is what messages call it."""
    if not callable(function):
        raise TraceError(f"{name} is {function!r}: expected a function")
    plain = _with_wrapped_arrays(function, {})
    given = [LEAVES[leaf] for leaf in leaves]
    try:
        if "torch" in sys.modules and sys.modules["torch"] is not None:
            with _trace_functions.torch_mode():
                result = plain(*given)
        else:
            result = plain(*given)
        value = _result(result)
    except TraceError as error:
        raise TraceError(f"{name}: {error}") from error
    except TypeError as error:
        if _takes(plain, given):
            raise
        raise TraceError(f"{name}: it does not take ({', '.join(leaves)}): {error}") from error
    return value


def texts(score: Any, mask: Any) -> tuple[str, str, tuple[Any, ...]]:
    """The texts of what a score function and a mask made, empty for None, and the tensors that they
    read."""
    captures: list[Any] = []
    score_text, mask_text = (
        "" if made is None else _Writer(captures).whole(_result(made)) for made in (score, mask)
    )
    return score_text, mask_text, tuple(captures)


def formulas(
    score_mod: Callable[..., Any] | None, mask_mod: Callable[..., Any] | None
) -> tuple[str, str, tuple[Any, ...]]:
    """The texts of a score function and a mask, empty if absent, and the tensors that they read."""
    return texts(
        None if score_mod is None else trace(score_mod, SCORE, "score_mod"),
        None if mask_mod is None else trace(mask_mod, MASK, "mask_mod"),
    )
