"""Tasks that dense attention solves and blind sparsity does not: a needle, and nested lists.

Token 0 to FILLER - 1 mean nothing. The last token asks the question, and the answer is a class. The
models have no positions, so a token of a list carries its depth.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LinearLR

from ._config import ASAMConfig
from ._layers import ASAMLayer, FlashASAMLayer

FILLER, WIDTH, TASK_HEADS, TASK_BLOCK = 50, 32, 2, 16
LEARNING_RATE = 3e-3  # at first; it falls to 0
# Of the loss for a head that runs dense attention alone: a head that needs none learns to run none.
PRICE = 0.05
# Training begins short, with large batches and all blocks: a list leaves out what the layer has not
# learnt to look for. Lengths grow by this factor until the full one, with the task's density.
GROWTH, LEAST_BATCH = 4, 8
TASK_KINDS = ("dense", "working", "published")

Draw = Callable[[int, int, Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Task:
    """draw(batch, n, generator) -> ids (batch, n), classes (batch).

    length: tokens of the examination. first: tokens, batch and steps that training begins with.
    density: the share of the key blocks that the working layer selects.
    """

    vocabulary: int
    classes: int
    draw: Draw
    length: int
    first: tuple[int, int, int]
    density: float

    def stages(self, n: int, steps: int | None) -> list[tuple[int, int, int]]:
        """Tokens, batch and steps of each part of the training, up to n tokens."""
        length, batch, first_steps = self.first
        steps = first_steps if steps is None else steps
        stages = [(min(length, n), batch, steps)]
        while length < n:
            longer = min(n, GROWTH * length)
            batch = max(LEAST_BATCH, batch * length // longer)
            length = longer
            stages.append((length, batch, max(1, steps // 5)))
        return stages


NEEDLES = 8


def _needles(batch: int, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """One token is of NEEDLES kinds: which? It never stands in the last eighth."""
    ids = torch.randint(FILLER, (batch, n), generator=generator)
    kinds = torch.randint(NEEDLES, (batch,), generator=generator)
    places = torch.randint(n - n // 8, (batch,), generator=generator)
    ids[torch.arange(batch), places] = FILLER + kinds
    ids[:, -1] = FILLER + NEEDLES
    return ids, kinds


DEPTH, MOST_DIGITS = 2, 3
_MARKS = 12  # of a depth: ten digits, MAX, MIN


def _lists(batch: int, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """[MAX 3 [MIN 9 4 1] 0] between filler, as ListOps (Nangia and Bowman 2018): its value?"""

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    ids = torch.randint(FILLER, (batch, n), generator=generator)
    values = torch.zeros(batch, dtype=torch.int64)
    for b in range(batch):
        marks: list[int] = []
        inner: list[int] = []
        for depth in reversed(range(DEPTH)):
            digits = [draw(0, 10) for _ in range(draw(1, MOST_DIGITS + 1))]
            least = draw(0, 2)
            first = FILLER + depth * _MARKS
            marks = [first + 10 + least, *(first + digit for digit in digits), *marks]
            inner = [min(digits + inner) if least else max(digits + inner)]
        places = torch.randperm(n - 1, generator=generator)[: len(marks)].sort().values
        ids[b, places] = torch.tensor(marks)
        values[b] = inner[0]
    ids[:, -1] = FILLER + DEPTH * _MARKS
    return ids, values


TASKS = {
    "needle": Task(FILLER + NEEDLES + 1, NEEDLES, _needles, 2048, (256, 16, 600), 0.25),
    "listops": Task(FILLER + DEPTH * _MARKS + 1, 10, _lists, 512, (64, 64, 2000), 0.4),
}


class Reader(nn.Module):
    """Embedding, two layers, LayerNorm, Linear on the last token: ids (B, n) -> (B, classes)."""

    def __init__(self, kind: str, task: Task) -> None:
        super().__init__()
        self.embedding = nn.Embedding(task.vocabulary, WIDTH)
        self.layers = nn.ModuleList(_layer(kind, task.density) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, task.classes)

    def forward(self, ids: Tensor) -> tuple[Tensor, list[dict[str, Any]]]:
        x, infos = self.embedding(ids), []
        for layer in self.layers:
            x, info = layer(x, return_info=True)
            infos.append(info)
        return self.head(self.norm(x[:, -1])), infos


def _layer(kind: str, density: float) -> nn.Module:
    sizes: dict[str, Any] = {
        "dim": WIDTH,
        "num_heads": TASK_HEADS,
        "dim_head": WIDTH // TASK_HEADS,
        "dropout": 0.0,
    }
    if kind == "dense":
        return FlashASAMLayer(WIDTH, TASK_HEADS, dropout=0.0)
    if kind == "working":
        sizes |= {"block_size": TASK_BLOCK, "density": density, "route_above": 0.75}
        return ASAMLayer(ASAMConfig(pattern_type="selected", **sizes))
    return ASAMLayer(ASAMConfig(mode="faithful", pattern_type="local", **sizes))


def learn(
    name: str,
    n: int | None,
    steps: int | None,
    device: str,
    examined: int,
    tell: Callable[[str], None],
    kinds: Sequence[str] = TASK_KINDS,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Trains each of `kinds` on the same batches, then examines it at n tokens.

    n, steps (of the first stage): None means the task's own. seed: seed of weights and batches. A
    row has the accuracy in percent on `examined` new sequences, the same for all kinds. density is
    the fraction of block pairs that ran in inference, dense lists included. sparsity_percent is the
    rest.
    """
    task = TASKS[name]
    n = n or task.length
    plan = task.stages(n, steps)
    for kind in kinds:
        torch.manual_seed(seed)
        draws = Generator().manual_seed(7 + seed)
        model = Reader(kind, task).to(device).train()
        for length, _, _ in plan:  # published patterns come with a call
            with torch.no_grad():
                model(torch.zeros(1, length, dtype=torch.int64, device=device))
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        steps_left = LinearLR(optimizer, 1.0, 0.0, sum(count for _, _, count in plan))
        loss = torch.zeros(())
        for stage, (length, batch, count) in enumerate(plan):
            _list_blocks(model, 1.0 if stage == 0 and length < n else task.density)
            for step in range(count):
                tell(f"{name}, {kind}: step {step + 1} of {count} at {length} tokens")
                ids, classes = (x.to(device) for x in task.draw(batch, length, draws))
                logits, infos = model(ids)
                loss = functional.cross_entropy(logits, classes)
                dense = [1 - i["gate_values"].mean() for i in infos if "density_run" in i]
                price = PRICE * torch.stack(dense).mean() if dense else 0.0
                optimizer.zero_grad()
                (loss + price).backward()
                optimizer.step()
                steps_left.step()
        accuracy, density = _examine(model.eval(), task, n, device, draws, examined)
        yield {
            "task": name,
            "seq": n,
            "layer": kind,
            "seed": seed,
            "steps": sum(count for _, _, count in plan),
            "loss": float(loss.detach()),
            "accuracy_percent": 100 * accuracy,
            "density": density,
            "sparsity_percent": 100 * (1 - density),
        }


def _list_blocks(model: Reader, density: float) -> None:
    """The share of the blocks that the working layers select from now on."""
    for layer in model.layers:
        if isinstance(layer, ASAMLayer):
            layer.config.density = density


def _examine(
    model: nn.Module, task: Task, n: int, device: str, draws: Generator, examined: int
) -> tuple[float, float]:
    """The share of right answers, and the density that ran."""
    right, densities, batch = 0, [], 8
    with torch.no_grad():
        for _ in range(-(-examined // batch)):
            ids, classes = (x.to(device) for x in task.draw(batch, n, draws))
            logits, infos = model(ids)
            right += int((logits.argmax(-1) == classes).sum())
            densities += [float(i["density_run"]) for i in infos if "density_run" in i]
    share = right / (-(-examined // batch) * batch)
    return share, sum(densities) / len(densities) if densities else 1.0
