"""xformers' tests of memory_efficient_attention, with Tilewise as one of its operators."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from .sources import Fetched, Source

SOURCE = Source(
    "facebookresearch",
    "xformers",
    "v0.0.34",
    ("xformers", "tests/__init__.py", "tests/utils.py", "tests/test_mem_eff_attention.py"),
)
# Elements of the largest matrix of scores that a CPU runs.
CPU_SCORES = 2**21
OWN = "xformers' own kernels"
NAMES = {
    "splitk": "kernels in Triton",
    "_ck": "kernels for other GPUs",
    "fav3": "kernels of FlashAttention-3",
    "fp8": "FP8",
    "paged_attention": "kernels in Triton",
    "dispatch": "asks xformers for its own choice",
    "compile": "compiles xformers' own operators",
    "unsupported_cpu": "expects an error on a CPU",
    "dropout_combine": "an error of xformers' own operators",
    "wrong_alignment": OWN,
    "permuted_attn_bias": OWN,
    "biasf": "an error of xformers' own operators",
    "test_attn_bias": "the matrix of a mask, without attention",
    "materialize": "the matrix of a mask, without attention",
    "local_attn_bias": "the matrix of a mask, without attention",
}
FAILURES = {
    "tilewiseB:": "an element of a gradient differs by more than the tolerance",
    ": out=": "an element differs by more than the tolerance",
}
RUNS = {"test_paged_attention_flash"}  # though a part of its name is above


def adapt(fetched: Fetched, into: Path, device: str) -> Path:
    """xformers without its compiled kernels, whose "flash" is Tilewise's operator."""
    del device
    shutil.copytree(fetched.folder / "xformers", into / "xformers")
    shutil.copytree(fetched.folder / "tests", into / "tests")
    flash = into / "xformers/ops/fmha/flash.py"
    text = flash.read_text().replace('importlib.util.find_spec("flash_attn")', "False")
    flash.write_text(text.replace("elif _TRY_PT_FLASH_ATTN:", "elif False:"))
    fmha = into / "xformers/ops/fmha/__init__.py"
    fmha.write_text(
        fmha.read_text()
        + "\nfrom suites.xformers_operator import BwOp, FwOp\n"
        + "flash.FwOp, flash.BwOp = FwOp, BwOp\n"
        + "ALL_FW_OPS, ALL_BW_OPS = [FwOp], [BwOp]\n"
    )
    made = into / "tests/test_mem_eff_attention.py"
    text = made.read_text().replace("from scipy.stats import binomtest\n", "")
    made.write_text(re.sub(r"from triton import .*\n", "", text))
    return made


def small(parameters: dict[str, Any]) -> bool:
    if os.environ["SUITE_DEVICE"] != "cpu":
        return True
    sizes = [
        case[4:8] for case in parameters.values() if isinstance(case, tuple) and len(case) == 10
    ]
    return all(batch * rows * keys * heads <= CPU_SCORES for batch, rows, keys, heads in sizes)


def _is_own(value: object) -> bool:
    """An operator that the adapter did not put in another's place."""
    operator = getattr(value, "__name__", "") in ("FwOp", "BwOp")
    return operator and value.__module__.startswith("xformers.")


def outside(function: str, parameters: dict[str, Any]) -> str:
    case = next((c for c in parameters.values() if isinstance(c, tuple) and len(c) == 10), ())
    if "Triton" in str(case) or "triton" in str(parameters.get("op", "")):
        return "kernels in Triton"
    if any(_is_own(value) for value in parameters.values()):
        return OWN
    if function in RUNS:
        return ""
    return next((why for part, why in NAMES.items() if part in function), "")
