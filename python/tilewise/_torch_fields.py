"""The fields of a spec as arguments of the torch operators."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ._spec import CAPTURES, FIELDS, SCORE_EXPRESSION, TENSOR_FIELDS, Spec

_TYPES = {
    "layout": "str",
    "scale": "float?",
    "causal": "str",
    "window_left": "SymInt?",
    "window_right": "SymInt?",
    "softcap": "float",
    "dropout_p": "float",
    "max_seqlen_q": "SymInt",
    "max_seqlen_k": "SymInt",
    "block_q": "SymInt",
    "block_k": "SymInt",
    "deterministic": "bool",
    "precision": "str",
    "implementation": "str",
    "kernel": "str",
}
SPEC_SCHEMA = ", ".join(
    [f"Tensor? {name}" for name in TENSOR_FIELDS]
    + [f"{kind} {name}" for name, kind in _TYPES.items()]
)
# torch maps no operator that takes a list over many gradients at once: calls without expressions
# have operators without.
# sizes: a compiler's symbols, n0, n1, ... of the texts.
EXPRESSIONS = "str score_expression, str mask_expression, Tensor[] captures, SymInt[] sizes"


def padded(fields: Spec) -> Spec:
    """The spec of an operator's fields, which may be without expressions; sizes stay behind it."""
    return fields if len(fields) >= len(FIELDS) else (*fields, "", "", ())


def whole(fields: Spec) -> Spec:
    """The same with the numbers of sizes in the texts."""
    spec, sizes = padded(fields)[: len(FIELDS)], fields[len(FIELDS) :]
    if not sizes or not sizes[0]:
        return spec

    def number(name: re.Match[str]) -> str:
        return f"({int(sizes[0][int(name[1])])})"

    texts = (re.sub(r"\bn(\d+)\b", number, text) for text in spec[SCORE_EXPRESSION:CAPTURES])
    return (*spec[:SCORE_EXPRESSION], *texts, spec[CAPTURES])


def expression_fields(spec: Spec, sizes: Sequence[int] = ()) -> tuple[Any, ...]:
    """The fields of an operator with expressions, of a spec with or without sizes behind."""
    behind = spec[len(FIELDS)] if len(spec) > len(FIELDS) else sizes
    return (*spec[:CAPTURES], list(spec[CAPTURES]), list(behind))
