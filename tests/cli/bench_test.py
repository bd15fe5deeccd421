"""tilewise bench: the schema, the formats, what does not fit, and memory as plan predicts it."""

import csv
import io
import json

from cli_testing import BAD_INPUT, NO_DEVICE, SANITIZED, UNSUPPORTED, CliTest, main, run

FIELDS = """implementation kernel device dtype batch heads kv_heads seq_q seq_k head_dim head_dim_v
causal mask precision deterministic layout threads protocol pass ms_mean ms_std ms_median tflops
gbps live_mib peak_mib status reason""".split()

QUICK = ["--warmup", "0", "--repeat", "2"]


class Bench(CliTest):
    def document(self, *args: str) -> dict:
        return json.loads(self.ok("bench", *args, "--format", "json"))

    def rows(self, *args: str) -> list[dict]:
        return self.document(*args)["rows"]

    def test_a_kernel_that_runs_nothing_is_refused(self) -> None:
        """As `run` refuses it: exit code 5, with the reason; its row is printed all the same."""
        done = run("bench", "--kernel", "flash_fwd_sm90", "--pass", "fwd", "--seq", "16", *QUICK)
        self.assertEqual(done.returncode, UNSUPPORTED, done.stderr)
        self.assertIn("no row ran", done.stderr)
        self.assertIn("unsupported", done.stdout)

    def test_schema(self) -> None:
        axes = ["--seq", "64:128:x2", "--dim", "16,32", "--heads", "4", "--kv-heads", "2"]
        passes = ["--pass", "fwd,bwd,fwd+bwd", "--causal", "--dtype", "f32,bf16"]
        document = self.document(*axes, *passes, *QUICK)
        self.assertEqual(document["schema_version"], 1)
        self.assertIn("cpu", document["environment"])
        self.assertIn("commit", document["environment"])
        rows = document["rows"]
        self.assertEqual(len(rows), 2 * 2 * 2 * 3)
        for row in rows:
            self.assertEqual(list(row), FIELDS)
            self.assertEqual(row["status"], "ok")
            self.assertEqual(row["mask"], "causal")
            self.assertEqual((row["heads"], row["kv_heads"]), (4, 2))
            for field in ("ms_mean", "ms_median", "tflops", "gbps", "live_mib", "peak_mib"):
                self.assertGreater(row[field], 0.0)
            self.assertGreaterEqual(row["peak_mib"], row["live_mib"])
        self.assertEqual({row["dtype"] for row in rows}, {"float32", "bfloat16"})

    def test_markdown_and_csv_hold_the_same(self) -> None:
        args = ["bench", "--seq", "32,64", "--impl", "eager,flash", *QUICK]
        cells = self.assert_aligned(self.ok(*args))
        self.assertIn("ms_median", cells[0])
        self.assertEqual(len(cells), 2 + 8)
        table = list(csv.DictReader(io.StringIO(self.ok(*args, "--format", "csv"))))
        self.assertEqual(list(table[0]), FIELDS)
        self.assertEqual(len(table), 8)

    def test_output_file_names_the_format(self) -> None:
        path = self.folder / "result.json"
        self.assertEqual(self.ok("bench", "--seq", "32", *QUICK, "-o", path), "")
        self.assertEqual(len(json.loads(path.read_text())["rows"]), 2)

    def test_seed_view(self) -> None:
        """The seeds' columns, OOM rows among them."""
        args = ["--preset", "seed-eager", "--seq", "256,1024", "--dim", "16", *QUICK]
        cells = self.assert_aligned(self.ok("bench", *args, "--mem-limit", "64MiB"))
        self.assertEqual(
            cells[0],
            "seq_len d_model forward_ms_mean forward_ms_std backward_ms_mean backward_ms_std "
            "live_MB peak_MB batch_size".split(),
        )
        self.assertEqual(cells[2][:2], ["256", "16"])
        self.assertGreater(float(cells[2][2]), 0.0)
        self.assertEqual(cells[3], ["1024", "16", *["OOM"] * 6, "8"])

    def test_a_row_is_oom_when_either_pass_is(self) -> None:
        """The forward alone fits into what the backward does not."""
        problem = ["--impl", "eager", "--seq", "1024", "--batch", "2", "--dim", "16", *QUICK]
        limit = ["--mem-limit", "20MiB"]
        self.assertEqual([r["status"] for r in self.rows(*problem, *limit)], ["oom", "oom"])
        alone = self.rows(*problem, *limit, "--pass", "fwd")
        self.assertEqual([r["status"] for r in alone], ["ok"])
        self.assertLessEqual(alone[0]["peak_mib"], 20.0)

    def test_memory_is_as_planned(self) -> None:
        """What the meter counts is what plan says, for every implementation and pass."""
        grid = ["--seq", "128,300", "--batch", "3", "--heads", "2", "--dim", "24"]
        grid += ["--impl", "eager,fused,flash"]
        measured = self.rows(*grid, *QUICK)
        planned = json.loads(self.ok("plan", *grid, "--format", "json"))
        self.assertEqual(len(measured), len(planned))
        for row, plan in zip(measured, planned, strict=True):
            name = (row["implementation"], row["seq_q"], row["pass"])
            self.assertEqual(row["kernel"], plan["kernel"])
            for field in ("live", "peak"):
                ratio = row[f"{field}_mib"] / plan[f"{field}_MiB"]
                self.assertAlmostEqual(ratio, 1.0, delta=0.01, msg=f"{name} {field}")

    def test_flash_memory_is_linear(self) -> None:
        rows = self.rows("--seq", "1024,2048,4096", "--dim", "16", "--pass", "fwd", *QUICK)
        peaks = [row["peak_mib"] for row in rows]
        self.assertLess(peaks[2], 2.2 * peaks[1])
        self.assertLess(peaks[1], 2.2 * peaks[0])

    def test_statuses(self) -> None:
        rows = self.rows("--impl", "baseline", "--seq", "32", *QUICK)
        self.assertEqual([r["status"] for r in rows], ["ok", "unsupported"])
        self.assertIn("baseline", rows[1]["reason"])
        slow = ["--impl", "reference", "--batch", "64", "--seq", "512", "--pass", "fwd"]
        rows = self.rows(*slow, "--budget-s", "0.02", *QUICK)
        self.assertEqual(rows[0]["status"], "timeout")
        self.assertIsNone(rows[0]["ms_mean"])
        rows = self.rows("--seq", "32,64", "--pass", "fwd", "--total-s", "1e-9", *QUICK)
        self.assertEqual([r["status"] for r in rows], ["timeout", "timeout"])

    def test_budget_takes_fewer_runs(self) -> None:
        row = self.rows("--seq", "64", "--pass", "fwd", "--repeat", "1000000", "--budget-s", "0.2")
        self.assertEqual(row[0]["status"], "ok")
        self.assertIn("of 1000000 runs fit the budget", row[0]["reason"])

    def test_case_lines_and_kernels(self) -> None:
        line = "b1 h4/2 q20 k30 d16 f32 causal window=8,0"
        rows = self.rows("--case", line, "--kernel", "flash_fwd_scalar,flash_bwd_scalar", *QUICK)
        self.assertEqual(
            [(r["kernel"], r["pass"]) for r in rows],
            [("flash_fwd_scalar", "fwd"), ("flash_bwd_scalar", "bwd")],
        )
        self.assertEqual(rows[0]["mask"], "causal+window=8,0")

    def test_rows_carry_the_options_that_change_the_problem(self) -> None:
        options = "causal softcap=20 alibi bias=1,h,q,k sink dropout=0.25"
        (row,) = self.rows("--case", f"b1 h2 s32 d16 f32 {options} seed=7", "--pass", "fwd", *QUICK)
        self.assertEqual(row["mask"], options.replace(" ", "+"))
        (row,) = self.rows("--softcap", "50", "--seq", "32", "--pass", "fwd", *QUICK)
        self.assertEqual(row["mask"], "softcap=50")

    def test_a_kernel_for_each_pass(self) -> None:
        pair = "flash_fwd_scalar+flash_bwd_scalar"
        rows = self.rows("--seq", "32", "--kernel", pair, "--pass", "fwd,bwd,fwd+bwd", *QUICK)
        self.assertEqual([r["kernel"] for r in rows], [*pair.split("+"), pair])
        swapped = "flash_bwd_scalar+flash_fwd_scalar"
        self.fails(BAD_INPUT, "bench", "--seq", "32", "--kernel", swapped)
        self.fails(BAD_INPUT, "bench", "--seq", "32", "--kernel", "flash_fwd_scalar+nonesuch")

    def test_check(self) -> None:
        self.rows("--seq", "96", "--causal", "--impl", "flash,eager", "--check", *QUICK)

    def test_threads(self) -> None:
        self.assertEqual(self.rows("--seq", "32", "--threads", "1", *QUICK)[0]["threads"], 1)
        # Where planned and made lists are two, the plan is made anew: for as many threads.
        listed = ["--case", "b2 h4 s256 d64 bf16 blocks=32,32:1,h:0.4"]
        for threads in ("1", "3"):
            rows = self.rows(*listed, "--threads", threads, *QUICK)
            self.assertEqual({row["status"] for row in rows}, {"ok"})

    def test_every_preset_is_read(self) -> None:
        last = self.ok("bench", "--help").split("Presets:")[1]
        names = [name.strip() for name in last.split(",")]
        for wanted in ("seed-eager", "seed-fused", "seed-flash", "assignment", "leaderboard"):
            self.assertIn(wanted, names)
        for wanted in ("baseline-scaling", "grid"):
            self.assertIn(wanted, names)
        for name in names:
            slow = ("serving", "expressions") if SANITIZED else ()
            if name in ("options", *slow):  # its lines say their sizes, which a CPU is slow on
                self.ok("plan", "--preset", name, "--hardware", "h200")
                continue
            small = ["--seq-q", "64", "--seq-k", "64", "--heads", "1", "--kv-heads", "1"]
            small += ["--batch", "1", "--tokens", "64", "--repeat", "1", "--warmup", "0"]
            if name == "packed":  # its documents are its lengths
                small = ["--packed", "5,7,9", "--heads", "2", "--kv-heads", "1", "--dim", "16"]
                small += ["--repeat", "1", "--warmup", "0"]
            if name in ("serving", "expressions"):  # the lengths of their lines stay
                small += ["--dim", "16"]
            rows = self.rows("--preset", name, *small)
            self.assertTrue(rows, name)
            self.assertEqual({row["status"] for row in rows} - {"ok"}, set(), name)

    def test_flags_override_a_preset(self) -> None:
        """Each flag of attention's options replaces the one in a preset's line."""
        folder = self.folder / "cases"
        (folder / "presets").mkdir(parents=True)
        line = """--seq 8 --dim 16 --causal --window 3,0 --scale 0.5 --softcap 20 --mask "i >= j"
            --score "score*2" --dropout 0.1 --dropout-seed 4 --dropout-offset 1 --precision tf32
            --deterministic"""
        (folder / "presets" / "own.txt").write_text(" ".join(line.split()) + "\n")
        overrides = {
            "--window": ("5,1", "window=5,1"),
            "--scale": ("0.25", "scale=0.25"),
            "--softcap": ("30", "softcap=30"),
            "--mask": ("i > j", "mask_expr='i > j'"),
            "--score": ("-score", "score='-score'"),
            "--dropout": ("0.2", "dropout=0.2"),
            "--precision": ("exact", "exact"),
        }
        words = ["bench", "--preset", "own", "--pass", "fwd", "--format", "json", *QUICK]
        for name, (value, shown) in overrides.items():
            done = run(*words, name, value, env={"TILEWISE_CASES_DIR": str(folder)})
            self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")
            (row,) = json.loads(done.stdout)["rows"]
            self.assertIn(shown, row["mask"] + row["precision"], name)
        plan = ["plan", "--preset", "own", "--pass", "fwd", "--format", "json"]
        for name, shown in (("--dropout-seed", "seed=9"), ("--dropout-offset", "offset=9")):
            done = run(*plan, name, "9", env={"TILEWISE_CASES_DIR": str(folder)})
            self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")
            self.assertIn(shown, json.loads(done.stdout)[0]["problem"])
        for flag in ("--causal", "--deterministic"):
            done = run(*words, flag, env={"TILEWISE_CASES_DIR": str(folder)})
            self.assertEqual(done.returncode, 0, f"{flag}: {done.stderr}")

    def test_the_widest_windows(self) -> None:
        """Bounds at the ends of int64 hide what they say, in every implementation."""
        most, least = str(2**63 - 1), str(-(2**63))
        small = ["--seq-q", "40", "--seq-k", "33", "--dim", "16", "--impl", "all", "--check"]
        for left in ("-", most, least, "0"):
            for right in ("-", most, least):
                rows = self.rows(*small, "--pass", "fwd", "--window", f"{left},{right}", *QUICK)
                self.assertEqual({row["status"] for row in rows}, {"ok"}, (left, right))

    def test_scaling_view(self) -> None:
        small = ["--preset", "baseline-scaling", "--repeat", "1", "--warmup", "0"]
        text = self.ok("bench", *small, "--budget-s", "2")
        self.assertRegex(text, r"measured: time ~ seq_len\^[0-9.]+, claimed seq_len\^2")
        self.assertIn("Speed-up of flash over the baseline", text)
        self.assert_aligned(text)

    def test_bad_arguments(self) -> None:
        for args in (
            ["--seq", "64:32:x2"],
            ["--seq", "64:128"],
            ["--seq", "1,,2"],
            ["--seq", "-1"],
            ["--dim", "0"],
            ["--dtype", "f31"],
            ["--impl", "fast"],
            ["--kernel", "fast"],
            ["--pass", "sideways"],
            ["--heads", "3", "--kv-heads", "2"],
            ["--mem-limit", "many"],
            ["--mem-limit", "-1"],
            ["--preset", "nothing"],
            ["--case", "b1 zz"],
            ["--format", "xml"],
            ["--threads", "0"],
            ["--repeat", "0"],
            ["--window", "1"],
        ):
            message = self.fails(BAD_INPUT, "bench", *args)
            self.assertEqual(message.count("\n"), 1, message)
            self.assertIn(args[0], message.replace("case:", "--case"), message)

    def test_no_device(self) -> None:
        if json.loads(self.ok("info", "--format", "json"))["environment"]["gpus"]:
            self.skipTest("this machine has a GPU")
        self.fails(NO_DEVICE, "bench", "--device", "cuda:0")


if __name__ == "__main__":
    main()
