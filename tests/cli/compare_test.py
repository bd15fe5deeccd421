"""tilewise bench --compare and --best-batch: what became slower, and which batch is best."""

import copy
import json
from pathlib import Path
from typing import Any

from cli_testing import BAD_INPUT, CHECK_FAILED, CliTest, main, run

Document = dict[str, Any]


class Compare(CliTest):
    def setUp(self) -> None:
        super().setUp()
        row = {
            "implementation": "flash",
            "kernel": "flash_fwd_avx512",
            "device": "cpu",
            "dtype": "float32",
            "batch": 1,
            "heads": 1,
            "seq_q": 64,
            "head_dim": 64,
            "pass": "fwd",
            "ms_median": 10.0,
            "ms_std": 0.1,
            "peak_mib": 4.0,
            "status": "ok",
        }
        rows = [{**row, "seq_q": length} for length in (64, 128, 256)]
        self.old: Document = {"schema_version": 1, "environment": {"cpu": "a"}, "rows": rows}
        self.new: Document = copy.deepcopy(self.old)

    def write(self, name: str, document: Document) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(document))
        return path

    def compare(self, *more: str) -> tuple[int, list[dict[str, Any]]]:
        paths = self.write("old.json", self.old), self.write("new.json", self.new)
        done = run("bench", "--compare", *paths, "--format", "json", *more)
        return done.returncode, json.loads(done.stdout)

    def test_the_same_is_the_same(self) -> None:
        code, rows = self.compare()
        self.assertEqual((code, [row["verdict"] for row in rows]), (0, ["same"] * 3))

    def test_slower_and_faster(self) -> None:
        self.new["rows"][0]["ms_median"] = 11.0
        self.new["rows"][1]["ms_median"] = 9.0
        code, rows = self.compare()
        self.assertEqual(code, CHECK_FAILED)
        self.assertEqual([row["verdict"] for row in rows], ["slower", "faster", "same"])
        self.assertAlmostEqual(rows[0]["ratio"], 1.1)
        self.assertEqual(self.compare("--bound", "1.2")[0], 0)

    def test_noise_is_no_regression(self) -> None:
        self.new["rows"][0] |= {"ms_median": 11.0, "ms_std": 2.0}
        code, rows = self.compare()
        self.assertEqual((code, rows[0]["verdict"]), (0, "within noise"))

    def test_memory_and_status(self) -> None:
        self.new["rows"][0]["peak_mib"] = 8.0
        code, rows = self.compare()
        self.assertEqual((code, rows[0]["verdict"]), (CHECK_FAILED, "same, more memory"))
        self.new = copy.deepcopy(self.old)
        self.new["rows"][2] |= {"status": "oom", "ms_median": None}
        code, rows = self.compare()
        self.assertEqual((code, rows[2]["verdict"]), (CHECK_FAILED, "ok -> oom"))
        self.old, self.new = self.new, self.old
        self.assertEqual(self.compare()[0], 0)

    def test_for_people(self) -> None:
        self.new["environment"]["cpu"] = "b"
        self.new["rows"].pop()
        paths = self.write("old.json", self.old), self.write("new.json", self.new)
        text = self.ok("bench", "--compare", *paths)
        self.assertIn("0 slower, 0 faster, 1 in one file only", text)
        self.assertIn("caution: the machines differ: a and b", text)

    def test_bad_files(self) -> None:
        old = self.write("old.json", self.old)
        for name, text in (("no.json", "{"), ("rows.json", "{}"), ("row.json", '{"rows": [{}]}')):
            (self.folder / name).write_text(text)
            new = self.folder / name
            self.assertIn(name, self.fails(BAD_INPUT, "bench", "--compare", old, new))
        self.new["rows"] = [{**self.new["rows"][0], "seq_q": 1}]
        new = self.write("new.json", self.new)
        self.assertIn("share no measurement", self.fails(BAD_INPUT, "bench", "--compare", old, new))
        self.fails(BAD_INPUT, "bench", "--compare", old, self.folder / "missing.json")

    def test_own_results(self) -> None:
        path = self.folder / "own.json"
        self.ok("bench", "--seq", "16,32", "--dim", "16", "--repeat", "2", "-o", path)
        self.assertIn("0 slower, 0 faster, 0 in", self.ok("bench", "--compare", path, path))


class BestBatch(CliTest):
    def test_curve(self) -> None:
        """Batches double from 1, all within the limit; the best is the fastest or as good."""
        args = ["--seq", "64", "--dim", "16", "--repeat", "3", "--mem-limit", "1MiB"]
        rows = json.loads(self.ok("bench", "--best-batch", *args, "--format", "json"))
        batches = [row["batch"] for row in rows]
        self.assertEqual(batches[: len(batches) - 1], [2**i for i in range(len(batches) - 1)])
        for row in rows:
            self.assertLessEqual(row["peak_MiB"], 1.0)
            self.assertAlmostEqual(row["per_second"], 1e3 * row["batch"] / row["ms_median"])
        # Two doublings that lose are no end: five batches at least, each with its spread.
        self.assertGreaterEqual(len(rows), 5)
        for row in rows:
            self.assertGreater(row["ms_std"], 0.0, row)
        (best,) = [row for row in rows if row["best"]]
        self.assertGreaterEqual(best["per_second"], 0.98 * max(r["per_second"] for r in rows))

    def test_largest_is_the_plans(self) -> None:
        args = ["--seq", "64", "--dim", "16", "--mem-limit", "2MiB", "--pass", "fwd"]
        planned = json.loads(self.ok("plan", *args, "--limits", "--format", "json"))[0]
        text = self.ok("bench", "--best-batch", *args, "--repeat", "1", "--warmup", "0")
        self.assertIn(f"; {planned['largest_batch']} fit, one more: ", text)

    def test_nothing_fits(self) -> None:
        args = ["--seq", "64", "--dim", "16", "--mem-limit", "1KiB"]
        result = run("bench", "--best-batch", *args)
        self.assertEqual(result.returncode, 5)
        self.assertIn("no batch runs", result.stderr)


if __name__ == "__main__":
    main()
