"""tilewise plan --against: a result file beside what the plan says of its rows."""

import json

from cli_testing import BAD_INPUT, SOURCE, UNSUPPORTED, CliTest, main

# A file that was measured anywhere, compared for its memory only.
NAMED = ["--hardware", "epyc-2"]
ONCE = ["--warmup", "0", "--repeat", "1"]


class PlanAgainst(CliTest):
    def test_measured_memory(self) -> None:
        """What `bench` meters is what the plan says, to the byte, for every implementation."""
        path = self.folder / "measured.json"
        shapes = [
            "--seq",
            "64,200",
            "--dim",
            "16,40",
            "--heads",
            "3",
            "--impl",
            "eager,fused,flash",
        ]
        for passes, count in (("fwd,bwd", 24), ("fwd", 12)):
            self.ok("bench", *shapes, "--pass", passes, *ONCE, "-o", path)
            rows = json.loads(self.ok("plan", "--against", path, *NAMED, "--format", "json"))
            self.assertEqual(len(rows), count)
            for row in rows:
                for memory in ("live", "peak"):
                    self.assertEqual(row[f"{memory}_MiB"], row[f"planned_{memory}_MiB"], row)

    def test_against_takes_every_option_for_what_it_is(self) -> None:
        path = self.folder / "options.json"
        line = "b1 h2 s64 d16 f32 causal window=8,0 softcap=20 alibi sink dropout=0.25"
        self.ok("bench", "--case", line, *ONCE, "-o", path)
        rows = json.loads(self.ok("plan", "--against", path, *NAMED, "--format", "json"))
        self.assertEqual([row["problem"] for row in rows], [line, line])

    def test_committed_memory(self) -> None:
        """The committed results: live memory to the byte, eager's peaks within 1 %; flash's
        workspace is its kernels' own matter, which may have changed since."""
        results = SOURCE / "bench/results/cpu/amd-epyc/seeds.json"
        rows = json.loads(self.ok("plan", "--against", results, "--format", "json"))
        self.assertGreaterEqual(len(rows), 72)
        for row in rows:
            self.assertAlmostEqual(row["live_MiB"], row["planned_live_MiB"], places=6)
            if row["implementation"] == "eager":
                error = row["peak_MiB"] / row["planned_peak_MiB"] - 1
                self.assertLess(abs(error), 0.01, row)
        self.fails(BAD_INPUT, "plan", "--against", self.folder / "missing.json")

    def test_live_memory_has_one_meaning(self) -> None:
        """Without workspace: a file made beside peers that does not say so has no live memory to
        compare, one that does is compared as it stands."""
        path = self.folder / "peers.json"
        self.ok("bench", "--seq", "64", "--dim", "16", *ONCE, "-o", path)
        document = json.loads(path.read_text())
        for said, shown in ((None, False), ("without workspace", True)):
            document["environment"] |= {"torch": "2.11.0", "live_mib": said}
            path.write_text(json.dumps(document))
            rows = json.loads(self.ok("plan", "--against", path, *NAMED, "--format", "json"))
            for row in rows:
                self.assertEqual(row["live_MiB"] is not None, shown, row)
                if shown:
                    self.assertEqual(row["live_MiB"], row["planned_live_MiB"], row)

    def test_nothing_to_compare(self) -> None:
        """A machine that nobody described, a file without a kernel of ours: exit code 5."""
        row = {"kernel": "flash_fwd", "ms_median": 1.0, "status": "ok", "pass": "fwd"}
        path = self.folder / "results.json"
        path.write_text(json.dumps({"environment": {"gpu": "Voodoo 2"}, "rows": [row]}))
        message = self.fails(UNSUPPORTED, "plan", "--against", path)
        self.assertIn("'Voodoo 2' is not a machine of cases/hardware.json", message)
        path.write_text(json.dumps({"environment": {"gpu": "NVIDIA H200"}, "rows": []}))
        self.assertIn(
            "expected a row that a Tilewise kernel measured",
            self.fails(UNSUPPORTED, "plan", "--against", path),
        )


if __name__ == "__main__":
    main()
