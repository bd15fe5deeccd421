"""What a command does when it cannot be heard, must stop at once, or would overwrite its input."""

import os
import signal
import struct
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from cli_testing import BAD_INPUT, CLI, INTERRUPTED, SOURCE, run, write_safetensors


class Hardening(unittest.TestCase):
    def test_an_error_that_cannot_be_written_keeps_its_exit_code(self) -> None:
        for words in (["run", "nope.npy"], ["fly"], ["bench", "--seq", "x"]):
            with Path("/dev/full").open("w") as full:
                done = subprocess.run([CLI, *words], stderr=full, check=False)
            self.assertEqual(done.returncode, BAD_INPUT, words)

    def test_help_that_cannot_be_written_is_an_error(self) -> None:
        for words in (["--help"], ["plan", "--help"], ["--version"]):
            with Path("/dev/full").open("w") as full:
                done = subprocess.run(
                    [CLI, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
                )
            self.assertEqual(done.returncode, BAD_INPUT, words)
            self.assertIn("standard output", done.stderr)

    def test_ctrl_c_does_not_wait_for_a_task(self) -> None:
        words = ["bench", "--impl", "reference", "--seq", "4096", "--dim", "128", "--threads", "1"]
        words += ["--pass", "fwd", "--repeat", "1", "--warmup", "0"]
        environment = {**os.environ, "TILEWISE_CASES_DIR": str(SOURCE / "cases")}
        bench = subprocess.Popen(
            [CLI, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
        time.sleep(1.5)
        begin = time.monotonic()
        bench.send_signal(signal.SIGINT)
        _, errors = bench.communicate(timeout=60)
        self.assertEqual(bench.returncode, INTERRUPTED)
        self.assertIn(b"interrupted after 0 of 1 cells", errors)
        # The task takes many times as long, on any machine.
        self.assertLess(time.monotonic() - begin, 5.0)

    def test_an_output_does_not_replace_its_input(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "qkv.safetensors"
            values = [0.5] * 16
            write_safetensors(path, {name: ("F32", (1, 2, 1, 8), values) for name in "qkv"})
            before = path.read_bytes()
            link = Path(folder) / "link.safetensors"
            link.symlink_to(path)
            for output in (path, link):
                done = run("run", path, "-o", output)
                self.assertEqual(done.returncode, BAD_INPUT, done.stderr)
                self.assertIn("this is an input file", done.stderr)
            self.assertEqual(path.read_bytes(), before)

    def test_names_are_looked_at_before_tensors_are_read(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({1 << 32},), }}"
            header += " " * (-(len(header) + 11) % 64) + "\n"
            path = Path(folder) / "q.npy"
            with path.open("wb") as file:  # 16 GiB of which nothing is on the disk
                file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
                file.truncate(10 + len(header) + (1 << 34))
            begin = time.monotonic()
            done = run("run", path)
            self.assertEqual(done.returncode, BAD_INPUT)
            self.assertIn("k is missing", done.stderr)
            self.assertLess(time.monotonic() - begin, 10.0)


if __name__ == "__main__":
    unittest.main()
