"""What the build folder of a script test was configured with."""

import os
from pathlib import Path


def cached(name: str) -> str:
    """A variable of the CMakeCache.txt of TILEWISE_BUILD_DIR; empty where there is none."""
    file = Path(os.environ.get("TILEWISE_BUILD_DIR", "")) / "CMakeCache.txt"
    for line in file.read_text().splitlines() if file.exists() else []:
        if line.startswith(name + ":"):
            return line.partition("=")[2]
    return ""
