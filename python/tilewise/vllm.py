"""Tilewise as an attention backend of vLLM (V1 engine).

    vllm serve MODEL --attention-backend CUSTOM

vLLM finds register() through the entry point "vllm.general_plugins" of this package. A step of the
engine appends its tokens to the pages of their requests and attends to the pages in place. Queries
are a dense batch if all requests have the same number, otherwise packed. Lengths, offsets and block
tables stay on the device. The host knows only upper bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)

from . import _native
from ._append import append_kv
from ._spec import make_spec

__all__ = ["TilewiseBackend", "TilewiseImpl", "TilewiseMetadata", "TilewiseMetadataBuilder"]

_KEYS_STEP = 1024  # of the bound on key lengths: steps of one bound share a plan


@dataclass
class TilewiseMetadata(AttentionMetadata):  # type: ignore[misc]
    """The data that the layers of a step share. B counts requests, including padding."""

    num_actual_tokens: int
    uniform_rows: int  # queries of each request, where all have as many; else 0
    max_query_len: int
    max_seq_len: int
    query_start_loc: Tensor  # int32 (B + 1)
    seq_lens: Tensor  # int32 (B): keys after the step
    filled: Tensor  # int32 (B): keys before it
    block_table: Tensor  # int32 (B, pages)
    causal: bool


class TilewiseMetadataBuilder(AttentionMetadataBuilder[TilewiseMetadata]):  # type: ignore[misc]
    """Builds a step's metadata without waiting for the device."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.page_size = kv_cache_spec.block_size
        # A captured step reads where the capture's metadata lay: what build() computes stays there.
        seats = vllm_config.scheduler_config.max_num_seqs
        self.filled = torch.empty(seats, dtype=torch.int32, device=device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> TilewiseMetadata:
        """common_prefix_len is ignored: each request reads a shared prefix itself."""
        common = common_attn_metadata
        if not isinstance(common.causal, bool):
            raise NotImplementedError("causal is a tensor: tilewise takes one for all requests")
        starts, lengths = common.query_start_loc, common.seq_lens
        tokens, rows = common.num_actual_tokens, common.max_query_len
        room = common.block_table_tensor.shape[1] * self.page_size
        if lengths.shape[0] > self.filled.shape[0]:
            self.filled = torch.empty_like(lengths)
        filled = self.filled[: lengths.shape[0]]
        torch.sub(lengths, starts[1:] - starts[:-1], out=filled)
        bound = -(-max(common.max_seq_len, 1) // _KEYS_STEP) * _KEYS_STEP
        return TilewiseMetadata(
            num_actual_tokens=tokens,
            uniform_rows=rows if tokens == rows * common.num_reqs else 0,
            max_query_len=rows,
            max_seq_len=min(bound, room),
            query_start_loc=starts,
            seq_lens=lengths,
            filled=filled,
            block_table=common.block_table_tensor,
            causal=common.causal,
        )


class TilewiseBackend(AttentionBackend):  # type: ignore[misc]
    """The properties that vLLM queries before it creates a layer."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[TilewiseImpl]:
        return TilewiseImpl

    @staticmethod
    def get_builder_cls() -> type[TilewiseMetadataBuilder]:
        return TilewiseMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(1)]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """K and V of a page are adjacent: (pages, 2, page_size, Hk, D). Newer versions of vLLM do
        not ask: their caches are (pages, Hk, page_size, 2 D), in any order of memory."""
        return num_blocks, 2, block_size, num_kv_heads, head_size

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return 1 <= head_size <= 256

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return bool(attn_type == AttentionType.DECODER)

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return bool(capability.major >= 8)


class TilewiseImpl(AttentionImpl[TilewiseMetadata]):  # type: ignore[misc]
    """One layer's attention."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"attn_type {attn_type} is not supported by tilewise")
        if kv_cache_dtype not in TilewiseBackend.supported_kv_cache_dtypes:
            raise NotImplementedError(
                f"kv_cache_dtype {kv_cache_dtype} is not supported by tilewise"
            )
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes)
        self.window = None if sliding_window is None else (sliding_window - 1, None)
        self.kv_cache_dtype = kv_cache_dtype
        self.softcap = logits_soft_cap or 0.0
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = None if sinks is None else sinks.float()

    def _slopes(self, device: torch.device) -> Tensor | None:
        if self.alibi_slopes is not None and self.alibi_slopes.device != device:
            self.alibi_slopes = self.alibi_slopes.to(device)
        return self.alibi_slopes

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: Tensor,
        attn_metadata: TilewiseMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """query (tokens, Hq, D), key and value (tokens, Hk, D), kv_cache (pages, Hk, page_size,
        2 D) or (pages, 2, page_size, Hk, D).

        Writes output (tokens, Hq, D) or (tokens, Hq * D) in place and returns it. A request without
        room in its pages keeps its keys.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("a quantised output is not supported by tilewise")
        if attn_metadata is None:  # vLLM measures its memory
            return output.zero_()
        meta = attn_metadata
        tokens, rows = meta.num_actual_tokens, meta.uniform_rows
        if kv_cache.ndim == 4:
            k_cache, v_cache = kv_cache.transpose(1, 2).split(self.head_size, -1)
        else:
            k_cache, v_cache = kv_cache.unbind(1)

        def form(x: Tensor) -> Tensor:
            """Tokens as (B, rows, H, D), or packed."""
            x = x[:tokens]
            return x.unflatten(0, (-1, rows)) if rows else x

        if key is not None and value is not None and self.kv_sharing_target_layer_name is None:
            append_kv(
                form(key),
                form(value),
                k_cache,
                v_cache,
                meta.filled,
                block_table=meta.block_table,
                cu_seqlens=None if rows else meta.query_start_loc,
                max_seqlen=0 if rows else meta.max_query_len,
            )
        spec = make_spec(
            causal=meta.causal,
            window=self.window,
            scale=self.scale,
            softcap=self.softcap,
            alibi_slopes=self._slopes(query.device),
            sinks=self.sinks,
            key_lengths=meta.seq_lens,
            cu_seqlens_q=None if rows else meta.query_start_loc,
            max_seqlen_q=0 if rows else meta.max_query_len,
            max_seqlen_k=meta.max_seq_len,
            block_table=meta.block_table,
        )
        out = form(output.view(output.shape[0], self.num_heads, self.head_size))
        q = form(query.view(query.shape[0], self.num_heads, self.head_size))
        _native.forward((q, k_cache, v_cache), (out, None), spec)
        return output


def register() -> None:
    """Registers TilewiseBackend as vLLM's CUSTOM attention, unless another plug-in has the name."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    custom = AttentionBackendEnum.CUSTOM
    if not custom.is_overridden():
        register_backend(custom, f"{__name__}.{TilewiseBackend.__name__}")
