"""The tables of docs/python.md from results: training runs, a call's cost, peers' own suites."""

from __future__ import annotations

import json
import re
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


TITLES = {
    "flash-attention": "FlashAttention, `tests/test_flash_attn.py`",
    "torch-samples": "PyTorch, sample inputs of `scaled_dot_product_attention`",
    "torch-sdpa": "PyTorch, `test_transformers.py` as torch-xpu-ops has it",
    "transformers": "transformers, its tests of every model, on twelve small ones",
    "xformers": "xformers, `tests/test_mem_eff_attention.py`",
    "attention-gym": "attention-gym, masks and score functions",
}
DROP_INS = ("flash-attention", "torch-samples", "torch-sdpa", "transformers", "xformers")


def _state(suite: Report) -> str:
    """What was run: the tag, or the commit."""
    ref: str = suite.get("ref", "of that torch")
    return ref[:12] if re.fullmatch("[0-9a-f]{40}", ref) else ref


def suites(results: Path, names: tuple[str, ...]) -> list[str]:
    """./tw peers-suites: counts by suite, and why tests were left out or failed."""
    columns = ("on", "suite", "state", "cases there", "run", "outside the contract", "pass", "fail")
    lines = [f"| {' | '.join(columns)} |", "|---|---|---|---:|---:|---:|---:|---:|"]
    notes = []
    for report in _reports(results, "peers-suites.json"):
        on = f"{report['device']}, torch {report['torch'].partition('+')[0]}"
        for name in names:
            suite = report["suites"].get(name)
            if suite is None:
                continue
            failed = sum(suite["failed"].values())
            counts = (suite["combinations"], suite["passed"] + failed)
            counts += (sum(suite["outside"].values()), suite["passed"], failed)
            cells = [on, TITLES[name], _state(suite), *(f"{n:,}" for n in counts)]
            lines.append(f"| {' | '.join(cells)} |")
            on = ""
            for what, reasons in (
                ("outside the contract", suite["outside"]),
                ("fail", suite["failed"]),
            ):
                said = "; ".join(f"{count}: {why}" for why, count in reasons.items())
                notes += [f"- {report['device']}, {TITLES[name]}, {what}. {said}."] if said else []
    return [*lines, "", *notes] if notes else lines
