"""docs/python.md's table of what runs where: the kernel table asked, one problem a feature."""

import json
import re
import subprocess
import sys
from pathlib import Path

from docs import with_block

ROOT = Path(__file__).resolve().parents[2]
CLI = ROOT / "build/release/tilewise"
PAGE = ROOT / "docs/python.md"
# Column -> the machine that `tilewise plan` is asked about. The CPU is this machine's.
MACHINES = {"CPU": [], "H100": ["--hardware", "h100"], "A100": ["--hardware", "a100"]}
MACHINES["RTX 4090"] = ["--hardware", "rtx4090"]
# How the option is written in Python -> the words of a case line (cases/README.md).
FEATURES = {
    "float32": "b2 h8 s256 d64 f32",
    "bfloat16, float16": "b2 h8 s256 d64 bf16",
    "float64": "b2 h8 s256 d64 f64",
    "k, v with fewer heads": "b2 h8/2 s256 d64 bf16",
    "head dim 256": "b2 h8 s256 d256 bf16",
    "head dim 512": "b2 h8 s256 d512 bf16",
    "`v` wider than `k`": "b2 h8 s256 d64 dv128 bf16",
    '`causal`, `"top_left"`': "b2 h8 s256 d64 bf16 causal",
    "`window`": "b2 h8 s256 d64 bf16 window=64,0",
    "`softcap`": "b2 h8 s256 d64 bf16 softcap=20",
    "`alibi_slopes`": "b2 h8 s256 d64 bf16 alibi",
    "`bias`": "b2 h8 s256 d64 bf16 bias=1,h,q,k",
    "`mask`": "b2 h8 s256 d64 bf16 mask=b,1,q,k:some0.3",
    "`sinks`": "b2 h8 s256 d64 bf16 sink",
    "`dropout_p`": "b2 h8 s256 d64 bf16 dropout=0.1 seed=1",
    "`key_lengths`": "b2 h8 s256 d64 bf16 lengths=256,100",
    "`cu_seqlens_q`, `cu_seqlens_k`": "h8 d64 bf16 packed=256,100",
    "`block_table`": "b2 h8 q1 k256 d64 bf16 lengths=256,100 paged=16",
    "`block_table` with `cu_seqlens_q`": "packed=60,9/256,100 h8 d64 bf16 paged=16",
    "`block_list`": "b2 h8 s256 d64 bf16 blocks=64,64:1,1:0.5",
    "`deterministic`": "b2 h8 s256 d64 bf16 deterministic",
    "innermost stride not 1": "b2 h8 s256 d64 bf16 layout=transposed",
}


def runs(case: str, direction: str, machine: list[str]) -> bool:
    """Whether a kernel takes the pass of the problem on the machine."""
    command = [str(CLI), "plan", "--case", f"{case} pass={direction}", "--format", "json", *machine]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return bool(json.loads(done.stdout))
    if re.search(r"no kernel runs|paged= needs pass=fwd", done.stderr):
        return False
    sys.exit(f"support_table: {' '.join(command)}\n{done.stderr}")


def word(case: str, machine: list[str]) -> str:
    forward, backward = (runs(case, direction, machine) for direction in ("fwd", "bwd"))
    return "yes" if forward and backward else "forward" if forward else "-"


def table() -> list[str]:
    lines = [f"| | {' | '.join(MACHINES)} |", "|---|" + ":---:|" * len(MACHINES)]
    for feature, case in FEATURES.items():
        words = [word(case, machine) for machine in MACHINES.values()]
        lines.append(f"| {feature} | {' | '.join(words)} |")
    return lines


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    fresh = with_block(text, "support", table())
    if "--check" in sys.argv[1:]:
        if fresh != text:
            sys.exit("docs/python.md is stale: run ./tw docs")
    elif fresh != text:
        PAGE.write_text(fresh, encoding="utf-8")
        print("support_table: wrote docs/python.md")


if __name__ == "__main__":
    main()
