"""A task that dense attention solves and blind sparsity does not: copy the needle.

One token of a random sequence is a needle, of CLASSES kinds; the last token asks which kind.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ._config import ASAMConfig
from ._layers import ASAMLayer, FlashASAMLayer

NOISE, CLASSES, WIDTH, TASK_HEADS = 50, 8, 64, 4
QUESTION = NOISE + CLASSES
TASK_KINDS = ("dense", "working", "published")


def needle_batch(
    batch: int, n: int, device: str, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """ids (batch, n) and the needle's kind (batch); the needle never stands in the last block."""
    ids = torch.randint(NOISE, (batch, n), generator=generator)
    kinds = torch.randint(CLASSES, (batch,), generator=generator)
    places = torch.randint(n - n // 8, (batch,), generator=generator)
    ids[torch.arange(batch), places] = NOISE + kinds
    ids[:, -1] = QUESTION
    return ids.to(device), kinds.to(device)


class Reader(nn.Module):
    """Embedding, two layers, LayerNorm, Linear on the last token: ids (B, n) -> (B, CLASSES)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(QUESTION + 1, WIDTH)
        self.layers = nn.ModuleList(_layer(kind) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor) -> tuple[Tensor, list[dict[str, Any]]]:
        x, infos = self.embedding(ids), []
        for layer in self.layers:
            x, info = layer(x, return_info=True)
            infos.append(info)
        return self.head(self.norm(x[:, -1])), infos


def _layer(kind: str) -> nn.Module:
    sizes: dict[str, Any] = {
        "dim": WIDTH,
        "num_heads": TASK_HEADS,
        "dim_head": WIDTH // TASK_HEADS,
        "dropout": 0.0,
    }
    if kind == "dense":
        return FlashASAMLayer(WIDTH, TASK_HEADS, dropout=0.0)
    if kind == "working":
        return ASAMLayer(ASAMConfig(density=0.125, **sizes))
    return ASAMLayer(ASAMConfig(mode="faithful", pattern_type="local", **sizes))


def needle(n: int, steps: int, device: str) -> Iterator[dict[str, Any]]:
    """Trains each of TASK_KINDS on the same batches; accuracy in percent on 512 new sequences.

    density: the share of block pairs that ran in inference, the dense lists counted in.
    """
    for kind in TASK_KINDS:
        torch.manual_seed(0)
        draws = torch.Generator().manual_seed(7)
        model = Reader(kind).to(device).train()
        with torch.no_grad():
            model(needle_batch(2, n, device, draws)[0])  # published patterns come with a call
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        loss = torch.zeros(())
        for _ in range(steps):
            ids, kinds = needle_batch(16, n, device, draws)
            loss = functional.cross_entropy(model(ids)[0], kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        right, densities = 0, []
        with torch.no_grad():
            for _ in range(32):
                ids, kinds = needle_batch(16, n, device, draws)
                logits, infos = model(ids)
                right += int((logits.argmax(-1) == kinds).sum())
                densities += [float(i["density_run"]) for i in infos if "density_run" in i]
        yield {
            "task": "needle",
            "seq": n,
            "layer": kind,
            "steps": steps,
            "loss": float(loss.detach()),
            "accuracy_percent": 100 * right / 512,
            "density": sum(densities) / len(densities) if densities else 1.0,
        }
