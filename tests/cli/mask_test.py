"""tilewise mask: pictures of masks, and what a plan makes of them."""

import re
import tempfile
from pathlib import Path

from cli_testing import BAD_INPUT, CliTest, main, run

WINDOW = "i >= j & i - j < 256"


class Mask(CliTest):
    def test_draws_blocks_and_counts_them(self) -> None:
        text = self.ok("mask", WINDOW, "--seq", "1024")
        lines = text.splitlines()
        self.assertEqual(lines[0], "▒▒" + "··" * 7)
        self.assertEqual(lines[3], "··▒▒██▒▒" + "··" * 4)
        self.assertIn(
            "21 of 8 x 8 are visible, 7 of them full; they hold 32.81 % of the pairs", text
        )

    def test_reads_captured_tensors_and_whole_cases(self) -> None:
        documents = ["--captures", "doc:i32[Sk]=j // 200"]
        text = self.ok("mask", "doc[i] == doc[j]", "--seq", "400", "--block", "100,100", *documents)
        self.assertEqual(text.splitlines()[:4], ["████····"] * 2 + ["····████"] * 2)
        text = self.ok("mask", "--case", "s128 blocks=32,64:1,1:1 causal", "--block", "9,9")
        self.assertEqual(text.splitlines()[:4], ["▒▒··"] * 2 + ["██▒▒"] * 2)

    def test_a_formula_may_begin_with_a_minus(self) -> None:
        drawn = self.ok("mask", "--sq", "16", "--block", "8,8", "--", "-i < -7").splitlines()
        self.assertEqual(drawn[:2], ["····", "████"])
        self.assertEqual(run("mask", "--fly", "i > j").stderr.count("begins with"), 0)
        small = ["plan", "--seq", "8"]
        self.assertEqual(self.ok(*small, "--mask", "-i < 3"), self.ok(*small, "--mask=-i < 3"))

    def test_widest_windows(self) -> None:
        most, least = 2**63 - 1, -(2**63)
        words = ["mask", "true", "--sq", "16", "--block", "8,8", "--window"]
        for window, first in (
            (f"{most},{most}", "████"),
            (f"{most},0", "▒▒··"),
            (f"{least},{most}", "····"),
            (f"-,{least}", "····"),
        ):
            self.assertEqual(self.ok(*words, window).splitlines()[0], first, window)

    def test_writes_a_drawing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "mask.svg"
            self.assertIn("built in", self.ok("mask", WINDOW, "--seq", "1024", "-o", str(path)))
            drawing = path.read_text()
        self.assertIn('viewBox="0 0 8 8"', drawing)
        self.assertEqual(len(re.findall("#1f4e79", drawing)), 7)

    def test_names_what_is_wrong(self) -> None:
        for words, part in (
            (["mask"], "expected a formula"),
            (["mask", "i +"], "at character 4"),
            (["mask", "i >= j", "--head", "1,0"], "--head"),
            (["mask", "i >= j", "--block", "64"], "--block '64': expected two numbers"),
            (["mask", "--case", "b0 s5"], "expected a batch entry"),
            (["mask", "-i < -3"], "a value that begins with - comes last, after --"),
            (["mask", "i < 5000000000 * 1"], "the integer 5000000000 does not fit in 32 bits"),
            (["mask", "d[i] > 0", "--captures", "d:i32[Sk * 5000000000]"], "5000000000"),
        ):
            done = run(*words)
            self.assertEqual(done.returncode, BAD_INPUT)
            self.assertIn(part, done.stderr)

    def test_plan_counts_the_blocks_of_a_mask(self) -> None:
        mask = "i >= j & (i - j < 100 | j % 512 < 8)"
        words = ["plan", "--hardware", "epyc-2", "--seq", "2048", "--pass", "fwd", "--mask", mask]
        density = re.search(r"density +([0-9.]+) %", self.ok(*words))
        self.assertIsNotNone(density)
        drawn = re.search(
            r"([0-9.]+) % of the pairs", self.ok("mask", mask, "--sq", "2048", "--block", "64,64")
        )
        # The plan leaves out what position hides of a block; a formula's position it does not.
        self.assertAlmostEqual(float(density[1]), float(drawn[1]), delta=0.6)
        self.assertLess(float(density[1]), 20)


if __name__ == "__main__":
    main()
