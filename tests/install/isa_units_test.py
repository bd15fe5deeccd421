"""Units of one instruction set define no inline function that the linker could share with others.

Of two weak definitions the linker keeps either, also the one compiled for AVX-512, and a plain
machine would then meet it in code that never asked for it.
"""

import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

BUILD = Path(os.environ["TILEWISE_BUILD_DIR"])
UNIT = re.compile(r"_(avx2|avx512|avx512bf16|amx)\.cpp$")


def optimised() -> bool:
    cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
    return "CMAKE_BUILD_TYPE:STRING=Release" in cache


def isa_units() -> list[tuple[str, Path]]:
    """(instruction set, object file) of each such unit."""
    entries = json.loads((BUILD / "compile_commands.json").read_text(encoding="utf-8"))
    units = []
    for entry in entries:
        found = UNIT.search(entry["file"])
        if found:
            object_file = re.search(r" -o (\S+\.o)", entry["command"])
            assert object_file is not None, entry["command"]
            units.append((found.group(1), BUILD / object_file.group(1)))
    return units


class IsaUnits(unittest.TestCase):
    def test_weak_symbols_carry_the_instruction_set_in_their_name(self) -> None:
        shared = []
        for isa, path in isa_units():
            command = ["nm", "-C", "--defined-only", str(path)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            for line in done.stdout.splitlines():
                kind, name = line.split(maxsplit=2)[1:]
                if kind in "WVu" and isa not in name:
                    shared.append(f"{path.name}: {name}")
        self.assertEqual(shared, [])


if __name__ == "__main__":
    if not optimised():
        print("only an optimised build inlines what must not be shared")
        sys.exit(77)
    unittest.main()
