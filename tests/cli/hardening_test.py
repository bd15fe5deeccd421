"""What a command does when it cannot be heard, must stop at once, or would overwrite its input.
And what it says of words that it does not take."""

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

    def assert_refused(self, message: str, *words: str) -> None:
        done = run(*words)
        self.assertEqual(done.returncode, BAD_INPUT, done.stdout)
        self.assertIn(message, done.stderr)

    def test_an_option_without_a_value_is_not_the_default(self) -> None:
        for words in (
            ("plan", "--hardware"),
            ("plan", "--preset"),
            ("plan", "--kernel"),
            ("plan", "--impl"),
            ("plan", "--mask"),
            ("plan", "--scale"),
            ("plan", "--mem-limit"),
            ("bench", "--output"),
            ("info", "--hardware"),
            ("tune", "--preset"),
            ("check", "--kernel"),
            ("layer", "train", "--layer"),
        ):
            self.assert_refused(f"{words[-1]} '': expected a value", *words, "")
        self.assert_refused("formula '': expected a value", "mask", "")
        self.assert_refused("files '': expected a value", "run", "")
        self.assert_refused("--hardware", "plan", "--hardware=")
        self.assert_refused("--seq: a value is missing", "plan", "--seq")
        self.assert_refused("--compare: a value is missing", "bench", "--compare", "old.json")

    def test_an_option_is_given_once(self) -> None:
        self.assert_refused("--seq is given 2 times", "plan", "--seq", "8", "--seq", "16")
        self.assert_refused("--seed is given 2 times", "check", "--seed", "1", "--seed=2")
        self.assert_refused("--causal is given 2 times", "plan", "--causal", "--causal")
        self.assert_refused("--output is given 3 times", "plan", "-oa", "-ob", "-o", "c")
        self.assert_refused(
            "--seq is given 2 times", "plan", "--preset", "small", *["--seq", "8"] * 2
        )
        cases = ["--case", "s8 d8", "--case", "s9 d8"]
        self.assertEqual(run("plan", *cases).returncode, 0)

    def test_a_flag_has_no_value(self) -> None:
        for value in ("5", "true1", "false", "no"):
            self.assert_refused("a flag takes no value", "plan", f"--causal={value}")

    def test_numbers_are_decimal_and_whole_words(self) -> None:
        for option in ("--softcap", "--scale", "--dropout"):
            for value in ("1x", "0x10", " 1", "+1", "1,5", "nan", "1e999"):
                self.assert_refused(f"{option} '{value}': expected a number", "plan", option, value)
        self.assert_refused(
            "--density '2': expected a number from 0 to 1", "layer", "train", "--density=2"
        )

    def test_sums_and_products_of_sizes_do_not_overflow(self) -> None:
        packed = "9223372036854775807,1"
        self.assert_refused("expected at most 2^56 rows", "plan", "--packed", packed)
        layers = str(10**17)
        self.assert_refused("from 1 to 1000", "plan", "--serve", "--seq", "8", "--layers", layers)

    def test_a_word_that_no_command_takes_is_named(self) -> None:
        self.assert_refused("'extra' is not an argument of tilewise plan", "plan", "extra", "more")
        self.assert_refused(
            "'--nope' is not an argument of tilewise kernels list", "kernels", "list", "--nope"
        )
        self.assert_refused("'--nope' is not a command", "--nope")

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
