"""The library on CPUs older than this one: qemu's user mode traps every instruction they lack.

Nehalem has SSE4.2 at most, Haswell AVX2 and FMA. qemu of Debian 12 has no AVX-512 to offer.
"""

import json
import os
import shutil
import subprocess
import sys
import unittest

CLI = os.environ["TILEWISE_CLI"]
QEMU = shutil.which("qemu-x86_64")
SETS = {"Nehalem": "scalar", "Haswell": "avx2"}
CASES = (
    "b1 h2 s130 d40 f32 causal",
    "b2 h4/2 q3 k300 d32 bf16 dropout=0.3 seed=3",
    "b1 h2/1 s70 d24 dv40 f16 window=20,5 softcap=30 sink=ones",
)


def on(cpu: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TILEWISE_CPU_ISA"}
    command = [str(QEMU), "-cpu", cpu, CLI, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


class OlderCpu(unittest.TestCase):
    def test_every_row_that_the_cpu_can_run(self) -> None:
        cases = [word for case in CASES for word in ("--case", case)]
        for cpu, isa in SETS.items():
            done = on(cpu, "check", "--impl", "flash", *cases, "--format", "json")
            self.assertEqual(done.returncode, 0, f"{cpu}: {done.stdout}{done.stderr}")
            report = json.loads(done.stdout)
            self.assertEqual(report["environment"]["isa"], isa)
            rows = report["rows"]
            ran = {row["kernel"] for row in rows if row["status"] == "passed"}
            wanted = {f"flash_{way}_{name}" for way in ("fwd", "bwd") for name in ("scalar", isa)}
            self.assertEqual(ran, wanted, cpu)
            skipped = {row["kernel"] for row in rows if row["status"] == "skipped"}
            self.assertIn("flash_fwd_avx512", skipped, cpu)

    def test_fused(self) -> None:
        done = on("Haswell", "check", "--impl", "fused", "--case", CASES[0])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    if QEMU is None:
        print("qemu-x86_64 (Debian: qemu-user) is not installed")
        sys.exit(77)
    unittest.main()
