"""The terminal: a progress bar there and none in a pipe; Ctrl-C keeps what was measured."""

import json
import os
import pty
import select
import signal
import subprocess
import time

from cli_testing import CLI, INTERRUPTED, SANITIZED, SOURCE, CliTest, main, run

PATIENCE_S = 600  # of a test that hangs; nothing else depends on the clock


class Terminal:
    """A command whose standard error is a terminal."""

    def __init__(self, *args: str, env: dict[str, str] | None = None) -> None:
        self.master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "TILEWISE_CASES_DIR": str(SOURCE / "cases")}
        environment |= env or {}
        self.process = subprocess.Popen(
            [CLI, *args], stdout=subprocess.PIPE, stderr=slave, env=environment, text=True
        )
        os.close(slave)
        self.seen = b""

    def wait_for(self, words: bytes) -> bool:
        """Reads until the terminal has shown the words; False if the command ends before."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.seen and time.monotonic() < deadline:
            if not select.select([self.master], [], [], 1.0)[0]:
                continue
            try:
                piece = os.read(self.master, 4096)
            except OSError:  # Linux says so when the other side is closed
                return words in self.seen
            if not piece:
                return False
            self.seen += piece
        return words in self.seen

    def finish(self) -> tuple[int, str]:
        """The exit code and standard output."""
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        self.wait_for(b"\0never\0")
        os.close(self.master)
        return self.process.returncode, out


QUICK = ["--warmup", "0", "--repeat", "1", "--pass", "fwd", "--format", "json"]
# The second cell takes minutes, in tasks of some milliseconds.
LONG = ["bench", "--impl", "reference", "--batch", "1000", "--dim", "16", "--seq", "8,512"]
LONG += ["--warmup", "0", "--repeat", "20", "--pass", "fwd", "--format", "json"]
LONG_CURVE = ["bench", "--best-batch", "--impl", "reference", "--dim", "16", "--seq", "8,2048"]
REPEATS = "25" if SANITIZED else "500"
LONG_CURVE += ["--warmup", "0", "--repeat", REPEATS, "--pass", "fwd", "--mem-limit", "4MiB"]


class ProgressBar(CliTest):
    def test_on_a_terminal(self) -> None:
        terminal = Terminal("bench", "--seq", "32,64", *QUICK)
        code, out = terminal.finish()
        self.assertEqual(code, 0)
        self.assertEqual(len(json.loads(out)["rows"]), 2)
        shown = terminal.seen.decode()
        self.assertIn("░", shown)
        self.assertIn("1/2", shown)
        self.assertTrue(shown.endswith("\r\x1b[K"), repr(shown[-40:]))

    def test_not_in_a_pipe(self) -> None:
        result = run("bench", "--seq", "32,64", *QUICK)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_check_has_one_too(self) -> None:
        args = ["check", "--impl", "flash", "--case", "s16 d8", "--case", "s17 d8"]
        terminal = Terminal(*args)
        self.assertEqual(terminal.finish()[0], 0)
        self.assertIn("░", terminal.seen.decode())


class Interrupt(CliTest):
    def test_finished_rows_are_kept(self) -> None:
        terminal = Terminal(*LONG)
        self.assertTrue(terminal.wait_for(b"1/2"), terminal.seen)
        terminal.process.send_signal(signal.SIGINT)
        code, out = terminal.finish()
        self.assertEqual(code, INTERRUPTED)
        rows = json.loads(out)["rows"]
        self.assertEqual([(r["seq_q"], r["status"]) for r in rows], [(8, "ok")])
        self.assertIn(b"interrupted after 1 of 2 cells", terminal.seen)

    def test_into_a_file(self) -> None:
        path = self.folder / "rows.json"
        terminal = Terminal(*LONG, "-o", str(path))
        self.assertTrue(terminal.wait_for(b"1/2"), terminal.seen)
        terminal.process.send_signal(signal.SIGINT)
        self.assertEqual(terminal.finish()[0], INTERRUPTED)
        self.assertEqual(len(json.loads(path.read_text())["rows"]), 1)

    def test_finished_curves_are_kept(self) -> None:
        """Of --best-batch, whose second curve takes minutes; `timeout` sends SIGTERM."""
        for wish in (signal.SIGINT, signal.SIGTERM):
            path = self.folder / f"{wish.name}.json"
            terminal = Terminal(*LONG_CURVE, "-o", str(path))
            self.assertTrue(terminal.wait_for(b"1/2"), terminal.seen)
            terminal.process.send_signal(wish)
            self.assertEqual(terminal.finish()[0], INTERRUPTED)
            self.assertIn(b"interrupted after 1 of 2 cells", terminal.seen)
            rows = json.loads(path.read_text())
            self.assertEqual(rows[0]["batch"], 1)
            self.assertEqual(sum(row["best"] for row in rows), 1)
            self.assertTrue(all(" s8 " in row["problem"] for row in rows), rows)

    def test_a_stopped_check_has_its_summary(self) -> None:
        """`timeout` sends SIGTERM twice at once, to the process and to its group."""
        terminal = Terminal("check", "--impl", "flash", "--random", "9000", "--format", "json")
        self.assertTrue(terminal.wait_for(b" 99/"), terminal.seen)  # some kernels have run
        for _ in range(2):
            terminal.process.send_signal(signal.SIGTERM)
        code, out = terminal.finish()
        self.assertEqual(code, INTERRUPTED)
        self.assertGreater(sum(row["passed"] for row in json.loads(out)["rows"]), 0)
        self.assertRegex(terminal.seen.decode(), r"interrupted after \d+ of \d+ checks")

    def test_a_check_that_must_be_left_has_its_summary(self) -> None:
        """Its second case is one task of several seconds, which does not ask."""
        terminal = Terminal(
            *("check", "--kernel", "reference_fwd", "--threads", "1", "--format", "json"),
            *("--case", "s8 d8 f32 pass=fwd", "--case", "s6000 d128 f32 pass=fwd"),
        )
        self.assertTrue(terminal.wait_for(b"1/2"), terminal.seen)
        time.sleep(2.0)  # into the task
        terminal.process.send_signal(signal.SIGINT)
        code, out = terminal.finish()
        self.assertEqual(code, INTERRUPTED)
        self.assertEqual({row["status"] for row in json.loads(out)["rows"]}, {"passed"})
        self.assertIn(b"interrupted after 1 of 2 checks", terminal.seen)

    def test_tuned_passes_are_kept(self) -> None:
        """The second problem takes hours to tune."""
        path = self.folder / "tuned.json"
        terminal = Terminal(
            *("tune", "--seq", "8,4096", "--dim", "16", "--batch", "1", "--pass", "fwd"),
            *("--seconds", "40000", "-o", str(path)),
            env={"TILEWISE_STATE_DIR": str(self.folder), "TILEWISE_TUNING": ""},
        )
        self.assertTrue(terminal.wait_for(b"1/2"), terminal.seen)
        terminal.process.send_signal(signal.SIGINT)
        self.assertEqual(terminal.finish()[0], INTERRUPTED)
        self.assertIn(b"interrupted after 1 of 2 passes", terminal.seen)
        rows = json.loads(path.read_text())
        self.assertEqual([" s8 " in row["problem"] for row in rows], [True])
        plan = ["plan", "--seq", "8", "--dim", "16", "--batch", "1", "--pass", "fwd"]
        known = run(*plan, env={"TILEWISE_STATE_DIR": str(self.folder), "TILEWISE_TUNING": ""})
        self.assertIn("tuned: measured on this device", known.stdout)


if __name__ == "__main__":
    main()
