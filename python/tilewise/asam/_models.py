"""The models that seed 003's experiments measure, and how a run of one is timed and weighed."""

import argparse
import inspect
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ._config import ASAMConfig
from ._layers import ASAMLayer, FlashASAMLayer, layers_run_again

MIB = 2**20
VOCABULARY, DIM, HEADS, LAYERS, CLASSES = 1000, 256, 4, 2, 10
KINDS = ("original", "flash", "working")


class Classifier(nn.Module):
    """Embedding, layers of one kind, LayerNorm, mean over tokens, Linear: ids (B, n) -> (B, 10)."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        checkpointing = options.get("use_gradient_checkpointing", False)
        self.layers = nn.ModuleList(
            make_layer(kind, **options | {"use_gradient_checkpointing": again})
            for again in layers_run_again(LAYERS, checkpointing)
        )
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x, _ = layer(x)
        y: Tensor = self.head(self.norm(x).mean(1))
        return y


def make_layer(kind: str, **options: Any) -> nn.Module:
    """A layer of one of KINDS: the published one, its "Flash", or the working one.

    options: fields of ASAMConfig, for those that have one.
    """
    sizes: dict[str, Any] = {"dim": DIM, "num_heads": HEADS, "dim_head": DIM // HEADS} | options
    match kind:
        case "original":
            return ASAMLayer(ASAMConfig(mode="faithful", pattern_type="local", **sizes))
        case "flash":
            return FlashASAMLayer(DIM, HEADS)
        case "working":
            return ASAMLayer(ASAMConfig(**sizes))
    raise ValueError(f"kind is {kind!r}: expected one of {', '.join(KINDS)}")


def inputs_of_three_kinds(device: str) -> dict[str, Tensor]:
    """Seed 003's: noise, cumulative sums ("structured"), and noise with half of it zero."""
    noise = torch.randn(4, 512, DIM, generator=torch.Generator().manual_seed(1)).to(device)
    halves = noise.clone()
    halves[:, 256:] = 0
    return {"random": noise, "structured": noise.cumsum(1), "half zeros": halves}


def inputs_of_three_languages(device: str) -> dict[str, Tensor]:
    """Bytes of prose, of a program and of a table of numbers, embedded at random: (4, 512, DIM)."""
    numbers = (f"{i},{i * i % 997},{i**3 % 1009 / 7:.2f}" for i in range(1000))
    texts = {
        "prose": "\n".join(str(inspect.getdoc(thing)) for thing in PROSE),
        "program": inspect.getsource(argparse),
        "numbers": "\n".join(numbers),
    }
    table = torch.randn(256, DIM, generator=torch.Generator().manual_seed(2))
    inputs = {}
    for name, text in texts.items():
        data = text.encode()[: 4 * 512]
        inputs[name] = table[torch.tensor(list(data)).view(4, 512)].to(device)
    return inputs


# What Python says of these, so that the text is there wherever Python is.
PROSE = (inspect, json.JSONEncoder, subprocess.Popen, subprocess.run, argparse, time, dataclass)


@dataclass
class Job:
    """A forward (inference) or a training step of one model on one shape.

    precision: "fp32", "fp16" (autocast and a GradScaler) or "bf16" (autocast). checkpointing: the
    working layers, or with "ffn" their feed-forward networks, run again in backward, but for the
    last. compiled: by torch.compile. drops: dropout as published; torch's masks on CUDA differ by
    type.
    """

    kind: str
    batch: int
    n: int
    device: str
    training: bool = False
    precision: str = "fp32"
    checkpointing: bool | str = False
    compiled: bool = False
    drops: bool = True

    def step(self) -> Callable[[], Tensor]:
        """A function that runs one step, and the loss or the logits that it returns."""
        torch.manual_seed(0)
        device = torch.device(self.device)
        again = self.checkpointing
        options = {"use_gradient_checkpointing": again} if again else {}
        model: nn.Module = Classifier(self.kind, **options).to(device).train(self.training)
        for module in model.modules():
            if isinstance(module, nn.Dropout) and not self.drops:
                module.p = 0.0
        ids = torch.randint(VOCABULARY, (self.batch, self.n), device=device)
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.precision)
        cast = torch.autocast(device.type, dtype, enabled=dtype is not None)
        if self.compiled:
            model.compile()
        if not self.training:

            def infer() -> Tensor:
                with torch.no_grad(), cast:
                    logits: Tensor = model(ids)
                return logits

            return infer
        with torch.no_grad():
            model(ids)  # patterns make their parameters at the first call
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        scaler = torch.amp.GradScaler(device.type, enabled=self.precision == "fp16")
        classes = torch.randint(CLASSES, (self.batch,), device=device)

        def train() -> Tensor:
            optimizer.zero_grad()
            with cast:
                loss = functional.cross_entropy(model(ids), classes)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        return train


@dataclass
class Timing:
    mean_ms: float
    std_ms: float
    median_ms: float


def synchronize(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def timed(step: Callable[[], Tensor], device: str, warm_ups: int, runs: int) -> Timing:
    """Wall-clock time of `runs` runs, each synchronised before and after, as seed 003 took it."""
    return timed_in_turn([step], device, warm_ups, runs)[0]


def timed_in_turn(
    steps: Sequence[Callable[[], Tensor]], device: str, warm_ups: int, runs: int
) -> list[Timing]:
    """timed() of each step, their runs one after the other, so that noise meets all."""
    times: list[list[float]] = [[] for _ in steps]
    for run in range(warm_ups + runs):
        for step, of_step in zip(steps, times, strict=True):
            synchronize(device)
            begin = time.perf_counter()
            step()
            synchronize(device)
            if run >= warm_ups:
                of_step.append(1e3 * (time.perf_counter() - begin))
    timings = []
    for ms in map(torch.tensor, times):
        spread = float(ms.std(correction=1)) if runs > 1 else 0.0
        timings.append(Timing(float(ms.mean()), spread, float(ms.median())))
    return timings


def device_ms(step: Callable[[], Tensor], device: str) -> tuple[float, int] | None:
    """Time inside kernels (ms) and number of kernels of one run; None on a CPU."""
    if torch.device(device).type != "cuda":
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        step()
        torch.cuda.synchronize(device)
    events = [e for e in profile.events() if e.device_type.name == "CUDA"]
    return sum(e.device_time_total for e in events) / 1e3, len(events)


def peak_bytes(job: Job, limit: int | None = None) -> int | None:
    """Memory that two steps of a job take beyond the idle process; None when it ran out.

    CUDA: the allocator's peak, weights included. CPU: growth of the resident set, measured in a
    process of its own. limit: bytes that the device (CPU: the process) may hold.
    """
    if torch.device(job.device).type == "cuda":
        return _cuda_peak(job, limit)
    arguments = json.dumps([job.__dict__, limit])
    command = [sys.executable, "-m", "tilewise.asam._models", arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode not in (0, OUT_OF_MEMORY):
        raise RuntimeError(f"the measuring process failed:\n{answer.stderr[-2000:]}")
    return int(answer.stdout) if answer.returncode == 0 else None


OUT_OF_MEMORY = 4


def _cuda_peak(job: Job, limit: int | None) -> int | None:
    device = torch.device("cuda", torch.device(job.device).index or torch.cuda.current_device())
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    fraction = 1.0 if limit is None else min(1.0, limit / total)
    torch.cuda.set_per_process_memory_fraction(fraction, device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        step = job.step()
        step()
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    except torch.OutOfMemoryError:
        return None
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def _measure(arguments: str) -> int:
    """The measuring process of a CPU: prints the growth in bytes, or exits with OUT_OF_MEMORY."""
    import resource

    fields, limit = json.loads(arguments)
    if limit is not None:
        used = _status_bytes("VmData")  # what RLIMIT_DATA counts
        resource.setrlimit(resource.RLIMIT_DATA, (used + limit, used + limit))
    # NOTE: getrusage's maximum would be that of the process which started this one.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status_bytes("VmRSS")
    try:
        step = Job(**fields).step()
        step()
        step()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "memory" in str(error):
            return OUT_OF_MEMORY
        raise
    print(_status_bytes("VmHWM") - before)
    return 0


def _status_bytes(name: str) -> int:
    """A line of this process's status (proc(5))."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in status if line.startswith(f"{name}:")).split()[1])


if __name__ == "__main__":
    sys.exit(_measure(sys.argv[1]))
