"""Seeds 000 and 001: how their tables were measured, of any contender."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .autograd import as_function
from .contender import Contender
from .problem import Problem
from .reference import Inputs

WARM_UPS = 5
RUNS = 100
MIB = 2**20


@dataclass(frozen=True)
class SeedRuns:
    """One row of the seeds' tables: milliseconds of every run, memory before backward."""

    forward_ms: list[float]
    backward_ms: list[float]
    live_mib: float  # Q, K, V and what the forward left, cuBLAS's workspaces included


def _timed(launch: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    launch()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def seed_runs(contender: Contender, problem: Problem, inputs: Inputs) -> SeedRuns:
    """By the host's clock, through autograd; gradients are dropped between the runs."""
    leaves = (inputs.q, inputs.k, inputs.v)
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # so that this contender's are counted as its own
    base = torch.cuda.memory_allocated() - sum(x.numel() * x.element_size() for x in leaves)

    def backward(loss: torch.Tensor, *, keep: bool) -> None:
        loss.backward(retain_graph=keep)

    def drop() -> None:
        for leaf in leaves:
            leaf.grad = None

    attention = as_function(contender.open(problem, inputs), inputs.d_o)
    for _ in range(WARM_UPS):
        backward(attention(*leaves).sum(), keep=False)
        drop()
    # Anew: what a session of ours holds for its backward is not there before the first.
    attention = as_function(contender.open(problem, inputs), inputs.d_o)
    out = inputs.q

    def forward() -> None:
        nonlocal out
        out = attention(*leaves)

    forward_ms = [_timed(forward) for _ in range(RUNS)]
    live = (torch.cuda.memory_allocated() - base) / MIB
    loss = out.sum()
    backward(loss, keep=True)
    backward_ms = []
    for _ in range(RUNS):
        drop()
        backward_ms.append(_timed(lambda: backward(loss, keep=True)))
    drop()
    return SeedRuns(forward_ms, backward_ms, live)
