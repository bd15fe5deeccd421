"""Random problems of fixed seeds for each family of GPU rows, host and kernels, emulated.

tests/cuda/card/README.md says what that finds, and how to run more of them.
"""

import os
import subprocess
import sys
import unittest
from pathlib import Path

from build_cache import cached

sys.path.insert(0, str(Path(__file__).resolve().parent / "card"))

import card

CLI = os.environ.get("TILEWISE_CLI", "")
SKIPPED = 77
# Row -> number and seed of random problems. They differ in sizes and values alone, and so they
# share a few kernels: each takes seconds to compile.
RANDOM = {
    "flash_fwd_sm90": (8, 1),
    "flash_bwd_sm90": (4, 13),
    "flash_bwd_short_sm90": (2, 20),
    "flash_decode_sm90": (3, 21),
    "flash_fwd_sm80": (2, 2),
    "flash_bwd_sm80": (2, 4),
}
# Pages, a sequence without keys, and parts of keys.
LATENT = "b3 h16/1 q2 k192 lengths=192,0,67 paged=64 causal d576 dv512 bf16 layout=latent pass=fwd"


class Card(unittest.TestCase):
    environment: dict[str, str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.environment = card.environment(card.prepare())
        # With few multiprocessors decoding cuts keys into fewer parts.
        cls.environment["TILEWISE_CARD_MULTIPROCESSORS"] = "4"

    def check(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [CLI, "check", "--device", "cuda:0", "--format", "csv", *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True)

    def test_random_problems(self) -> None:
        for row, (count, seed) in RANDOM.items():
            with self.subTest(row):
                words = ("--random", str(count), "--variants", "8", "--seed", str(seed))
                done = self.check("--kernel", row, *words)
                self.assertEqual(done.returncode, 0, f"{done.stdout[-1000:]}{done.stderr[-2000:]}")
                self.assertIn(f"{row},{count},0,0", done.stdout)

    def test_latent_attention(self) -> None:
        done = self.check("--kernel", "flash_mla_sm90", "--case", LATENT)
        self.assertEqual(done.returncode, 0, f"{done.stdout[-1000:]}{done.stderr[-2000:]}")
        self.assertIn("flash_mla_sm90,passed,O", done.stdout)


if __name__ == "__main__":
    if not CLI or card.compiler() is None:
        print("this build has no command line, or there is no C++ compiler")
        sys.exit(SKIPPED)
    if cached("TILEWISE_SANITIZE"):
        print("the emulated kernels are built without this build's sanitizer")
        sys.exit(SKIPPED)
    unittest.main()
