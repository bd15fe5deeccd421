"""DRAM traffic of a pass as the hardware counts it, beside the bytes that the plan counts.

    python3 -m bench.peers.traffic --tilewise build/release/tilewise -o traffic.json

Needs a device, and Nsight Compute's `ncu` with the right to read counters; no torch. Every cell
runs twice under ncu, `tilewise bench --repeat 1` and `--repeat 2`: what the second has more is one
call. Between calls the bench flushes L2, and ncu leaves it alone (--cache-control none), so that a
pass of several kernels finds in L2 what its own kernels left there. Above the L2's size measured
bytes over counted ones should be near 1; the exponent of a doubled length is 2 where S x S matrices
go through memory and 1 where they do not.
"""

import argparse
import csv
import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

METRICS = {
    "read": "dram__bytes_read.sum",
    "written": "dram__bytes_write.sum",
}
# The most telling first: a run may be cut short.
CELLS = [
    (seq, implementation, which)
    for which in ("fwd", "bwd")
    for seq in (8192, 4096, 1024, 2048)
    for implementation in ("eager", "flash", "fused")
]


Traffic = tuple[dict[str, float], list[str]]


def _problem(arguments: argparse.Namespace, seq: int, implementation: str, which: str) -> list[str]:
    sizes = {"batch": 1, "heads": arguments.heads, "dim": arguments.dim, "seq": seq}
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    return [*words, "--dtype", arguments.dtype, "--impl", implementation, "--pass", which]


def dram_bytes(report: str) -> Traffic:
    """Bytes over all kernels of an ncu report (--csv --print-units base), and their names."""
    start = report.index('"ID"')
    total = dict.fromkeys(METRICS, 0.0)
    kernels: dict[str, str] = {}
    for row in csv.DictReader(report[start:].splitlines()):
        for name, metric in METRICS.items():
            if row["Metric Name"] == metric:
                total[name] += float(row["Metric Value"].replace(",", ""))
        kernels[row["ID"]] = row["Kernel Name"]
    return total, list(kernels.values())


def _profiled(arguments: argparse.Namespace, problem: list[str], repeat: int) -> Traffic:
    command = [
        *(arguments.ncu, "--csv", "--print-units", "base", "--cache-control", "none"),
        *("--metrics", ",".join(METRICS.values())),
        *(arguments.tilewise, "bench", *problem, "--device", arguments.device),
        *("--warmup", "1", "--repeat", str(repeat)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0 or '"ID"' not in done.stdout:
        raise RuntimeError((done.stdout + done.stderr)[-1500:])
    return dram_bytes(done.stdout)


def _counted(arguments: argparse.Namespace, problem: list[str]) -> float:
    command = [arguments.tilewise, "plan", *problem, "--device", arguments.device]
    done = subprocess.run(
        [*command, "--format", "json"], capture_output=True, text=True, check=True
    )
    return float(json.loads(done.stdout)[0]["GB_moved"]) * 1e9


def _measure(arguments: argparse.Namespace, cell: tuple[int, str, str]) -> dict[str, Any]:
    seq, implementation, which = cell
    problem = _problem(arguments, seq, implementation, which)
    once, before = _profiled(arguments, problem, 1)
    twice, after = _profiled(arguments, problem, 2)
    counted = _counted(arguments, problem)
    measured = {name: twice[name] - once[name] for name in METRICS}
    total = sum(measured.values())
    return {
        "implementation": implementation,
        "pass": which,
        "seq": seq,
        "read_bytes": measured["read"],
        "written_bytes": measured["written"],
        "counted_bytes": counted,
        "measured_over_counted": total / counted,
        "kernels": len(after) - len(before),
        "names": sorted(set(after)),
    }


def exponents(rows: list[dict[str, Any]]) -> dict[str, float]:
    """log2 of the bytes' growth from one length to its double, by implementation and pass."""
    found = {(r["implementation"], r["pass"], r["seq"]): r for r in rows}
    grown = {}
    for (implementation, which, seq), row in sorted(found.items()):
        twice = found.get((implementation, which, 2 * seq))
        if twice is not None:
            factor = (twice["read_bytes"] + twice["written_bytes"]) / (
                row["read_bytes"] + row["written_bytes"]
            )
            grown[f"{implementation} {which} {seq} to {2 * seq}"] = math.log2(factor)
    return grown


def main() -> int:
    """Measures, prints a line a cell, writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tilewise", default="build/release/tilewise", help="the command line")
    parser.add_argument("--ncu", default=shutil.which("ncu") or "ncu")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no cell after them")
    parser.add_argument("-o", "--output", type=Path, help="a JSON file")
    arguments = parser.parse_args()
    begin, failed = time.monotonic(), 0
    rows: list[dict[str, Any]] = []
    print("implementation pass seq read_MB written_MB counted_MB measured/counted kernels")
    for cell in CELLS:
        if time.monotonic() - begin > arguments.seconds:
            print("no time for the other cells")
            break
        try:
            row = _measure(arguments, cell)
        except (RuntimeError, subprocess.SubprocessError) as error:
            failed += 1
            print(f"{cell}: {error}", flush=True)
            continue
        rows.append(row)
        megabytes = (row[name] / 1e6 for name in ("read_bytes", "written_bytes", "counted_bytes"))
        numbers = " ".join(f"{x:.1f}" for x in megabytes)
        ratio = row["measured_over_counted"]
        names = f"{row['implementation']} {row['pass']} {row['seq']}"
        print(f"{names} {numbers} {ratio:.3f} {row['kernels']}", flush=True)
    grown = exponents(rows)
    for name, exponent in grown.items():
        print(f"{name}: exponent {exponent:.2f}")
    if arguments.output is not None:
        text = json.dumps({"rows": rows, "exponents": grown}, indent=1)
        arguments.output.write_text(text + "\n", encoding="utf-8")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
