"""Activations of torch.nn.functional as operations on traced values, and functions beside them
whose plain formula loses digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Make = Callable[..., Any]


def _horner(*coefficients: str) -> str:
    """x times a polynomial in x, from its constant on."""
    text = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        text = f"({coefficient} + {{0}} * {text})"
    return f"({{0}} * {text})"


# Near 0, 1 + x and exp(x) - 1 lose the digits of x. The terms leave less than a float32 does.
_LOG1P = _horner("1.0", "-0.5", "1.0/3", "-0.25", "0.2", "-1.0/6", "1.0/7", "-0.125")
_EXPM1 = _horner("1.0", "0.5", "1.0/6", "1.0/24", "1.0/120", "1.0/720", "1.0/5040")
# At 0 the derivative of max and min is 1, of relu and abs 0, and of these functions a half.
_SOFTPLUS = "(0.5 * (max({0}, 0.0) + relu({0})) + log(1.0 + exp(-abs({0}))))"
_LOGSIGMOID = "(0.5 * (min({0}, 0.0) - relu(-{0})) - log(1.0 + exp(-abs({0}))))"
TEMPLATES: dict[str, tuple[str, int]] = {
    "log1p": (f"where(abs({{0}}) < 0.1, {_LOG1P}, log(1.0 + {{0}}))", 1),
    "expm1": (f"where(abs({{0}}) < 0.3, {_EXPM1}, exp({{0}}) - 1.0)", 1),
    "log_sigmoid": (_LOGSIGMOID, 1),
    "logsigmoid": (_LOGSIGMOID, 1),
    "logaddexp": ("(max({0}, {1}) + log(1.0 + exp(-abs({0} - {1}))))", 2),
    "hypot": ("sqrt(({0} * {0}) + ({1} * {1}))", 2),
    "sinh": ("(0.5 * (exp({0}) - exp(-{0})))", 1),
    "cosh": ("(0.5 * (exp({0}) + exp(-{0})))", 1),
    "softsign": ("({0} / (1.0 + abs({0})))", 1),
    "tanhshrink": ("({0} - tanh({0}))", 1),
}


def functions(make: Make, error: Callable[[str], Exception]) -> dict[str, Make]:
    """By name. `make` makes an operation, `error` what is raised."""

    def beside_zero(above: str, below: str) -> str:
        return f"where({{0}} > 0.0, {above}, {below})"

    # exp of what is above 0 may be infinite there, where it is not chosen.
    expm1 = TEMPLATES["expm1"][0].replace("{0}", "min({0}, 0.0)")

    def activation(template: str) -> Make:
        def function(x: Any, *arguments: Any, inplace: bool = False) -> Any:
            if inplace:
                raise error("writes in place are not traced: leave inplace out")
            return make(template, x, *arguments)

        return function

    def gelu(x: Any, approximate: str = "none") -> Any:
        if approximate == "none":
            return make("gelu({0})", x)
        inner = make("(0.7978845608028654 * ({0} + (0.044715 * pow({0}, 3))))", x)
        return make("((0.5 * {0}) * (1.0 + tanh({1})))", x, inner)

    def leaky_relu(x: Any, negative_slope: Any = 0.01, inplace: bool = False) -> Any:
        above = activation("relu({0})")(x, inplace=inplace)
        return make("({0} + ({1} * ({2} - {0})))", above, negative_slope, x)

    def clamped(least: float, most: float) -> Make:
        def function(
            x: Any, min_val: Any = least, max_val: Any = most, inplace: bool = False
        ) -> Any:
            return activation("min(max({0}, {1}), {2})")(x, min_val, max_val, inplace=inplace)

        return function

    def elu(x: Any, alpha: Any = 1.0, inplace: bool = False) -> Any:
        return activation(beside_zero("{0}", f"{{1}} * {expm1}"))(x, alpha, inplace=inplace)

    def softplus(x: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Any:
        if beta == 1.0:
            return make(_SOFTPLUS, x)
        scaled = make("({0} * {1})", x, beta)
        return make("({0} / {1})", softplus(scaled), beta)

    def mish(x: Any, inplace: bool = False) -> Any:
        return activation("({0} * tanh({1}))")(x, softplus(x), inplace=inplace)

    def nan_to_num(x: Any, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
        most = 3.4028234663852886e38
        high = most if posinf is None else posinf
        low = -most if neginf is None else neginf
        text = "where({0} != {0}, {1}, where({0} == inf, {2}, where({0} == -inf, {3}, {0})))"
        return make(text, x, nan, high, low)

    return {
        "gelu": gelu,
        "relu": activation("relu({0})"),
        "silu": activation("silu({0})"),
        "softplus": softplus,
        "leaky_relu": leaky_relu,
        "hardtanh": clamped(-1.0, 1.0),
        "relu6": clamped(0.0, 6.0),
        "hardsigmoid": activation("(min(max({0} + 3.0, 0.0), 6.0) / 6.0)"),
        "hardswish": activation("({0} * (min(max({0} + 3.0, 0.0), 6.0) / 6.0))"),
        "elu": elu,
        "mish": mish,
        "nan_to_num": nan_to_num,
    }
