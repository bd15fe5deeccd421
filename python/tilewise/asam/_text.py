"""Rows as a Markdown table."""

from typing import Any


def markdown(rows: list[dict[str, Any]]) -> str:
    """A table whose columns are the rows' keys; numbers stand right."""
    if not rows:
        return "(no rows)\n"
    names = list(rows[0])
    cells = [names] + [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(line[c]) for line in cells) for c in range(len(names))]
    rule = "|" + "|".join("-" * (w + 1) + ":" for w in widths) + "|"
    lines = [
        "| " + " | ".join(x.rjust(w) for x, w in zip(line, widths, strict=True)) + " |"
        for line in cells
    ]
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "OOM"
    if isinstance(value, float):
        return f"{value:.2f}" if value < 1000 else f"{value:.0f}"
    return str(value)
