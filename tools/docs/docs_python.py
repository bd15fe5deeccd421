"""The measured tables of docs/python.md: the example's training runs, and what a call costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Report = dict[str, Any]


def _reports(results: Path, pattern: str) -> list[Report]:
    """GPUs' first: they are what most readers come for."""
    found = [json.loads(path.read_text()) for path in sorted(results.rglob(pattern))]
    return sorted(found, key=lambda report: "CPU" in report["device"].upper())


def training(results: Path) -> list[str]:
    """Every run of examples/train_gpt.py, eager attention beside Tilewise."""
    columns = ("on", "batch x bytes, steps", "attention", "type")
    columns += ("first loss", "last loss", "tokens/s", "peak MiB")
    lines = [f"| {' | '.join(columns)} |", "|---|---|---|---|---:|---:|---:|---:|"]
    reports = _reports(results, "train-gpt*.json")
    for report in sorted(reports, key=lambda r: ("CPU" in r["device"], r["length"])):
        size = f"{report['batch']} x {report['length']}, {report['steps']}"
        first = [report["device"], size]
        for run in report["runs"]:
            peak = "-" if run["peak_mib"] is None else f"{run['peak_mib']:.0f}"
            cells = [*first, run["implementation"], run["dtype"]]
            cells += [f"{run['losses'][i]:.4f}" for i in (0, -1)]
            cells += [f"{run['tokens_per_second']:.0f}", peak]
            lines.append(f"| {' | '.join(cells)} |")
            first = ["", ""]
    worst = 100 * max(value for r in reports for value in r["largest_difference"].values())
    return [*lines, "", f"The loss curves of a pair differ by at most {worst:.2f} % at any step."]


def host_time(results: Path) -> list[str]:
    """bench/python/host_time.py's runs."""
    lines = ["| on | call | torch, us | tilewise, us | goal, us |", "|---|---|---:|---:|---:|"]
    for report in _reports(results, "python-host.json"):
        device = report["device"].replace("cpu", "CPU")
        for name, row in report["calls"].items():
            values = " | ".join(f"{row[key]:.1f}" for key in ("torch_us", "tilewise_us", "goal_us"))
            lines.append(f"| {device} | {name} | {values} |")
            device = ""
    return lines
