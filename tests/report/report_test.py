"""./tw report: the page is whole, its verdicts follow the data, and Chromium draws all of it."""

import copy
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from html.parser import HTMLParser
from pathlib import Path

SOURCE = Path(os.environ.get("TILEWISE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("TILEWISE_BUILD_DIR", SOURCE / "build" / "release"))
CLI = os.environ.get("TILEWISE_CLI", "")
PYTHON = SOURCE / ".venv" / "bin" / "python"
SKIPPED = 77

if not CLI or not (SOURCE / ".venv" / "installed-report.txt").exists():
    print("no command line, or the packages of tools/requirements/report.txt are not in .venv")
    sys.exit(SKIPPED)
if Path(sys.prefix) != SOURCE / ".venv":
    os.execv(PYTHON, [str(PYTHON), *sys.argv])

sys.path.insert(0, str(SOURCE / "tools"))

from report import browser  # noqa: E402  (found by the line above)
from report.claims import FAILS, HOLDS, OPEN, Claim, Evidence, evidence  # noqa: E402
from report.claims_kernel import leaderboard  # noqa: E402
from report.data import Measured, Planner, Result, driver_version, load  # noqa: E402
from report.judge import judge_all  # noqa: E402


def make_report(output: Path, *files: Path) -> None:
    command = [PYTHON, "-m", "report", *files, "-o", output, "--tilewise", CLI]
    subprocess.run(command, check=True, cwd=SOURCE / "tools", capture_output=True, text=True)


class Words(HTMLParser):
    """The page's text outside scripts and styles, and the addresses that it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.addresses: list[str] = []
        self.hidden = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden = tag in ("script", "style")
        found = dict(attrs)
        self.addresses += [found[name] or "" for name in ("src", "href") if name in found]

    def handle_endtag(self, tag: str) -> None:
        self.hidden = False

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.text.append(data)


class Report(unittest.TestCase):
    page: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.page = BUILD / "report.html"
        make_report(cls.page)

    def test_self_contained(self) -> None:
        words = Words()
        words.feed(self.page.read_text())
        self.assertTrue(words.addresses)
        for address in words.addresses:
            self.assertRegex(address, r"^(#|data:)")
        text = " ".join(words.text)
        for name in ("Claims", "Measurements", "Roofline", "Environment", "seeds.json"):
            self.assertIn(name, text)
        told = text.replace("of the six tables are nan", "")  # a seed's own word
        self.assertIsNone(re.search(r"\b(nan|None|undefined|inf)\b", told))

    def test_drawn_in_a_browser(self) -> None:
        """No console error, every plot drawn, nothing wider than a phone; screenshots are kept."""
        if missing := browser.missing_programs():
            self.skipTest(f"not installed: {', '.join(missing)}")
        self.assertEqual(browser.look(self.page, BUILD / "report"), [])
        for view in browser.VIEWS:
            self.assertGreater((BUILD / "report" / f"{view.name}.png").stat().st_size, 50_000)

    def test_the_browser_sees_what_is_wrong(self) -> None:
        if missing := browser.missing_programs():
            self.skipTest(f"not installed: {', '.join(missing)}")
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "bad.html"
            page.write_text(
                "<html><p id='measurements' style='width: 3000px'>x</p>"
                "<div class='plot' id='empty'></div><script>"
                "function drawEverything() { document.documentElement.dataset.drawn = 'all'; }"
                "setTimeout(drawEverything); missing();</script></html>"
            )
            problems = "\n".join(browser.look(page, Path(folder)))
        for view in browser.VIEWS:
            self.assertIn(f"{view.name}: plot empty is not drawn", problems)
            self.assertRegex(problems, rf"{view.name}: console: .*missing is not defined")
        self.assertIn("phone-light: the page is", problems)


class Verdicts(unittest.TestCase):
    def evidence(self, results: list[Result]) -> Evidence:
        return evidence(Planner(Path(CLI)), Measured(results))

    def committed(self) -> list[Result]:
        return load(sorted((SOURCE / "bench" / "results").rglob("*.json")))

    def test_every_seed_is_judged(self) -> None:
        claims = judge_all(self.evidence(self.committed()))
        self.assertEqual({claim.seed for claim in claims}, {"000", "001", "002", "003", "004"})
        for claim in claims:
            for field in ("title", "claim", "prediction", "measurement", "sentence"):
                self.assertTrue(getattr(claim, field).strip(), (claim.title, field))
            self.assertNotRegex(claim.sentence, r"\bnan\b|\bNone\b|\binf\b")

    def test_without_results_claims_say_how_to_measure(self) -> None:
        claims = judge_all(self.evidence([]))
        told = [claim for claim in claims if "Not measured" in claim.measurement]
        self.assertGreaterEqual(len(told), 12)
        for claim in told:
            self.assertRegex(claim.measurement, "tilewise (bench|info)")

    def board(self, ms: float | None, step: float | None = None) -> Claim:
        """The leaderboard judged by a row, and by one of the board's own protocol."""
        row = {
            "implementation": "flash",
            "kernel": "flash",
            "dtype": "bfloat16",
            "batch": 1,
            "heads": 16,
            "seq_q": 16384,
            "head_dim": 64,
            "causal": True,
            "pass": "fwd+bwd",
            "ms_median": ms,
            "status": "ok",
        }
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "board.json"
            rows = [row] if ms else []
            if step:
                rows.append({**row, "ms_median": step, "protocol": "board"})
            path.write_text(json.dumps({"environment": {"gpus": ["H100"]}, "rows": rows}))
            return leaderboard(self.evidence(load([path])))

    def test_verdicts_follow_the_data(self) -> None:
        self.assertEqual(self.board(None).verdict, OPEN)
        self.assertEqual(self.board(6.0).verdict, HOLDS)
        beaten = self.board(4.0)
        self.assertEqual(beaten.verdict, FAILS)
        self.assertIn("4 ms at 16384", beaten.sentence)
        # What the board times is what counts beside its entries.
        step = self.board(4.0, 6.0)
        self.assertEqual(step.verdict, HOLDS)
        self.assertIn("6 ms at 16384", step.sentence)

    def test_limits_are_told(self) -> None:
        """Out of memory says little without the memory that was allowed."""
        claims = judge_all(self.evidence(self.committed()))
        (claim,) = [c for c in claims if c.title.startswith("16 GiB of scores")]
        self.assertRegex(claim.measurement, r"H200: oom in \d+ rows .* under a limit of 24 GiB")

    def test_driver_is_its_version(self) -> None:
        line = "NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@host)"
        self.assertEqual(driver_version(line), "580.159.04")
        self.assertEqual(driver_version("580.159.04"), "580.159.04")
        self.assertEqual(driver_version(""), "")

    def test_measured_numbers_are_in_the_page(self) -> None:
        """A changed measurement changes the claim that rests on it."""
        results = self.committed()
        before = {claim.title: claim.measurement for claim in judge_all(self.evidence(results))}
        changed = copy.deepcopy(results)
        for result in changed:
            for row in result.rows:
                if row["implementation"] == "baseline" and row["seq_q"] == 2048:
                    row["ms_median"] *= 2
        after = {claim.title: claim.measurement for claim in judge_all(self.evidence(changed))}
        different = {title for title in before if before[title] != after[title]}
        self.assertIn("Length: t, 4t, 16t, 64t", different)
        self.assertIn("Flash is 2, 5, 15, 40 times faster", different)
        self.assertNotIn("The column fwd_peak_mem_MB is a peak", different)


if __name__ == "__main__":
    unittest.main()
