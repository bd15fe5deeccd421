"""Runs the command line with a card that is the emulator of emulator/: needs no GPU and no CUDA.

    TILEWISE_BUILD_DIR=build/release python3 tests/cuda/card/card.py check --random 20 --seed 3

Words are those of `tilewise`. `check` gets --device cuda:0 in addition. README.md has the model.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from kernel_emulation_test import FLAGS as EMULATOR_FLAGS  # noqa: E402
from kernel_emulation_test import SOURCE  # noqa: E402

LIBRARIES = {
    "fake_driver/driver.cxx": "libcuda.so.1",
    "card/compiler.cxx": "libnvrtc.so.13",
    "card/blas.cxx": "libcublas.so.13",
}
SUFFIXES = (".h", ".cuh", ".cxx", ".py")
# Fibers leave and enter frames by longjmp, which a checked longjmp refuses. Each kernel is an
# object with an emulator of its own.
FLAGS = ["-O1", "-U_FORTIFY_SOURCE", "-fno-gnu-unique", "-fPIC", "-shared"]
FLAGS += ["-fvisibility=hidden", "-fvisibility-inlines-hidden"]


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++"))


def emulate_shared_memory(sources: Path) -> None:
    """Copies kernels, with the emulator's shared memory, and with the process's static arrays."""
    dynamic = r"extern __shared__ __align__\(\d+\) unsigned char (\w+)\[\];"
    for file in (SOURCE / "src/cuda/kernels").rglob("*.cuh"):
        text = file.read_text()
        new = re.sub(dynamic, r"unsigned char* const \1 = emulator::shared_name;", text)
        new = re.sub(r"\b__shared__ ", "static ", new)
        if new != text:
            copy = sources / file.relative_to(SOURCE / "src")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(new)


def digest() -> str:
    """Of all that a compiled kernel depends on."""
    made = hashlib.sha256(" ".join([*FLAGS, *EMULATOR_FLAGS]).encode())
    rooms = ("src/cuda/tile", "src/cuda/kernels", "src/problem", "emulator", "tests/cuda/card")
    files = [path for room in rooms for path in (SOURCE / room).rglob("*")]
    files += (HERE.parent / "fake_driver").iterdir()
    for file in sorted(path for path in files if path.suffix in SUFFIXES):
        made.update(str(file.relative_to(SOURCE)).encode() + file.read_bytes())
    return made.hexdigest()[:16]


def make(folder: Path) -> None:
    """The driver's libraries and the sources that differ."""
    emulate_shared_memory(folder / "sources")
    for text, name in LIBRARIES.items():
        command = [compiler(), "-std=c++20", "-O2", "-shared", "-fPIC", "-x", "c++"]
        subprocess.run([*command, str(HERE.parent / text), "-o", str(folder / name)], check=True)


def prepare() -> Path:
    """The folder of the card. It is made anew where anything that it depends on has changed."""
    cards = Path(os.environ["TILEWISE_BUILD_DIR"]).resolve() / "card"
    folder = cards / digest()
    if folder.exists():
        return folder
    cards.mkdir(parents=True, exist_ok=True)
    for old in cards.glob("[0-9a-f]*"):
        shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=cards) as made:
        make(Path(made) / "card")
        # Another process may have been faster.
        with contextlib.suppress(OSError):
            (Path(made) / "card").rename(folder)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """With which the command line finds the card."""
    words = [str(compiler()), f"-I{folder / 'sources'}", *EMULATOR_FLAGS, *FLAGS, f"-I{HERE}"]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        "TILEWISE_CUDA_PATH": str(folder),
        "TILEWISE_CACHE_DIR": str(folder / "kernels"),
        "TILEWISE_KERNEL_PACK": str(folder / "no.pack"),
        "TILEWISE_CARD_COMPILE": " ".join(words),
        "TILEWISE_CASES_DIR": str(SOURCE / "cases"),
        "TILEWISE_TUNING": "off",
        "TILEWISE_EMULATION_SEED": os.environ.get("TILEWISE_EMULATION_SEED", "0"),
    }


def command_line() -> str:
    return os.environ.get("TILEWISE_CLI", f"{os.environ['TILEWISE_BUILD_DIR']}/tilewise")


def main(words: list[str]) -> int:
    if words[:1] == ["check"]:
        words = ["check", "--device", "cuda:0", *words[1:]]
    environ = environment(prepare())
    return subprocess.run([command_line(), *words], env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
