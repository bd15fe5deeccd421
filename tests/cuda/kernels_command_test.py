"""`tilewise kernels`: what it lists, clears and refuses. Compiles nothing."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CLI = os.environ.get("TILEWISE_CLI", "")
SKIPPED = 77
ENTRY = (
    b"tilewise-kernel 1\nkey %s\nname fake\nconfig \ncompiler 13.0\narch 80\n"
    b"bytes 4\nchecksum x\n\ncode\n"
)


class KernelsCommand(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.cache = Path(self.folder.name)

    def tearDown(self) -> None:
        self.folder.cleanup()

    def run_cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "TILEWISE_CACHE_DIR": str(self.cache)}
        return subprocess.run(
            [CLI, "kernels", *words], env=environment, capture_output=True, text=True, check=False
        )

    def cached(self) -> list[dict[str, object]]:
        done = self.run_cli("list", "--format", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return [row for row in json.loads(done.stdout) if row["place"] == "cache"]

    def test_a_pack_that_cannot_be_written_is_not_compiled(self) -> None:
        done = self.run_cli("build", "--arch", "90", "--pack", str(self.cache / "no" / "pack"))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("cannot be written", done.stderr)
        self.assertEqual(self.cached(), [])

    def test_lists_and_clears_the_cache(self) -> None:
        self.assertEqual(self.cached(), [])
        (self.cache / "a-13.0.kernel").write_bytes(ENTRY % b"a")
        (self.cache / "damaged-13.0.kernel").write_bytes(b"not a kernel")
        (self.cache / "foreign.txt").write_text("stays")
        rows = self.cached()
        self.assertEqual([row["kernel"] for row in rows], ["fake"])
        self.assertEqual(rows[0]["arch"], "sm_80")
        done = self.run_cli("clear")
        self.assertEqual(done.returncode, 0)
        self.assertIn("2 kernels removed", done.stdout)
        self.assertEqual([file.name for file in self.cache.iterdir()], ["foreign.txt"])

    def test_says_where_it_looks(self) -> None:
        done = self.run_cli("list")
        self.assertIn(f"cache: {self.cache}", done.stdout)

    def test_refuses_nonsense(self) -> None:
        bad_archs = (["build", "--arch", "seven"], ["build", "--arch", "70"])
        for words in (*bad_archs, ["no-such-command"], []):
            done = self.run_cli(*words)
            self.assertEqual(done.returncode, 2, words)
            self.assertNotEqual(done.stderr, "", words)


if __name__ == "__main__":
    if not CLI:
        sys.exit(SKIPPED)
    unittest.main()
