"""Where the tests of ./tw report find it, in a Python that has its packages. Skips without them."""

import os
import sys
from pathlib import Path

SOURCE = Path(os.environ.get("TILEWISE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("TILEWISE_BUILD_DIR", SOURCE / "build" / "release"))
CLI = os.environ.get("TILEWISE_CLI", "")
PYTHON = SOURCE / ".venv" / "bin" / "python"
SKIPPED = 77

if not CLI or not (SOURCE / ".venv" / "installed-report.txt").exists():
    print("no command line, or the packages of tools/requirements/report.txt are not in .venv")
    sys.exit(SKIPPED)
if Path(sys.prefix) != SOURCE / ".venv":
    os.execv(PYTHON, [str(PYTHON), *sys.argv])

sys.path.insert(0, str(SOURCE / "tools"))

COMMITTED = sorted((SOURCE / "bench" / "results").rglob("*.json"))
