"""`tilewise tune`: what it measures is kept, and plans follow it."""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

from cli_testing import run

SHAPE = ["--batch", "1", "--heads", "2", "--seq", "96", "--dim", "32"]


class Tune(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.state = {"TILEWISE_STATE_DIR": self.folder.name, "TILEWISE_TUNING": ""}

    def tearDown(self) -> None:
        self.folder.cleanup()

    def run_here(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run(*words, env=self.state)

    def test_plans_follow_what_was_measured(self) -> None:
        before = self.run_here("plan", *SHAPE)
        self.assertNotIn("tuned", before.stdout)
        tuned = self.run_here("tune", *SHAPE, "--seconds", "1", "--format", "json")
        self.assertEqual(tuned.returncode, 0, tuned.stderr)
        rows = json.loads(tuned.stdout)
        self.assertEqual([row["pass"] for row in rows], ["forward", "backward"])
        for row in rows:
            measured, forms = (int(word) for word in row["measured"].split(" of "))
            self.assertGreater(forms, 3)
            self.assertGreater(measured, 0)
            self.assertGreaterEqual(row["gain"], 1.0)
        self.assertIn("tuned: measured on this device", self.run_here("plan", *SHAPE).stdout)
        other = self.run_here("plan", *SHAPE[:-1], "48")
        self.assertNotIn("tuned", other.stdout)

    def test_a_damaged_file_is_named(self) -> None:
        self.run_here("tune", *SHAPE, "--pass", "fwd", "--seconds", "0.1")
        (file,) = Path(self.folder.name).glob("tuning-*.txt")
        file.write_text(file.read_text().replace("forward", "fortune", 1))
        plan = self.run_here("plan", *SHAPE)
        self.assertIn(f"{file} is ignored: it is damaged", plan.stdout)
        again = self.run_here("tune", *SHAPE, "--pass", "fwd", "--seconds", "0.1")
        self.assertIn("is ignored", again.stderr)
        self.assertIn("tuned", self.run_here("plan", *SHAPE).stdout)

    def test_a_link_leads_nowhere(self) -> None:
        """Neither read nor written: what it points to is of another purpose."""
        self.run_here("tune", *SHAPE, "--pass", "fwd", "--seconds", "0.1")
        (file,) = Path(self.folder.name).glob("tuning-*.txt")
        other = Path(self.folder.name) / "other"
        file.rename(other)
        before = other.read_bytes()
        file.symlink_to(other)
        self.assertIn(f"{file} is ignored", self.run_here("plan", *SHAPE).stdout)
        again = self.run_here("tune", *SHAPE, "--pass", "fwd", "--seconds", "0.1")
        self.assertEqual(again.returncode, 2)
        self.assertIn(f"{file}: is a link", again.stderr)
        self.assertEqual(other.read_bytes(), before)
        self.assertTrue(file.is_symlink())

    def test_a_folder_for_what_was_measured_is_no_error(self) -> None:
        (Path(self.folder.name) / "machine.json").mkdir()
        self.assertEqual(self.run_here("plan", *SHAPE).returncode, 0)

    def test_a_state_folder_that_cannot_be_made_is_named_first(self) -> None:
        folder = Path(self.folder.name) / "file" / "state"
        folder.parent.write_text("")
        self.state["TILEWISE_STATE_DIR"] = str(folder)
        tuned = self.run_here("tune", *SHAPE, "--seconds", "100")
        self.assertEqual(tuned.returncode, 2)
        self.assertEqual(tuned.stderr, f"tilewise: {folder}: cannot be created: Not a directory\n")

    def test_what_is_not_tuned_says_so(self) -> None:
        packed = self.run_here("tune", "--case", "packed=5,9 h2 d16 f32", "--seconds", "0.1")
        self.assertIn("packed sequences", packed.stdout)


if __name__ == "__main__":
    unittest.main()
