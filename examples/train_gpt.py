"""Trains a small GPT twice, with eager attention and with Tilewise, and compares them.

    python examples/train_gpt.py                      # this machine's best device, float32 and bf16
    python examples/train_gpt.py --length 8192 --batch 1 --steps 5      # where S x S begins to hurt

Two layers, 128 wide, on bytes of this repository's documentation. Both runs begin with the same
weights and see the same batches: losses differ by rounding only. Needs torch and tilewise.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import tilewise
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
LAYERS, WIDTH, HEADS, VOCABULARY = 2, 128, 4, 256
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention as it is written on paper: an S x S matrix a head, kept for backward."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    rows = torch.arange(q.shape[2], device=q.device)
    scores = scores.masked_fill(rows > rows[:, None], float("-inf"))
    return (scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2)


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same by Tilewise: memory linear in S."""
    result: Tensor = tilewise.attention(q, k, v, causal=True)
    return result


IMPLEMENTATIONS: dict[str, Attention] = {"eager": eager, "tilewise": ours}


class Block(nn.Module):
    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.before_attention(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        x = x + self.out(self.attention(*heads.unbind(2)).flatten(2))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class Gpt(nn.Module):
    def __init__(self, attention: Attention, length: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(length, WIDTH))
        self.blocks = nn.Sequential(*(Block(attention) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.bytes(text) + self.places)))


@dataclass
class Run:
    implementation: str
    dtype: str
    losses: list[float]
    tokens_per_second: float
    peak_mib: float | None  # of the device's memory; None on a CPU, where torch does not count


def documentation() -> Tensor:
    """The text: README.md and docs/*.md as bytes."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return torch.tensor(list(b"".join(page.read_bytes() for page in pages)), dtype=torch.uint8)


def train(name: str, dtype: str, arguments: argparse.Namespace) -> Run:
    device = torch.device(arguments.device)
    text = documentation().to(device).long()
    torch.manual_seed(0)
    model = Gpt(IMPLEMENTATIONS[name], arguments.length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    window = torch.arange(arguments.length + 1, device=device)
    batches = torch.Generator().manual_seed(1)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    losses: list[Tensor] = []
    began = 0.0
    for step in range(arguments.steps):
        if step == min(3, arguments.steps - 1):  # kernels are compiled and caches filled by now
            if on_gpu:
                torch.cuda.synchronize(device)
            began, first = time.perf_counter(), step
        starts = torch.randint(len(text) - len(window), (arguments.batch, 1), generator=batches)
        batch = text[starts.to(device) + window]
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bf16"):
            logits = model(batch[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    curve = [round(float(loss), 5) for loss in losses]  # waits for the device
    seconds = time.perf_counter() - began
    tokens = (arguments.steps - first) * arguments.batch * arguments.length
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if on_gpu else None
    return Run(name, dtype, curve, tokens / seconds, peak)


def difference(a: Run, b: Run) -> float:
    """The largest relative distance of two loss curves, each step by itself."""
    return max(abs(x - y) / y for x, y in zip(a.losses, b.losses, strict=True))


def table(runs: list[Run]) -> str:
    lines = [
        "| attention | type | first loss | last loss | tokens/s | peak, MiB |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for run in runs:
        peak = "-" if run.peak_mib is None else f"{run.peak_mib:.0f}"
        lines.append(
            f"| {run.implementation} | {run.dtype} | {run.losses[0]:.4f} | {run.losses[-1]:.4f} "
            f"| {run.tokens_per_second:.0f} | {peak} |"
        )
    return "\n".join(lines)


def machine(device: str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} CPU threads"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bf16"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--json", type=Path, help="file for the curves and the table")
    arguments = parser.parse_args()

    runs, differences = [], {}
    for dtype in arguments.dtype:
        pair = [train(name, dtype, arguments) for name in IMPLEMENTATIONS]
        differences[dtype] = difference(pair[1], pair[0])
        runs += pair
    print(table(runs))
    for dtype, value in differences.items():
        print(f"{dtype}: the loss curves differ by at most {100 * value:.3f} %")
    if arguments.json:
        report = {
            "schema_version": 1,
            "rows": [],  # none of `tilewise bench`: its tools pass this file by
            "device": machine(arguments.device),
            "torch": torch.__version__,
            "tilewise": tilewise.__version__,
            "steps": arguments.steps,
            "batch": arguments.batch,
            "length": arguments.length,
            "largest_difference": differences,
            "runs": [asdict(run) for run in runs],
        }
        arguments.json.write_text(json.dumps(report) + "\n", encoding="utf-8")
    return 0 if max(differences.values()) <= 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
