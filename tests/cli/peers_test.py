"""bench/peers where it needs no GPU: its presets are the command line's, its ratios are right."""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from cli_testing import SOURCE, run

sys.path.insert(0, str(SOURCE))
sys.path.insert(0, str(SOURCE / "tools/docs"))

import docs_gpu

from bench.peers import summary, traffic
from bench.peers.problem import (
    Problem,
    UnsupportedPresetError,
    axis,
    read_preset,
    window_of,
)

PRESETS = SOURCE / "cases" / "presets"
PASSES = {"forward": "fwd", "backward": "bwd"}


def row(implementation: str, kernel: str, ms: float, **other: object) -> dict[str, Any]:
    shape = {"dtype": "bfloat16", "causal": True, "head_dim": 64, "batch": 1, "heads": 16}
    shape |= {"kv_heads": 16, "seq_q": 1024, "protocol": "burst", "pass": "fwd"}
    named = {"implementation": implementation, "kernel": kernel, "ms_median": ms}
    return {**shape, **named, "status": "ok", "reason": "", **other}


class Presets(unittest.TestCase):
    def test_cells_are_those_of_the_command_line(self) -> None:
        for path in sorted(PRESETS.glob("*.txt")):
            if path.stem in ("expressions", "expressions-cpu", "options", "mla"):
                with self.assertRaisesRegex(
                    UnsupportedPresetError, "holds (formulas|lines of cases|V inside of K)"
                ):
                    read_preset(path, argparse.Namespace())
                continue
            done = run("plan", "--preset", path.stem, "--format", "json")
            self.assertEqual(done.returncode, 0, done.stderr)
            theirs = {
                (r["problem"], r["implementation"], PASSES[r["pass"]], r["GFLOP"], r["GB_moved"])
                for r in json.loads(done.stdout)
            }
            ours = {
                (str(c.problem), name, which, flops * 1e-9, c.problem.bytes_moved(which) * 1e-9)
                for c in read_preset(path, argparse.Namespace())
                for name in c.implementations
                for which in ("fwd", "bwd")
                if which in c.passes or "fwd+bwd" in c.passes
                for flops in [c.problem.flops(which)]
            }
            problems = [sorted({key[:3] for key in keys}) for keys in (ours, theirs)]
            self.assertEqual(*problems, path.stem)
            counted = {key[:3]: key[3:] for key in theirs}
            for key in ours:
                flops, gb = counted[key[:3]]
                self.assertTrue(math.isclose(key[3], flops, rel_tol=1e-9), (key, flops))
                # The others move S and P too, which no peer is charged for. The command line counts
                # what lies behind lengths, too.
                if key[1] == "flash" and "lengths=" not in key[0]:
                    self.assertTrue(math.isclose(key[4], gb, rel_tol=1e-9), (key, gb))

    def test_overrides_have_the_last_word(self) -> None:
        given = argparse.Namespace(seq="512,1024", dim="64", causal=None)
        cells = read_preset(PRESETS / "grid.txt", given)
        self.assertEqual({(c.problem.seq, c.problem.dim) for c in cells}, {(512, 64), (1024, 64)})
        self.assertEqual({c.problem.causal for c in cells}, {False, True})

    def test_heads_that_no_key_head_divides_are_refused(self) -> None:
        """As `tilewise bench` refuses them; of a list, those that divide are kept."""
        given = argparse.Namespace(kv_heads="5")
        with self.assertRaisesRegex(ValueError, "--kv-heads '5': expected divisors of 32 heads"):
            read_preset(PRESETS / "grid.txt", given)
        given.kv_heads = "5,8"  # of 2048 / dim heads
        cells = read_preset(PRESETS / "grid.txt", given)
        self.assertEqual(
            {(c.problem.heads, c.problem.kv_heads) for c in cells}, {(h, 8) for h in (32, 16, 8)}
        )

    def test_windows(self) -> None:
        """-1 is what the peers are told for no bound: no window may say it itself."""
        self.assertEqual(window_of("1023,0"), (1023, 0))
        self.assertEqual(window_of("128,-"), (128, None))
        for text in ("-1,0", "0,-1", "-3,5", "128", "1,2,3", "a,0", ",0"):
            with self.assertRaisesRegex(ValueError, f"--window '{text}': expected LEFT,RIGHT"):
                window_of(text)

    def test_what_is_visible(self) -> None:
        windows = [(None, None), (7, 0), (3, 5), (None, 2), (2, None), (9, -4)]
        for seq, keys in ((16, 16), (5, 20), (20, 5), (1, 33)):
            for causal in (False, True):
                for window in windows:
                    p = Problem(2, 6, 3, seq, 64, "bfloat16", causal, keys, window, 50.0)
                    left, right = (10**9 if side is None else side for side in window)
                    right = min(right, 0) if causal else right
                    seen = sum(
                        i + keys - seq - left <= j <= i + keys - seq + right
                        for i in range(seq)
                        for j in range(keys)
                    )
                    self.assertEqual(p.pairs, 2 * 6 * seen, p)

    def test_options_are_written_as_cases_are(self) -> None:
        p = Problem(1, 8, 2, 128, 64, "bfloat16", True, 256, (1023, None), 50.0)
        text = "b1 h8/2 q128 k256 d64 bf16 causal window=1023,none softcap=50"
        self.assertEqual(str(p), text)
        self.assertEqual(p.options, "window=1023,none+softcap=50")
        self.assertEqual(Problem(1, 8, 8, 128, 64, "bfloat16", True).options, "none")

    def test_packed_sequences_are_one_problem(self) -> None:
        given = argparse.Namespace(packed="3,5:9:+4", dim="64", hidden=512)
        cells = read_preset(PRESETS / "grid.txt", given)
        self.assertEqual(
            {str(c.problem) for c in cells if c.problem.causal}, {"packed=3,5,9 h8 d64 bf16 causal"}
        )
        p = cells[-1].problem
        self.assertEqual((p.batch, p.seq, p.rows, p.offsets), (3, 9, 17, [0, 3, 8, 17]))
        self.assertEqual(p.pairs, 8 * (6 + 15 + 45))
        self.assertEqual(p.options, "packed=3,5,9")

    def test_what_is_served_has_lengths_or_pages(self) -> None:
        given = argparse.Namespace(lengths="5,1:9:x9", seq_q="1", paged=4, dim="64", heads="8")
        given.kv_heads, given.hidden, given.tokens, given.causal = "2", None, None, True
        p = read_preset(PRESETS / "serving.txt", given)[0].problem
        self.assertEqual((p.batch, p.keys, p.key_lengths, p.key_rows), (3, 9, (5, 1, 9), 15))
        self.assertEqual(p.pairs, 8 * 15)
        text = "b3 h8/2 q1 k9 d64 bf16 causal lengths=5,1,9 paged=4 layout=bshd pass=fwd"
        self.assertEqual(str(p), text)
        self.assertEqual(p.options, "lengths=5,1,9+paged=4")

    def test_axis(self) -> None:
        self.assertEqual(axis("7,256:4096:x4,1:5:+2"), [7, 256, 1024, 4096, 1, 3, 5])


class Summaries(unittest.TestCase):
    def test_ratio_is_of_the_best_peer(self) -> None:
        rows = [
            row("flash", "flash_fwd_sm90", 2.0),
            row("flash", "flash_fwd_sm80", 4.0),
            row("cudnn", "sdpa", 3.0),
            row("fa2", "sdpa", 5.0),
            row("fa3", "own", 1.0, status="failed"),
        ]
        self.assertEqual(list(summary.ratios(rows, "sm90").values()), [1.5])
        self.assertEqual(list(summary.ratios(rows, "sm80").values()), [0.75])
        self.assertEqual(list(summary.ratios(rows, "flash", "fa2").values()), [2.5])
        self.assertEqual(list(summary.ratios(rows, "flash", "fa3").values()), [])
        self.assertAlmostEqual(summary.geomean([0.5, 2.0]), 1.0)

    def test_packed_rows_are_named_by_what_they_hold(self) -> None:
        rows = [
            row("flash", "flash_fwd_sm90", 2.0, mask="packed=3,5,9"),
            row("fa3", "own", 3.0, mask="packed=3,5,9"),
        ]
        self.assertIn("3 packed, 3 to 9 ", summary.table(rows, "sm90", "")[2])

    def test_ratio_of_the_plans_own_choice(self) -> None:
        """It is the choice's, not the least of all rows that were forced beside it."""
        rows = [
            row("flash", "flash_fwd_sm90", 2.0),
            row("flash", "flash_fwd_sm80", 4.0, reason="the plan's own choice"),
            row("cudnn", "sdpa", 3.0),
        ]
        self.assertEqual(list(summary.ratios(rows, "the plan").values()), [0.75])
        self.assertIn("2.000", summary.choices(rows)[1])

    def test_options_are_cells_of_their_own(self) -> None:
        rows = [
            row("flash", "flash_fwd_sm90", 2.0, mask="causal"),
            row("fa3", "own", 3.0, mask="none"),
            row("flash", "flash_fwd_sm90", 1.0, mask="window=1023,0"),
            row("fa3", "own", 4.0, mask="window=1023,0"),
            row("flash", "flash_fwd_sm90", 1.0, seq_q=1, seq_k=4096, kv_heads=2),
            row("fa3", "own", 0.5, seq_q=1, seq_k=4096, kv_heads=2),
        ]
        self.assertEqual(list(summary.ratios(rows, "sm90").values()), [1.5, 4.0, 0.5])
        shown = summary.table(rows, "sm90", "")
        self.assertIn("1/4096", shown[1])
        self.assertEqual([line.split()[-1] for line in shown[2:5]], ["1.500", "0.500", "4.000"])
        self.assertIn("2 kv heads, batch 1 ", shown[3])
        self.assertIn("window=1023,0 ", shown[4])

    def test_docs_show_each_row_once(self) -> None:
        own = ("flash", "flash_fwd_sm90")
        decode = {"seq_q": 1, "causal": False, "kv_heads": 2}
        rows = [
            row(*own, 1.25),
            row(*own, 2.5, heads=32, kv_heads=32),
            row(*own, 3.75, mask="window=1023,0"),
            row(*own, 4.5, seq_k=2048),
            row(*own, 5.5, seq_k=4096, **decode),
            row(*own, 6.5, seq_k=4096, batch=64, **decode),
            row(*own, 7.5, seq_k=8192, batch=64, **decode),
        ]
        lines = docs_gpu.wide_table(rows, "ms_median")
        self.assertEqual(
            [
                [cell.strip() for cell in line.split("|")[1:-1]]
                for line in lines
                if "---" not in line
            ],
            [
                ["", "pass", "by", "1/4096", "1/8192", "1024", "1024/2048"],
                *(
                    [f"bfloat16, dim 64, {problem}", "forward", "**flash_fwd_sm90**", *times]
                    for problem, times in [
                        ("full, 16 heads, 2 kv heads, batch 1", ["5.5", "-", "-", "-"]),
                        ("full, 16 heads, 2 kv heads, batch 64", ["6.5", "7.5", "-", "-"]),
                        ("causal, 16 heads", ["-", "-", "1.25", "-"]),
                        ("causal, 16 heads, batch 1", ["-", "-", "-", "4.5"]),
                        ("causal, 16 heads, window=1023,0", ["-", "-", "3.75", "-"]),
                        ("causal, 32 heads", ["-", "-", "2.5", "-"]),
                    ]
                ),
            ],
        )
        grid = [row(*own, 1.5, seq_q=n, batch=16384 // n) for n in (512, 1024)]
        line = docs_gpu.wide_table(grid, "ms_median")[-1]
        self.assertEqual(
            line, "| bfloat16, dim 64, causal | forward | **flash_fwd_sm90** | 1.5 | 1.5 |"
        )

    def test_choice_is_judged_by_the_best_row(self) -> None:
        rows = [
            row("flash", "flash_fwd_sm90", 1.1, reason="also the plan's own choice"),
            row("flash", "flash_fwd_sm80", 1.0),
        ]
        self.assertIn("on 0 of 1 cells", summary.choices(rows)[0])
        rows[1]["ms_median"] = 1.06
        self.assertIn("on 1 of 1 cells", summary.choices(rows)[0])

    def test_select_keeps_peers_and_what_is_named(self) -> None:
        rows = [
            row("flash", "flash_fwd_sm90", 2.0),
            row("flash", "flash_fwd_sm80", 4.0),
            row("cudnn", "sdpa", 3.0),
        ]
        with tempfile.TemporaryDirectory() as folder:
            whole, part = Path(folder) / "whole.json", Path(folder) / "part.json"
            whole.write_text(json.dumps({"environment": {"a": 1}, "rows": rows}))
            command = [sys.executable, "-m", "bench.peers", "select", whole, "--ours", "sm90"]
            environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
            subprocess.run([*command, "-o", part], check=True, env=environment)
            made = json.loads(part.read_text())
        self.assertEqual(made["schema_version"], 1)
        self.assertEqual(made["environment"], {"a": 1})
        self.assertEqual(made["rows"], [rows[0], rows[2]])


# What bench.peers imports, for where torch is not installed.
TORCH_MODULES = (
    "torch",
    "torch._dynamo",
    "torch._dynamo.config",
    "torch._functorch",
    "torch._functorch.config",
    "torch.nn",
    "torch.nn.attention",
    "torch.nn.attention.flex_attention",
)


class FakeMemory:
    """torch.cuda's counters, where a forward takes 3 bytes more and its comparison 100."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def take(self, size: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)

    def reset(self) -> None:
        self.most = self.now

    def forward(self) -> None:
        self.take(3)

    def outputs(self) -> dict[str, object]:
        return {}

    def refusal(self, outputs: dict[str, object]) -> str:
        self.take(100)
        self.now -= 100
        return str(*outputs)


class MeteredMemory(unittest.TestCase):
    def test_peak_of_a_forward_is_without_its_comparison(self) -> None:
        """It was with it in cells without a backward: 642 MiB for 322 in options-sm90.json."""
        memory = FakeMemory()
        torch = {name: mock.MagicMock() for name in TORCH_MODULES}
        with mock.patch.dict(sys.modules, torch):
            from bench.peers import measure

            measure.torch.cuda.memory_allocated = lambda: memory.now
            measure.torch.cuda.max_memory_allocated = lambda: memory.most
            measure.torch.cuda.reset_peak_memory_stats = memory.reset
            contender = mock.Mock()
            contender.open.return_value = memory
            entry = measure.Entry(contender, ("fwd",))
            cell, inputs = mock.Mock(passes=("fwd",)), mock.Mock()
            for name in ("q", "k", "v"):
                getattr(inputs, name).numel.return_value = 0
                getattr(inputs, name).element_size.return_value = 2
            measure.Bench(mock.Mock(seed=1))._check(entry, cell, inputs, memory)
        self.assertEqual(entry.peak_mib, {"fwd": 3 / measure.MIB})


class CountedTraffic(unittest.TestCase):
    def test_bytes_of_all_kernels_in_a_report(self) -> None:
        report = """==PROF== Profiling "gemm": 0%....100%
a table of the program's own, with "numbers"
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","7","gemm(int)","dram__bytes_read.sum","byte","1,000"
"0","7","gemm(int)","dram__bytes_write.sum","byte","24"
"1","7","softmax","dram__bytes_read.sum","byte","500"
"1","7","softmax","dram__bytes_write.sum","byte","0"
"""
        total, kernels = traffic.dram_bytes(report)
        self.assertEqual(total, {"read": 1500.0, "written": 24.0})
        self.assertEqual(kernels, ["gemm(int)", "softmax"])

    def test_exponents_of_a_doubled_length(self) -> None:
        rows = [
            {
                "implementation": "eager",
                "pass": "fwd",
                "seq": seq,
                "read_bytes": n,
                "written_bytes": 0,
            }
            for seq, n in ((1024, 100.0), (2048, 400.0), (8192, 6400.0))
        ]
        self.assertEqual(traffic.exponents(rows), {"eager fwd 1024 to 2048": 2.0})


if __name__ == "__main__":
    unittest.main()
