"""DistributedDataParallel and fully_shard need nothing special: two processes on the CPU."""

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402

WORLD = 2


class Block(nn.Module):
    """One layer of attention between its projections."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, 2, 16)).unbind(-3)
        o: Tensor = self.outer(tilewise.attention(q, k, v, causal=True).flatten(-2))
        return o


def run(rank: int, file: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=WORLD)
    alone = Block()
    inputs = torch.randn(WORLD, 2, 9, 32)
    for x in inputs:
        (alone(x).square().mean() / WORLD).backward()
    replicated = nn.parallel.DistributedDataParallel(Block())
    replicated(inputs[rank]).square().mean().backward()
    sharded = Block()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (WORLD,)))
    sharded(inputs[rank]).square().mean().backward()
    for exact, whole, part in zip(
        alone.parameters(), replicated.parameters(), sharded.parameters(), strict=True
    ):
        torch.testing.assert_close(whole.grad, exact.grad)
        torch.testing.assert_close(part.grad.full_tensor(), exact.grad)
    dist.barrier()
    dist.destroy_process_group()
    # One exit in thirty, torch 2.15 aborts while it takes down gloo's threads after Python's end.
    os._exit(0)


@pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
def test_gradients_of_two_processes(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(run, (str(tmp_path / "meeting"),), nprocs=WORLD)
