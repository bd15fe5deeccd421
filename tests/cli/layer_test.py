"""tilewise layer: what it measures, trains and refuses."""

import json
import math
import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from cli_testing import (
    BAD_INPUT,
    CLI,
    DONE,
    INTERRUPTED,
    SOURCE,
    CliTest,
    Tensors,
    read_safetensors,
    run,
    write_npy,
    write_safetensors,
)

SMALL = ("--dim", "16", "--heads", "2", "--layers", "1", "--block", "16")


class Bench(CliTest):
    def test_rows_have_the_schema_of_bench(self) -> None:
        ours = run("layer", "bench", *SMALL, "--seq", "32", "--repeat", "2", "--format", "json")
        self.assertEqual(ours.returncode, DONE, ours.stderr)
        theirs = run("bench", "--seq", "32", "--repeat", "1", "--format", "json")
        rows = json.loads(ours.stdout)["rows"]
        self.assertEqual(rows[0].keys(), json.loads(theirs.stdout)["rows"][0].keys())
        self.assertEqual(
            [row["implementation"] for row in rows],
            ["layer-original", "layer-flash", "layer-adaptive"],
        )
        for row in rows:
            self.assertEqual((row["status"], row["seq_q"], row["pass"]), ("ok", 32, "fwd"))
            self.assertGreater(row["ms_mean"], 0.0)
            self.assertGreaterEqual(row["peak_mib"], row["live_mib"])

    def test_memory_finds_the_longest_sequence_under_the_limit(self) -> None:
        flags = ("--seq", "64", "--batch", "1", "--layer", "flash", "--longest", "4096")
        done = run(
            *("layer", "bench", "--preset", "asam-memory", *SMALL, *flags),
            *("--mem-limit", "4MiB", "--format", "json"),
        )
        self.assertEqual(done.returncode, DONE, done.stderr)
        at_64, longest = json.loads(done.stdout)["rows"]
        self.assertEqual((at_64["seq_q"], at_64["pass"]), (64, "fwd+bwd"))
        self.assertIn("longest", longest["reason"])
        self.assertEqual(longest["seq_q"] % 256, 0)
        self.assertLess(longest["seq_q"], 4096)
        self.assertLessEqual(longest["peak_mib"], 4.0)

    def test_an_interrupt_keeps_the_rows(self) -> None:
        command = [CLI, "layer", "bench", *SMALL, "--seq", "16,64", "--format", "json"]
        with subprocess.Popen(
            [*command, "--repeat", "100000", "--layer", "flash"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TILEWISE_CASES_DIR": str(SOURCE / "cases")},
        ) as process:
            time.sleep(1.0)
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED)
        self.assertRegex(errors, r"interrupted after \d of 2 cells")
        self.assertIsInstance(json.loads(out)["rows"], list)


class Train(CliTest):
    def test_the_needle_is_learned_and_the_weights_run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            weights, x = Path(folder) / "w.safetensors", Path(folder) / "x.npy"
            done = run(
                *("layer", "train", *SMALL, "--seq", "16", "--steps", "150", "--layer", "flash"),
                *("--rate", "0.02", "--format", "json", "--weights", weights),
            )
            self.assertEqual(done.returncode, DONE, done.stderr)
            (row,) = json.loads(done.stdout)
            self.assertEqual((row["task"], row["steps"], row["skipped"]), ("needle", 150, 0))
            self.assertGreater(row["accuracy_percent"], 50.0)  # one in eight by chance
            write_npy(x, (2, 16), list(range(32)), "<i4")
            answer = run("layer", "run", weights, x, "--format", "json")
            self.assertEqual(answer.returncode, DONE, answer.stderr)
            write_npy(x, (1, 2), [0, 59], "<i4")
            wrong = run("layer", "run", weights, x)
            self.assertEqual(wrong.returncode, BAD_INPUT)
            self.assertIn("token number 59: expected 0 to 58", wrong.stderr)

    def test_files_are_not_written_over_each_other(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            model, x, dy, y = (str(Path(folder) / name) for name in ("m.safetensors", *"xdy"))
            train = ["train", "--seq", "8", "--dim", "8", "--layers", "1", "--steps", "1"]
            done = run("layer", *train, "--layer", "flash", "--batch", "1", "--weights", model)
            self.assertEqual(done.returncode, 0, done.stderr)
            write_npy(Path(x), (1, 8), [1] * 8, "<i4")
            write_npy(Path(dy), (1, 10), [1.0] * 10)
            before = Path(x).read_bytes()
            for words, message in (
                (["-o", x], "this is an input or another output"),
                (["-o", y, "--dy", dy, "--gradients", y], "this is an input or another output"),
                (["-o", y, "--dy", dy, "--dx", dy], "this is an input or another output"),
                (["--dx", y], "--dx: expected --dy"),
                (["--gradients", y], "--gradients: expected --dy"),
                (["--dy", dy, "--dx", y], "token numbers have no gradient"),
            ):
                done = run("layer", "run", model, x, *words)
                self.assertEqual(done.returncode, BAD_INPUT, words)
                self.assertIn(message, done.stderr)
            self.assertEqual(Path(x).read_bytes(), before)

    def test_listops_runs(self) -> None:
        done = run(
            *("layer", "train", *SMALL, "--task", "listops", "--seq", "48", "--steps", "2"),
            *("--format", "json"),
        )
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertEqual(len(json.loads(done.stdout)), 3)


class BadInput(CliTest):
    def damaged(self, weights: Path, name: str, shape: tuple[int, ...]) -> Tensors:
        """The weights with one more tensor, or another of that name."""
        values = [0.0] * math.prod(shape)
        return {**read_safetensors(weights), name: ("F32", shape, values)}

    def test_weights_that_are_no_model_are_named(self) -> None:
        train = ("layer", "train", *SMALL, "--seq", "16", "--batch", "1", "--steps", "1")
        threshold = "layers.0.adaptive_attn.gate.sparse_threshold"
        metadata = {"heads": "2", "readout": "last"}
        with tempfile.TemporaryDirectory() as folder:
            models = {kind: Path(folder) / f"{kind}.safetensors" for kind in ("flash", "adaptive")}
            for kind, path in models.items():
                self.assertEqual(run(*train, "--layer", kind, "--weights", path).returncode, DONE)
            x, bad = Path(folder) / "x.npy", Path(folder) / "bad.safetensors"
            write_npy(x, (1, 16), list(range(16)), "<i4")
            flash = read_safetensors(models["flash"])
            for tensors, said, words, message in (
                (flash, {"heads": "0"}, (), "heads 0: it must divide the 16 features"),
                (flash, {"readout": "most"}, (), "readout 'most': expected mean or last"),
                (self.damaged(models["flash"], "layers.999999999.x", (1,)), {}, (), "layers.9999"),
                (self.damaged(models["flash"], "embedding.weight", ()), {}, (), "embedding.weight"),
                (self.damaged(models["flash"], "head.weight", ()), {}, (), "head.weight"),
                (self.damaged(models["adaptive"], threshold, (0,)), {}, (), "heads 0: it must"),
                (flash, {}, ("--heads", "3"), "--heads 3: it must divide the 16 features"),
            ):
                write_safetensors(bad, tensors, {**metadata, **said})
                done = run("layer", "run", bad, x, *words)
                self.assertEqual(done.returncode, BAD_INPUT, message)
                self.assertIn(message, done.stderr)
            for words, message in (
                (("--heads", "4"), "has 2 heads"),
                (("--efficient",), "has no flash layers"),
            ):
                done = run("layer", "run", models["adaptive"], x, *words)
                self.assertEqual(done.returncode, BAD_INPUT, words)
                self.assertIn(words[0], done.stderr)
                self.assertIn(message, done.stderr)

    def test_messages_name_the_argument(self) -> None:
        for arguments, message in (
            (("bench", "--layer", "fast"), "'fast': expected one of original, flash, adaptive"),
            (("bench", "--preset", "asam"), "--preset 'asam'"),
            (("bench", "--heads", "3"), "--heads 3"),
            (("bench", "--graph"), "config.graph is true: only CUDA supports it"),
            (("bench", "--compute", "f64"), "config.compute is float64"),
            (("train", "--task", "sort"), "--task 'sort'"),
            (
                ("train", "--seq", f"{2**63 - 1}"),
                "--seq 9223372036854775807: expected at most 2^56",
            ),
            (("bench", "--seq", f"{2**62}"), "--seq 4611686018427387904: expected at most 2^56"),
            (("train", "--block", "48"), "config.block_size is 48"),
            (("run", "absent.safetensors", "x.npy"), "absent.safetensors"),
        ):
            done = run("layer", *arguments)
            self.assertEqual(done.returncode, BAD_INPUT, done.stderr)
            self.assertIn(message, done.stderr)


if __name__ == "__main__":
    unittest.main()
