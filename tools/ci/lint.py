"""Lint: formatting, static analysis and the rules of the house. `./tw lint`, `./tw format`."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from results import Result, Status, print_result

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/cuda"))
from kernel_emulation_test import EMULATOR, FLAGS, library_objects, write_texts  # noqa: E402

CPP_SUFFIXES = {".cpp", ".cxx", ".h", ".hpp", ".cu", ".cuh"}
# Units for clang-tidy alone, of device code that no program of the emulator includes.
DEVICE = ROOT / "tools/ci/device"
INSTRUCTIONS = DEVICE / "instructions.cxx"
MAX_FILE_LINES = 500
# STYLE has asked for short subjects since this commit.
SHORT_SUBJECTS_SINCE = "0dd895d9"
MAX_SUBJECT = 72
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


def git(*arguments: str) -> list[str]:
    """Lines of a git command's output; empty when it fails or there is no git."""
    try:
        # The checkout may belong to another user, as it does under sudo.
        command = ["git", "-C", str(ROOT), "-c", f"safe.directory={ROOT}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def source_files() -> list[Path]:
    """The project's files: tracked, or new and not ignored; without git, all but what is built."""
    names = git("ls-files", "--cached", "--others", "--exclude-standard")
    if names:
        return sorted(path for name in names if (path := ROOT / name).is_file())
    hidden = {"build", ".venv", ".git"}
    tops = [top for top in ROOT.iterdir() if top.name not in hidden]
    inside = [path for top in tops if top.is_dir() for path in top.rglob("*")]
    return sorted(path for path in tops + inside if path.is_file())


def run_tool(name: str, command: list[str]) -> Result:
    """One check that is one command: it passes when the command returns 0."""
    if shutil.which(command[0]) is None:
        return Result("lint", name, Status.SKIPPED, f"{command[0]} is not installed")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    status = Status.PASSED if done.returncode == 0 else Status.FAILED
    return Result("lint", name, status, (done.stdout + done.stderr).strip())


def relative(paths: Iterable[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def clang_format(files: list[Path], fix: bool) -> Result:
    sources = relative(path for path in files if path.suffix in CPP_SUFFIXES)
    if not sources:
        return Result("lint", "clang-format", Status.SKIPPED, "no C++ sources")
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    result = run_tool("clang-format", ["clang-format", *mode, *sources])
    places = re.findall(r"^(\S+?):(\d+):\d+: error", result.detail, re.MULTILINE)
    lines = {name: int(line) for name, line in reversed(places)}
    detail = "\n".join(f"{name}:{line} and below" for name, line in sorted(lines.items()))
    return Result(result.stage, result.name, result.status, detail or result.detail)


def ruff(files: list[Path], fix: bool) -> list[Result]:
    scripts = relative(path for path in files if path.suffix == ".py")
    command = str(ROOT / ".venv/bin/ruff")
    check = [command, "check", "--quiet"] + (["--fix"] if fix else [])
    layout = [command, "format", "--quiet"] + ([] if fix else ["--diff"])
    return [
        run_tool("ruff check", [*check, *scripts]),
        run_tool("ruff format", [*layout, *scripts]),
    ]


def python_compiles(files: list[Path]) -> Result:
    errors = []
    for path in files:
        if path.suffix == ".py":
            try:
                compile(path.read_bytes(), str(path.relative_to(ROOT)), "exec")
            except SyntaxError as error:
                errors.append(str(error))
    status = Status.FAILED if errors else Status.PASSED
    return Result("lint", "python compiles", status, "\n".join(errors))


def is_shell(path: Path) -> bool:
    if path.suffix:
        return path.suffix == ".sh"
    with path.open("rb") as file:
        return re.match(rb"#!.*\b(ba)?sh\b", file.readline()) is not None


def shellcheck(files: list[Path]) -> Result:
    return run_tool("shellcheck", ["shellcheck", *relative(filter(is_shell, files))])


def house_rules(files: list[Path]) -> Result:
    """STYLE: files of at most 500 lines, and nothing left for later."""
    found = []
    for path in files:
        if path.suffix not in CPP_SUFFIXES | {".py", ".sh", ".cmake"}:
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        name = path.relative_to(ROOT)
        if len(lines) > MAX_FILE_LINES:
            found.append(f"{name}: {len(lines)} lines, at most {MAX_FILE_LINES}")
        found += [
            f"{name}:{number}: {line.strip()}"
            for number, line in enumerate(lines, 1)
            if UNFINISHED.search(line)
        ]
    status = Status.FAILED if found else Status.PASSED
    return Result("lint", "house rules", status, "\n".join(found))


def commit_subjects() -> Result:
    """STYLE: a commit's subject has at most 72 signs."""
    lines = git("log", "--format=%h %s", f"{SHORT_SUBJECTS_SINCE}..HEAD")
    if not git("rev-parse", "--verify", "--quiet", SHORT_SUBJECTS_SINCE + "^{commit}"):
        return Result("lint", "commit subjects", Status.SKIPPED, "the history is not here")
    long = [line for line in lines if len(line.partition(" ")[2]) > MAX_SUBJECT]
    status = Status.FAILED if long else Status.PASSED
    return Result("lint", "commit subjects", status, "\n".join(long))


def branch_point() -> list[str]:
    """Where this branch left origin/main, or else the commit before."""
    base = git("merge-base", "HEAD", "origin/main")
    return base if base and base != git("rev-parse", "HEAD") else git("rev-parse", "HEAD~1")


def changed_names(since: str | None) -> set[str]:
    """Files that differ from a commit, or are new."""
    base = [since] if since else branch_point()
    changed = git("diff", "--name-only", *base) if base else []
    return set(changed) | set(git("ls-files", "--others", "--exclude-standard"))


def included(file: Path, seen: set[Path], rooms: Sequence[str]) -> set[Path]:
    """A file and what it includes of ours, found in these rooms."""
    if file not in seen:
        seen.add(file)
        for name in re.findall(r'^#include "(.+)"', file.read_text(), re.MULTILINE):
            found = (ROOT / room / name for room in rooms)
            included(next(filter(Path.is_file, found), file), seen, rooms)
    return seen


def made_texts(build: Path, folder: Path) -> bool:
    """Whether the header that the emulator's programs generate could be made: the library's objects
    are there."""
    os.environ["TILEWISE_BUILD_DIR"] = str(build)
    objects = library_objects()
    try:
        if objects:
            write_texts(folder, "g++", objects)
    except (subprocess.CalledProcessError, FileNotFoundError):
        return False  # of a half-built library, or there is no compiler
    return bool(objects)


def emulated_units(
    build: Path, folder: Path, everything: bool, since: str | None
) -> tuple[list[Path], list[Path]]:
    """Programs of emulator/ and units of DEVICE that compile device code that changed, the smallest
    for each file, and device code that changed and that none of them includes. Those that include a
    generated header are left out where it cannot be made."""
    programs = [*sorted(ROOT.glob("emulator/*.cxx")), DEVICE / "kernels.cxx", INSTRUCTIONS]
    names = programs if everything else [ROOT / name for name in changed_names(since)]
    folders = {EMULATOR, DEVICE}
    changed = [path for path in names if path.suffix == ".cuh" or folders & set(path.parents)]
    if not changed:
        return [], []
    rooms = {INSTRUCTIONS: ("src",)}
    reached = {
        path: included(path, set(), rooms.get(path, ("emulator", "src", "include", ".")))
        for path in programs
    }
    if not made_texts(build, folder):
        line = '#include "expression_texts.h"'
        asks = {
            path for path, files in reached.items() if any(line in f.read_text() for f in files)
        }
        reached = {path: files for path, files in reached.items() if path not in asks}
    units = sorted(reached, key=lambda path: len(reached[path]))
    found: dict[Path, None] = {}
    missed = []
    for file in changed:
        # A program that changed stands for itself, a header for the first that includes it.
        unit = file if file in units else next((u for u in units if file in reached[u]), None)
        if unit:
            found[unit] = None
        elif file.suffix == ".cuh" and file.exists():
            missed.append(file)
    return list(found), missed


def tidy_units(build: Path, everything: bool, since: str | None) -> list[Path]:
    """Compiled units that changed, themselves or the header of the same stem."""
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    compiled = {Path(entry["file"]) for entry in entries if "cmake_pch" not in entry["file"]}
    # nanobind's sources are compiled where they are installed.
    units = sorted(unit for unit in compiled if unit.is_relative_to(ROOT))
    if everything:
        return units
    stems = {str(Path(name).with_suffix("")) for name in changed_names(since)}
    return [unit for unit in units if str(unit.relative_to(ROOT).with_suffix("")) in stems]


def write_own_commands(build: Path, folder: Path) -> None:
    """The compile commands without precompiled headers: those are g++'s, and hide what is not
    included."""
    commands = (build / "compile_commands.json").read_text(encoding="utf-8")
    own = re.sub(r" -Winvalid-pch -include \S+/cmake_pch\.hxx", "", commands)
    (folder / "compile_commands.json").write_text(own, encoding="utf-8")


def tidy_options(folder: Path, unit: Path) -> list[str]:
    """The unit, and how it is compiled."""
    if unit.suffix == ".cxx":
        # Indices of device code are 32 bits by intent, names with __ are CUDA's, and the analyzer
        # takes minutes. clang 14 has _Float16 with AVX-512 FP16.
        off = "-bugprone-implicit-widening-of-multiplication-result,"
        off += "-bugprone-reserved-identifier,-clang-analyzer-*"
        own = [*FLAGS, "-I", str(folder), "-mavx512fp16"]
        if unit == INSTRUCTIONS:
            own = ["--target=nvptx64-nvidia-cuda", "-std=c++20", "-I", str(ROOT / "src")]
        return [f"--checks={off}", str(unit), "--", *own, "-x", "c++"]
    # The commands are g++'s, and so are some of their warning options.
    return ["-p", str(folder), "--extra-arg=-Wno-unknown-warning-option", str(unit)]


def clang_tidy(
    everything: bool, since: str | None, seconds: float, report: Callable[[Result], None]
) -> list[Result]:
    """clang-tidy on each unit until the time is up; units not reached are one skipped result."""
    build = ROOT / "build/release"
    if not (build / "compile_commands.json").exists():
        return [Result("lint", "clang-tidy", Status.SKIPPED, "build/release is not configured")]
    deadline = time.monotonic() + seconds

    def check(unit: Path) -> Result | None:
        if time.monotonic() > deadline:
            return None
        command = ["clang-tidy", "--quiet", *tidy_options(folder, unit)]
        result = run_tool(f"clang-tidy {unit.relative_to(ROOT)}", command)
        report(result)
        return result

    with TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Path(name)
        write_own_commands(build, folder)
        device, without = emulated_units(build, folder, everything, since)
        units = tidy_units(build, everything, since) + device
        results = list(pool.map(check, units))
    missed = [unit for unit, result in zip(units, results, strict=True) if result is None]
    if missed:
        reason = f"not reached in {seconds:.0f} s: " + ", ".join(relative(missed))
        results.append(Result("lint", f"clang-tidy on {len(missed)} more", Status.SKIPPED, reason))
    if without:
        reason = "no unit here includes " + ", ".join(relative(without))
        results.append(Result("lint", "clang-tidy on device code", Status.SKIPPED, reason))
    return [result for result in results if result is not None]


def run_lint(
    everything: bool = False,
    since: str | None = None,
    fix: bool = False,
    report: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """All checks in turn; `report` hears of each as it ends."""
    files = source_files()
    results = [clang_format(files, fix), *ruff(files, fix)]
    if not fix:
        results += [python_compiles(files), shellcheck(files), house_rules(files)]
        results.append(commit_subjects())
    for result in results:
        report(result)
    if not fix:
        seconds = (
            1e9 if everything or since else float(os.environ.get("TILEWISE_TIDY_SECONDS", "120"))
        )
        results += clang_tidy(everything, since, seconds, report)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="./tw lint", description=__doc__)
    parser.add_argument("--all", action="store_true", help="clang-tidy on every unit")
    parser.add_argument("--since", metavar="COMMIT", help="clang-tidy on what changed since")
    parser.add_argument("--fix", action="store_true", help="rewrite the sources in the format")
    options = parser.parse_args()
    since = options.since
    if since and not git("rev-parse", "--verify", "--quiet", since + "^{commit}"):
        parser.error(f"--since: no commit here is named {since!r}")
    results = run_lint(options.all, since, options.fix, print_result)
    return 1 if any(result.status is Status.FAILED for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
