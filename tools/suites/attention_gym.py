"""attention-gym's masks, score functions and pages, from its own files with one import changed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from .sources import Fetched, Source

SOURCE = Source(
    "meta-pytorch",
    "attention-gym",
    "7fdb85d0b96668397adee48de54b6f1036497717",
    ("attn_gym/masks", "attn_gym/mods", "attn_gym/utils.py", "examples/paged_attention"),
)
ALL = True  # combinations run
OURS = {"BlockMask", "and_masks", "or_masks", "noop_mask"}
IMPORT = re.compile(r"^from torch\.nn\.attention\.flex_attention import (\((?:[^)]*)\)|.*)$", re.M)


def _changed(line: re.Match[str]) -> str:
    names = [name for part in line[1].strip("()").split(",") if (name := part.strip())]
    ours = [name for name in names if name in OURS]
    theirs = [name for name in names if name not in OURS]  # types, for annotations
    lines = [f"from tilewise import {', '.join(ours)}"] if ours else []
    lines += (
        [f"from torch.nn.attention.flex_attention import {', '.join(theirs)}"] if theirs else []
    )
    return "\n".join(lines)


def adapt(fetched: Fetched, into: Path, device: str) -> Path:
    """Beside the original package attn_gym a copy, gym_of_ours, which imports from tilewise."""
    del device
    for name in ("attn_gym", "gym_of_ours"):
        shutil.copytree(fetched.folder / "attn_gym", into / name)
        (into / name / "__init__.py").touch()
        pages = fetched.folder / "examples/paged_attention/paged_attention.py"
        shutil.copy(pages, into / name / "paged_attention.py")
    for path in (into / "gym_of_ours").rglob("*.py"):
        text = path.read_text().replace("attn_gym", "gym_of_ours")
        # Both packages would define an operator of this name in torch.
        text = text.replace("approx::tanh", "approx_of_ours::tanh")
        text = text.replace("torch.ops.approx.tanh", "torch.ops.approx_of_ours.tanh")
        path.write_text(IMPORT.sub(_changed, text))
    return Path(__file__).with_name("gym_test.py")


def small(parameters: dict[str, Any]) -> bool:
    return bool(parameters)


def outside(function: str, parameters: dict[str, Any]) -> str:
    del function
    if parameters["name"] == "softcap_approx":
        return "calls an autograd.Function of its own"
    return ""
