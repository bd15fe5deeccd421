"""Result files: the schema of `tilewise bench --format json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write(path: Path, env: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Written whole or not at all."""
    part = path.with_suffix(path.suffix + ".part")
    body = ",\n".join(json.dumps(row) for row in rows)
    head = json.dumps({"schema_version": 1, "environment": env}, indent=1)[:-2]
    part.write_text(f'{head},\n "rows": [\n{body}\n]}}\n')
    part.replace(path)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())
