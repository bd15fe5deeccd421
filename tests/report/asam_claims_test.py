"""./tw report: what of seed 003, a layer timed on a GPU, is judged by which results."""

import json
import tempfile
import unittest
from pathlib import Path

from report_testing import CLI, COMMITTED

# isort: split
from report import claims_asam, claims_asam_steps
from report.claims import FAILS, HOLDS, OPEN, PARTLY, Claim, evidence
from report.data import Measured, Planner, Result, Row, Table, load, load_tables


def judge_seed(results: list[Result], tables: list[Table] | None = None) -> list[Claim]:
    found = evidence(Planner(Path(CLI)), Measured(results), tables)
    return [judge(found) for judge in (*claims_asam.JUDGES, *claims_asam_steps.JUDGES)]


def judged(claims: list[Claim], title: str) -> Claim:
    (claim,) = [claim for claim in claims if claim.title.startswith(title)]
    return claim


class SeedClaims(unittest.TestCase):
    GPU_CLAIMS = (
        "16 bits pay from",
        "FP16 trains 2.02 times",
        "256 to 512 is the Tensor",
        "The gain dips at 1024",
        "Flash with FP16 is 5.4 times",
        "SDPA changes kernels",
    )

    def test_a_gpu_s_claims_wait_for_a_gpu_s_layers(self) -> None:
        """A CPU's layers and attention alone stand beside them and decide nothing."""
        files = [path for path in COMMITTED if path.parts[-2] != "h200" or "asam-" not in path.stem]
        claims = judge_seed(load(files), load_tables(files))
        self.assertEqual(len(claims), 10)
        for claim in claims:
            of_gpu = claim.title.startswith(self.GPU_CLAIMS)
            self.assertEqual(claim.verdict == OPEN, of_gpu, claim.title)
            self.assertEqual("ot measured in the files" in claim.measurement, of_gpu, claim.title)
        dip = judged(claims, "The gain dips")
        tables = {found.caption: found.rows for found in dip.figures}
        (cpu,) = [
            rows for caption, rows in tables.items() if "AMD EPYC, 2 cores: float32" in caption
        ]
        self.assertIn(["times faster", "1.21", "1.6", "1.29", "1.02", "1.1"], cpu)

    def test_the_committed_layers_of_a_gpu_decide(self) -> None:
        claims = judge_seed(load(COMMITTED), load_tables(COMMITTED))
        waiting = [claim.title for claim in claims if claim.verdict == OPEN]
        self.assertLessEqual(len(waiting), 1, waiting)

    def steps(self, device: str, narrow: str, ms: Row, mib: Row, longest: Row) -> list[Result]:
        """Rows of training steps: (kind, type, length) -> value; longest under 1 GiB."""
        rows = []
        told = {"step": "a training step", "longest": "the longest sequence under 1.0 GiB"}
        cells = [(key, "step") for key in ms | mib]
        cells += [((*key, at), "longest") for key, at in longest.items()]
        for (kind, dtype, length), which in cells:
            rows.append(
                {
                    **{"implementation": f"layer-{kind}", "kernel": "2 layers", "device": device},
                    **{"dtype": dtype.replace("narrow", narrow), "batch": 4, "heads": 4},
                    **{"head_dim": 64, "seq_q": length, "causal": False, "pass": "fwd+bwd"},
                    **{"ms_median": ms.get((kind, dtype, length), 1.0), "status": "ok"},
                    **{"peak_mib": mib.get((kind, dtype, length), 1.0), "reason": told[which]},
                }
            )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "steps.json"
            environment = {"gpus": ["NVIDIA H200"]} if device != "cpu" else {"cpu": "AMD EPYC"}
            path.write_text(json.dumps({"environment": environment, "rows": rows}))
            return load([path])

    def test_steps_in_16_bits_are_judged_on_gpus(self) -> None:
        def ms(gains: dict[int, float], original: float) -> Row:
            found = {("original", "float32", 1024): original}
            for length, gain in gains.items():
                found[("flash", "float32", length)] = 10.0
                found[("flash", "narrow", length)] = 10.0 / gain
            return found

        late = {128: 1.0, 256: 1.0, 512: 1.2, 1024: 2.1}
        early = {128: 1.2, 256: 1.2, 512: 1.2, 1024: 1.5}
        titles = ("16 bits pay from", "FP16 trains 2.02 times", "Flash with FP16 is 5.4 times")
        for device, gains, original, expected in (
            ("cuda:0", late, 30.0, (PARTLY, HOLDS, HOLDS)),
            ("cuda:0", early, 15.0, (FAILS, FAILS, FAILS)),
            ("cpu", late, 30.0, (OPEN, OPEN, OPEN)),
        ):
            claims = judge_seed(self.steps(device, "bfloat16", ms(gains, original), {}, {}))
            for title, verdict in zip(titles, expected, strict=True):
                claim = judged(claims, title)
                self.assertEqual(claim.verdict, verdict, (device, title))
                self.assertIn("times faster", str(claim.figures), title)
        self.assertIn("from 512 tokens", judged(claims, titles[0]).sentence)

    def test_memory_of_steps_is_judged_on_every_machine(self) -> None:
        original, flash, narrow = (
            ("original", "float32"),
            ("flash", "float32"),
            ("flash", "narrow"),
        )

        def measured(peaks: list[float], lengths: list[int]) -> list[Result]:
            kinds = (original, flash, narrow)
            mib = {
                (*kind, at): x for kind, x in zip(kinds, peaks, strict=True) for at in (1024, 2048)
            }
            longest = dict(zip(kinds, lengths, strict=True))
            return self.steps("cpu", "bfloat16", {}, mib, longest)

        titles = ("At 2048: 750 MB", "The original runs out", "FP16 saves half")
        gib = 1024.0
        for peaks, lengths, expected in (
            ([13 * gib, 4 * gib, 2 * gib], [2048, 4096, 8192], (HOLDS, HOLDS, HOLDS)),
            ([300.0, 300.0, 290.0], [2048, 2304, 4096], (FAILS, FAILS, FAILS)),
            ([300.0, 100.0, 70.0], [2048, 4096, 4352], (PARTLY, PARTLY, PARTLY)),
        ):
            claims = judge_seed(measured(peaks, lengths))
            for title, verdict in zip(titles, expected, strict=True):
                self.assertEqual(judged(claims, title).verdict, verdict, (peaks, title))
        self.assertIn("under 1.0 GiB the longest are", judged(claims, titles[1]).sentence)

    def test_a_cpu_s_flash_kernel_is_another_one(self) -> None:
        """The CPU of a machine with a GPU too."""
        gpu = {"gpus": ["NVIDIA H200"]}
        for device, environment, verdict in (
            ("cuda:0", gpu, HOLDS),
            ("cpu", gpu, OPEN),
            ("cpu", {"cpu": "AMD EPYC"}, OPEN),
        ):
            results = self.steps(device, "bfloat16", {("flash", "float32", 1024): 1.0}, {}, {})
            results[0].environment = environment
            for row in results[0].rows:
                row["implementation"] = "forced-flash"
            self.assertEqual(judged(judge_seed(results), "SDPA changes kernels").verdict, verdict)

    def test_torch_s_tables_judge_as_rows_do(self) -> None:
        environment = {"gpu": "NVIDIA H200", "date": "2026-11-30"}
        row = {"seq": 1024, "fp32_ms": 10.0, "fp16_ms": 4.0, "fp32_mib": 8.0, "fp16_mib": 4.0}
        table = Table("asam-training", "t.json", environment, [row | {"original_fp32_ms": 30.0}])
        claims = judge_seed([], [table])
        for title in ("FP16 trains 2.02 times faster at 1024", "FP16 saves half the memory, so"):
            claim = judged(claims, title)
            self.assertEqual(claim.verdict, HOLDS, title)
            self.assertEqual(claim.figures[0].files, ["t.json"])

    def layer_rows(self, device: str, best: int) -> list[Result]:
        """Layers whose flash gains most at length `best`."""
        rows = []
        for length in (128, 256, 512, 1024, 2048):
            flash = {"layer-original": 10.0, "layer-flash": 4.0 if length == best else 5.0}
            for implementation, ms in flash.items():
                rows.append(
                    {
                        **{"implementation": implementation, "kernel": "", "device": device},
                        **{"dtype": "float32", "batch": 2, "heads": 4, "head_dim": 64},
                        **{"seq_q": length, "causal": False, "pass": "fwd"},
                        **{"ms_median": ms, "status": "ok", "protocol": "burst"},
                    }
                )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "layers.json"
            path.write_text(json.dumps({"environment": {}, "rows": rows}))
            return load([path])

    def test_a_gpu_s_layers_decide_and_a_cpu_s_do_not(self) -> None:
        """A CPU has no Tensor Cores, whose best length the seed names."""
        title = "256 to 512 is the Tensor Cores' best length"
        for device, best, expected in (
            ("cpu", 2048, OPEN),
            ("cuda:0", 2048, FAILS),
            ("cuda:0", 512, HOLDS),
        ):
            claim = judged(judge_seed(self.layer_rows(device, best)), title)
            self.assertEqual(claim.verdict, expected)
            self.assertIn("Measured, the layers gain", claim.sentence)


if __name__ == "__main__":
    unittest.main()
