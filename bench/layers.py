"""Latency of seed 003's "Flash" model at small lengths: tilewise's C++ layers beside torch.

    python3 -m bench.layers [--seq 128 256 512] [-o FILE.json]

The model of docs/asam.md in float32: Embedding(1000, 256), two flash layers of 4 heads, LayerNorm,
mean over tokens, Linear(256, 10). Inference with batch 2, a training step (Adam) with batch 4. On a
CUDA device each runs with and without a CUDA graph: a graph's time is the work, what the plain run
takes beyond it is launches. torch runs eager, compiled, and as a graph. Rows have the schema of
`tilewise bench --format json`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

DIM, HEADS, LAYERS, VOCABULARY, CLASSES = 256, 4, 2, 1000, 10
CLI = os.environ.get("TILEWISE_CLI", "build/release/tilewise")
Row = dict[str, Any]
Step = Callable[[], None]


class FlashLayer(nn.Module):
    """x + W_o attention(W_qkv LN x), then x + F(x), by torch alone. Nothing is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.out_proj = nn.Linear(DIM, DIM, bias=False)
        self.ffn = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        o = functional.scaled_dot_product_attention(*qkv.unbind(0))
        x = x + self.out_proj(o.transpose(1, 2).flatten(2))
        y: Tensor = x + self.ffn(x)
        return y


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.layers = nn.Sequential(*(FlashLayer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.layers(self.embedding(ids))).mean(1))
        return y


def torch_step(training: bool, compiled: bool, batch: int, n: int, device: str) -> Step:
    torch.manual_seed(0)
    model = Classifier().to(device).train(training)
    ids = torch.randint(VOCABULARY, (batch, n), device=device)
    labels = torch.randint(CLASSES, (batch,), device=device)
    run = torch.compile(model) if compiled else model
    if not training:

        def infer() -> None:
            with torch.no_grad():
                run(ids)

        return infer
    capturable = device.startswith("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, capturable=capturable)

    def train() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(run(ids), labels).backward()
        optimizer.step()

    return train


def as_graph(step: Step) -> Step:
    """The step, captured after three runs on a stream of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(_kept: Step = step) -> None:  # the graph reads the step's tensors
        graph.replay()

    return replay


def timed(step: Step, device: str, warmup: int, repeat: int) -> list[float]:
    """Wall-clock milliseconds of each run, synchronised before and after."""

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    times = []
    for n in range(warmup + repeat):
        wait()
        begin = time.perf_counter()
        step()
        wait()
        if n >= warmup:
            times.append(1e3 * (time.perf_counter() - begin))
    return times


def torch_rows(arguments: argparse.Namespace) -> Iterator[Row]:
    on_gpu = arguments.device.startswith("cuda")
    kinds = [f"torch-{kind}" for kind in arguments.torch if on_gpu or kind != "graph"]
    for training in (False, True):
        batch = 4 if training else 2
        for kind in kinds:
            for n in arguments.seq:
                step = torch_step(training, kind == "torch-compile", batch, n, arguments.device)
                if kind == "torch-graph":
                    step = as_graph(step)
                times = timed(step, arguments.device, arguments.warmup, arguments.repeat)
                yield {
                    "implementation": kind,
                    "device": arguments.device,
                    "dtype": "float32",
                    "batch": batch,
                    "heads": HEADS,
                    "seq_q": n,
                    "head_dim": DIM // HEADS,
                    "pass": "fwd+bwd" if training else "fwd",
                    "ms_mean": statistics.fmean(times),
                    "ms_std": statistics.stdev(times),
                    "ms_median": statistics.median(times),
                    "status": "ok",
                    "reason": f"torch {torch.__version__}",
                }


def own_rows(arguments: argparse.Namespace) -> Iterator[Row]:
    graphs = [[], ["--graph"]] if arguments.device.startswith("cuda") else [[]]
    for training in (False, True):
        for graph in graphs:
            command = [
                *(CLI, "layer", "bench", "--device", arguments.device, "--layer", "flash"),
                *("--seq", ",".join(map(str, arguments.seq)), "--format", "json"),
                *("--pass", "train" if training else "infer", "--batch", "4" if training else "2"),
                *("--warmup", str(arguments.warmup), "--repeat", str(arguments.repeat), *graph),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
            document = json.loads(done.stdout)
            arguments.environment = document["environment"]
            for row in document["rows"]:
                if graph:
                    row["implementation"] += "-graph"
                yield row


def table(rows: list[Row]) -> str:
    """A line for each implementation and pass: median milliseconds by length."""
    lengths = sorted({row["seq_q"] for row in rows})
    lines = ["| pass | implementation | " + " | ".join(map(str, lengths)) + " |"]
    lines.append("|---|---|" + "---:|" * len(lengths))
    for key in dict.fromkeys((row["pass"], row["implementation"]) for row in rows):
        cells = {r["seq_q"]: r for r in rows if (r["pass"], r["implementation"]) == key}
        numbers = [cells[n].get("ms_median") if n in cells else None for n in lengths]
        cells_text = ["" if x is None else f"{x:.3f}" for x in numbers]
        lines.append(f"| {key[0]} | {key[1]} | " + " | ".join(cells_text) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m bench.layers", description=__doc__)
    default = "cuda:0" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default)
    parser.add_argument("--seq", type=int, nargs="+", default=[128, 256, 512])
    ways = ("eager", "graph", "compile")
    parser.add_argument("--torch", nargs="*", choices=ways, default=ways, help="torch's runs")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=100)
    parser.add_argument("-o", "--output", type=Path, help="a JSON file for the rows")
    arguments = parser.parse_args()
    arguments.environment = {}
    rows: list[Row] = []
    stopped = False
    try:
        for source in (own_rows, torch_rows):
            for row in source(arguments):
                rows.append(row)
                label = f"{row['implementation']} {row['pass']} {row['seq_q']}"
                print(f"{label}: {row['ms_median']} ms", file=sys.stderr, flush=True)
    except KeyboardInterrupt:  # what was measured is kept
        stopped = True
    if arguments.output:
        at = arguments.environment | {"torch": torch.__version__}
        document = {"schema_version": 1, "environment": at, "rows": rows}
        arguments.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(table(rows), end="")
    return 130 if stopped else 0


if __name__ == "__main__":
    sys.exit(main())
