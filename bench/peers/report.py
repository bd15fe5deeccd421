"""The environment of a result, as the command line reports it, with what a comparison adds."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import torch

from .protocol import DESCRIPTION


def smi(fields: str) -> str:
    """What nvidia-smi says of the first GPU; empty without it."""
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def environment(tilewise: Path, fa3_commit: str) -> dict[str, Any]:
    """As the command line reports it, and the peers' versions."""
    command = [tilewise, "bench", "--seq", "16", "--dim", "16", "--repeat", "1", "--format", "json"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    made = json.loads(text)["environment"]
    if driver := smi("driver_version"):
        made["driver"] = driver
    made["torch"] = torch.__version__
    made["cudnn"] = str(torch.backends.cudnn.version())
    made["fa3"] = fa3_commit
    made["gpu_power_limit"] = smi("power.limit")
    made["protocol"] = DESCRIPTION
    made["live_mib"] = "without workspace"  # as `tilewise bench` counts it
    return made
