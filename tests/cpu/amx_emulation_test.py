"""The AMX rows' arithmetic on a CPU without AMX: their cases, on emulated tiles."""

import json
import os
import subprocess
import sys
import unittest

CLI = os.environ["TILEWISE_CLI"]
EMULATED = {**os.environ, "TILEWISE_CPU_ISA": "amx_emulated"}
# The cases, and how many of them a row takes at least.
CASES, TAKEN = ("--edge", 40) if os.environ.get("TILEWISE_SANITIZED") == "1" else ("--all", 100)


def isa() -> str:
    args = [CLI, "check", "--kernel", "reference_fwd", "--case", "b1 h1 s1 d1 f32"]
    done = subprocess.run(
        [*args, "--format", "json"], env=EMULATED, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)["environment"]["isa"]


class AmxEmulation(unittest.TestCase):
    def test_both_rows_agree_with_the_reference(self) -> None:
        for way in ("fwd", "bwd"):
            args = [CLI, "check", CASES, "--kernel", f"flash_{way}_amx", "--format", "json"]
            done = subprocess.run(args, env=EMULATED, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            (row,) = json.loads(done.stdout)["rows"]
            self.assertEqual(row["failed"], 0)
            self.assertGreater(row["passed"], TAKEN)


if __name__ == "__main__":
    if isa() != "amx":
        print("emulated tiles need AVX512_BF16")
        sys.exit(77)
    unittest.main()
