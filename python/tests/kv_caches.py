"""Caches of keys and values for the tests, and what an entry's attention must be."""

from typing import Any

import pytest
import torch
from oracle import paper
from tilewise.flash_attn import flash_attn_with_kvcache
from torch import Tensor

LENGTHS = [11, 0, 5]
BATCH, CAPACITY, HEADS, DIM = 3, 16, 2, 16


def caches(device: str, entries: int = BATCH, rows: int = CAPACITY) -> tuple[Tensor, Tensor]:
    k, v = torch.randn(2, entries, rows, HEADS, DIM, device=device)
    return k, v


def new(device: str, rows: int, heads: int = HEADS) -> Tensor:
    return torch.randn(BATCH, rows, heads, DIM, device=device)


def lengths(device: str) -> Tensor:
    return torch.tensor(LENGTHS, dtype=torch.int32, device=device)


def run(device: str, *arguments: Any, **options: Any) -> Any:
    try:
        return flash_attn_with_kvcache(*arguments, **options)
    except NotImplementedError as error:
        if device == "cpu":
            raise
        return pytest.skip(f"on {device}: {error}")


def assert_rows(o: Tensor, q: Tensor, k: list[Tensor], v: list[Tensor], **options: Any) -> None:
    """Each entry is attention of its own over its own keys."""
    for b in range(BATCH):
        own = dict(options)
        if "alibi_slopes" in own and own["alibi_slopes"].dim() == 2:
            own["alibi_slopes"] = own["alibi_slopes"][b : b + 1]
        exact, _ = paper(q[b : b + 1], k[b][None], v[b][None], **own)
        torch.testing.assert_close(o[b : b + 1].double(), exact, atol=1e-5, rtol=0)
