"""Seed 003's tables in docs/asam.md, from the files that `python -m tilewise.asam` wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TITLES = {
    "forward": "Inference, batch 2, milliseconds",
    "training": "A training step of Flash, batch 4",
    "memory": "Memory of a training step, batch 4",
    "behaviour": "What the gate and the patterns do with six kinds of input",
    "tasks": "Accuracy of trained layers, and what they ran",
    "precision": "Which type trains faster: the threshold of batch 4 tried on a grid",
    "fusion": "Short lengths: eager, compiled, and without Python, milliseconds",
    "scenarios": "Seed 003's situations",
    "batches": "Training throughput over the batch",
}


def cell(value: object) -> str:
    if value is None:
        return "OOM"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def tables(results: Path) -> list[str]:
    """A table for each file asam-*-torch.json."""
    lines: list[str] = []
    for path in sorted(results.rglob("asam-*-torch.json")):
        document = json.loads(path.read_text())
        name = document["table"].removeprefix("asam-")
        at, rows = document["environment"], document["rows"]
        if not rows:
            continue
        machine = at.get("gpu", at.get("cpu", ""))
        lines += [
            "",
            f"**{TITLES[name]}** (`{name}`; {machine}, {threads(at['threads'])}, torch "
            f"{at['torch'].partition('+')[0]}, {at['date'][:10]}{told(at)}):",
            "",
            "| " + " | ".join(key.replace("_", " ") for key in rows[0]) + " |",
            "|" + "|".join("---:" if is_number(rows, key) else "---" for key in rows[0]) + "|",
        ]
        lines += ["| " + " | ".join(cell(row[key]) for key in rows[0]) + " |" for row in rows]
    return lines[1:]


def threads(count: int) -> str:
    return f"{count} thread{'s' if count != 1 else ''}"


def told(environment: dict[str, Any]) -> str:
    note = environment.get("note")
    return f"; {note}" if note else ""


def is_number(rows: list[dict[str, Any]], key: str) -> bool:
    return any(isinstance(row[key], int | float) for row in rows)
