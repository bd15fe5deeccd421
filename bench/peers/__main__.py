"""Peers and ours on one GPU, in one process.

    python3 -m bench.peers measure --preset grid --peers cudnn,fa2,fa3 -o grid.json
    python3 -m bench.peers summary grid.json
    python3 -m bench.peers select grid.json --ours sm90 -o grid-sm90.json

Every output is compared with a float64 reference before timing. If the comparison fails, the cell
is not timed and the exit code is 1. Several commands with --then between them run in one process.
Run from the repository's root, or put the root into PYTHONPATH.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

from . import summary
from .problem import grid_flags

STARTED = time.monotonic()  # before torch is imported and kernels are compiled
ROOT = Path(__file__).resolve().parents[2]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="bench.peers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = made.add_subparsers(dest="command", required=True)
    measure = commands.add_parser("measure", help="time a preset of cases/presets")
    measure.add_argument("--preset", required=True)
    measure.add_argument("--cases", type=Path, default=ROOT / "cases")
    measure.add_argument(
        "--build",
        type=Path,
        default=ROOT / "build/release",
        help="folder of libtilewise.so and tilewise",
    )
    measure.add_argument(
        "--fa3", type=Path, help="library of FlashAttention-3's operators (see fa3.py)"
    )
    measure.add_argument(
        "--peers", default="", help="cudnn,fa2,fa3,memeff,math,flex,torch-eager,..."
    )
    measure.add_argument(
        "--kernel",
        action="append",
        default=[],
        metavar="[DTYPE:]FWD+BWD|plan",
        help="kernels to force for flash, optionally in cells of one type. plan: the planner's\n"
        "choice. Repeatable: each is a contender. Kernels that plan chooses are timed once",
    )
    measure.add_argument(
        "--compile-jobs", type=int, default=0, help="processes that compile the kernels beforehand"
    )
    measure.add_argument("--rounds", type=int, default=4)
    measure.add_argument("--protocol", default="burst", help="burst,sustained,board,seed")
    measure.add_argument("--mem-limit", type=float, default=0, metavar="GIB")
    measure.add_argument(
        "--total-s",
        type=float,
        default=0,
        help="time limit for the run, from the process's start to the written result; of a\n"
        "command behind --then from the end of the one before",
    )
    measure.add_argument("-o", "--output", type=Path, required=True)
    grid_flags(measure, preset_line=False)
    show = commands.add_parser("summary", help="ratio tables of result files")
    show.add_argument("files", type=Path, nargs="+")
    show.add_argument("--ours", default="flash", help="part of our kernel's name, or 'the plan'")
    show.add_argument("--against", default="", help="one peer [the best of each cell]")
    pick = commands.add_parser("select", help="join result files and select our kernels")
    pick.add_argument(
        "files", type=Path, nargs="+", help="the environment of the first file is kept"
    )
    pick.add_argument(
        "--ours", required=True, help="parts of implementation or kernel names to keep; peers stay"
    )
    pick.add_argument("-o", "--output", type=Path, required=True)
    return made


def run_summary(args: argparse.Namespace) -> int:
    from .results import read

    for path in args.files:
        rows = read(path)["rows"]
        print(f"== {path}")
        print("\n".join(summary.table(rows, args.ours, args.against)))
        print("\n".join(summary.choices(rows) + summary.failures(rows)))
    return 0


def run_select(args: argparse.Namespace) -> int:
    from .results import read, write

    wholes = [read(path) for path in args.files]
    rows = [
        row
        for whole in wholes
        for row in whole["rows"]
        if row["implementation"] not in summary.OURS
        or any(part in summary.label(row) for part in args.ours.split(","))
    ]
    write(args.output, wholes[0]["environment"], rows)
    return 0


def main() -> int:
    words = itertools.groupby(sys.argv[1:], key=lambda word: word != "--then")
    calls = [parser().parse_args(list(group)) for is_call, group in words if is_call]
    if not calls:
        parser().print_help()
        return 2
    measuring = [args for args in calls if args.command == "measure"]
    if measuring:
        from .measure_command import compile_for, run_measure

        compile_for(measuring)
    codes = []
    begun = STARTED
    for args in calls:
        if args.command == "measure":
            codes.append(run_measure(args, begun))
            begun = time.monotonic()
        else:
            codes.append({"summary": run_summary, "select": run_select}[args.command](args))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
