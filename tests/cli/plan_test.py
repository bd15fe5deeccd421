"""tilewise plan: the seeds' memory columns, verdicts, and why a kernel was chosen."""

import json
import math
import tempfile

from cli_testing import BAD_INPUT, NO_DEVICE, SANITIZED, SOURCE, UNSUPPORTED, CliTest, main, run

BF16 = ["--seq", "4096", "--dim", "128", "--heads", "16", "--dtype", "bf16", "--pass", "fwd"]
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
        self.assertRegex(text, r"fused_fwd, .*reference_fwd: not considered by default; name the")
        self.assertEqual(text.count("not considered by default"), 2)
        self.assertRegex(text, r"(?s)largest that fit.*  length +\d+.*  batch +\d+.*  heads +\d+")
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

    def test_empty_problems(self) -> None:
        """What holds nothing fits at any size: no search for the largest, and nothing to grow."""
        for case in ("b1 h1 s0 d8", "b0 h1 s8 d8"):
            text = self.ok("plan", "--case", case)
            self.assertNotIn("largest that fit", text)
        self.assertNotIn("batches of 0", text)
        for case in ("b1 h0 s8 d8", "b1 h1 s0 d8"):
            message = self.fails(BAD_INPUT, "plan", "--analyze", "--case", case)
            self.assertIn("at least 1", message)
        self.assertIn("at least 1", self.fails(BAD_INPUT, "plan", "--serve", "--seq", "0"))

    def test_files_that_are_none(self) -> None:
        folder = str(SOURCE / "cases")
        for flags in (["--hardware"], ["--against"], ["--advise", "--measured"]):
            message = self.fails(BAD_INPUT, "plan", *flags, folder)
            self.assertIn(f"{folder}: cannot be read", message)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as empty:
            empty.write("{}")
            empty.flush()
            for flags in (["--against"], ["--advise", "--measured"]):
                message = self.fails(UNSUPPORTED, "plan", *flags, empty.name)
                self.assertIn("expected a row that a Tilewise kernel measured", message)

    def test_named_machines(self) -> None:
        """GPUs that are not here: kernels of their architecture, figures with sources."""
        for name, kernel in (
            ("rtx3060", "flash_fwd_sm80"),
            ("rtx4090", "flash_fwd_sm80"),
            ("a100", "flash_fwd_sm80"),
            ("h100", "flash_fwd_sm90"),
            ("h200", "flash_fwd_sm90"),
        ):
            rows = json.loads(self.ok("plan", "--hardware", name, *BF16, "--format", "json"))
            self.assertEqual(rows[0]["kernel"], kernel)
            for words in (BF16, ["--seq", "512,1024"], ["--advise"], ["--analyze"]):
                text = self.ok("plan", "--hardware", name, *words)
                self.assertIn("Times are predicted from its data sheet's rates", text)
                unseen = "No sm_" in text and "expect a factor of up to 1.3" in text
                self.assertEqual(unseen, not name.startswith("h"), text)
            figures = json.loads(self.ok("info", "--hardware", name, "--format", "json"))
            self.assertGreaterEqual(len(figures), 9)
            for figure in figures:
                self.assertTrue(figure["source"], figure)
        self.assertIn("rtx3060, rtx4090", self.fails(BAD_INPUT, "plan", "--hardware", "k80"))

    def test_rows_that_end_inside_a_tile_are_counted_whole(self) -> None:
        """The sm_90a rows are ahead there: 0.0463 of 0.0651 ms on an H200 at 197 rows."""
        short = ",".join(str(n) for n in range(128, 384, 2))
        for problem, verb in (
            ("b64 h12 s197 d64 bf16", "forward"),
            ("b8 h12 s128 d64 f16", "backward"),
            ("b64 h20 s253 d80 bf16 causal", "backward"),
            ("b64 h20 s253 d72 bf16 causal", "backward"),
            ("b4 h24 q4096 k77 d128 bf16", "backward"),
            (f"packed={short} h16 d128 bf16 causal", "backward"),
            (f"packed={short} h16 d128 bf16", "backward"),
        ):
            args = ("--hardware", "h200", "--case", problem, "--format", "json")
            rows = {r["pass"]: r["kernel"] for r in json.loads(self.ok("plan", *args))}
            self.assertTrue(rows[verb].endswith("_sm90"), (problem[:60], rows))

    def test_many_short_heads_are_not_for_the_row_of_few(self) -> None:
        """On an H200 flash_bwd_short_sm90 took 0.228, 0.073 ms, flash_bwd_sm90 0.126, 0.049."""
        for problem in ("b64 h12 s197 d64 bf16", "b4 h20 q1024 k77 d64 bf16"):
            args = ("--hardware", "h200", "--pass", "bwd", "--case", problem, "--format", "json")
            (row,) = json.loads(self.ok("plan", *args))
            self.assertEqual(row["kernel"], "flash_bwd_sm90", problem)

    def test_one_more_sequence_than_multiprocessors_changes_little(self) -> None:
        """Eight key heads a sequence: 16 make 128 tiles, 17 make 136 on 132 multiprocessors."""
        found = []
        for batch in (16, 17):
            problem = f"b{batch} h40/8 q1 k512 d128 bf16 pass=fwd"
            args = ("--hardware", "h200", "--case", problem, "--format", "json")
            found.append(json.loads(self.ok("plan", *args))[0])
        self.assertEqual(found[0]["tiles"], found[1]["tiles"])
        self.assertLess(found[1]["predicted_ms"], 1.1 * found[0]["predicted_ms"])

    def test_machine_from_a_file(self) -> None:
        """A card with half the memory and four times the bandwidth: the limit and time follow."""
        path = self.folder / "card.json"
        path.write_text('{"like": "a100", "memory_bytes": 42949672960, "bandwidth_gbps": 8156}')
        problem = ["--batch", "4", "--seq", "4096", "--dim", "64", "--impl", "eager"]
        own = self.ok("plan", "--hardware", path, *problem)
        self.assertIn("of 30.0 GiB allowed", own)
        self.assertIn("of 60.0 GiB allowed", self.ok("plan", "--hardware", "a100", *problem))
        for text in (
            "{",
            "[]",
            '{"like": "k80"}',
            '{"arch": 80}',
            '{"like": "a100", "arch": -1}',
            '{"like": "a100", "memory": 1}',
        ):
            path.write_text(text)
            self.assertIn("card.json", self.fails(BAD_INPUT, "plan", "--hardware", path))

    def test_serving(self) -> None:
        """Cache, tokens a second and what fits, worked out here from the shapes."""
        words = ["plan", "--serve", "--hardware", "h100", "--heads", "32", "--kv-heads", "8"]
        words += ["--dim", "128", "--dtype", "bf16", "--layers", "32", "--weights", "15GiB"]
        words += ["--mem-limit", "60GiB", "--batch", "4", "--seq", "5000", "--paged", "64"]
        (row,) = json.loads(self.ok(*words, "--format", "json"))
        token = 32 * 8 * 256 * 2
        self.assertEqual(row["cache_kib_a_token"], token / 1024)
        self.assertEqual(row["cache_gib"], 4 * 5056 * token / 2**30)  # 79 pages of 64
        step = 15 * 2**30 + 4 * 5000 * token
        self.assertAlmostEqual(row["step_gib"], step / 2**30)
        figures = json.loads(self.ok("info", "--hardware", "h100", "--format", "json"))
        (bandwidth,) = (f["value"] for f in figures if f["figure"] == "bandwidth_gbps")
        self.assertAlmostEqual(row["tokens_per_s"], 4 * 0.9 * bandwidth * 1e9 / step, places=3)
        room = 45 * 2**30
        self.assertEqual(row["longest_context"] % 64, 0)
        self.assertLessEqual(4 * row["longest_context"] * token, room)
        self.assertGreater(4 * (row["longest_context"] + 640) * token, 0.999 * room)
        self.assertLessEqual(row["largest_batch"] * 5056 * token, room)
        self.assertGreater((row["largest_batch"] + 2) * 5056 * token, 0.999 * room)
        self.assertGreater(row["attention_ms"], 0.0)
        window = json.loads(self.ok(*words, "--window", "999,0", "--format", "json"))[0]
        self.assertAlmostEqual(window["step_gib"], (15 * 2**30 + 4 * 1000 * token) / 2**30)
        self.assertEqual(window["longest_context"], row["longest_context"])
        # A cache that does not fit is said by the numbers, and one without weights may.
        small = [w if w != "60GiB" else "15GiB" for w in words]
        (none,) = json.loads(self.ok(*small, "--format", "json"))
        self.assertEqual((none["longest_context"], none["largest_batch"]), (0, 0))
        self.assertIn("tokens_per_s: upper bound", self.ok(*words))
        done = run("plan", "--serve", "--packed", "5,6", "--hardware", "h100")
        self.assertEqual(done.returncode, BAD_INPUT)
        self.assertIn("--serve: expected", done.stderr)

    def test_largest_sizes_are_exact(self) -> None:
        """The largest that fit do fit; one more of each does not."""
        problem = {"--seq": 512, "--batch": 3, "--heads": 2}
        common = ["--dim", "32", "--impl", "eager", "--mem-limit", "200MiB", "--format", "json"]

        def rows(sizes: dict[str, int], *more: str) -> list[dict[str, object]]:
            words = [str(word) for pair in sizes.items() for word in pair]
            return list(json.loads(self.ok("plan", *words, *common, *more)))

        limits = rows(problem, "--limits")[0]
        names = (("--seq", "length"), ("--batch", "batch"), ("--heads", "heads"))
        for flag, name in names:
            most = int(str(limits[f"largest_{name}"]))
            for value, verdict in ((most, "ok"), (most + 1, "oom")):
                for row in rows({**problem, flag: value}):
                    self.assertEqual(row["verdict"], verdict, (flag, value))

    def test_bounds(self) -> None:
        """On an H100: a tiny problem waits for its launch, one query for memory, a long one for
        arithmetic."""
        for words, bound in (
            (["--seq", "128", "--dim", "64"], "launch"),
            (["--seq-q", "1", "--seq-k", "16384", "--dim", "64", "--heads", "256"], "memory"),
            (["--seq", "16384", "--dim", "64", "--heads", "16"], "compute"),
        ):
            args = [*words, "--dtype", "bf16", "--pass", "fwd", "--format", "json"]
            row = json.loads(self.ok("plan", "--hardware", "h100", *args))[0]
            self.assertEqual(row["bound"], bound, row)
        flops = 4 * 16384**2 * 64 * 16
        self.assertAlmostEqual(row["GFLOP"] * 1e9 / flops, 1.0, places=9)
        self.assertAlmostEqual(row["FLOP_per_byte"], row["GFLOP"] / row["GB_moved"], delta=1e-6)

    def test_no_prediction_is_under_its_bound(self) -> None:
        """Every preset on every named machine: a bound is the least that a machine allows. A
        sanitizer's build takes every preset and every machine once or more, not all pairs."""
        presets = sorted(path.stem for path in (SOURCE / "cases" / "presets").glob("*.txt"))
        names = json.loads((SOURCE / "cases" / "hardware.json").read_text())["machines"]
        seen = 0
        for m, machine in enumerate(names):
            for preset in presets[m :: len(names)] if SANITIZED else presets:
                args = ["--preset", preset, "--hardware", machine, "--format", "json"]
                for row in json.loads(self.ok("plan", *args)):
                    if row["predicted_ms"] is None:
                        continue
                    seen += 1
                    self.assertLessEqual(row["bound_ms"], 1.0001 * row["predicted_ms"], row)
        self.assertGreater(seen, 500 if SANITIZED else 3000)
        for args in (
            ["--impl", "eager", "--batch", "8", "--dim", "16", "--seq", "16384"],
            ["--impl", "fused", "--batch", "8", "--dim", "16", "--seq", "16384"],
            ["--batch", "2", "--heads", "4", "--seq", "1024", "--dtype", "bf16"],
        ):
            text = self.ok("plan", "--hardware", "epyc-2", *args, "--format", "json")
            for row in json.loads(text):
                self.assertLessEqual(row["bound_ms"], row["predicted_ms"], row)

    def test_no_measurement_is_under_its_bound(self) -> None:
        """All committed results of our kernels, GPU and CPU; a sanitizer's build takes few."""
        seen = 0
        paths = sorted((SOURCE / "bench" / "results").rglob("*.json"))
        for path in paths[::4] if SANITIZED else paths:
            done = run("plan", "--against", path, "--format", "json")
            if done.returncode != 0:
                unknown = "expected a row that a Tilewise kernel measured|is not a machine of"
                self.assertRegex(done.stderr, unknown)
                continue
            for row in json.loads(done.stdout):
                seen += 1
                self.assertLessEqual(row["bound_ms"], row["measured_ms"], (path.name, row))
                self.assertLessEqual(
                    row["bound_ms"], 1.0001 * row["predicted_ms"], (path.name, row)
                )
        self.assertGreater(seen, 100 if SANITIZED else 1000)

    def test_out_of_memory_says_what_would_fit(self) -> None:
        """16384 of eager needs 24.1 GiB: flash fits, bf16 does, half the batch does."""
        args = ["--impl", "eager", "--batch", "8", "--dim", "16", "--seq", "16384"]
        words = ["plan", "--hardware", "h200", *args, "--mem-limit", "24GiB"]
        text = self.ok(*words)
        self.assertIn("out of memory\n", text)
        self.assertNotIn("changes that help", text)
        lines = text.split("changes that make it fit, predicted\n")[1].splitlines()
        self.assertTrue(lines[0].endswith("peak: flash, with the planner's choice"), lines)
        for wanted in ("bf16 tensors", "batches of 4"):
            self.assertTrue(any(line.endswith(wanted) for line in lines), (wanted, lines))
        row = json.loads(self.ok(*words, "--limits", "--format", "json"))[-1]
        self.assertEqual(row["helps_most"], "flash, with the planner's choice")

    def test_what_helps(self) -> None:
        """Two S x S matrices are the worst thing to have: the plan says so."""
        args = ["--impl", "eager", "--seq", "8192", "--dim", "64", "--heads", "16"]
        text = self.ok("plan", "--hardware", "h100", *args)
        first = text.split("changes that help, predicted\n")[1].splitlines()[0]
        self.assertIn("flash", first)

    def test_analyze(self) -> None:
        """Seed 002's answers: which size grows what, the accesses, the tile, the claimed times."""
        words = ["plan", "--analyze", "--hardware", "h100", "--impl", "baseline,eager,flash"]
        answers = json.loads(self.ok(*words, "--format", "json"))
        growth = {(row["implementation"], row["doubled"]): row for row in answers["growth"]}
        for name in ("baseline", "eager", "flash"):
            for size, flops in (("length", 4), ("batch", 2), ("heads", 2), ("head dim", 2)):
                self.assertAlmostEqual(growth[name, size]["flops_times"], flops)
                # LSE and masks do not grow with the head dim.
                self.assertAlmostEqual(growth[name, size]["tensors_times"], 2.0, delta=0.01)
        self.assertAlmostEqual(growth["baseline", "length"]["held_times"], 4.0, delta=0.02)
        self.assertAlmostEqual(growth["baseline", "batch"]["held_times"], 2.0, delta=0.01)
        self.assertAlmostEqual(growth["baseline", "head dim"]["held_times"], 1.0)
        baseline = [row for row in answers["length"] if row["implementation"] == "baseline"]
        self.assertEqual([row["scores_MiB"] for row in baseline], [0.25, 1.0, 4.0, 16.0])
        self.assertEqual([row["claimed_times"] for row in baseline], [1, 4, 16, 64])
        self.assertLess(baseline[1]["predicted_times"], 4.0)  # the GPU is not full yet
        d = 64
        total = answers["accesses"][-1]["one_query"]
        self.assertEqual(total, 512 * (d + 3 + d + 1))
        self.assertEqual([row["length"] for row in answers["flash_gain"]], [128, 512, 2048, 4096])
        text = self.ok("plan", "--analyze", "--hardware", "h100")
        self.assertIn("16384 bytes = 16 KB", text)
        self.fails(BAD_INPUT, "plan", "--analyze", "--seq", "64,128")

    def test_advise(self) -> None:
        """The advice is the fastest arm, or a more exact one within 10 %; the crossover is where
        the table turns."""
        shape = ["--batch", "2", "--heads", "4", "--format", "json"]
        for machine in ("h100", "rtx3060", "epyc-2"):
            advice = json.loads(self.ok("plan", "--advise", "--hardware", machine, *shape))
            arms = ("flash f32", "flash tf32", "flash bf16", "eager f32", "eager bf16")
            for row in advice["lengths"]:
                times = [row[f"{arm}_ms"] for arm in arms if row[f"{arm}_ms"] is not None]
                self.assertLessEqual(row[f"{row['use']}_ms"], 1.1 * min(times) + 1e-12)
            start = advice["bf16_from"]
            for row in advice["lengths"]:
                pays = row["flash f32_ms"] > advice["worthwhile"] * row["flash bf16_ms"]
                if start is not None and row["length"] >= start:
                    self.assertTrue(pays, (machine, row))
            if start:
                self.assertLess(advice["lengths"][0]["length"], start)

    def test_advice_says_where_it_changes(self) -> None:
        """In words what the table says: what to use up to which length, and what bounds it."""
        words = ["plan", "--advise", "--hardware", "h100", "--seq", "128:16384:x2"]
        text = self.ok(*words)
        lengths = json.loads(self.ok(*words, "--format", "json"))["lengths"]
        for column, begin in (("use", "- use "), ("bound", "- bottleneck: ")):
            (told,) = [line for line in text.splitlines() if line.startswith(begin)]
            self.assertIn(f"{begin}{lengths[0][column]} to ", told)
            last = lengths[-1][column]
            others = [n for n, r in enumerate(lengths) if r[column] != last]
            first = lengths[others[-1] + 1]["length"]
            self.assertTrue(told.endswith(f"{last} from {first} on"), told)
        text = self.ok("plan", "--advise", "--hardware", "h100", "--seq", "8192,16384")
        self.assertIn("- use flash bf16 at every length", text)
        for wrong in (["--dim", "64,128"], ["--heads", "1,2"], ["--seq-k", "64"]):
            self.fails(BAD_INPUT, "plan", "--advise", "--seq-q", "128", *wrong)
        self.fails(BAD_INPUT, "plan", "--measured", "results.json")

    def test_advice_from_measurements(self) -> None:
        """A measured problem's time is the measured one."""
        results = SOURCE / "bench/results/cpu/amd-epyc/seeds.json"
        measured = {
            (row["implementation"], row["pass"]): row["ms_median"]
            for row in json.loads(results.read_text())["rows"]
            if row["seq_q"] == 1024 and row["head_dim"] == 64
        }
        shape = ["--batch", "8", "--seq", "1024", "--dim", "64", "--format", "json"]
        words = ["plan", "--advise", "--hardware", "epyc-2", "--measured", str(results), *shape]
        (row,) = json.loads(self.ok(*words))["lengths"]
        for name in ("flash", "eager"):
            total = measured[name, "fwd"] + measured[name, "bwd"]
            self.assertAlmostEqual(row[f"{name} f32_ms"], total)
        self.assertEqual(row["origin"], "2 of 5 measured")

    def test_advice_takes_both_passes_as_one_and_no_prediction_beside(self) -> None:
        shape = {"batch": 8, "heads": 1, "seq_q": 1024, "head_dim": 64, "dtype": "float32"}
        rows = [
            {**shape, "kernel": f"{name}_fwd{more}", "pass": "fwd", "ms_median": 40.0}
            | {"status": "ok", "implementation": name}
            for name, more in (("flash", "_avx512"), ("eager", ""))
        ]
        rows += [
            {**shape, "kernel": kernel, "pass": "fwd+bwd", "ms_median": ms, "status": "ok"}
            for kernel, ms in (
                ("flash_fwd_avx512+flash_bwd_avx512", 300.0),
                ("eager_fwd+eager_bwd", 500.0),
            )
        ]
        path = self.folder / "results.json"
        path.write_text(json.dumps({"environment": {"cpu": "AMD EPYC"}, "rows": rows}))
        words = ["plan", "--advise", "--hardware", "epyc-2", "--measured", str(path)]
        words += ["--batch", "8", "--seq", "1024", "--dim", "64", "--format", "json"]
        (row,) = json.loads(self.ok(*words))["lengths"]
        self.assertEqual((row["flash f32_ms"], row["eager f32_ms"]), (300.0, 500.0))
        self.assertLess(row["flash bf16_ms"], 200.0)  # predicted, and not taken
        self.assertEqual(row["use"], "flash f32")

    def test_measured_rates_are_kept(self) -> None:
        """`info --measure` writes what the next plan counts on; a damaged file is as none."""
        state = {"XDG_STATE_HOME": str(self.folder), "TILEWISE_STATE_DIR": ""}
        problem = ["plan", "--seq", "4096", "--dim", "64", "--pass", "fwd"]
        self.assertNotIn("rates measured", run(*problem, env=state).stdout)
        measured = run("info", "--measure", env=state)
        self.assertEqual(measured.returncode, 0, measured.stderr)
        self.assertIn("times the bandwidth of memory", measured.stdout)
        kept = self.folder / "tilewise/machine.json"
        (entry,) = json.loads(kept.read_text()).values()
        for rate in (
            "float32_tflops",
            "matrix_tflops",
            "bandwidth_gbps",
            "cache_gbps",
            "launch_us",
        ):
            self.assertGreater(entry[rate], 0.0)
        text = run(*problem, env=state).stdout
        self.assertIn(f"rates measured {entry['date']}", text)
        kept.write_text(kept.read_text().replace("float32_tflops", "lost"))
        self.assertNotIn("rates measured", run(*problem, env=state).stdout)
        kept.write_text("[")
        self.assertNotIn("rates measured", run(*problem, env=state).stdout)

    def test_measuring_needs_the_device(self) -> None:
        """A card that is not there has nothing to measure."""
        environment = {"LD_LIBRARY_PATH": "", "CUDA_VISIBLE_DEVICES": ""}
        for device, code in (("cuda:63", NO_DEVICE), ("gpu", BAD_INPUT)):
            done = run("info", "--measure", "--device", device, env=environment)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(device, done.stderr)


if __name__ == "__main__":
    main()
