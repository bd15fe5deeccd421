"""The tests that transformers holds for every model, on small models whose attention is Tilewise.

They lie in the source distribution of the installed version; those of each model do not, so the
models are ours (models_test.py). Tilewise takes the place of "sdpa", with its masks.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from pathlib import Path
from typing import Any

from .sources import Distribution, Fetched

SOURCE = Distribution("transformers", importlib.metadata.version("transformers"), ("tests",))
# Modules that the tests import and the distribution lacks: bases of tests about something else.
LACKING = {
    "exporters/test_export.py": "ExportTesterMixin",
    "generation/test_utils.py": "GenerationTesterMixin",
}
MOST = 300  # twelve models have some thousand
ABOUT = re.compile(
    "eager_matches_sdpa|attention|training|determinism|batching|hidden_states|outputs|checkpointing"
    "|inputs_embeds|sliding|sdpa"
)


def adapt(fetched: Fetched, into: Path, device: str) -> Path:
    del device
    tests = into / "tests"
    shutil.copytree(fetched.folder / "tests", tests)
    (tests / "__init__.py").touch()
    for name, base in LACKING.items():
        path = tests / name
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        if not path.exists():
            path.write_text(f"class {base}:\n    pass\n")
    return Path(__file__).with_name("models_test.py")


def small(parameters: dict[str, Any]) -> bool:
    return bool(parameters)


def outside(function: str, parameters: dict[str, Any]) -> str:
    del parameters
    if not ABOUT.search(function):
        return "not about attention"
    if "flash_attn" in function or "flex_attention" in function:
        return "loads another library's kernels"
    return ""
