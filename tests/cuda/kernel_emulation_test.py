"""The flash kernels on the CPU: compiled by the host's compiler, one fiber a thread.

The folders ptx of src/cuda/tile hold one instruction a function. emulator/cuda has files of the
same names, found first, which do on the CPU what the instructions do. All else is compiled as it
is. Needs no GPU and no CUDA.

When asynchronous operations take effect and which warps stall is drawn from a seed: 1 here, and
others by --seeds (`kernel_emulation_test.py bwd_sm90 --seeds 2 50`). --drawn N: the seed also draws
N shapes for each of some configs, in programs that have draws.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from build_cache import cached

SKIPPED = 77
SOURCE = Path(__file__).resolve().parent.parent.parent
EMULATOR = SOURCE / "emulator"
# Of a compiler of device code: the emulator's instructions come before those of src/.
FLAGS = ["-std=c++20", "-w", "-include", str(EMULATOR / "emulator.h")]
FLAGS += [f"-I{SOURCE / room}" for room in ("emulator", "src", "include", ".")]

# Programs in emulator/, and whether they need the library's objects for its host side. `faults`
# are kernels that lack a wait, which the emulator must find. Programs that need the objects may
# include expression_texts.h, what expression_texts.cxx prints. A program takes the path of
# emulator/cases/PROGRAM.txt where there is one.
PROGRAMS = {
    "faults": False,
    "append": False,
    "merge_rows": False,
    "textbook": False,
    "flash_sm80": False,
    "flash_sm80_wide": True,
    "flash_sm80_ragged": True,
    "flash_sm80_pages": False,
    "flash_sm80_expressions": True,
    "exact_sums": False,
    "row_statistics": False,
    "mask_maps": True,
    "documents": False,
    "flash_sm80_lists": True,
    "fwd_sm90": True,
    "fwd_sm90_lists": True,
    "fwd_sm90_pages": True,
    "fwd_sm90_expressions": True,
    "fwd_sm90_options": True,
    "bwd_sm90": True,
    "bwd_sm90_expressions": True,
    "bwd_sm90_options": True,
    "bwd_sm90_lists": True,
    "bwd_dq_sm90": True,
    "bwd_short_sm90": True,
    "decode_sm90": True,
    "mla_sm90": True,
    "select": True,
    "layer_steps": True,
}


def library_objects() -> list[str]:
    """Object files of the library and the harness; none where the build folder has none.

    A build folder keeps the objects of sources that have moved, so its file list is not asked.
    """
    build = Path(os.environ.get("TILEWISE_BUILD_DIR", ""))
    commands = build / "compile_commands.json"
    entries = json.loads(commands.read_text()) if commands.exists() else []
    outputs = [re.search(r" -o (\S+\.o)", entry["command"]) for entry in entries]
    paths = [build / output[1] for output in outputs if output is not None]
    rooms = {"tilewise_core.dir", "tilewise_harness.dir"}
    return [str(path) for path in paths if rooms & set(path.parts) and path.exists()]


def compile_program(program: str, folder: Path, compiler: str, objects: list[str]) -> Path:
    """Compiles one of the files of emulator/, with these objects."""
    binary = folder / program
    # Fibers leave and enter frames by longjmp, which a checked longjmp refuses.
    command = [compiler, *FLAGS, "-O1", "-U_FORTIFY_SOURCE", "-I", str(folder)]
    command += ["-x", "c++", str(EMULATOR / f"{program}.cxx"), "-o", str(binary)]
    if objects:
        command += ["-x", "none", *objects, "-lpthread", "-ldl"]
    subprocess.run(command, check=True)
    return binary


def write_texts(folder: Path, compiler: str, objects: list[str]) -> None:
    """Makes expression_texts.h, unless it is there."""
    texts = folder / "expression_texts.h"
    if not texts.exists():
        printer = compile_program("expression_texts", folder, compiler, objects)
        printed = subprocess.run([str(printer)], check=True, capture_output=True, text=True)
        texts.write_text(printed.stdout)


def build(program: str, folder: Path, compiler: str) -> Path | None:
    """Compiles one program; None when it needs objects that are not there."""
    objects = library_objects() if PROGRAMS[program] else []
    if PROGRAMS[program] and not objects:
        print(f"{program}: no object files of the library")
        return None
    if objects:
        write_texts(folder, compiler, objects)
    return compile_program(program, folder, compiler, objects)


def run(program: str, folder: Path, compiler: str, seeds: range, drawn: int) -> int:
    """Compiles and runs one program; SKIPPED when it could not be built here."""
    binary = build(program, folder, compiler)
    if binary is None:
        return SKIPPED
    cases = EMULATOR / "cases" / f"{program}.txt"
    command = [str(binary), *([str(cases)] if cases.exists() else [])]
    for seed in seeds:
        print(f"{program}, seed {seed}", flush=True)
        environment = os.environ | {
            "TILEWISE_EMULATION_SEED": str(seed),
            "TILEWISE_EMULATION_DRAWN": str(drawn),
        }
        if subprocess.run(command, env=environment, check=False).returncode != 0:
            return 1
    return 0


def main() -> int:
    """Runs the programs named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", metavar="program", help=", ".join(PROGRAMS))
    parser.add_argument("--seeds", nargs=2, type=int, default=(1, 1), metavar=("FIRST", "LAST"))
    parser.add_argument("--drawn", type=int, default=0, metavar="N")
    options = parser.parse_args()
    if unknown := set(options.programs) - PROGRAMS.keys():
        parser.error(f"no program {', '.join(unknown)}")
    seeds = range(options.seeds[0], options.seeds[1] + 1)
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        print("no C++ compiler")
        return SKIPPED
    if cached("TILEWISE_SANITIZE"):
        print("the emulated kernels are built without this build's sanitizer")
        return SKIPPED
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = [
            run(program, folder, compiler, seeds, options.drawn)
            for program in options.programs or PROGRAMS
        ]
    return next((result for result in results if result not in (0, SKIPPED)), max(results))


if __name__ == "__main__":
    sys.exit(main())
