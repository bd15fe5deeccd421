"""FlashAttention 2's tests on tilewise.flash_attn."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from .sources import Fetched, Source

SOURCE = Source(
    "Dao-AILab",
    "flash-attention",
    "v2.8.3",
    ("tests/test_flash_attn.py", "flash_attn/bert_padding.py"),
)
# Rows of the largest problem that a CPU runs, whose reference is a matrix of every pair.
CPU_PAIRS = 300 * 300
FAILURES = {"<= (": "an element differs by more than the tolerance"}
# These functions rebuild the dropped pairs from S_dmask.
READ_DROPPED = re.compile("qkvpacked|output")


def adapt(fetched: Fetched, into: Path, device: str) -> Path:
    """The device, and on a CPU fewer repetitions of what looks for races."""
    text = (fetched.folder / "tests/test_flash_attn.py").read_text()
    if device == "cpu":
        text = re.sub(r"torch\.cuda\.get_device_capability\([^)]*\)", "(9, 0)", text)
        text = text.replace('torch.cuda.get_device_properties("cuda").total_memory', "(64 * 2**30)")
        text = text.replace('"cuda"', '"cpu"').replace("range(250)", "range(2)")
        text = text.replace("range(50)", "range(3)").replace("batch_size = 60", "batch_size = 3")
    made = into / "test_flash_attn.py"
    made.write_text(text)
    padding = fetched.folder / "flash_attn/bert_padding.py"
    (into / "flash_attn_bert_padding.py").write_text(padding.read_text())
    made.write_text(text.replace("flash_attn.bert_padding", "flash_attn_bert_padding"))
    return made


def small(parameters: dict[str, Any]) -> bool:
    if os.environ["SUITE_DEVICE"] != "cpu":
        return True
    rows = parameters.get("seqlen_q", parameters.get("seqlen", 1))
    return rows * parameters.get("seqlen_k", rows) <= CPU_PAIRS


def outside(function: str, parameters: dict[str, Any]) -> str:
    if parameters.get("dropout_p") and READ_DROPPED.search(function):
        return "reads S_dmask, which is None here"
    return ""
