"""./tw report: the page is whole, its verdicts follow the data, and Chromium draws all of it."""

import copy
import json
import os
import re
import signal
import subprocess
import tempfile
import unittest
from html.parser import HTMLParser
from pathlib import Path

from report_testing import BUILD, CLI, COMMITTED, PYTHON, SOURCE

# isort: split
from report import browser
from report.claims import FAILS, HOLDS, OPEN, Claim, Evidence, evidence
from report.claims_kernel import leaderboard
from report.data import (
    Measured,
    Planner,
    Result,
    Row,
    driver_version,
    load,
    load_tables,
)
from report.judge import judge_all
from report.plots import (
    REST,
    name_series,
    older_peaks,
    panels_of,
    problem_of,
    question_of,
    shapes_of,
)


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


# Claims about numbers alone.
ARITHMETIC = {"A 64 x 64 tile takes 16 KB instead of 1 MB", "D = rowsum(O dO) is rowsum(P dP)"}


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
        for name in ("Claims", "Results", "Roofline", "Environment", "seeds.json"):
            self.assertIn(name, text)
        told = text.replace("of the six tables are nan", "")  # a seed's own word
        self.assertIsNone(re.search(r"\b(nan|None|undefined|inf)\b", told))

    def test_drawn_in_a_browser(self) -> None:
        """No console error, plots drawn, nothing wider than a phone; screenshots are kept."""
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
            self.assertEqual(view.whole, f"{view.name}: plot empty is not drawn" in problems)
            self.assertRegex(problems, rf"{view.name}: console: .*missing is not defined")
        self.assertIn("phone-light: the page is", problems)

    def test_an_interrupt_leaves_no_traceback(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            pipe = Path(folder) / "waits.json"
            os.mkfifo(pipe)
            command = [str(PYTHON), "-m", "report", str(pipe), "-o", str(Path(folder) / "page")]
            environment = {**os.environ, "PYTHONPATH": str(SOURCE / "tools")}
            report = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)
            with pipe.open("w"):  # it has begun to read
                report.send_signal(signal.SIGINT)
                _, errors = report.communicate(timeout=60)
            self.assertEqual(report.returncode, 130)
            self.assertEqual(errors, b"report: interrupted\n")


class Verdicts(unittest.TestCase):
    def evidence(self, results: list[Result]) -> Evidence:
        return evidence(Planner(Path(CLI)), Measured(results))

    def committed(self) -> list[Result]:
        return load(COMMITTED)

    def all_committed(self) -> Evidence:
        return evidence(Planner(Path(CLI)), Measured(self.committed()), load_tables(COMMITTED))

    def test_every_seed_is_judged(self) -> None:
        claims = judge_all(self.all_committed())
        self.assertEqual({claim.seed for claim in claims}, {"000", "001", "002", "003", "004"})
        for claim in claims:
            for field in ("title", "claim", "prediction", "sentence"):
                self.assertTrue(getattr(claim, field).strip(), (claim.title, field))
            self.assertTrue(claim.measurement or claim.figures, claim.title)
            self.assertNotRegex(claim.sentence, r"\bnan\b|\bNone\b|\binf\b")

    def test_without_results_claims_say_how_to_measure(self) -> None:
        claims = judge_all(self.evidence([]))
        told = [claim for claim in claims if "ot measured in the files" in claim.measurement]
        self.assertGreaterEqual(len(told), 25)
        for claim in told:
            self.assertEqual(claim.verdict, OPEN, claim.title)
            self.assertEqual(claim.figures, [], claim.title)
        commands = [
            c
            for c in told
            if re.search(r"tilewise (layer )?(bench|info)|bench\.peers", c.measurement)
        ]
        self.assertGreaterEqual(len(commands), 20)
        # The rest is arithmetic on the claim's own numbers.
        self.assertLessEqual({c.title for c in claims} - {c.title for c in told}, ARITHMETIC)

    def test_a_verdict_has_a_table_with_its_files(self) -> None:
        for claim in judge_all(self.all_committed()):
            if claim.verdict != OPEN and claim.title not in ARITHMETIC:
                self.assertTrue(claim.figures, claim.title)
            for found in claim.figures:
                self.assertTrue(found.files and all(found.files), claim.title)
                for row in found.rows:
                    self.assertEqual(len(row), len(found.header), (claim.title, row))

    def seed_rows(self, gains: dict[str, dict[int, float]], machine: str = "H200") -> list[Result]:
        """Rows of seed 000 where a contender is so many times faster than its eager."""
        pairs = {"torch-compile": "torch-eager", "fused": "eager"}
        rows = []
        for name, by_length in gains.items():
            for length, gain in by_length.items():
                for which in ("fwd", "bwd"):
                    for implementation, ms in ((pairs[name], 10.0), (name, 10.0 / gain)):
                        rows.append(
                            {
                                **{"implementation": implementation, "kernel": implementation},
                                **{"dtype": "float32", "batch": 8, "heads": 1, "head_dim": 128},
                                **{"device": "cuda:0"},
                                **{"seq_q": length, "causal": False, "pass": which},
                                **{"ms_median": ms, "status": "ok", "protocol": "burst"},
                                **{"live_mib": 2176.0, "peak_mib": 8384.0},
                            }
                        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "seed.json"
            path.write_text(json.dumps({"environment": {"gpus": [machine]}, "rows": rows}))
            return load([path])

    def verdict(self, results: list[Result], title: str) -> Claim:
        (claim,) = [c for c in judge_all(self.evidence(results)) if c.title.startswith(title)]
        return claim

    def test_compiling_is_judged_by_torch_compile(self) -> None:
        """Our fused is another contender: it decides nothing."""
        up, down = {256: 1.1, 1024: 1.3, 8192: 1.5}, {256: 1.5, 1024: 1.3, 8192: 1.1}
        longer = "The longer the sequence, the more compiling"
        forward = "torch.compile takes 44 %"
        for theirs, ours, expected in ((up, down, HOLDS), (down, up, FAILS)):
            results = self.seed_rows({"torch-compile": theirs, "fused": ours})
            self.assertEqual(self.verdict(results, longer).verdict, expected)
        only_ours = self.seed_rows({"fused": {256: 1.1, 1024: 1.3, 8192: 9.0}})
        for title in (longer, forward, "torch.compile nearly doubles", "Compiling does not change"):
            self.assertEqual(self.verdict(only_ours, title).verdict, OPEN, title)
        fast = self.seed_rows({"torch-compile": {8192: 1.8}})
        self.assertEqual(self.verdict(fast, forward).verdict, HOLDS)

    def test_seed_000_as_measured(self) -> None:
        results = self.committed()
        longer = self.verdict(results, "The longer the sequence, the more compiling")
        self.assertEqual(longer.verdict, HOLDS)
        self.assertIn(["dim 16", "1.09", "1.32", "1.5", "1.74"], longer.figures[0].rows)
        memory = self.verdict(results, "Compiling does not move the length")
        self.assertEqual(memory.verdict, FAILS)
        self.assertIn("H200 runs torch.compile at 16384 with dim 16", memory.sentence)
        peak = self.verdict(results, "The column fwd_peak_mem_MB is a peak")
        self.assertIn("3.85 times", peak.sentence)
        self.assertIn("1.0 matrices", peak.sentence)

    def test_another_card_s_numbers_are_not_judged(self) -> None:
        claim = self.verdict(self.committed(), "The six tables of an RTX 4090")
        self.assertEqual(claim.verdict, OPEN)
        self.assertRegex(claim.sentence, "^No RTX 4090 is measured here.*9 of 9 cells")

    def test_forcing_flash_is_judged_by_what_was_forced(self) -> None:
        """Open until a file forces PyTorch's flash kernel in float32; refused there, it fails."""
        title = "SDPA changes kernels"
        self.assertEqual(self.verdict(self.committed(), title).verdict, OPEN)
        for status, expected in (("unsupported", FAILS), ("ok", HOLDS)):
            results = self.seed_rows({"fused": {1024: 1.1}})
            for row in results[0].rows:
                row |= {"implementation": "forced-flash", "status": status, "reason": "no float32"}
            claim = self.verdict(results, title)
            self.assertEqual(claim.verdict, expected)
            self.assertIn("no float32", claim.figures[0].rows[0])

    def test_a_number_is_the_newest_runs(self) -> None:
        """Not the least of all files, so that a sentence can name the file."""
        row = {
            **{"implementation": "flash", "kernel": "k", "dtype": "float32", "batch": 1},
            **{"heads": 1, "seq_q": 512, "head_dim": 64, "causal": False, "pass": "fwd"},
            **{"status": "ok"},
        }
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for day, times in (("01", (1.0,)), ("02", (3.0, 2.0))):
                path = Path(folder) / f"day{day}.json"
                rows = [{**row, "ms_median": ms} for ms in times]
                environment = {"gpus": ["H200"], "date": f"2026-01-{day}"}
                path.write_text(json.dumps({"environment": environment, "rows": rows}))
                paths.append(path)
            found = Measured(load(paths)).find("H200", "flash", "fwd", seq_q=512)
        assert found is not None
        self.assertEqual((found["ms_median"], found["file"]), (2.0, "day02.json"))

    def board(self, ms: float | None, step: float | None = None, peak: float = 323.0) -> Claim:
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
            "peak_mib": peak,
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
        self.assertEqual(self.board(6.0, peak=30 * 1024.0).verdict, HOLDS)
        fits = self.board(4.0)
        self.assertEqual(fits.verdict, FAILS)
        self.assertIn("At 16384 ours takes 4 ms", fits.sentence)
        # What the board times is what counts beside its entries.
        step = self.board(4.0, 6.0)
        self.assertIn("At 16384 ours takes 6 ms", step.sentence)

    def test_limits_are_told(self) -> None:
        """Out of memory says little without the memory that was allowed."""
        claims = judge_all(self.evidence(self.committed()))
        (claim,) = [c for c in claims if c.title.startswith("16 GiB of scores")]
        self.assertRegex(claim.sentence, r"H200 under 24 GiB: out of memory in 4 of 4 dims")

    def test_driver_is_its_version(self) -> None:
        line = "NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@host)"
        self.assertEqual(driver_version(line), "580.159.04")
        self.assertEqual(driver_version("580.159.04"), "580.159.04")
        self.assertEqual(driver_version(""), "")

    def test_measured_numbers_are_in_the_page(self) -> None:
        """A changed measurement changes the claim that rests on it."""
        results = self.committed()
        before = {claim.title: claim.figures for claim in judge_all(self.evidence(results))}
        changed = copy.deepcopy(results)
        for result in changed:
            for row in result.rows:
                if row["implementation"] == "baseline" and row["seq_q"] == 2048:
                    row["ms_median"] *= 2
        after = {claim.title: claim.figures for claim in judge_all(self.evidence(changed))}
        different = {title for title in before if before[title] != after[title]}
        self.assertIn("Time over the length: t, 4t, 16t, 64t", different)
        self.assertIn("Flash is 2, 5, 15, 40 times faster", different)
        self.assertNotIn("The column fwd_peak_mem_MB is a peak", different)


class Plots(unittest.TestCase):
    def test_a_curve_is_one_problem(self) -> None:
        """Windows, softcaps, keys, threads and protocols never share a line."""
        seen = 0
        for result in load(COMMITTED):
            name_series(result.rows)
            for label, (axis, rows) in shapes_of(result.rows).items():
                problems = [problem_of(row) for row in rows]
                self.assertTrue(all(one == problems[0] for one in problems), (result.name, label))
                other = "seq_q" if axis == "keys" else "seq_k"
                if axis != "length":
                    self.assertEqual(len({row[other] for row in rows}), 1, (result.name, label))
                if axis == "length":
                    self.assertTrue(all(row["seq_q"] == row["seq_k"] for row in rows))
                for panel in panels_of(rows, axis):
                    colours = [one["color"] for one in panel["series"]]
                    self.assertEqual(len(set(colours)), len(colours), (result.name, label))
                    for one in panel["series"]:
                        self.assertEqual(len(set(one["x"])), len(one["x"]))
                    seen += 1
        self.assertGreater(seen, 300)

    def row(self, **fields: object) -> Row:
        base = {
            **{"implementation": "flash", "kernel": "k", "pass": "fwd", "status": "ok"},
            **{"dtype": "bfloat16", "batch": 1, "heads": 2, "kv_heads": 2, "seq_k": 512},
            **{"seq_q": 512, "head_dim": 64, "causal": True, "mask": "none", "ms_median": 1.0},
        }
        return {**base, **fields}

    def test_options_are_problems_of_their_own(self) -> None:
        rows = [
            self.row(seq_q=n, seq_k=n, mask=mask)
            for n in (512, 1024)
            for mask in ("none", "window=1023,0", "softcap=50")
        ]
        self.assertEqual(len(shapes_of(rows)), 3)

    def test_every_file_answers_a_question(self) -> None:
        for result in load(COMMITTED):
            self.assertNotEqual(question_of(result), REST, result.name)

    def test_peaks_of_older_kernels_are_told(self) -> None:
        """Another peak beside the same live memory; not where the meter had another meaning."""
        same = {"planned_peak_MiB": 20.0, "planned_live_MiB": 4.0}
        compared = {
            "old.json": [
                {**same, "peak_MiB": 20.1, "live_MiB": 4.0},
                {**same, "peak_MiB": 30.0, "live_MiB": ""},
                {**same, "peak_MiB": 12.0, "live_MiB": 2.0},
                {**same, "peak_MiB": 0.0, "live_MiB": 4.0},
            ],
            "today.json": [{**same, "peak_MiB": 20.0, "live_MiB": 4.0}],
        }
        self.assertEqual(older_peaks(compared), [["old.json", "1 of 2", "1.50"]])

    def test_gains_name_their_baseline(self) -> None:
        rows = [
            self.row(seq_q=n, seq_k=n, kernel=kernel, ms_median=ms)
            for n in (512, 1024)
            for kernel, ms in (("fast", 1.0), ("slow", 4.0))
        ]
        name_series(rows)
        (found,) = [p for p in panels_of(rows, "length") if "over the others" in p["title"]]
        self.assertEqual(found["title"], "fast over the others, forward")
        self.assertEqual([(s["name"], s["y"]) for s in found["series"]], [("slow", [4.0, 4.0])])


if __name__ == "__main__":
    unittest.main()
