"""The slow paths among the hard cases (M18) on GPUs: what the plan chooses for each machine that it
knows, and what an H200 measured: bench/results/h200/hard-cases.csv, from `tilewise bench --preset
hard-cases --device cuda:0`, and for C118 from `--case` lines with and without `nolse`."""

import csv
import json
import math
import unittest
from typing import Any

from cli_testing import SOURCE, run

MACHINES = ("a100", "h100", "h200", "rtx3060", "rtx4090")
RESULTS = SOURCE / "bench" / "results" / "h200"
PLANNED = {"forward": "fwd", "backward": "bwd"}


def planned(machine: str, *words: str) -> list[dict[str, Any]]:
    done = run("plan", "--hardware", machine, "--format", "json", *words)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def figure(machine: str, name: str) -> float:
    figures = json.loads(run("info", "--hardware", machine, "--format", "json").stdout)
    return float(next(f["value"] for f in figures if f["figure"] == name))


def measured(case: str, lse: str = "yes") -> dict[tuple[str, str], float]:
    """Median milliseconds of (implementation, pass); of several runs the last one's."""
    with (RESULTS / "hard-cases.csv").open(encoding="utf-8", newline="") as file:
        lines = (line for line in file if not line.startswith("#"))
        rows = [r for r in csv.DictReader(lines) if (r["case"], r["lse"]) == (case, lse)]
    assert rows, case
    return {(r["implementation"], r["pass"]): float(r["ms_median"]) for r in rows}


class Planned(unittest.TestCase):
    def test_c113_one_entry_fills_the_card(self) -> None:
        for machine in MACHINES:
            words = ("--batch", "1", "--heads", "12", "--seq", "4096", "--dim", "64")
            rows = planned(machine, *words, "--dtype", "bf16", "--impl", "eager,flash")
            ms = {(r["implementation"], r["pass"]): r["predicted_ms"] for r in rows}
            for which in PLANNED:
                self.assertLess(ms["flash", which], ms["eager", which], machine)
            row = next(r for r in rows if (r["implementation"], r["pass"]) == ("flash", "forward"))
            blocks = 12 * math.ceil(4096 / int(row["tiles"].split("x")[0])) * row["splits"]
            self.assertGreaterEqual(blocks, figure(machine, "multiprocessors"), machine)

    def test_c114_one_query_fills_the_card(self) -> None:
        for machine in MACHINES:
            words = ("--heads", "16", "--kv-heads", "8", "--seq-q", "1", "--dim", "128")
            for row in planned(
                machine, *words, "--seq-k", "16384:131072:x2", "--dtype", "bf16", "--pass", "fwd"
            ):
                # Query heads that share keys are one block where the kernel packs them. Such a
                # block reads up to 62 GB/s: 64 of them took 0.0279 ms on an H200, 128 took 0.0288
                # (served-forms.csv, b1 h32/8 q1 k16384).
                packs = row["kernel"].endswith("sm90")
                blocks = row["splits"] * (8 if packs else 16)
                enough = figure(machine, "multiprocessors")
                if packs:  # a copy's rate is 0.9 of the data sheet's
                    enough = min(enough, 0.9 * figure(machine, "bandwidth_gbps") / 62)
                enough *= 0.9
                self.assertGreaterEqual(blocks, enough, (machine, row["problem"]))

    def test_c118_lse_changes_no_choice(self) -> None:
        for machine in MACHINES:
            for case in ("b2 h16 s2048 d64 bf16", "b1 h16/8 q1 k16384 d128 bf16"):
                with_lse, without = (
                    planned(machine, "--case", f"{case} pass=fwd{more}")[0]
                    for more in ("", " nolse")
                )
                for name in ("kernel", "tiles", "splits"):
                    self.assertEqual(with_lse[name], without[name], (machine, case))


class Measured(unittest.TestCase):
    def test_c113_flash_beside_unfused(self) -> None:
        ms = measured("b1 h12 s4096 d64 bf16")
        for which in PLANNED.values():
            self.assertLess(5 * ms["flash", which], ms["eager", which])

    def test_c114_one_query_reads_at_the_bandwidth(self) -> None:
        """1.5 times the least; below 65536 keys the start of two kernels is much of it."""
        bandwidth = figure("h200", "bandwidth_gbps") * 1e9
        for keys, most in ((16384, 2.5), (32768, 2.0), (65536, 1.5), (131072, 1.5)):
            ms = measured(f"b1 h16/8 q1 k{keys} d128 bf16")["flash", "fwd"]
            least_ms = 2 * keys * 8 * 128 * 2 / bandwidth * 1e3
            self.assertLess(ms, most * least_ms, keys)

    def test_c116_a_dim_below_a_padded_one(self) -> None:
        ms = {d: measured(f"b1 h16 s8192 d{d} bf16") for d in (120, 128, 136)}
        for which in PLANNED.values():
            self.assertLess(ms[120]["flash", which], 1.3 * ms[128]["flash", which])
            # Padded to 192, half as much work again, in smaller tiles. Rows of 132 are none for
            # TMA and go to another kernel (PLAN.md).
            self.assertLess(ms[136]["flash", which], 2.3 * ms[128]["flash", which])

    def test_c118_lse_costs_nothing(self) -> None:
        for length in (2048, 4096, 8192, 16384):
            case = f"b2 h16 s{length} d64 bf16"
            with_lse, without = (measured(case, lse)["flash", "fwd"] for lse in ("yes", "no"))
            self.assertLess(with_lse, 1.03 * without, case)

    def test_c122_one_query_of_many_entries(self) -> None:
        ms = measured("b512 h8 q1 k129 d64 bf16")
        self.assertLess(ms["flash", "fwd"], ms["eager", "fwd"])


if __name__ == "__main__":
    unittest.main()
