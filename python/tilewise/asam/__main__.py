"""python -m tilewise.asam TABLE: seed 003's tables, measured here (docs/asam.md)."""

import argparse
import csv
import io
import json
import platform
import sys
from collections.abc import Iterator
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
    make_layer,
    peak_bytes,
    timed,
)
from ._tasks import needle
from ._text import markdown

Row = dict[str, Any]
PRECISIONS = ("fp32", "fp16", "bf16")


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
    """A training step of Flash in three precisions, batch 4, Adam: seed 003's table 2.1.

    The losses are those of 20 steps from the same weights on the same batch.
    """
    for n in arguments.lengths or [128, 256, 512, 1024]:
        row: Row = {"seq": n}
        curves = {}
        for precision in PRECISIONS:
            job = Job("flash", 4, n, arguments.device, True, precision)
            row[f"{precision}_ms"] = timed(job.step(), arguments.device, 3, arguments.runs).mean_ms
            row[f"{precision}_mib"] = mib(peak_bytes(job))
            step = job.step()
            curves[precision] = torch.stack([step().float() for _ in range(20)]).cpu()
        for precision in PRECISIONS[1:]:
            row[f"{precision}_speedup"] = row["fp32_ms"] / row[f"{precision}_ms"]
            off = (curves[precision] - curves["fp32"]).abs() / curves["fp32"].abs()
            row[f"{precision}_loss_off_percent"] = 100 * float(off.max())
        yield row


def memory(arguments: argparse.Namespace) -> Iterator[Row]:
    """Peak memory at 2048 tokens and the longest sequence under a budget: seed 003's 3.2.

    Training steps with batch 4; lengths are multiples of 256, found by bisection.
    """
    limit = arguments.mem_limit
    runs = [(kind, "fp32") for kind in KINDS] + [("flash", "fp16"), ("working", "fp16")]
    for kind, precision in runs:

        def job(n: int, kind: str = kind, precision: str = precision) -> Job:
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
    """The gate on seed 003's three kinds of input, of the published and the working layer.

    gate: mean over heads and sequences; spread: the standard deviation over the kinds, in the
    head where it is largest; density: share of the blocks that the heads' patterns list.
    """
    for kind in ("original", "working"):
        torch.manual_seed(0)
        layer = make_layer(kind).to(arguments.device).eval()
        infos = {}
        for name, x in inputs_of_three_kinds(arguments.device).items():
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
            yield row


def tasks(arguments: argparse.Namespace) -> Iterator[Row]:
    """The needle, copied by dense, working and published layers trained on the same batches."""
    for n in arguments.lengths or [512]:
        yield from needle(n, arguments.steps, arguments.device)


TABLES = {
    "forward": forward,
    "training": training,
    "memory": memory,
    "behaviour": behaviour,
    "tasks": tasks,
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
            f"training_{r['seq']}_fp16": {
                "fp32": r["fp32_ms"],
                "fp16": r["fp16_ms"],
                "speedup": r["fp16_speedup"],
            }
            for r in rows
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
    parser.add_argument("--steps", type=int, default=400, help="tasks: training steps (400)")
    parser.add_argument("--format", choices=("md", "csv", "json"), default="md")
    parser.add_argument("-o", "--output", type=Path, help="a file instead of the terminal")
    arguments = parser.parse_args()

    rows: list[Row] = []
    stopped = False
    try:
        for row in TABLES[arguments.table](arguments):
            rows.append(row)
            if sys.stderr.isatty():
                print(f"{arguments.table}: {len(rows)} rows", end="\r", file=sys.stderr)
    except KeyboardInterrupt:  # what was measured is kept
        stopped = True
    text = render(arguments.table, rows, environment(arguments.device), arguments.format)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 130 if stopped else 0


if __name__ == "__main__":
    sys.exit(main())
