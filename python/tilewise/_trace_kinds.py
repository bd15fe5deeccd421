"""The type that torch gives to a traced value, and operations that depend on it."""

from __future__ import annotations

import functools
import re
from typing import Any

_COMPARISON = re.compile(r" (?:[=!<>]=|<|>) ")
_REAL = re.compile(
    r" / |\d\.\d|\b(?:float|exp|exp2|log|sqrt|rsqrt|tanh|sigmoid|sin|cos|atan|erf|silu|gelu)\("
)
_OPERANDS = re.compile(r"(?<!bool\()\{(\d)\}")
_BOOLEAN, _INTEGER, _REAL_NUMBER = range(3)


@functools.cache
def _rule(template: str) -> tuple[int | None, tuple[int, ...]]:
    """The kind that an operation always has, or the operands that decide it."""
    if template.startswith(("any(", "all(", "bool(", "(bool(", "(~bool(")):
        return _BOOLEAN, ()
    if template.startswith("int("):
        return _INTEGER, ()
    if _COMPARISON.search(template) and not template.startswith("where("):
        return _BOOLEAN, ()
    if _REAL.search(template):
        return _REAL_NUMBER, ()
    return None, tuple({int(place) for place in _OPERANDS.findall(template)})


@functools.cache
def _of_leaf(text: str) -> int:
    if text in ("true", "false"):
        return _BOOLEAN
    word = text.strip("()-")
    return _INTEGER if word.isdigit() or word in ("b", "h", "i", "j", "lane") else _REAL_NUMBER


def _of_array(array: Any) -> int:
    name = str(array.dtype).rpartition(".")[2]
    if name.startswith("bool"):
        return _BOOLEAN
    return _REAL_NUMBER if "float" in name else _INTEGER


def _kind(value: Any) -> int:
    if value.kind is None:
        value.kind = _found(value)
    kind: int = value.kind
    return kind


def _found(value: Any) -> int:
    if not value.arguments:
        return _of_leaf(value.operation)
    if value.operation == "[]":
        return _of_array(value.arguments[0].array)
    always, places = _rule(value.operation)
    if always is not None:
        return always
    found = max((_kind(value.arguments[place]) for place in places), default=_REAL_NUMBER)
    return _INTEGER if value.operation.startswith("sum(") and found == _BOOLEAN else found


def are_booleans(*values: Any) -> bool:
    return all(_kind(value) == _BOOLEAN for value in values)


def are_integers(*values: Any) -> bool:
    return all(_kind(value) == _INTEGER for value in values)


def power_of_two(value: Any) -> int | None:
    """The exponent of a constant integer that is a power of two."""
    if value.arguments or not value.operation.isdigit():
        return None
    number = int(value.operation)
    return number.bit_length() - 1 if number > 0 and number & (number - 1) == 0 else None
