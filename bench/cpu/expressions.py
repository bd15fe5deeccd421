#!/usr/bin/env python3
"""Score functions and masks on a CPU: ours beside torch.compile(flex_attention), one thread each.

Ours runs in `tilewise bench`, from formulas; theirs here, from the same functions in Python. They
take turns, round after round, and both are timed by CPU time, so that a ratio compares neighbours
in time on a busy machine too. Writes rows in the schema of `tilewise bench`.

In backward the peer is torch's autograd through the same function on the whole S x S matrix, and
captured tensors of both get gradients. Our causal backward takes a turn in every round: the rows of
`plain`. FlexAttention has a row that says why it has no time.

    python3 bench/cpu/expressions.py -o expressions-cpu.json
    python3 bench/cpu/expressions.py --pass bwd -o expressions-cpu-backward.json
"""

import argparse
import json
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

HEADS, LENGTH, DIM = 4, 2048, 64
SIDE = 64  # of the picture whose pixels the tokens are

Function = Callable[..., Tensor]


@dataclass
class Entry:
    """A function as FlexAttention's users write it, and bench's flags for the same one."""

    name: str
    score: Function | None
    mask: Function
    flags: tuple[str, ...]
    learned: tuple[Tensor, ...] = ()  # captured tensors with gradients: ours are all that are real


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


PLAIN = Entry("causal", None, causal, ("--causal",))


def entries() -> list[Entry]:
    random = torch.Generator().manual_seed(1)

    def randn(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=random)

    slopes = torch.exp2(-8.0 * (torch.arange(HEADS) + 1) / HEADS)
    temperature = torch.rand(HEADS, generator=random) + 0.5
    relative, buckets, spatial = randn(HEADS, 2 * LENGTH - 1), randn(HEADS, 32), randn(HEADS, 64)
    distance = torch.randint(0, 64, (LENGTH, LENGTH), generator=random, dtype=torch.int32)
    document = ((torch.arange(LENGTH) + 5) // 300).int()

    def t5(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        n = torch.clamp(i - j, min=0)
        far = 16 + (torch.log(torch.clamp(n, min=1) / 16) / 2.0794415 * 16).to(torch.int32)
        return s + buckets[h, torch.where(n < 16, n, torch.clamp(far, max=31))]

    def natten(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        x, y, u, v = i % SIDE, i // SIDE, j % SIDE, j // SIDE
        near = (torch.clamp(x, 3, SIDE - 4) - u).abs() <= 3
        return near & ((torch.clamp(y, 3, LENGTH // SIDE - 4) - v).abs() <= 3)

    def scores(name: str, score: Function, *formula: str, learned: Tensor | None = None) -> Entry:
        tensors = () if learned is None else (learned.requires_grad_(),)
        return Entry(name, score, causal, ("--causal", "--score", *formula), tensors)

    return [
        PLAIN,
        scores(
            "alibi",
            lambda s, b, h, i, j: s - slopes[h] * (i - j).abs(),
            "score - slopes[h]*abs(i - j)",
            "--captures",
            "slopes:f32[Hq]=exp2(-8.0*(j + 1)/Hq)",
            learned=slopes,
        ),
        scores("softcap", lambda s, b, h, i, j: 20 * torch.tanh(s / 20), "20*tanh(score/20)"),
        scores(
            "temperature",
            lambda s, b, h, i, j: s * temperature[h],
            "score*temperature[h]",
            "--captures",
            "temperature:f32[Hq]=rand+0.5",
            learned=temperature,
        ),
        scores(
            "relu",
            lambda s, b, h, i, j: torch.log(torch.relu(s) + 0.5),
            "log(relu(score) + 0.5)",
        ),
        scores(
            "gelu",
            lambda s, b, h, i, j: torch.log(torch.nn.functional.gelu(s) + 1.5),
            "log(gelu(score) + 1.5)",
        ),
        scores(
            "relative",
            lambda s, b, h, i, j: s + relative[h, i - j + LENGTH - 1],
            "score + table[h, i - j + key_length - 1]",
            "--captures",
            "table:f32[Hq,Sq+Sk-1]",
            learned=relative,
        ),
        scores(
            "t5",
            t5,
            "n = max(i - j, 0); far = 16 + int(log(float(max(n, 1))/16)/2.0794415*16); "
            "score + table[h, where(n < 16, n, min(far, 31))]",
            "--captures",
            "table:f32[Hq,32]",
            learned=buckets,
        ),
        scores(
            "graphormer",
            lambda s, b, h, i, j: s + spatial[h, distance[i, j]],
            "score + table[h, distance[i, j]]",
            "--captures",
            "table:f32[Hq,64]; distance:i32[Sq,Sk]=rand*64",
            learned=spatial,
        ),
        Entry(
            "documents",
            None,
            lambda b, h, i, j: (document[i] == document[j]) & (i >= j),
            (
                "--mask",
                "doc[i] == doc[j] & i >= j",
                "--captures",
                "doc:i32[Sk]=(j + 5) // 300",
            ),
        ),
        Entry(
            "window and prefix",
            None,
            lambda b, h, i, j: ((i >= j) & (i - j <= 256)) | (j < 16),
            ("--mask", "(i >= j & i - j <= 256) | j < 16"),
        ),
        Entry(
            "natten",
            None,
            natten,
            (
                "--mask",
                "x = i % 64; y = i // 64; u = j % 64; v = j // 64; "
                "abs(clamp(x, 3, 60) - u) <= 3 & abs(clamp(y, 3, 28) - v) <= 3",
            ),
        ),
    ]


def thread_ms(call: Callable[[], object]) -> float:
    begin = time.thread_time()
    call()
    return 1e3 * (time.thread_time() - begin)


class Bench:
    """`tilewise bench` of one entry: CPU time of a run, as what more runs take more."""

    MORE = 6

    def __init__(self, tilewise: Path, entry: Entry, which: str) -> None:
        sizes = ["--heads", str(HEADS), "--seq", str(LENGTH), "--dim", str(DIM)]
        once = ["--impl", "flash", "--pass", which, "--threads", "1", "--warmup", "0"]
        self.command = [str(tilewise), "bench", *sizes, *once, *entry.flags, "--format", "json"]
        self.kernel = json.loads(self.run(1)[1])["rows"][0]["kernel"]
        self.times: list[float] = []

    def run(self, times: int) -> tuple[float, str]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [*self.command, "--repeat", str(times)]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return 1e3 * spent, done.stdout

    def take_turn(self) -> None:
        self.times.append((self.run(1 + self.MORE)[0] - self.run(1)[0]) / self.MORE)


def inputs(learns: bool) -> list[Tensor]:
    torch.manual_seed(2)
    return [torch.randn(1, HEADS, LENGTH, DIM, requires_grad=learns) for _ in range(3)]


def compiled_flex(entry: Entry, tensors: list[Tensor]) -> Callable[[], Tensor]:
    shape = (1, HEADS, LENGTH, LENGTH)
    mask = torch_flex.create_block_mask(entry.mask, *shape, device="cpu")
    torch.compiler.reset()  # it gives up on a function that it has compiled often
    compiled = torch.compile(torch_flex.flex_attention)
    return lambda: compiled(*tensors, score_mod=entry.score, block_mask=mask)


def eager(entry: Entry, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The definition, on the whole matrix of scores."""
    b = torch.zeros((), dtype=torch.int64)
    h, i, j = (
        torch.arange(HEADS).view(-1, 1, 1),
        torch.arange(LENGTH).view(-1, 1),
        torch.arange(LENGTH),
    )
    scores = (q @ k.mT) * DIM**-0.5
    if entry.score is not None:
        scores = entry.score(scores, b, h, i, j)
    scores = scores.masked_fill(~entry.mask(b, h, i, j), -torch.inf)
    return torch.softmax(scores, -1) @ v


def row(
    entry: Entry, which: str, name: str, kernel: str, ms: list[float], reason: str = ""
) -> dict[str, Any]:
    times = (
        {
            "ms_mean": statistics.fmean(ms),
            "ms_std": statistics.pstdev(ms),
            "ms_median": statistics.median(ms),
        }
        if ms
        else {}
    )
    return {
        "implementation": name,
        "kernel": kernel,
        "device": "cpu",
        "dtype": "float32",
        "batch": 1,
        "heads": HEADS,
        "kv_heads": HEADS,
        "seq_q": LENGTH,
        "seq_k": LENGTH,
        "head_dim": DIM,
        "head_dim_v": DIM,
        "causal": entry.mask is causal,
        "mask": entry.name,
        "precision": "exact",
        "deterministic": False,
        "layout": "bhsd",
        "threads": 1,
        "protocol": "interleaved",
        "pass": which,
        **times,
        "status": "ok" if ms else "failed",
        "reason": reason,
    }


def measure_forward(tilewise: Path, entry: Entry, rounds: int) -> list[dict[str, Any]]:
    flex = compiled_flex(entry, inputs(learns=False))
    bench, theirs = Bench(tilewise, entry, "fwd"), []
    with torch.no_grad():
        flex()
        for _ in range(rounds):
            bench.take_turn()
            theirs.append(thread_ms(flex))
    ours = row(entry, "fwd", "flash", bench.kernel, bench.times)
    return [ours, row(entry, "fwd", "flex", "", theirs)]


def why_not(entry: Entry) -> str:
    """What compiled FlexAttention says to tensors that want gradients."""
    try:
        compiled_flex(entry, inputs(learns=True))().sum().backward()
    except Exception as error:  # its own, or the compiler's around it
        return " ".join(str(error).split())[:100]
    raise RuntimeError("FlexAttention has a backward here: measure it")


def measure_backward(tilewise: Path, entry: Entry, rounds: int) -> list[dict[str, Any]]:
    tensors = inputs(learns=True)
    kept = eager(entry, *tensors)
    d_o = torch.randn_like(kept)

    def autograd() -> None:
        torch.autograd.grad(kept, [*tensors, *entry.learned], d_o, retain_graph=True)

    bench, plain, theirs = Bench(tilewise, entry, "bwd"), Bench(tilewise, PLAIN, "bwd"), []
    for _ in range(rounds):
        plain.take_turn()
        bench.take_turn()
        theirs.append(thread_ms(autograd))
    return [
        row(entry, "bwd", "flash", bench.kernel, bench.times),
        row(entry, "bwd", "plain", plain.kernel, plain.times, "flash, causal, in the same rounds"),
        row(entry, "bwd", "torch-eager", "", theirs),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--tilewise", type=Path, default=Path("build/release/tilewise"))
    parser.add_argument("--pass", dest="which", choices=("fwd", "bwd"), default="fwd")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="names, with commas: the others' rows stay in the file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    command = [args.tilewise, "bench", "--seq", "16", "--dim", "16", "--repeat", "1"]
    text = subprocess.run([*command, "--format", "json"], capture_output=True, check=True).stdout
    environment = json.loads(text)["environment"] | {"peers": {"torch": torch.__version__}}
    wanted = args.only.split(",") if args.only else [entry.name for entry in entries()]
    rows: list[dict[str, Any]] = []
    if args.only and args.output.exists():
        kept = json.loads(args.output.read_text(encoding="utf-8"))["rows"]
        rows = [one for one in kept if one["mask"] not in wanted and one["status"] == "ok"]
    measure = measure_forward if args.which == "fwd" else measure_backward
    for entry in entries():
        if entry.name not in wanted:
            continue
        found = measure(args.tilewise, entry, args.rounds)
        rows += found
        report = {"schema_version": 1, "environment": environment, "rows": rows}
        args.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        ours, *others = (one["ms_median"] for one in found)
        ratios = " ".join(f"{ms:8.1f} {ms / ours:6.2f}" for ms in others)
        print(f"{entry.name:20} {ours:8.1f} {ratios}", flush=True)
    if args.which == "bwd":
        rows.append(row(PLAIN, "bwd", "flex", "", [], why_not(PLAIN)))
        args.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
