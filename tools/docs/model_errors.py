"""Two tables of docs/planner.md, from the committed results: the time model's errors, and the
files with problems that today's plan runs in other memory.

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
RESULTS = ROOT / "bench" / "results"
SAME_MEMORY = 0.01  # a part of the peak


def compared(tilewise: Path, result: Path) -> list[dict[str, Any]]:
    command = [str(tilewise), "plan", "--against", str(result), "--format", "json"]
    environment = {**os.environ, "TILEWISE_CASES_DIR": str(ROOT / "cases")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return list(json.loads(done.stdout)) if done.returncode == 0 else []


def errors_table(rows_of: dict[Path, list[dict[str, Any]]]) -> list[str]:
    """A line for each folder of results and kernel."""
    lines = [
        "| results | kernel | rows | median error | 90th percentile | worst |",
        "|---|---|---:|---:|---:|---:|",
    ]
    found: dict[tuple[str, str], list[float]] = {}
    for path, rows in rows_of.items():
        # cpu/amd-epyc.json and the files of cpu/amd-epyc are one machine's.
        inside = path.with_suffix("") if path.with_suffix("").is_dir() else path.parent
        machine = str(inside.relative_to(RESULTS))
        for row in rows:
            found.setdefault((machine, row["kernel"]), []).append(abs(row["error_percent"]))
    for (machine, kernel), errors in sorted(found.items()):
        errors.sort()
        high = errors[round(0.9 * (len(errors) - 1))]
        lines.append(
            f"| {machine} | {kernel} | {len(errors)} | {statistics.median(errors):.1f} % | "
            f"{high:.1f} % | {errors[-1]:.1f} % |"
        )
    return lines


def memory_table(rows_of: dict[Path, list[dict[str, Any]]]) -> list[str]:
    """A line for each file with rows whose measured peak is not the planned one."""
    lines = [
        "| file | rows | in other memory | measured, MiB | today, MiB |",
        "|---|---:|---:|---:|---:|",
    ]
    for path, rows in rows_of.items():
        peaks = [(row["peak_MiB"], row["planned_peak_MiB"]) for row in rows]
        known = [(then, now) for then, now in peaks if then and now]
        other = [(then, now) for then, now in known if abs(then / now - 1) > SAME_MEMORY]
        if not other:
            continue
        then, now = max(other, key=lambda peak: max(peak) / min(peak))
        name = path.relative_to(RESULTS)
        lines.append(f"| {name} | {len(known)} | {len(other)} | {then:.2f} | {now:.2f} |")
    return lines


def filled(text: str, name: str, lines: list[str]) -> str:
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    head, rest = text.split(begin, 1)
    return "\n".join([head + begin, *lines, end + rest.split(end, 1)[1]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the table is stale")
    parser.add_argument("--tilewise", type=Path, default=ROOT / "build" / "release" / "tilewise")
    options = parser.parse_args()
    text = PAGE.read_text()
    paths = sorted(RESULTS.rglob("*.json"))
    rows_of = {path: compared(options.tilewise, path) for path in paths}
    made = filled(text, "errors", errors_table(rows_of))
    made = filled(made, "memory", memory_table(rows_of))
    if made == text:
        return
    if options.check:
        sys.exit("docs/planner.md: a table is stale, run ./tw docs")
    PAGE.write_text(made)
    print("docs: wrote docs/planner.md")


if __name__ == "__main__":
    main()
