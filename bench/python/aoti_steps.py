"""Whose fault is a crash of AOTInductor? Packages models in steps, each in its own process.

    python bench/python/aoti_steps.py [--device cuda] [--jobs N] [--limit SECONDS] [--json FILE]

The steps go from torch alone to our operators. A step that dies names the phase in which it died:
import, export, compile, load, run or compare. The first step that fails tells whose fault it is:

- torch-attention: torch's own attention. torch's fault.
- python-operator: an operator written in Python that has nothing of ours. torch's proxy executor.
- beside-tilewise: torch's own attention in a process that imported tilewise.
- tilewise, tilewise-options, tilewise-dynamic: our operator plain, with tensors among its options,
  with a symbolic batch.
- loaded-anew: the package of the step tilewise in a process that only loads it.

Source of the calls: torch/_inductor/package/package.py of PyTorch 2.11 to 2.15.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

STEPS = (
    "torch-attention",
    "python-operator",
    "beside-tilewise",
    "tilewise",
    "tilewise-options",
    "tilewise-dynamic",
    "loaded-anew",
)
PACKAGED = "tilewise"  # the step whose package loaded-anew loads
SHAPE = (2, 4, 64, 64)  # (B, H, S, D)


def phase(name: str) -> None:
    """Tells the parent how far this step has come, before the process may die."""
    print(f"phase {name}", flush=True)


def attend_by(step: str) -> Callable[..., Any]:
    """The model's function of q, k, v (B, H, S, D) in one step."""
    import torch

    if step in ("torch-attention", "beside-tilewise"):
        if step == "beside-tilewise":
            import tilewise

            tilewise.attention(*(torch.zeros(1, 1, 1, 8) for _ in range(3)))
        return torch.nn.functional.scaled_dot_product_attention
    if step == "python-operator":
        # Our operators' kinds of arguments: a tensor that may be missing, a float, a text.
        schema = "(Tensor a, Tensor? b, float? scale, str kind) -> Tensor"

        @torch.library.custom_op("aoti_steps::add", mutates_args=(), schema=schema)
        def add(a: Tensor, b: Tensor | None, scale: float | None, kind: str) -> Tensor:
            return a + b if b is not None else a.clone()

        add.register_fake(lambda a, b, scale, kind: torch.empty_like(a))

        return lambda q, k, v: add(add(q, k, None, "both"), None, 0.5, "") + v
    import tilewise

    if step == "tilewise-options":
        return lambda q, k, v: tilewise.attention(
            q, k, v, layout="bhsd", window=(9, 0), sinks=q[0, :, 0, 0].float(), return_lse=True
        )[0]
    return lambda q, k, v: tilewise.attention(q, k, v, layout="bhsd", causal=True)


def run_step(step: str, device: str, folder: Path) -> None:
    """One step, in this process. AssertionError: the package's result is not eager's."""
    faulthandler.enable()
    phase("import")
    import torch

    attend = attend_by(PACKAGED if step == "loaded-anew" else step)

    class Model(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            o: Tensor = attend(q * 2, k, v)
            return o + 1

    model = Model()
    dtype = torch.float16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    inputs = tuple(torch.randn(SHAPE, device=device, dtype=dtype) for _ in range(3))
    path = str(folder / f"{PACKAGED if step == 'loaded-anew' else step}.pt2")
    if step != "loaded-anew":
        phase("export")
        batch = {0: torch.export.Dim("batch", min=2, max=64)}
        dynamic = (batch, batch, batch) if step == "tilewise-dynamic" else None
        program = torch.export.export(model, inputs, dynamic_shapes=dynamic)
        phase("compile")
        torch._inductor.aoti_compile_and_package(program, package_path=path)
    phase("load")
    packaged = torch._inductor.aoti_load_package(path)
    phase("run")
    batches = (2, 3) if step == "tilewise-dynamic" else (2,)
    for size in batches:
        given = tuple(torch.cat([t, t])[:size] for t in inputs)
        result = packaged(*given)
        if device == "cuda":
            torch.cuda.synchronize()
        phase("compare")
        torch.testing.assert_close(result, model(*given), atol=2e-3, rtol=2e-3)
    phase("done")


def frames_of(errors: str) -> str:
    """The frames of installed packages, as "package/file.py:line function"."""
    frames = re.findall(r'([^"\n]*)", line (\d+),? in (\S+)', errors)
    named = [(path.rpartition("site-packages/")[2], *rest) for path, *rest in frames]
    return "; ".join(f"{path}:{line} {name}" for path, line, name in named if path[0] != "/")


def watch(step: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Runs one step as a process: its last phase, its exit status and the end of its errors."""
    command = [sys.executable, __file__, "--step", step, "--device", arguments.device]
    began = time.monotonic()
    try:
        ended = subprocess.run(
            [*command, "--folder", str(folder)],
            capture_output=True,
            text=True,
            timeout=arguments.limit,
            check=False,
        )
        status, out, errors = ended.returncode, ended.stdout, ended.stderr
    except subprocess.TimeoutExpired as error:
        status = None
        out, errors = (
            (text or b"").decode() if not isinstance(text, str) else text
            for text in (error.stdout, error.stderr)
        )
    phases = [line.split()[1] for line in out.splitlines() if line.startswith("phase ")]
    right = status == 0 and phases[-1:] == ["done"]
    row = {
        "step": step,
        "right": right,
        "phase": phases[-1] if phases else "start",
        "status": status,  # negative: killed by this signal; null: out of time
        "seconds": round(time.monotonic() - began, 1),
        "errors": "" if right else errors[-1500:],
    }
    yes = "yes" if right else "no"  # at once: a run that is cut short has told what it knows
    print(f"| {step} | {yes} | {row['phase']} | {status} | {row['seconds']} |", flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--limit", type=float, default=110.0, help="seconds for a step")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--step", choices=STEPS, help="run this step alone, in this process")
    parser.add_argument("--folder", type=Path, help="where --step keeps its package")
    arguments = parser.parse_args()
    if arguments.step:
        with tempfile.TemporaryDirectory() as own:
            run_step(arguments.step, arguments.device, arguments.folder or Path(own))
        return 0
    print("| step | right | last phase | status | s |\n|---|---|---|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            rows = list(pool.map(lambda step: watch(step, arguments, folder), STEPS[:-1]))
        rows.append(watch(STEPS[-1], arguments, folder))
    for row in rows:
        if row["errors"]:
            print(f"\n{row['step']}:\n{row['errors']}", file=sys.stderr)
    if arguments.json:
        import torch

        for row in rows:  # without the folders of the machine
            row["errors"] = frames_of(row["errors"])
        report = {
            "schema_version": 1,
            "rows": [],  # none of `tilewise bench`: its tools pass this file by
            "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
            "torch": torch.__version__,
            "steps": rows,
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
