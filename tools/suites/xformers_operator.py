"""Tilewise as an operator of xformers: what its dispatcher and its tests call.

xformers' own flash operator turns packed, padded and paged masks into the arguments of OPERATOR.
The other masks are options of tilewise.attention.
"""

from __future__ import annotations

import os
from typing import Any

import tilewise
import torch
from torch import Tensor
from xformers.ops.fmha import flash
from xformers.ops.fmha.attn_bias import (
    VARLEN_BIASES,
    AttentionBias,
    LocalAttentionFromBottomRightMask,
    LowerTriangularFromBottomRightLocalAttentionMask,
    LowerTriangularFromBottomRightMask,
    LowerTriangularMask,
    LowerTriangularMaskWithTensorBias,
)
from xformers.ops.fmha.common import (
    AttentionBwOpBase,
    AttentionFwOpBase,
    Context,
    Gradients,
    Inputs,
)

# Key ranges of a gappy mask may overlap, which seqused_k does not allow.
FORWARD_MASKS = [m for m in flash.FwOp.SUPPORTED_ATTN_BIAS_TYPES if "Gappy" not in m.__name__]
DTYPES = {torch.float32, torch.float16, torch.bfloat16}
OWN = (  # reasons of xformers' kernels and build, which are not Tilewise's
    "bf16 is only supported",
    "xFormers wasn't build",
    "LowerTriangularMask if equal",
)


def _bound(side: int) -> int | None:
    return None if side < 0 else side


def _packed(cu_q: Tensor | None, cu_k: Tensor | None, most_q: int, most_k: int) -> dict[str, Any]:
    found = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    return found | {"max_seqlen_q": int(most_q), "max_seqlen_k": int(most_k)}


def _options(p: float, scale: float, causal: bool, left: int, right: int) -> dict[str, Any]:
    window = None if left < 0 and right < 0 else (_bound(left), _bound(right))
    return {"dropout_p": p, "scale": scale, "causal": causal, "window": window}


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    used_k: Tensor | None,
    most_q: int,
    most_k: int,
    p: float,
    scale: float,
    causal: bool,
    *,
    window_left: int,
    window_right: int,
    return_softmax: bool,
    block_tables: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """xformers' flash operator on packed sequences."""
    del return_softmax
    options = _options(p, scale, causal, window_left, window_right)
    options |= _packed(cu_q, cu_k, most_q, most_k)
    if block_tables is not None:
        options |= {"block_table": block_tables, "key_lengths": used_k, "cu_seqlens_k": None}
    elif used_k is not None:
        options["seqused_k"] = used_k
    seed = torch.randint(2**62, ())
    o, lse = tilewise.attention(q, k, v, return_lse=True, dropout_seed=int(seed), **options)
    return o, lse, seed


def _backward(
    together: bool,
    d_o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    most_q: int,
    most_k: int,
    p: float,
    scale: float,
    causal: bool,
    *,
    window_left: int,
    window_right: int,
    rng_state: Tensor | None,
) -> tuple[Tensor, ...]:
    del together
    options = _options(p, scale, causal, window_left, window_right)
    options |= _packed(cu_q, cu_k, most_q, most_k)
    seed = None if rng_state is None else int(rng_state)
    found = tilewise.attention_backward(d_o, q, k, v, o, lse, dropout_seed=seed, **options)
    return found.dq, found.dk, found.dv


def _of_mask(inputs: Inputs) -> dict[str, Any]:
    """The options of a call whose sequences are not packed."""
    options: dict[str, Any] = {"scale": inputs.scale, "dropout_p": inputs.p}
    mask = inputs.attn_bias
    if isinstance(mask, LowerTriangularMask):
        options["causal"] = "top_left"
    elif isinstance(mask, LowerTriangularFromBottomRightMask):
        options["causal"] = "bottom_right"
    if isinstance(mask, LowerTriangularFromBottomRightLocalAttentionMask):
        options["window"] = (mask._window_size - 1, None)
    elif isinstance(mask, LocalAttentionFromBottomRightMask):
        options["window"] = (_bound(mask.window_left), _bound(mask.window_right))
    if isinstance(mask, LowerTriangularMaskWithTensorBias):
        options["bias"] = _of_heads(mask._bias)
    elif isinstance(mask, Tensor):
        options["bias"] = _of_heads(mask)
    elif mask is not None and "causal" not in options and "window" not in options:
        assert not isinstance(mask, AttentionBias), type(mask)
    return options


def _of_heads(bias: Tensor) -> Tensor:
    """(B, G, H, M, N) as (B, heads, M, N)."""
    return bias.flatten(1, 2) if bias.ndim == 5 else bias


def _shared_heads(x: Tensor) -> Tensor:
    """(B, M, G, H, K) as (B, M, heads, K), where copies of a head are one."""
    if x.ndim == 5:
        return x[:, :, :, 0] if x.stride(3) == 0 else x.flatten(2, 3)
    return x


class _Supported:
    # A machine with a GPU makes masks there, of tests on a CPU too.
    SUPPORTED_DEVICES = {os.environ.get("SUITE_DEVICE", "cpu")}  # noqa: RUF012
    SUPPORTED_DTYPES = DTYPES
    SUPPORTED_MAX_K = 512
    SUPPORTS_DROPOUT = True
    SUPPORTS_CUSTOM_SCALE = True
    SUPPORTS_DIFFERENT_VALUE_EMBED = True
    IS_DETERMINISTIC = True
    # xformers makes batches of 300, for float32 references of each.
    _TEST_BATCH_SIZES = [1, 7]  # noqa: RUF012
    _TEST_K = [32, 128]  # noqa: RUF012


class FwOp(_Supported, flash.FwOp):
    OPERATOR = _forward
    NAME = "tilewiseF"
    SUPPORTED_ATTN_BIAS_TYPES = (
        *FORWARD_MASKS,
        torch.Tensor,
        LowerTriangularMaskWithTensorBias,
    )

    @classmethod
    def not_supported_reasons(cls, inputs: Inputs) -> list[str]:
        reasons = AttentionFwOpBase.not_supported_reasons.__func__(cls, inputs)
        flash._check_needs_no_topleft(inputs, reasons)
        for name, x in (("query", inputs.query), ("key", inputs.key), ("value", inputs.value)):
            flash._check_strides_for_bmghk(x, name, reasons)
        return [reason for reason in reasons if not any(own in reason for own in OWN)]

    @classmethod
    def apply(cls, inputs: Inputs, needs_gradient: bool) -> tuple[Tensor, Context | None]:
        if isinstance(inputs.attn_bias, VARLEN_BIASES):
            return super().apply(inputs, needs_gradient)
        q = inputs.query
        rows = (
            q.flatten(2, 3) if q.ndim == 5 else q,
            *map(_shared_heads, (inputs.key, inputs.value)),
        )
        seed = torch.randint(2**62, ()) if inputs.p else None
        o, lse = tilewise.attention(
            *rows,
            return_lse=True,
            dropout_seed=None if seed is None else int(seed),
            **_of_mask(inputs),
        )
        o = o.reshape(*q.shape[:-1], o.shape[-1])
        if not needs_gradient:
            return o, None
        context = Context(out=o, lse=lse.unflatten(1, q.shape[2:4]) if q.ndim == 5 else lse)
        if seed is not None:
            context.op_bw, context.rng_state = BwOp, seed
        return o, context


class BwOp(_Supported, flash.BwOp):
    OPERATOR = _backward
    NAME = "tilewiseB"
    SUPPORTS_ATTN_BIAS_GRAD = True
    SUPPORTED_ATTN_BIAS_TYPES = (
        *flash.BwOp.SUPPORTED_ATTN_BIAS_TYPES,
        torch.Tensor,
        LowerTriangularMaskWithTensorBias,
    )

    @classmethod
    def not_supported_reasons(cls, inputs: Inputs) -> list[str]:
        reasons = AttentionBwOpBase.not_supported_reasons.__func__(cls, inputs)
        flash._check_needs_no_topleft(inputs, reasons)
        return [reason for reason in reasons if not any(own in reason for own in OWN)]

    @classmethod
    def apply(cls, context: Context, inputs: Inputs, grad: Tensor) -> Gradients:
        if isinstance(inputs.attn_bias, VARLEN_BIASES):
            return super().apply(context, inputs, grad)
        found = tilewise.attention_backward(
            grad,
            inputs.query,
            inputs.key,
            inputs.value,
            context.out,
            context.lse,
            dropout_seed=None if context.rng_state is None else int(context.rng_state),
            **_of_mask(inputs),
        )
        # xformers asks for the gradient of a plain tensor alone.
        wanted = isinstance(inputs.attn_bias, Tensor) and inputs.attn_bias.requires_grad
        return Gradients(found.dq, found.dk, found.dv, found.dbias if wanted else None)
