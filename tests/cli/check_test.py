"""tilewise check: a failure names the line that repeats it; the summary; info."""

import json
import re
import shlex
from pathlib import Path

from cli_testing import BAD_INPUT, CHECK_FAILED, NO_DEVICE, UNSUPPORTED, CliTest, main, run


class Check(CliTest):
    def test_one_case(self) -> None:
        text = self.ok("check", "--impl", "flash", "--case", "b1 h2 s40 d16 f32 causal")
        cells = self.assert_aligned(text)
        self.assertEqual(cells[0][:3], ["kernel", "status", "quantity"])
        ran = [line for line in cells[2:] if line[1] != "skipped"]  # bfloat16's rows are
        self.assertEqual({line[2] for line in ran}, {"O", "LSE", "dQ", "dK", "dV"})
        for line in ran:
            self.assertEqual(line[1], "passed")
            self.assertLessEqual(float(line[3]), float(line[4]))

    def test_failure_repeats(self) -> None:
        """A sound problem that is said to be an error fails, and again by the line printed."""
        case = ["--case", "b1 h1 s8 d4 f32 expect=invalid", "--seed", "7"]
        first = run("check", "--kernel", "flash_fwd_scalar", *case)
        self.assertEqual(first.returncode, CHECK_FAILED)
        line = re.search(r"^ *(tilewise check .*)$", first.stderr, re.MULTILINE)
        self.assertIsNotNone(line, first.stderr)
        words = shlex.split(line.group(1))
        self.assertIn("--seed", words)
        again = run(*words[1:])
        self.assertEqual(again.returncode, CHECK_FAILED)
        self.assertIn("FAILED flash_fwd_scalar", again.stderr)

    def test_smoke_by_one_row(self) -> None:
        args = ["check", "--smoke", "--kernel", "eager_fwd", "--format", "json"]
        document = json.loads(self.ok(*args))
        self.assertEqual(document["failures"], [])
        (row,) = document["rows"]
        self.assertEqual(row["kernel"], "eager_fwd")
        self.assertGreater(row["passed"], 10)
        self.assertEqual(row["failed"], 0)
        self.assertLessEqual(row["worst_error_of_bound"], 1.0)

    def test_random_problems(self) -> None:
        args = ["check", "--random", "12", "--seed", "3", "--kernel", "flash_fwd_scalar"]
        document = json.loads(self.ok(*args, "--format", "json"))
        (row,) = document["rows"]
        self.assertEqual(row["passed"] + row["skipped"], 12)
        document = json.loads(self.ok(*args[:2], "2", *args[3:], "--sparse", "--format", "json"))
        self.assertEqual(document["rows"][0]["failed"], 0)
        self.fails(BAD_INPUT, "check", "--random", "-1")
        self.fails(BAD_INPUT, "check", "--formulas", "-1")
        self.assertIn("need a GPU", self.fails(UNSUPPORTED, "check", "--formulas", "5"))

    def test_random_problems_of_a_seed_that_begins_with_other_types(self) -> None:
        """Seed 304 begins with 512 problems that this kernel refuses."""
        kernel = "flash_fwd_avx512bf16"
        if "avx512_bf16" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
            self.skipTest(f"this CPU has no {kernel}")
        for variants in ("1", "8"):
            args = ["check", "--random", "4", "--variants", variants, "--seed", "304"]
            (row,) = json.loads(self.ok(*args, "--kernel", kernel, "--format", "json"))["rows"]
            self.assertEqual(row["passed"], 4)

    def test_a_line_that_no_call_takes_is_bad_input(self) -> None:
        """It is told once, with the line, and no kernel fails by it."""
        wrong = run("check", "--case", "b1 h3/2 s10 d8")
        self.assertEqual(wrong.returncode, BAD_INPUT)
        self.assertEqual(wrong.stdout, "")
        self.assertIn("--case 'b1 h3/2 s10 d8': q is", wrong.stderr)
        self.assertEqual(wrong.stderr.count("query heads"), 1)

    def test_flags_of_random_problems_alone(self) -> None:
        for flags in (["--lists"], ["--sparse"], ["--variants", "3"]):
            alone = run("check", "--smoke", *flags)
            self.assertEqual(alone.returncode, BAD_INPUT)
            self.assertIn(f"{flags[0]}: expected --random", alone.stderr)
        message = self.fails(BAD_INPUT, "check", "--smoke", "--seconds", "3")
        self.assertIn("--seconds: expected --formulas", message)

    def test_exit_codes(self) -> None:
        self.fails(BAD_INPUT, "check", "--kernel", "magic")
        self.fails(BAD_INPUT, "check", "--case", "q1 q")
        self.fails(BAD_INPUT, "check", "--case", "s8 d4 blocks=4,4:1,1:5")
        self.fails(BAD_INPUT, "check", "--case", "s8 d4 pass=fwd lengths=8 paged=0")
        self.fails(UNSUPPORTED, "check", "--impl", "baseline", "--case", "s8 d4 pass=bwd")
        if json.loads(self.ok("info", "--format", "json"))["environment"]["gpus"]:
            self.skipTest("this machine has a GPU")
        self.fails(NO_DEVICE, "check", "--device", "cuda:0")


class Info(CliTest):
    def test_facts(self) -> None:
        cells = self.assert_aligned(self.ok("info"))
        facts = {line[0]: line[1] for line in cells[2:]}
        for name in ("cpu", "threads", "instruction set", "memory", "BLAS", "flash on cpu"):
            self.assertTrue(facts[name], name)

    def test_measured_ceilings(self) -> None:
        document = json.loads(self.ok("info", "--measure", "--format", "json"))
        rates = {line["ceiling"]: line["measured"] for line in document["ceilings"]}
        self.assertGreater(rates["float32 multiply-add"], 0.001)
        self.assertGreater(rates["memory copy"], 0.1)

    def test_whole_numbers_are_decimal(self) -> None:
        """A leading zero is no octal number, and nothing wraps around."""
        args = ["check", "--kernel", "eager_fwd", "--format", "json"]
        (row,) = json.loads(self.ok(*args, "--random", "010", "--threads", "08"))["rows"]
        self.assertEqual(row["passed"] + row["skipped"], 10)
        most = str(2**64 - 1)
        self.ok(*args, "--case", "s8 d8", "--seed", most)
        for seed, expected in (
            ("-1", "an integer of at least 0"),
            ("1.5", "an integer of at least 0"),
            ("99999999999999999999", f"an integer from 0 to {most}"),
        ):
            message = self.fails(BAD_INPUT, *args, "--case", "s8 d8", "--seed", seed)
            self.assertEqual(message, f"tilewise: --seed '{seed}': expected {expected}\n")


if __name__ == "__main__":
    main()
