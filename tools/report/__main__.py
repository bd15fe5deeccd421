"""Writes the report: `./tw report [FILE...] [-o OUT]`; without files, all of bench/results."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from .claims import evidence
from .data import ROOT, Measured, Planner, load, load_ceilings, load_tables, machines
from .judge import judge_all
from .page import render
from .plots import accuracy, older_peaks, plan_of, roofline, sections


def main() -> int:
    parser = argparse.ArgumentParser(prog="./tw report", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="result files of `tilewise bench`")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build" / "report.html")
    parser.add_argument("--tilewise", type=Path, default=ROOT / "build" / "release" / "tilewise")
    parser.add_argument(
        "--look",
        type=Path,
        metavar="FOLDER",
        help="look at it in headless Chromium; screenshots in FOLDER",
    )
    options = parser.parse_args()
    paths = options.files or sorted((ROOT / "bench" / "results").rglob("*.json"))
    # A GPU's results first, the machine with most rows before others: what most readers come for.
    results = load(paths)
    of_machine = Counter(result.machine for result in results for _ in result.rows)
    # What the plan would run on Hopper, sm_90, stands before what it beats.
    results.sort(
        key=lambda r: (not r.on_gpu, -of_machine[r.machine], r.name.endswith("-sm80.json"), r.name)
    )
    if not results:
        print("report: no result file has rows of `tilewise bench`", file=sys.stderr)
        return 2
    planner, measured = Planner(options.tilewise), Measured(results, load_ceilings(paths))
    claims = judge_all(evidence(planner, measured, load_tables(paths)))
    drawn = sections(results)
    roofs = [roofline(machine, machines(), results) for machine in measured.machines]
    compared = plan_of(planner, results)
    rows = [row for of_file in compared.values() for row in of_file]
    page = render(
        results,
        claims,
        drawn,
        [roof for roof in roofs if roof],
        accuracy(rows) if rows else None,
        older_peaks(compared),
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(page)
    print(f"report: {options.output}, {len(results)} files, {len(claims)} claims")
    return look(options.output, options.look) if options.look else 0


def look(page: Path, folder: Path) -> int:
    """Prints what is wrong with the page as a browser shows it."""
    from . import browser  # its packages are needed for nothing else

    if missing := browser.missing_programs():
        print(f"report: not installed: {', '.join(missing)}", file=sys.stderr)
        return 2
    problems = browser.look(page, folder)
    for problem in problems:
        print(f"report: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("report: interrupted", file=sys.stderr)
        sys.exit(130)
