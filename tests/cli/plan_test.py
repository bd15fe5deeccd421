"""tilewise plan: the seeds' memory columns, verdicts, and why a kernel was chosen."""

import json
import math

from cli_testing import SOURCE, UNSUPPORTED, CliTest, main

PUBLISHED = json.loads((SOURCE / "cases" / "seeds_published.json").read_text())


def number(text: str) -> float:
    return float(text.replace(",", ""))


class Plan(CliTest):
    def test_published_cells_are_reproduced(self) -> None:
        """32 cells to 0.1 MB, each the sum of its tensors."""
        cells = 0
        for preset in ("seed-eager", "seed-fused"):
            table = self.assert_aligned(self.ok("plan", "--preset", preset, "--memory"))
            header, lines = table[0], table[2:]
            rows = PUBLISHED[preset]["rows"]
            self.assertEqual(len(lines), len(rows))
            for line, row in zip(lines, rows, strict=True):
                entry = dict(zip(header, line, strict=True))
                self.assertEqual(int(entry["seq_len"]), row["seq_len"])
                self.assertEqual(int(entry["d_model"]), row["d_model"])
                tensors = [entry[name] for name in ("Q", "K", "V", "O", "temporary", "S", "P")]
                parts = [*tensors, entry["statistics"], entry["cuBLAS"]]
                self.assertAlmostEqual(sum(map(number, parts)), number(entry["total"]), delta=0.05)
                if row["status"] == "oom":
                    self.assertEqual(entry["published"], "OOM")
                    continue
                self.assertLessEqual(abs(number(entry["total"]) - row["memory_mb"]), 0.1)
                cells += 1
        self.assertEqual(cells, 32)

    def test_the_formula_itself(self) -> None:
        """The same cells, worked out here from the shapes."""
        for preset, statistics in (("seed-eager", 3), ("seed-fused", 4)):
            for row in PUBLISHED[preset]["rows"]:
                seq, dim, batch = row["seq_len"], row["d_model"], row["batch_size"]
                floats = 2 * batch * seq**2 + 5 * batch * seq * dim + statistics * batch * seq
                total = 2 * 8.125 + 4 * floats / 2**20
                if row["status"] == "ok":
                    self.assertLessEqual(abs(total - row["memory_mb"]), 0.1)

    def test_accounting(self) -> None:
        text = self.ok("plan", "--preset", "seed-eager", "--memory")
        for words in (
            "2,147,483,648 elements",
            "8.0 GiB in float32",
            "16 GiB",
            "1050.6 MB at 4096 to 4133.0 MB at 8192",
            "from 1 to 4 GB",
            "All 16 published cells are reproduced",
        ):
            self.assertIn(words, text)

    def test_workspace_parameter(self) -> None:
        """On Hopper the two cuBLAS workspaces are 32 MiB each."""
        text = self.ok("plan", "--preset", "seed-eager", "--memory", "--blas-workspace", "32MiB")
        first = dict(zip(*list(self.assert_aligned(text))[0:3:2], strict=True))
        self.assertEqual(number(first["cuBLAS"]), 64.0)

    def test_verdicts_under_24_gib(self) -> None:
        """Out of memory exactly at 16384 for what keeps S and P; flash fits everywhere."""
        for preset, expected in (("eager", True), ("fused", True), ("flash", False)):
            args = ["--preset", f"seed-{preset}", "--mem-limit", "24GiB", "--format", "json"]
            rows = json.loads(self.ok("plan", *args))
            self.assertEqual(len(rows), 40)
            for row in rows:
                oom = expected and "s16384" in row["problem"]
                self.assertEqual(row["verdict"], "oom" if oom else "ok", row)

    def test_flash_is_linear(self) -> None:
        args = ["--preset", "seed-flash", "--seq", "256,1024,4096", "--dim", "64", "--pass", "fwd"]
        rows = json.loads(self.ok("plan", *args, "--format", "json"))
        live = [
            row["live_MiB"] / length for row, length in zip(rows, (256, 1024, 4096), strict=True)
        ]
        self.assertLess(max(live) / min(live), 1.001)

    def test_bytes_in_json(self) -> None:
        args = ["--impl", "eager", "--batch", "8", "--seq", "16384", "--dim", "16"]
        rows = json.loads(self.ok("plan", *args, "--memory", "--format", "json"))
        self.assertEqual(rows[0]["S"], 4 * 2_147_483_648)
        self.assertEqual(rows[0]["P"], 4 * 2_147_483_648)
        self.assertEqual(rows[0]["LSE"], 4 * 8 * 16384)

    def test_one_problem_is_explained(self) -> None:
        text = self.ok("plan", "--seq", "4096", "--dim", "64", "--causal", "--mem-limit", "1GiB")
        self.assertRegex(text, r"forward on cpu: flash_fwd_\w+ \(flash\)")
        self.assertRegex(text, r"backward on cpu: flash_bwd_\w+ \(flash\)")
        self.assertIn("reference_fwd:", text)
        self.assertIn("of 1.0 GiB allowed: fits", text)
        text = self.ok("plan", "--impl", "eager", "--seq", "16384", "--mem-limit", "1GiB")
        self.assertIn("of 1.0 GiB allowed: out of memory", text)

    def test_work_is_counted(self) -> None:
        """4 S^2 D multiply-adds count twice, causal about half; backward 2.5 times forward."""
        args = ["--seq", "1024", "--dim", "64", "--format", "json"]
        full = json.loads(self.ok("plan", *args))
        causal = json.loads(self.ok("plan", *args, "--causal"))
        self.assertTrue(math.isclose(full[0]["GFLOP"], 4 * 1024**2 * 64 * 1e-9, rel_tol=1e-9))
        self.assertTrue(math.isclose(full[1]["GFLOP"], 2.5 * full[0]["GFLOP"], rel_tol=1e-9))
        self.assertAlmostEqual(causal[0]["GFLOP"] / full[0]["GFLOP"], 1025 / 2048, places=9)

    def test_unsupported(self) -> None:
        message = self.fails(UNSUPPORTED, "plan", "--impl", "baseline", "--pass", "bwd")
        self.assertIn("baseline", message)
        rows = json.loads(
            self.ok("plan", "--impl", "baseline", "--seq", "8,16", "--format", "json")
        )
        self.assertEqual([row["verdict"] for row in rows], ["ok", "unsupported"] * 2)


if __name__ == "__main__":
    main()
