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

# Scale is a float32, its product with log2 e is not. Signs: no product of two factors is subnormal.
LARGE_SCALE = "b1 h1 s64 d64 bf16 scale=3e38 q=sign*1e-18 k=sign*1e-18 pass=fwd"


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

    def test_scale_near_the_largest_float(self) -> None:
        for kernel in ("flash_fwd_amx", "flash_fwd_avx512bf16"):
            args = [CLI, "check", "--kernel", kernel, "--case", LARGE_SCALE]
            done = subprocess.run(args, env=EMULATED, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    if isa() != "amx":
        print("emulated tiles need AVX512_BF16")
        sys.exit(77)
    unittest.main()
