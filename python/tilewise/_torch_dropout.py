"""Dropout's seed from torch's generator."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from ._spec import seed_word


def _draw() -> Tensor:
    return torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64, device="cpu")


def _recompute(*_: Any, **__: Any) -> CheckpointPolicy:
    return CheckpointPolicy.PREFER_RECOMPUTE


_replayed = functools.partial(create_selective_checkpoint_contexts, _recompute)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_exporting() -> bool:
    """Asked outside of dynamo, which under torch 2.11 takes it for true in torch.compile too."""
    return torch.compiler.is_exporting()


def draw_seed(seed: int | None, q: Any) -> Tensor:
    """Dropout's seed and offset, int64 (2) on the CPU: the caller's, else from torch's generator.

    On the CPU for any device, so that nothing waits for a GPU to learn it; torch.manual_seed and
    checkpointing's saved random state hold for it. While a CUDA graph is captured, int64 (1) on the
    device, by an operator of the graph: each replay draws anew from the CUDA generator.
    """
    if seed is not None:
        return torch.tensor([seed_word(seed), 0], dtype=torch.int64, device="cpu")
    if q.is_cuda and not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing():
        return torch.randint(0, 2**63 - 1, (1,), dtype=torch.int64, device=q.device)
    if torch.compiler.is_dynamo_compiling() and not _is_exporting():
        # A compiler under a memory budget computes cheap nodes again in backward. It replays the
        # generator's state for those that a checkpoint's policy lets it compute again: others would
        # draw another mask. Under torch 2.11 a checkpoint without a policy is not enough.
        drawn: Tensor = checkpoint(_draw, use_reentrant=False, context_fn=_replayed)
        return drawn
    return _draw()
