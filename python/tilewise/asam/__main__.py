"""python -m tilewise.asam TABLE: seed 003's tables, measured here (docs/asam.md)."""

import argparse
import csv
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ._config import CHOICES
from ._models import (
    KINDS,
    MIB,
    Job,
    device_ms,
    inputs_of_three_kinds,
    inputs_of_three_languages,
    make_layer,
    peak_bytes,
    timed,
    timed_in_turn,
)
from ._picture import blocks_svg
from ._tasks import TASK_KINDS, TASKS, learn
from ._text import markdown

Row = dict[str, Any]


def precisions(device: str) -> tuple[str, ...]:
    """fp32, then the device's types of 16 bits. Torch's CPU products of float16 take minutes."""
    return ("fp32", "fp16", "bf16") if torch.device(device).type == "cuda" else ("fp32", "bf16")


def forward(arguments: argparse.Namespace) -> Iterator[Row]:
    """Original, Flash and the working layer, inference, batch 2: seed 003's table 1.1."""
    for n in arguments.lengths or [128, 256, 512, 1024, 2048]:
        row: Row = {"seq": n}
        for kind in KINDS:
            job = Job(kind, 2, n, arguments.device)
            step = job.step()
            timing = timed(step, arguments.device, 5, arguments.runs)
            row |= {f"{kind}_ms": timing.mean_ms, f"{kind}_std_ms": timing.std_ms}
            inside = device_ms(step, arguments.device)
            if inside is not None:
                row |= {f"{kind}_kernel_ms": inside[0], f"{kind}_kernels": inside[1]}
        row["speedup"] = row["original_ms"] / row["flash_ms"]
        row["gain_percent"] = 100 * (row["speedup"] - 1)
        yield row


def training(arguments: argparse.Namespace) -> Iterator[Row]:
    """A training step of Flash in 32 and in 16 bits, batch 4, Adam: seed 003's table 2.1.

    ms are medians of steps that run in turn. The losses are those of all steps without dropout,
    whose masks differ by type on CUDA, from the same weights on the same batch.
    combined_speedup: of the first type of 16 bits over the published layers in fp32.
    """
    types = precisions(arguments.device)
    for n in arguments.lengths or [128, 256, 512, 1024]:
        jobs = {p: Job("flash", 4, n, arguments.device, True, p) for p in types}
        arguments.tell(f"{n} tokens, time")
        published = Job("original", 4, n, arguments.device, True)
        *own, original_ms = _ms_in_turn([*jobs.values(), published], arguments.runs)
        row: Row = {"seq": n}
        curves: dict[str, list[float]] = {}
        for (precision, job), ms in zip(jobs.items(), own, strict=True):
            arguments.tell(f"{n} tokens, {precision}")
            row[f"{precision}_ms"] = ms
            curves[precision] = _losses(replace(job, drops=False), arguments.runs)
            row[f"{precision}_mib"] = mib(peak_bytes(job))
        for precision in types[1:]:
            row[f"{precision}_speedup"] = row["fp32_ms"] / row[f"{precision}_ms"]
            pairs = zip(curves[precision], curves["fp32"], strict=True)
            row[f"{precision}_loss_off_percent"] = 100 * max(abs(a - b) / b for a, b in pairs)
        row["original_fp32_ms"] = original_ms
        row["combined_speedup"] = original_ms / row[f"{types[1]}_ms"]
        yield row


def _ms_in_turn(jobs: list[Job], runs: int) -> list[float]:
    """The median time of each job's steps, after three warm-ups.

    One step of each runs after the other: a short step's time is the host's, which drifts.
    """
    steps = [job.step() for job in jobs]
    return [timing.median_ms for timing in timed_in_turn(steps, jobs[0].device, 3, runs)]


def _losses(job: Job, runs: int) -> list[float]:
    step = job.step()
    return [float(step()) for _ in range(runs)]


def memory(arguments: argparse.Namespace) -> Iterator[Row]:
    """Peak memory at 2048 tokens and the longest sequence under a budget: seed 003's 3.2.

    Training steps with batch 4; lengths are multiples of 256, found by bisection.
    """
    limit = arguments.mem_limit
    narrow = precisions(arguments.device)[1]
    runs = [(kind, "fp32") for kind in KINDS] + [("flash", narrow), ("working", narrow)]
    for kind, precision in runs:

        def job(n: int, kind: str = kind, precision: str = precision) -> Job:
            arguments.tell(f"{kind}, {precision}, {n} tokens")
            return Job(kind, 4, n, arguments.device, True, precision)

        low, high = 0, 1  # in units of 256 tokens: low fits, high does not
        while high <= arguments.longest // 256 and peak_bytes(job(256 * high), limit) is not None:
            low, high = high, 2 * high
        while high - low > max(1, low // 16):
            middle = (low + high) // 2
            fits = peak_bytes(job(256 * middle), limit) is not None
            low, high = (middle, high) if fits else (low, middle)
        yield {
            "model": kind,
            "precision": precision,
            "mib_at_2048": mib(peak_bytes(job(2048))),
            "longest": 256 * low,
            "budget_mib": limit / MIB,
        }


def behaviour(arguments: argparse.Namespace) -> Iterator[Row]:
    """The gate on seed 003's three kinds of input and three of text, published and working layer.

    gate: mean over heads and sequences; spread: the standard deviation over the kinds, in the
    head where it is largest; density: share of the blocks that the heads' patterns list.
    """
    kinds = inputs_of_three_kinds(arguments.device) | inputs_of_three_languages(arguments.device)
    pictures = {}
    for kind in ("original", "working"):
        torch.manual_seed(0)
        options = {"block_size": 32} if kind == "working" else {}
        layer = make_layer(kind, **options).to(arguments.device).eval()
        infos = {}
        for name, x in kinds.items():
            with torch.no_grad():
                infos[name] = layer(x, return_info=True)[1]
        gates = torch.stack([i["gate_values"][..., 0].mean(0) for i in infos.values()])
        for name, info in infos.items():
            row: Row = {"layer": kind, "input": name}
            row["gate"] = float(info["gate_values"].mean())
            row["gate_spread"] = float(gates.std(0).max())
            row["density"] = float(info["density"].mean()) if "density" in info else 1.0
            chosen = info["pattern"].flatten().tolist() if "pattern" in info else []
            row["patterns"] = " ".join(
                f"{choice}:{chosen.count(i)}" for i, choice in enumerate(CHOICES) if i in chosen
            )
            if "blocks" in info:
                of_first = [CHOICES[i] for i in info["pattern"][0].tolist()]
                pictures[name] = list(zip(of_first, info["blocks"][0].cpu(), strict=True))
            yield row
    if arguments.picture:
        arguments.picture.write_text(blocks_svg(pictures), encoding="utf-8")


def tasks(arguments: argparse.Namespace) -> Iterator[Row]:
    """Dense, working and published layers learn a needle and nested lists on the same batches."""
    for name in arguments.tasks:
        for n in arguments.lengths or [None]:
            for seed in arguments.seeds:
                yield from learn(
                    name,
                    n,
                    arguments.steps,
                    arguments.device,
                    arguments.examined,
                    arguments.tell,
                    arguments.layers,
                    seed,
                )


def precision(arguments: argparse.Namespace) -> Iterator[Row]:
    """Which type trains fastest: a threshold is measured at batch 4, then tried on a grid.

    chosen: 16 bits from the first length on at which they saved 5 % there, and at all longer ones.
    right: no type was more than 5 % faster.
    """
    lengths = arguments.lengths or [128, 256, 512, 1024]
    narrow = precisions(arguments.device)[1]

    def ms(batch: int, n: int) -> dict[str, float]:
        arguments.tell(f"batch {batch}, {n} tokens")
        kinds = ("fp32", narrow)
        jobs = [Job("flash", batch, n, arguments.device, True, kind) for kind in kinds]
        return dict(zip(kinds, _ms_in_turn(jobs, arguments.runs), strict=True))

    threshold = None
    for n in sorted(lengths, reverse=True):
        at_batch_4 = ms(4, n)
        if at_batch_4[narrow] > 0.95 * at_batch_4["fp32"]:
            break
        threshold = n
    for n in lengths:
        for batch in (1, 2, 8):
            both = ms(batch, n)
            chosen = narrow if threshold is not None and n >= threshold else "fp32"
            yield {
                "seq": n,
                "batch": batch,
                "fp32_ms": both["fp32"],
                f"{narrow}_ms": both[narrow],
                "threshold": threshold or "none",
                "chosen": chosen,
                "right": "yes" if both[chosen] <= 1.05 * min(both.values()) else "no",
            }


def fusion(arguments: argparse.Namespace) -> Iterator[Row]:
    """What fusing saves at short lengths: inference at batch 2, a training step at batch 4.

    ms of torch eager, torch.compile and the layers without Python (`tilewise layer bench`, where
    the program is found: TILEWISE_CLI or PATH), whose CUDA graph has a column on a GPU.
    """
    on_gpu = torch.device(arguments.device).type == "cuda"
    for n in arguments.lengths or [128, 256, 512]:
        for training, batch in ((False, 2), (True, 4)):
            row: Row = {"seq": n, "pass": "training" if training else "inference"}
            for compiled in (False, True):
                name = "compiled" if compiled else "eager"
                arguments.tell(f"{n} tokens, {row['pass']}, {name}")
                job = Job("flash", batch, n, arguments.device, training, compiled=compiled)
                step = job.step()
                row[f"{name}_ms"] = timed(step, arguments.device, 5, arguments.runs).median_ms
            for graph in (False, True) if on_gpu else (False,):
                arguments.tell(f"{n} tokens, {row['pass']}, layer bench")
                name = "layer_bench_graph_ms" if graph else "layer_bench_ms"
                row[name] = layer_bench_ms(arguments, n, batch, training, graph)
            row["compiled_gain"] = row["eager_ms"] / row["compiled_ms"]
            yield row


def layer_bench_ms(
    arguments: argparse.Namespace, n: int, batch: int, training: bool, graph: bool
) -> float | None:
    """The median of `tilewise layer bench`; None where there is no such program."""
    program = os.environ.get("TILEWISE_CLI") or shutil.which("tilewise")
    if program is None:
        return None
    device = torch.device(arguments.device)
    place = f"cuda:{device.index or 0}" if device.type == "cuda" else "cpu"
    words = ["--layer", "flash", "--seq", n, "--batch", batch, "--device", place]
    words += ["--pass", "train" if training else "infer", "--repeat", arguments.runs]
    words += ["--warmup", 5, "--compute", "f32", "--format", "json", *["--graph"] * graph]
    done = subprocess.run(
        [program, "layer", "bench", *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"tilewise layer bench failed: {done.stderr[-500:]}")
    ms: float = json.loads(done.stdout)["rows"][0]["ms_median"]
    return ms


SCENARIOS: dict[
    str, tuple[int, int, bool, bool | str]
] = {  # what seed 003 recommends for each (its 5.1): batch, length, training, checkpointing
    "real-time": (1, 128, False, False),
    "document": (4, 1024, False, False),
    "long": (1, 2048, True, False),
    "long, checkpointing": (1, 2048, True, True),
    "long, checkpointing of F": (1, 2048, True, "ffn"),
    "large batch": (16, 256, True, False),
}


def scenarios(arguments: argparse.Namespace) -> Iterator[Row]:
    """The working layers in the four situations that seed 003 has advice for.

    saved_percent, slower_percent: of checkpointing, beside the same step without, run in turn.
    """
    plain: Row = {}
    for name, (batch, n, training, checkpointing) in SCENARIOS.items():
        arguments.tell(name)
        job = Job("working", batch, n, arguments.device, training, checkpointing=checkpointing)
        jobs = [job, replace(job, checkpointing=False)][: 1 + bool(checkpointing)]
        steps = [one.step() for one in jobs]
        ms, *without = (
            one.median_ms for one in timed_in_turn(steps, arguments.device, 3, arguments.runs)
        )
        row: Row = {"scenario": name, "batch": batch, "seq": n}
        row |= {"pass": "training" if training else "inference", "ms": ms}
        row |= {"tokens_per_s": 1e3 * batch * n / ms, "mib": mib(peak_bytes(job))}
        row |= {"saved_percent": "-", "slower_percent": "-"}
        if checkpointing and row["mib"] and plain["mib"]:
            row["saved_percent"] = 100 * (1 - row["mib"] / plain["mib"])
            row["slower_percent"] = 100 * (ms / without[0] - 1)
        plain = plain if checkpointing else row
        yield row


def batches(arguments: argparse.Namespace) -> Iterator[Row]:
    """Training throughput of Flash over the batch, in 32 and in 16 bits, and what memory it takes.

    best: the batch of the most sequences a second. Batches double until one does not fit
    --mem-limit.
    """
    narrow = precisions(arguments.device)[1]
    for n in arguments.lengths or [512]:
        for kind in ("fp32", narrow):
            rows: list[Row] = []
            batch = 1
            while batch <= arguments.most:
                arguments.tell(f"{n} tokens, {kind}, batch {batch}")
                job = Job("flash", batch, n, arguments.device, True, kind)
                peak = peak_bytes(job, arguments.mem_limit)
                if peak is None:
                    break
                ms = timed(job.step(), arguments.device, 2, arguments.runs).median_ms
                rows.append({"seq": n, "precision": kind, "batch": batch, "ms": ms})
                rows[-1] |= {"sequences_per_s": 1e3 * batch / ms, "mib": mib(peak)}
                batch *= 2
            most = max((row["sequences_per_s"] for row in rows), default=0.0)
            for row in rows:
                yield row | {"best": "yes" if row["sequences_per_s"] == most else ""}


TABLES = {
    "forward": forward,
    "training": training,
    "memory": memory,
    "behaviour": behaviour,
    "tasks": tasks,
    "precision": precision,
    "fusion": fusion,
    "scenarios": scenarios,
    "batches": batches,
}


def mib(size: int | None) -> float | None:
    return None if size is None else size / MIB


def size_in_bytes(text: str) -> int:
    """12GiB, 512MiB or a plain number of bytes."""
    for unit, factor in (("GiB", 2**30), ("MiB", MIB), ("", 1)):
        if text.endswith(unit) and text[: len(text) - len(unit)].isdigit():
            return int(text[: len(text) - len(unit)]) * factor
    raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 12GiB or 512MiB")


def environment(device: str) -> dict[str, Any]:
    at: dict[str, Any] = {
        "library_version": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "threads": torch.get_num_threads(),
        "device": device,
    }
    if torch.device(device).type == "cuda":
        at |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    else:
        at["cpu"] = _cpu_name()
    return at


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def seed_keys(table: str, rows: list[Row]) -> dict[str, Any]:
    """The rows under the keys of seed 003's appendix."""
    if table == "forward":
        return {
            f"forward_{r['seq']}": {
                "original": r["original_ms"],
                "flash": r["flash_ms"],
                "speedup": r["speedup"],
            }
            for r in rows
        }
    if table == "training":
        return {
            f"training_{r['seq']}_{narrow}": {
                "fp32": r["fp32_ms"],
                narrow: r[f"{narrow}_ms"],
                "speedup": r[f"{narrow}_speedup"],
            }
            for r in rows
            for narrow in ("fp16", "bf16")
            if f"{narrow}_ms" in r
        }
    return {}


def render(table: str, rows: list[Row], at: dict[str, Any], form: str) -> str:
    if form == "json":
        document = {"table": f"asam-{table}", "environment": at, "rows": rows}
        return json.dumps(document | seed_keys(table, rows), indent=1) + "\n"
    if form == "csv":
        out = io.StringIO()
        writer = csv.DictWriter(out, rows[0].keys() if rows else [])
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()
    where = at.get("gpu", at.get("cpu", ""))
    head = f"asam-{table}: {where}, torch {at['torch']}, tilewise {at['library_version']}\n\n"
    return head + markdown(rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tilewise.asam", description=__doc__)
    parser.add_argument("table", choices=TABLES, help="what to measure")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--lengths", type=int, nargs="+", metavar="S", help="tokens a sequence")
    parser.add_argument("--runs", type=int, default=20, help="timed runs a cell (default: 20)")
    parser.add_argument(
        "--mem-limit", type=size_in_bytes, default=12 * 2**30, help="memory: budget, as 12GiB"
    )
    parser.add_argument(
        "--longest", type=int, default=262144, help="memory: no sequence beyond (default: 262144)"
    )
    parser.add_argument(
        "--steps", type=int, help="tasks: steps of the first stage (the task's own)"
    )
    parser.add_argument(
        "--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="tasks: which (all)"
    )
    parser.add_argument(
        "--layers", nargs="+", choices=TASK_KINDS, default=TASK_KINDS, help="tasks: which (all)"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="tasks: of weights and batches (0)"
    )
    parser.add_argument(
        "--examined", type=int, default=512, help="tasks: sequences of the examination (512)"
    )
    parser.add_argument("--most", type=int, default=256, help="batches: no batch beyond (256)")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE.svg", help="behaviour: the heads' blocks as a picture"
    )
    parser.add_argument("--format", choices=("md", "csv", "json"), default="md")
    parser.add_argument("-o", "--output", type=Path, help="a file instead of the terminal")
    arguments = parser.parse_args()

    rows: list[Row] = []
    stopped = False

    def tell(what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{arguments.table}: {len(rows)} rows; {what}", end="", file=sys.stderr)

    arguments.tell = tell
    # What a time limit sends ends a table as Ctrl-C does.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for row in TABLES[arguments.table](arguments):
            rows.append(row)
            tell("")
    except KeyboardInterrupt:  # what was measured is kept
        stopped = True
    finally:
        signal.signal(signal.SIGTERM, before)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    text = render(arguments.table, rows, environment(arguments.device), arguments.format)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 130 if stopped else 0


if __name__ == "__main__":
    sys.exit(main())
