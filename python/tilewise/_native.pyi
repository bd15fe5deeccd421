from collections.abc import Callable, Sequence
from typing import Any

version: str

class Plan:
    """Which kernel runs a problem, with which tiles, memory and cost, and why, as str() says."""

    @property
    def backward(self) -> bool: ...
    @property
    def kernel(self) -> str: ...
    @property
    def implementation(self) -> str: ...
    @property
    def block_m(self) -> int: ...
    @property
    def block_n(self) -> int: ...
    @property
    def splits(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def flops(self) -> float: ...
    @property
    def bytes_moved(self) -> float: ...
    @property
    def predicted_ms(self) -> float: ...
    @property
    def reason(self) -> str: ...
    @property
    def refusals(self) -> list[tuple[str, str]]: ...

class KernelInfo:
    """One row of the kernel table."""

    @property
    def name(self) -> str: ...
    @property
    def implementation(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def backward(self) -> bool: ...
    @property
    def summary(self) -> str: ...

def kernels() -> list[KernelInfo]: ...

# inputs: q, k, v; outputs: o, lse.
def forward(inputs: tuple[Any, ...], outputs: tuple[Any, ...], spec: tuple[Any, ...]) -> None: ...

# inputs: q, k, v, o, lse, d_o, d_lse; outputs: dq, dk, dv, dbias, dsinks, (dcapture, ...).
def backward(inputs: tuple[Any, ...], outputs: tuple[Any, ...], spec: tuple[Any, ...]) -> None: ...

# inputs: q, k_prefix, v_prefix, k, v; outputs: o, lse.
def forward_prefix(
    inputs: tuple[Any, ...], outputs: tuple[Any, ...], spec: tuple[Any, ...]
) -> None: ...

# inputs: k, v, k_cache, v_cache, lengths, q; outputs: new_lengths, skipped, rotated_q; options:
# block_table, cu_seqlens, max_seqlen, cos, sin, positions, interleaved, one_query_position, layout.
def append(inputs: tuple[Any, ...], outputs: tuple[Any, ...], options: tuple[Any, ...]) -> None: ...

# inputs: q, k, key_lengths; outputs: row_offsets and block_index, or mask; options: block_q,
# block_k, weights, scale, causal, rule, count, share, keep_diagonal, keep_first, layout.
def select_blocks(
    inputs: tuple[Any, ...], outputs: tuple[Any, ...], options: tuple[Any, ...]
) -> None: ...
def plan(inputs: tuple[Any, ...], outputs: tuple[Any, ...], spec: tuple[Any, ...]) -> Plan: ...
def describe(array: Any, name: str) -> tuple[list[int], str, bool, int]: ...
def new_array(sizes: Sequence[int], dtype: str, cuda: bool, index: int) -> Any: ...

# From torch: plain types of tensors, who may look on, its is_grad_enabled, whether a tensor is a
# batch of gradients, what makes a GPU's context current, its empty_like and its float32.
def use_torch(
    plain_types: tuple[type, ...],
    watches: tuple[Callable[[], Any], ...],
    grad_enabled: Any,
    is_batched: Any,
    make_context_current: Any,
    empty_like: Any,
    float32: Any,
) -> None: ...
def is_plain(tensor: Any) -> bool: ...
def is_plain_call(q: Any, k: Any, v: Any, spec: tuple[Any, ...]) -> bool: ...
def is_special(tensor: Any) -> bool: ...
def empty_outputs(q: Any, v: Any, spec: tuple[Any, ...], with_lse: bool) -> tuple[Any, Any]: ...
def empty_gradients(
    q: Any,
    k: Any,
    v: Any,
    need_dbias: bool,
    need_dsinks: bool,
    need_dcaptures: tuple[bool, ...],
    spec: tuple[Any, ...],
) -> tuple[Any, Any, Any, Any, Any, tuple[Any, ...]]: ...

# (o, lse): empty_outputs and forward in one.
def new_forward(
    q: Any, k: Any, v: Any, spec: tuple[Any, ...], with_lse: bool
) -> tuple[Any, Any]: ...

# new_forward of plain tensors.
def new_plain_forward(
    q: Any, k: Any, v: Any, spec: tuple[Any, ...], with_lse: bool
) -> tuple[Any, Any]: ...

# new_plain_forward of a plain call. None: it is not plain. A bool: autograd records it, and whether
# the spec has tensors.
def plain_forward(
    q: Any, k: Any, v: Any, spec: tuple[Any, ...], with_lse: bool
) -> tuple[Any, Any] | bool | None: ...

# (dq, dk, dv, None) of a plain call that autograd recorded, whose spec has no tensors; the last is
# the spec's. None: somebody looks on. saved: q, k, v, o, lse.
def plain_backward(
    saved: tuple[Any, ...], d_o: Any, spec: tuple[Any, ...]
) -> tuple[Any, Any, Any, None] | None: ...

# B, H, row offsets and block indices (int32) and whether each block is full (uint8).
def block_map(
    mask: str,
    captures: tuple[Any, ...],
    batch: int,
    heads: int,
    rows: int,
    keys: int,
    block_q: int,
    block_k: int,
) -> tuple[int, int, bytes, bytes, bytes]: ...
def plan_cache_size() -> int: ...
