"""./tw test: lint, release, python, asan, fuzz, tsan; ends with 'N passed, N failed, N skipped'."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from lint import run_lint
from python_stage import run_python
from results import SHOWN_LINES, Result, Status, counts, print_result, read_junit

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build/logs"
# Tests that look at what NVRTC makes of a kernel: a sanitizer would slow NVRTC and see none of it.
COMPILING = "CompileCleanly|CompileWithoutSpills|ListUnits"
# Instruction sets whose kernels share their tasks with those of avx2 and amx, source and all.
SAME_TASKS = "[/_](scalar|avx512|avx512bf16)( |$)"
# Tests of figures, whose code other tests run under a sanitizer too: gradients beside differences
# (Float32IsNearItsTwin takes the same models), how workers share and how much is worked out, and
# tiles shared by heads in rows that have none of them.
FIGURES = "Derivatives[.]AreFiniteDifferences|C119WorkersShareTheWork|C120HiddenScores"
FIGURES += "|RowsOfAGroupShareTiles/(reference|baseline|eager|fused)_"
# Each stage's preset, the targets that it builds and the tests that it runs, as ninja's and ctest's
# arguments; lint and python are made otherwise.
STAGES: dict[str, tuple[str, list[str], list[str]]] = {
    "lint": ("", [], []),
    "release": ("release", [], []),
    "python": ("", [], []),
    # Accuracy, of a row, on three_way.txt and of predicted times, is the release's to test.
    # cli.plan_test runs every command of time_model_test.
    "asan": (
        "asan",
        [],
        ["-LE", "install|fuzz", "-E", f"{COMPILING}|{FIGURES}|Accuracy|three_way_|time_model_test"],
    ),
    "fuzz": ("asan", ["fuzz_targets"], ["-L", "fuzz"]),
    # What Accuracy has of threads runs in the contract's tests too.
    "tsan": (
        "tsan",
        ["threads_tests"],
        ["-L", "threads", "-E", f"{COMPILING}|{FIGURES}|Accuracy|{SAME_TASKS}"],
    ),
}
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # It waits for a second at the end of every process, one test, for what other threads might do.
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:atexit_sleep_ms=20",
    "TILEWISE_FUZZ_SECONDS": "60" if os.environ.get("CI") else "20",
}
ERROR_LINE = re.compile(r"error|FAILED|undefined reference|No such file", re.IGNORECASE)


def status_line(text: str) -> None:
    """Shows what a long command is doing; a pipe gets none of it."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\033[K{text[:width]}", end="", flush=True)


def run_logged(command: list[str], log: Path) -> bool:
    """Runs a command, its output in a log file and its last line on the terminal."""
    with log.open("a", buffering=1, encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**ENVIRONMENT, **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            status_line(line.rstrip())
        returned = process.wait()
    status_line("")
    return returned == 0


def build(stage: str) -> Result | None:
    """Configures and builds; nothing when it worked, a failed result when it did not."""
    preset, targets, _ = STAGES[stage]
    log = LOGS / f"{stage}-build.log"
    log.unlink(missing_ok=True)
    started = time.monotonic()
    print(f"{stage}: building", flush=True)
    configured = (ROOT / f"build/{preset}/build.ninja").exists() or run_logged(
        ["cmake", "--preset", preset], log
    )
    if configured and run_logged(["cmake", "--build", f"build/{preset}", "--", *targets], log):
        print(f"{stage}: built in {time.monotonic() - started:.0f} s", flush=True)
        return None
    lines = log.read_text(encoding="utf-8").splitlines()
    first = next((i for i, line in enumerate(lines) if ERROR_LINE.search(line)), 0)
    shown = "\n".join([*lines[first : first + SHOWN_LINES], f"(all of it: {log})"])
    return Result(stage, f"build of {stage}", Status.FAILED, shown)


def run_ctest(stage: str) -> list[Result]:
    """Runs the stage's share of the suite."""
    preset, _, chosen = STAGES[stage]
    log = LOGS / f"{stage}-tests.log"
    junit = LOGS / f"{stage}.xml"
    log.unlink(missing_ok=True)
    junit.unlink(missing_ok=True)
    print(f"{stage}: testing", flush=True)
    jobs = str(os.cpu_count() or 1)
    command = ["ctest", "--test-dir", f"build/{preset}", "-j", jobs, "--output-on-failure"]
    run_logged([*command, "--output-junit", str(junit), *chosen], log)
    if not junit.exists():
        end = log.read_text(encoding="utf-8").splitlines()[-SHOWN_LINES:]
        return [Result(preset, f"ctest of {stage}", Status.FAILED, "\n".join(end))]
    return read_junit(junit, stage)


def run_stage(stage: str, without_torch: bool) -> list[Result]:
    if stage == "lint":
        print("lint:", flush=True)
        # clang-tidy reads the compile commands of the release build: they must be of these sources.
        run_logged(["cmake", "--preset", "release"], LOGS / "release-configure.log")
        return run_lint(report=lambda result: status_line(result.name))
    if stage == "python":
        print("python: building and testing the package", flush=True)
        return run_python(run_logged, LOGS, without_torch)
    broken = build(stage)
    return [broken] if broken else run_ctest(stage)


def print_summary(results: list[Result], took: dict[str, str]) -> None:
    """Who sees only the end of the output learns from it what failed, and where the time went."""
    skipped = [result for result in results if result.status is Status.SKIPPED]
    if skipped:
        print("\nskipped:")
    for result in skipped:
        print(f"  {result.stage}  {result.name}")
    reasons = Counter(f"{result.stage}: {result.detail or 'no reason given'}" for result in skipped)
    if reasons:
        print("\nskipped, by reason:")
    for reason, tests in sorted(reasons.items()):
        print(f"  {tests:4} {reason}")
    print("\nstages:")
    for stage, text in took.items():
        print(f"  {stage}: {text}")
    failed = [result for result in results if result.status is Status.FAILED]
    if failed:
        print("\nfailed:")
    for result in failed:
        print(f"  {result.stage}  {result.name}")
    print()
    print(counts(results), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./tw test", description=__doc__)
    parser.add_argument("stage", nargs="*", help=f"some of: {' '.join(STAGES)}")
    parser.add_argument("--no-torch", action="store_true", help="python: as if there were no torch")
    arguments = parser.parse_args()
    chosen = arguments.stage or list(STAGES)
    unknown = [stage for stage in chosen if stage not in STAGES]
    if unknown:
        parser.error(f"no such stage: {' '.join(unknown)}; there are: {' '.join(STAGES)}")
    LOGS.mkdir(parents=True, exist_ok=True)

    results: list[Result] = []
    took: dict[str, str] = {}
    for stage in chosen:
        started = time.monotonic()
        new = run_stage(stage, arguments.no_torch)
        results += new
        status_line("")
        took[stage] = f"{counts(new)} in {time.monotonic() - started:.0f} s"
        print(f"{stage}: {took[stage]}", flush=True)
        for result in new:
            if result.status is Status.FAILED:
                print_result(result)

    print_summary(results, took)
    failed = any(result.status is Status.FAILED for result in results)
    ran = any(result.status is Status.PASSED for result in results)
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
