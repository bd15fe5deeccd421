"""Score functions and masks on a card: ours beside torch.compile(flex_attention).

Theirs are the same functions in Python. Each cell has a process of its own: all compile at once,
then they take turns, so that nothing else runs while one is timed. Ours runs in `tilewise bench`,
from formulas, with the plan's own choice of kernels, before theirs and by the same protocol. The
gradients of captured tables are part of a backward. Rows in the schema of `tilewise bench`.

    python3 -m bench.peers.expressions --build BUILD -o OUT/expressions.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .protocol import Card, Samples
from .results import write

HEADS, LENGTH, DIMS = 16, 8192, (64, 128)
SIDE, ROWS = 128, 64  # of the picture whose pixels the tokens are

Function = Callable[..., Tensor]


@dataclass
class Functions:
    """A score function or a mask as FlexAttention's users write it, and what it learns."""

    score: Function | None = None
    mask: Function | None = None
    learned: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Entry:
    name: str
    make: Callable[[], Functions]  # on the card
    flags: tuple[str, ...]  # of `tilewise bench`, for the same function


def _alibi() -> Functions:
    return Functions(
        score=lambda s, b, h, i, j: s - torch.exp2(-8.0 * (h + 1) / HEADS) * (i - j).abs()
    )


def _softcap() -> Functions:
    return Functions(score=lambda s, b, h, i, j: 20 * torch.tanh(s / 20))


def _temperature() -> Functions:
    factor = (torch.rand(HEADS, device="cuda") + 0.5).requires_grad_()
    return Functions(score=lambda s, b, h, i, j: s * factor[h], learned=(factor,))


def _relative() -> Functions:
    table = torch.randn(HEADS, 256, device="cuda", requires_grad=True)
    return Functions(
        score=lambda s, b, h, i, j: s + table[h, torch.clamp(i - j, -127, 128) + 127],
        learned=(table,),
    )


def _t5() -> Functions:
    table = torch.randn(HEADS, 32, device="cuda", requires_grad=True)

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        n = torch.clamp(i - j, min=0)
        far = 16 + (torch.log(torch.clamp(n, min=1) / 16) / 2.0794415 * 16).to(torch.int32)
        return s + table[h, torch.where(n < 16, n, torch.clamp(far, max=31))]

    return Functions(score=score, learned=(table,))


def _documents() -> Functions:
    doc = torch.arange(LENGTH, device="cuda") // 1024
    return Functions(mask=lambda b, h, i, j: (doc[i] == doc[j]) & (i >= j))


def _natten() -> Functions:
    def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        x, y, u, v = i % SIDE, i // SIDE, j % SIDE, j // SIDE
        near = (torch.clamp(x, 6, SIDE - 7) - u).abs() <= 6
        return near & ((torch.clamp(y, 6, ROWS - 7) - v).abs() <= 6)

    return Functions(mask=mask)


def masks(mask: Function) -> Callable[[], Functions]:
    return lambda: Functions(mask=mask)


ENTRIES = (
    Entry("plain", Functions, ()),
    Entry("causal", masks(lambda b, h, i, j: i >= j), ("--mask", "i >= j")),
    Entry("alibi", _alibi, ("--score", "score - exp2(-8.0*(h + 1)/16)*abs(i - j)")),
    Entry("softcap", _softcap, ("--score", "20*tanh(score/20)")),
    Entry(
        "temperature, learned",
        _temperature,
        ("--score", "score*temperature[h]", "--captures", "temperature:f32[Hq]=rand+0.5"),
    ),
    Entry(
        "relative, learned",
        _relative,
        (
            "--score",
            "score + table[h, clamp(i - j, -127, 128) + 127]",
            "--captures",
            "table:f32[Hq,256]",
        ),
    ),
    Entry(
        "t5, learned",
        _t5,
        (
            "--score",
            "n = max(i - j, 0); far = 16 + int(log(float(max(n, 1))/16)/2.0794415*16); "
            "score + table[h, where(n < 16, n, min(far, 31))]",
            "--captures",
            "table:f32[Hq,32]",
        ),
    ),
    Entry(
        "documents",
        _documents,
        ("--mask", "doc[i] == doc[j] & i >= j", "--captures", "doc:i32[Sk]=j // 1024"),
    ),
    Entry("prefix", masks(lambda b, h, i, j: (i >= j) | (j < 512)), ("--mask", "i >= j | j < 512")),
    Entry(
        "window and sinks",
        masks(lambda b, h, i, j: (i >= j) & ((i - j < 1024) | (j < 4))),
        ("--mask", "i >= j & (i - j < 1024 | j < 4)"),
    ),
    Entry(
        "natten",
        _natten,
        (
            "--mask",
            "x = i % 128; y = i // 128; u = j % 128; v = j // 128; "
            "abs(clamp(x, 6, 121) - u) <= 6 & abs(clamp(y, 6, 57) - v) <= 6",
        ),
    ),
)


def row(entry: str, dim: int, which: str, ms: Samples | None, reason: str) -> dict[str, Any]:
    return {
        "implementation": "flex",
        "kernel": "flex_attention",
        "device": "cuda:0",
        "dtype": "bfloat16",
        "batch": 1,
        "heads": HEADS,
        "kv_heads": HEADS,
        "seq_q": LENGTH,
        "seq_k": LENGTH,
        "head_dim": dim,
        "head_dim_v": dim,
        "causal": False,
        "mask": entry,
        "precision": "exact",
        "deterministic": False,
        "layout": "bhsd",
        "protocol": "burst",
        "pass": which,
        **({} if ms is None else ms.statistics()),
        "status": "ok" if ms is not None else "failed",
        "reason": reason,
    }


@dataclass(frozen=True)
class Turns:
    """What the processes of the cells share."""

    ready: Any  # a queue: a cell has compiled
    go: Any  # an event: all have
    turn: Any  # a lock
    rows: Any  # a queue
    rounds: int


def _measure(entry: Entry, dim: int, turns: Turns) -> list[dict[str, Any]]:
    torch.manual_seed(1)
    functions = entry.make()
    shape = (1, HEADS, LENGTH, dim)
    q, k, v = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    blocks = None
    if functions.mask is not None:
        blocks = create_block_mask(functions.mask, None, None, LENGTH, LENGTH, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)
    d_o = torch.randn_like(q)
    wanted = (q, k, v, *functions.learned)

    def attend() -> Tensor:
        return compiled(q, k, v, score_mod=functions.score, block_mask=blocks)

    def forward() -> None:
        with torch.no_grad():
            attend()

    kept = attend()

    def backward() -> None:
        torch.autograd.grad(kept, wanted, d_o, retain_graph=True)

    passes = {"fwd": forward, "bwd": backward}
    for launch in passes.values():
        launch()
    torch.cuda.synchronize()
    turns.ready.put((entry.name, dim))
    turns.go.wait()
    rows = []
    with turns.turn:
        card = Card()
        for which, launch in passes.items():
            samples = Samples()
            for _ in range(turns.rounds):
                samples.ms += card.burst(lambda: None, launch)
            rows.append(row(entry.name, dim, which, samples, ""))
    return rows


def _cell(number: int, dim: int, turns: Turns) -> None:
    entry = ENTRIES[number]
    try:
        rows = _measure(entry, dim, turns)
    except Exception as error:  # a row of its own
        turns.ready.put((entry.name, dim))
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        rows = [row(entry.name, dim, which, None, reason) for which in ("fwd", "bwd")]
    turns.rows.put(rows)


def _word(text: str) -> str:
    """A word of a preset's line."""
    return f'"{text}"' if " " in text else text


class Ours:
    """`tilewise bench` of all entries in one process, and of each alone for what it compiles.

    An entry that fails alone has failed rows, and the others are measured without it.
    """

    def __init__(self, build: Path, rounds: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._presets = Path(self._folder.name) / "presets"
        self._presets.mkdir()
        axes = f"--heads {HEADS} --seq {LENGTH} --dim {','.join(map(str, DIMS))} --dtype bf16"
        self._lines = [
            f"{axes} --impl flash {' '.join(map(_word, entry.flags))}" for entry in ENTRIES
        ]
        for number, line in enumerate(self._lines):
            (self._presets / f"one-{number}.txt").write_text(line + "\n")
        self._tilewise = build / "tilewise"
        self._repeat = str(3 * rounds)
        self._failed: dict[int, str] = {}

    def _start(self, preset: str, *flags: str) -> subprocess.Popen[str]:
        command = [str(self._tilewise), "bench", "--device", "cuda:0", "--preset", preset, *flags]
        return subprocess.Popen(
            [*command, "--format", "json"],
            env=os.environ | {"TILEWISE_CASES_DIR": self._folder.name},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def compile(self) -> None:
        once = ("--repeat", "1", "--warmup", "0")
        for number, process in enumerate(
            [self._start(f"one-{n}", *once) for n in range(len(ENTRIES))]
        ):
            errors = process.communicate()[1]
            if process.returncode != 0:
                reason = " ".join(errors.split())[-200:] or f"exit code {process.returncode}"
                print(f"{ENTRIES[number].name}: ours: {reason}", flush=True)
                self._failed[number] = reason

    def measure(self) -> dict[str, Any]:
        good = [number for number in range(len(ENTRIES)) if number not in self._failed]
        lines = [self._lines[number] for number in good]
        (self._presets / "all.txt").write_text("\n".join(lines) + "\n")
        process = self._start("all", "--protocol", "burst", "--repeat", self._repeat)
        output, errors = process.communicate()
        report = json.loads(output)
        rows = report["rows"]
        each = 2 * len(DIMS)  # passes
        if len(rows) != each * len(good):
            raise RuntimeError(f"{len(rows)} rows of {len(good)} entries: {errors[-400:]}")
        for number, one in enumerate(rows):
            one["mask"] = ENTRIES[good[number // each]].name
            one["reason"] = one.get("reason") or "the plan's choice"
        for number, reason in self._failed.items():
            for dim in DIMS:
                for which in ("fwd", "bwd"):
                    failed = row(ENTRIES[number].name, dim, which, None, reason)
                    rows.append(failed | {"implementation": "flash", "kernel": ""})
        return report


def report_ratios(rows: list[dict[str, Any]]) -> None:
    times = {
        (one["mask"], one["head_dim"], one["pass"], one["implementation"]): one.get("ms_median")
        for one in rows
    }
    for entry in ENTRIES:
        words = []
        for dim in DIMS:
            for which in ("fwd", "bwd"):
                ours = times.get((entry.name, dim, which, "flash"))
                theirs = times.get((entry.name, dim, which, "flex"))
                ratio = f"{theirs / ours:5.2f}" if ours and theirs else "    -"
                words.append(f"{ours or 0:8.3f} {theirs or 0:8.3f} {ratio}")
        print(f"{entry.name:22}", " |".join(words), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="folder of tilewise")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--flex-dims", default="64,128", help="theirs; ours are 64 and 128")
    parser.add_argument("--compile-s", type=float, default=60.0, help="most that theirs may take")
    args = parser.parse_args()
    begin = time.monotonic()
    spawned = multiprocessing.get_context("spawn")
    turns = Turns(spawned.Queue(), spawned.Event(), spawned.Lock(), spawned.Queue(), args.rounds)
    flex_dims = [int(word) for word in args.flex_dims.split(",")]
    cells = [(number, dim) for dim in flex_dims for number in range(len(ENTRIES))]
    processes = [
        spawned.Process(target=_cell, args=(number, dim, turns), daemon=True)
        for number, dim in cells
    ]
    ours = Ours(args.build, args.rounds)
    ours.compile()
    for process in processes:
        process.start()
    waiting = {(ENTRIES[number].name, dim) for number, dim in cells}
    while waiting and time.monotonic() - begin < args.compile_s:
        try:
            waiting.discard(turns.ready.get(timeout=1.0))
        except queue.Empty:
            continue
    print(f"compiled at {time.monotonic() - begin:.0f} s, left out: {sorted(waiting)}", flush=True)
    report = ours.measure()
    report["environment"]["peers"] = {"torch": torch.__version__}
    print(f"ours at {time.monotonic() - begin:.0f} s", flush=True)
    turns.go.set()
    for _ in range(len(cells) - len(waiting)):
        report["rows"] += turns.rows.get()
        write(args.output, report["environment"], report["rows"])
    report_ratios(report["rows"])
    print(f"done at {time.monotonic() - begin:.0f} s", flush=True)
    for process in processes:
        process.kill()  # those that have not compiled too
    return 0


if __name__ == "__main__":
    sys.exit(main())
