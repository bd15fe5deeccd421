"""The census: every packed kernel of every architecture, as the compiler described it; no GPU.

Takes the pack that the build made. Where the building machine had no NVRTC, NVRTC comes from PyPI
into .venv and the pack is made here.
"""

import os
import subprocess
import sys
from pathlib import Path

from build_cache import cached

SKIPPED = 77
ARCHS = ["80", "86", "89", "90", "100", "120"]
NVRTC = "nvidia-cuda-nvrtc>=13.0,<13.1"


def nvrtc_folder(source: Path) -> str | None:
    """Folder of an NVRTC in the project's .venv, installed if missing; None where there is none."""
    venv = source / ".venv"
    pattern = "lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.*"
    found = list(venv.glob(pattern))
    if not found:
        if not (venv / "bin/python").exists():
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=False)
        command = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", NVRTC]
        if not Path(command[0]).exists() or subprocess.run(command, check=False).returncode != 0:
            return None
        found = list(venv.glob(pattern))
    return str(found[0].parent) if found else None


def main() -> int:
    source = Path(os.environ["TILEWISE_SOURCE_DIR"])
    build = Path(os.environ["TILEWISE_BUILD_DIR"])
    wanted = cached("TILEWISE_PACK")
    if wanted == "none" or cached("TILEWISE_SANITIZE"):
        print("this build makes no pack")
        return SKIPPED
    archs = ARCHS if wanted == "auto" else wanted.split(";")
    tool = build / "tools/tilewise_pack"
    pack = build / "tilewise.pack"
    if not pack.exists() or pack.stat().st_size == 0:
        folder = nvrtc_folder(source)
        if folder is None:
            print("no NVRTC on this machine, and none could be installed into .venv")
            return SKIPPED
        pack = build / "census.pack"
        environment = {**os.environ, "TILEWISE_CUDA_PATH": folder}
        subprocess.run([str(tool), str(pack), *archs], check=True, env=environment)
    return subprocess.run([str(tool), "--census", str(pack), *archs], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
