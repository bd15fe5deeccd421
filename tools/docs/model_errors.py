"""The table of the time model's errors in docs/planner.md, from the committed results.

`./tw docs` runs it. `--check` writes nothing and fails when the table is stale.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "planner.md"
BEGIN, END = "<!-- begin: errors -->", "<!-- end: errors -->"


def compared(tilewise: Path, result: Path) -> list[dict[str, Any]]:
    command = [str(tilewise), "plan", "--against", str(result), "--format", "json"]
    environment = {**os.environ, "TILEWISE_CASES_DIR": str(ROOT / "cases")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return list(json.loads(done.stdout)) if done.returncode == 0 else []


def table(tilewise: Path) -> list[str]:
    """A line for each folder of results and kernel."""
    lines = [
        "| results | kernel | rows | median error | 90th percentile | worst |",
        "|---|---|---:|---:|---:|---:|",
    ]
    results = ROOT / "bench" / "results"
    found: dict[tuple[str, str], list[float]] = {}
    for path in sorted(results.rglob("*.json")):
        # cpu/amd-epyc.json and the files of cpu/amd-epyc are one machine's.
        inside = path.with_suffix("") if path.with_suffix("").is_dir() else path.parent
        machine = str(inside.relative_to(results))
        for row in compared(tilewise, path):
            found.setdefault((machine, row["kernel"]), []).append(abs(row["error_percent"]))
    for (machine, kernel), errors in sorted(found.items()):
        errors.sort()
        high = errors[round(0.9 * (len(errors) - 1))]
        lines.append(
            f"| {machine} | {kernel} | {len(errors)} | {statistics.median(errors):.1f} % | "
            f"{high:.1f} % | {errors[-1]:.1f} % |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the table is stale")
    parser.add_argument("--tilewise", type=Path, default=ROOT / "build" / "release" / "tilewise")
    options = parser.parse_args()
    text = PAGE.read_text()
    head, rest = text.split(BEGIN, 1)
    made = "\n".join([head + BEGIN, *table(options.tilewise), END + rest.split(END, 1)[1]])
    if made == text:
        return
    if options.check:
        sys.exit("docs/planner.md: the table of errors is stale, run ./tw docs")
    PAGE.write_text(made)
    print("docs: wrote docs/planner.md")


if __name__ == "__main__":
    main()
