"""The options of a call as the flat tuple that the C++ side reads (python/src/spec.cpp)."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

# The order of the fields in a spec and, behind the tensors, in the torch operators' signatures.
TENSOR_FIELDS = (
    "mask",
    "bias",
    "alibi_slopes",
    "sinks",
    "key_lengths",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "block_table",
    "block_rows",
    "block_index",
    "block_full",
    "seed",
)
PLAIN_FIELDS = (
    "layout",
    "scale",
    "causal",
    "window_left",
    "window_right",
    "softcap",
    "dropout_p",
    "max_seqlen_q",
    "max_seqlen_k",
    "block_q",
    "block_k",
    "deterministic",
    "precision",
    "implementation",
    "kernel",
    "score_expression",
    "mask_expression",
)
# Last: the tensors that the expressions read, c0, c1, ... of their text, as one tuple.
FIELDS = (*TENSOR_FIELDS, *PLAIN_FIELDS, "captures")
CAPTURES = FIELDS.index("captures")
SCORE_EXPRESSION = FIELDS.index("score_expression")
MASK_EXPRESSION = FIELDS.index("mask_expression")
MASK = FIELDS.index("mask")
BIAS = FIELDS.index("bias")
ALIBI_SLOPES = FIELDS.index("alibi_slopes")
SINKS = FIELDS.index("sinks")
CU_SEQLENS_Q = FIELDS.index("cu_seqlens_q")
CU_SEQLENS_K = FIELDS.index("cu_seqlens_k")
BLOCK_TABLE = FIELDS.index("block_table")
MAX_SEQLEN_Q = FIELDS.index("max_seqlen_q")
MAX_SEQLEN_K = FIELDS.index("max_seqlen_k")
SEED = FIELDS.index("seed")
LAYOUT = FIELDS.index("layout")

Spec = tuple[Any, ...]


class BlockList(NamedTuple):
    """The visible (query block, key block) pairs as CSR.

    Other masks still apply inside blocks that are not marked full. In full blocks they must hide no
    pair, else the result is undefined.
    """

    row_offsets: Any  # int32 (B|1, Hq|1, query blocks + 1): where a row's pairs begin
    block_index: Any  # int32 (pairs): the key block of each pair, ascending within a row
    block_full: Any | None  # bool (pairs): True = the block needs no element mask; None = all do
    block_q: int  # rows of a query block
    block_k: int  # keys of a key block

    @classmethod
    def from_blocks(cls, visible: Any, block_q: int, block_k: int | None = None) -> BlockList:
        """The list of a torch mask of blocks: bool (B|1, Hq|1, query blocks, key blocks).

        block_k defaults to block_q. The call never waits for a GPU: block_index has room for every
        block, and row_offsets bounds the part that kernels read.
        """
        from ._torch_blocks import csr

        offsets, index = csr(visible)
        return cls(offsets, index, None, block_q, block_q if block_k is None else block_k)


_NO_BLOCKS = BlockList(None, None, None, 0, 0)
_OPEN = (None, None)


def _causal_name(causal: bool | str) -> str:
    if isinstance(causal, str):
        return causal
    return "bottom_right" if causal else ""


def _window_bounds(window: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    if not isinstance(window, tuple | list) or len(window) != 2:
        raise ValueError(f"window is {window!r}: expected (left, right), None for an open side")
    return window[0], window[1]


def flash_window(window_size: Any) -> tuple[int | None, int | None]:
    """The window of flash_attn's functions, where -1 means unbounded."""
    # A tensor of two integers is a window for flash_attn, whose own tests give one.
    bounds = window_size.tolist() if hasattr(window_size, "tolist") else window_size
    sized = isinstance(bounds, tuple | list) and len(bounds) == 2
    if not sized or any(not hasattr(bound, "__index__") or bound < -1 for bound in bounds):
        raise ValueError(
            f"window_size is {window_size!r}: expected two bounds from 0 on, -1 for an open side"
        )
    left, right = bounds
    return None if left == -1 else left, None if right == -1 else right


def seed_word(seed: int) -> int:
    """Dropout's unsigned 64-bit seed as int64."""
    try:
        value = operator.index(seed)
    except TypeError:
        value = -1
    if not 0 <= value < 2**64:
        raise ValueError(f"dropout_seed is {seed!r}: expected an integer from 0 to 2^64 - 1")
    return value if value < 2**63 else value - 2**64


def named_arrays(spec: Spec, arrays: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The given arrays of a call, each with its argument's name."""
    names = (
        "block_list" if name.startswith("block_") and name != "block_table" else name
        for name in TENSOR_FIELDS
    )
    captures = (("a captured tensor", array) for array in spec[CAPTURES])
    named = (*arrays.items(), *zip(names, spec, strict=False), *captures)
    return ((name, array) for name, array in named if array is not None)


def number(name: str, value: Any) -> float:
    """The value of a number, which may also be an array without axes. Raises ValueError."""
    if hasattr(value, "requires_grad"):
        from ._torch_onlookers import check_no_derivative  # torch is there: it made the value

        check_no_derivative(name, value)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}: expected a number") from None


def make_spec(
    causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    bias: Any = None,
    mask: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    seed: Any = None,
    key_lengths: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    block_table: Any = None,
    block_list: BlockList | None = None,
    deterministic: bool = False,
    precision: str = "exact",
    layout: str = "bshd",
    implementation: str = "",
    kernel: str = "",
    score_expression: str = "",
    mask_expression: str = "",
    captures: tuple[Any, ...] = (),
) -> Spec:
    """The fields in order. Only their form changes here; the C++ side validates the values.

    Hot callers pass options by position, because names cost 0.6 us.
    """
    left, right = _OPEN if window is None else _window_bounds(window)
    rows, index, full, block_q, block_k = block_list or _NO_BLOCKS
    return (
        mask,
        bias,
        alibi_slopes,
        sinks,
        key_lengths,
        cu_seqlens_q,
        cu_seqlens_k,
        block_table,
        rows,
        index,
        full,
        seed,
        layout,
        scale if scale is None or type(scale) is float else number("scale", scale),
        _causal_name(causal),
        left,
        right,
        softcap if type(softcap) is float else number("softcap", softcap),
        dropout_p if type(dropout_p) is float else number("dropout_p", dropout_p),
        max_seqlen_q,
        max_seqlen_k,
        block_q,
        block_k,
        deterministic,
        precision,
        implementation,
        kernel,
        score_expression,
        mask_expression,
        captures,
    )
