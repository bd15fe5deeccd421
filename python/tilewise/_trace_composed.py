"""Functions of torch and NumPy that are a few operations of a formula, on traced values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Make = Callable[..., Any]

# Each form has the derivative of its function wherever it is chosen, also at 0.
# The angle of (x, y): atan of the smaller over the larger, and what it misses of a turn.
_ATAN2 = (
    "where(({0} == 0.0) & ({1} == 0.0), 0.0, where(abs({1}) < abs({0}),"
    " where({0} < 0.0, -1.5707963267948966, 1.5707963267948966) - atan({1} / {0}),"
    " where({1} < 0.0, where({0} < 0.0, -3.141592653589793, 3.141592653589793), 0.0)"
    " + atan({0} / {1})))"
)
_ROOT = "sqrt((1.0 * {0} * {0}) + 1.0)"  # of a real: an integer's square wraps
_ASINH = f"where({{0}} < 0.0, -log({_ROOT} - {{0}}), log({_ROOT} + {{0}}))"
TEMPLATES: dict[str, tuple[str, int]] = {
    "tan": ("(sin({0}) / cos({0}))", 1),
    "atan2": (_ATAN2, 2),
    "arctan2": (_ATAN2, 2),
    "erfc": ("(1.0 - erf({0}))", 1),
    "asinh": (_ASINH, 1),
    "acosh": ("log({0} + sqrt((1.0 * {0} * {0}) - 1.0))", 1),
    "atanh": ("(0.5 * log((1.0 + {0}) / (1.0 - {0})))", 1),
    "frac": ("({0} - sign({0}) * floor(abs({0})))", 1),
    "ldexp": ("({0} * exp2(float({1})))", 2),
    "heaviside": ("where({0} == 0, {1}, float({0} > 0))", 2),
    "xlogy": ("where(({0} == 0.0) & (({1} <= 0.0) | ({1} == inf)), 0.0, {0} * log({1}))", 2),
}


def functions(
    make: Make, error: Callable[[str], Exception], call: Callable[..., Any]
) -> dict[str, Make]:
    """By name. `make` makes an operation, `error` what is raised, `call` calls another function."""

    def one_number(name: str, size: Any) -> None:
        if isinstance(size, int) or tuple(size) != ():
            raise error(f"{name} of size {size}: a traced value is one number, of size ()")

    def new(name: str, value: int) -> Make:
        def function(x: Any, *size: Any, dtype: Any = None, **_: Any) -> Any:
            one_number(name, size[0] if len(size) == 1 else size)
            return call("full_like", (x, value), {"dtype": dtype})

        return function

    def new_full(x: Any, size: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Any:
        one_number("new_full", size)
        return call("full_like", (x, fill_value), {"dtype": dtype})

    def new_tensor(x: Any, data: Any, dtype: Any = None, **_: Any) -> Any:
        del x
        if not isinstance(data, bool | int | float):
            raise error("new_tensor of more than one number: make the tensor outside")
        value = make("{0}", data)
        return value if dtype is None else call("to", (value, dtype), {})

    def refuse(options: dict[str, Any]) -> None:
        for name, value in options.items():
            if value:
                raise error(f"{name} is not traced: leave it out")

    def count_below(x: Any, edges: Any, right: bool, options: dict[str, Any]) -> Any:
        refuse(options)
        below = make("int({0} <= {1})" if right else "int({0} < {1})", edges, x)
        if not below.lanes:
            raise error("edges are expected in one row of a captured tensor, at most 64")
        return call("sum", (below,), {})

    def bucketize(x: Any, boundaries: Any, right: bool = False, **options: Any) -> Any:
        return count_below(x, boundaries, right, options)

    def searchsorted(
        row: Any, x: Any, right: bool = False, side: str | None = None, **options: Any
    ) -> Any:
        if side not in (None, "left", "right") or (side == "left" and right):
            raise error(f"side is {side!r} and right {right}: expected 'left' or 'right'")
        return count_below(x, row, right or side == "right", options)

    def norm(x: Any, ord: Any = 2, dim: Any = -1, **options: Any) -> Any:
        if options.pop("p", ord) not in (2, 2.0, "fro", None):  # torch.norm's name, with its own
            raise error("a norm but the Euclidean one is not traced")
        dim = options.pop("axis", dim)  # NumPy's
        refuse(options)
        squares = call("sum", (make("({0} * {0})", x), -1 if dim is None else dim), {})
        # The gradient of 0 is 0, as torch has it.
        return make("where({0} > 0.0, sqrt({0}), 0.0)", squares)

    return {
        "new_ones": new("new_ones", 1),
        "new_zeros": new("new_zeros", 0),
        "new_full": new_full,
        "new_tensor": new_tensor,
        "bucketize": bucketize,
        "searchsorted": searchsorted,
        "norm": norm,
        "vector_norm": norm,
        "linalg_norm": norm,
        "linalg_vector_norm": norm,
    }
