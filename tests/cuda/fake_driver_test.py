"""The host's side of CUDA without a GPU: a driver whose kernels do nothing.

Its device memory lies at addresses that the host may not touch, so whatever of `check` and `bench`
reads a device tensor ends by a signal. What they say of arguments and of memory is the same as on
a GPU; results are never right.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CLI = os.environ.get("TILEWISE_CLI", "")
SOURCE = Path(os.environ.get("TILEWISE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
SKIPPED = 77
DONE, CHECK_FAILED, UNSUPPORTED = 0, 1, 5
# All cases, and how many those are at least; a sanitizer's build takes the odd ones. So with the
# seeds' rows: each fills gigabytes on the host.
CASES, LEAST = ("--conformance", "--edge"), 600
SEED_FLAGS, SEED_ROWS = (), 40
if os.environ.get("TILEWISE_SANITIZED") == "1":
    CASES, LEAST = ("--edge",), 180
    SEED_FLAGS, SEED_ROWS = ("--dim", "16"), 10
LIBRARIES = {"driver": "libcuda.so.1", "compiler": "libnvrtc.so.13", "blas": "libcublas.so.13"}


class FakeDriver(unittest.TestCase):
    folder: tempfile.TemporaryDirectory[str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        compiler = shutil.which(os.environ.get("CXX", "g++"))
        if compiler is None:
            raise unittest.SkipTest("no C++ compiler")
        for stem, name in LIBRARIES.items():
            text = SOURCE / f"tests/cuda/fake_driver/{stem}.cxx"
            command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-x", "c++", str(text)]
            subprocess.run([*command, "-o", f"{cls.folder.name}/{name}"], check=True)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def run_cli(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": self.folder.name,
            "TILEWISE_CUDA_PATH": self.folder.name,
            "TILEWISE_CACHE_DIR": f"{self.folder.name}/cache",
            "TILEWISE_CASES_DIR": str(SOURCE / "cases"),
            **more,
        }
        return subprocess.run(
            [CLI, *words], env=environment, capture_output=True, text=True, check=False
        )

    def rows(self, *words: str) -> list[dict[str, object]]:
        done = self.run_cli(*words, "--device", "cuda:0", "--format", "json")
        self.assertIn(done.returncode, (DONE, CHECK_FAILED, UNSUPPORTED), done.stderr[-2000:])
        return json.loads(done.stdout)["rows"]

    def test_the_host_leaves_device_memory_alone(self) -> None:
        """Every row on the smoke set, two of them on all cases."""
        rows = self.rows("check", "--smoke")
        idle = {row["kernel"] for row in rows if row["failed"] == 0}  # it refuses the whole set
        own_cases = {
            "flash_fwd_sm90_copied": "b1 h2 s64 d132 bf16",
            "flash_bwd_sm90_copied": "b1 h2 s64 d132 bf16",
            "flash_bwd_passing_sm90": "b1 h1 s2048 d16 bf16 blocks=64,64:1,1:0.7",
        }
        special = ("flash_bwd_sm90", "flash_bwd_short_sm90", "flash_mla_sm90")
        self.assertLessEqual(idle, {*special, *own_cases})
        for kernel, case in own_cases.items():
            rows = self.rows("check", "--case", case, "--kernel", kernel)
            self.assertEqual({row["status"] for row in rows}, {"failed"}, rows)
        for kernel in ("flash_fwd_sm80", "eager_bwd_cuda"):
            (row,) = self.rows("check", *CASES, "--kernel", kernel)
            self.assertGreater(row["failed"] + row["passed"] + row["skipped"], LEAST, row)

    def test_a_library_planted_beside_the_program_is_not_taken(self) -> None:
        """Only where the package lies in a Python environment does pip put libraries there."""
        nothing = dict.fromkeys(
            ("LD_LIBRARY_PATH", "TILEWISE_CUDA_PATH", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_PATH"), ""
        )
        taken = {}
        for parent in ("anywhere", "site-packages"):
            folder = Path(self.folder.name) / parent
            planted = folder / "nvidia/cublas/lib"
            planted.mkdir(parents=True)
            marker = folder / "marker"
            source = folder / "planted.cxx"
            source.write_text(
                "#include <cstdio>\n__attribute__((constructor)) void plant() {"
                f' if (FILE* f = std::fopen("{marker}", "w")) std::fclose(f); }}\n'
            )
            command = [os.environ.get("CXX", "g++"), "-shared", "-fPIC", str(source)]
            subprocess.run([*command, "-o", str(planted / "libcuda.so.1")], check=True)
            program = folder / "tilewise/tilewise"
            program.parent.mkdir()
            shutil.copy(CLI, program)
            subprocess.run([program, "info"], env={**os.environ, **nothing}, capture_output=True)
            taken[parent] = marker.exists()
        if not taken["site-packages"]:
            self.skipTest("a driver is installed, which comes first")
        self.assertFalse(taken["anywhere"])

    def test_what_only_a_host_can_see_is_no_failure(self) -> None:
        for line, words in (
            ("b2 h2 q8 k8 d16 f32 lengths=9,8 expect=invalid", "is in device memory"),
            ("b1 h1 s64 d8 f32 blocks=48,32:1,1:0.5", "block lists of 48 x 32"),
        ):
            (row,) = self.rows("check", "--kernel", "flash_fwd_sm80", "--case", line)
            self.assertEqual(row["status"], "skipped", row)
            self.assertIn(words, row["reason"])
        (row,) = self.rows(
            "check", "--kernel", "flash_fwd_sm80", "--case", "b1 h3/2 s4 d8 f32 expect=invalid"
        )
        self.assertEqual(row["status"], "passed", row)

    def test_kernels_are_compiled_once(self) -> None:
        counts = []
        for folder in ("all", "all", "file/below"):
            Path(self.folder.name, "file").touch()  # no folder can be made below it
            cache = f"{self.folder.name}/{folder}"
            done = self.run_cli("kernels", "build", "--arch", "90", TILEWISE_CACHE_DIR=cache)
            self.assertEqual(done.returncode, DONE, done.stderr)
            self.assertEqual("cannot be written" in done.stderr, folder != "all", done.stderr)
            counts.append([int(word) for word in done.stdout.split() if word.isdigit()])
        (all_, compiled), again, unwritable = counts
        self.assertGreater(all_, 0)
        self.assertEqual(compiled, all_)
        self.assertEqual(again, [all_, 0])
        self.assertEqual(unwritable, [all_, all_])

    def test_bytes_a_token_of_a_training_step_of_layers(self) -> None:
        """Flash keeps half as much in 16 bits; the original layers have a mask of n^2, too."""
        token = {}
        for compute in ("f32", "f16"):
            flags = ["--seq", "4096,8192", "--compute", compute, "--layer", "original,flash"]
            flags += ["--warmup", "0", "--repeat", "1"]
            rows = self.rows("layer", "bench", "--preset", "asam-training", *flags)
            mib = {(row["implementation"], row["seq_q"]): row["peak_mib"] for row in rows}
            for kind in ("layer-original", "layer-flash"):
                more = float(mib[kind, 8192]) - float(mib[kind, 4096])  # type: ignore[arg-type]
                token[kind, compute] = more * 1024 / (4 * 4096)
        self.assertLess(token["layer-flash", "f32"], 25.5)  # KiB, dim 256, two layers
        self.assertLess(token["layer-flash", "f16"], 13.5)
        self.assertLess(token["layer-flash", "f32"] * 1.6, token["layer-original", "f32"])

    def test_seeds_memory_is_what_the_plan_says(self) -> None:
        """SEEDS: with 24 GiB, S and P of 16,384 rows do not fit, in any dim; flash always does."""
        for kind in ("eager", "fused", "flash"):
            limits = ["--mem-limit", "24GiB", "--warmup", "0", "--repeat", "1"]
            rows = self.rows("bench", "--preset", f"seed-{kind}", *SEED_FLAGS, *limits)
            self.assertEqual(len(rows), SEED_ROWS)
            planned = self.planned_mib(kind, rows)
            for row in rows:
                fits = kind == "flash" or row["seq_q"] < 16384
                self.assertEqual(row["status"], "ok" if fits else "oom", row)
                if fits:
                    peak = row["peak_mib"]
                    self.assertAlmostEqual(peak, planned[key_of(row)], delta=0.01 * peak, msg=row)

    def planned_mib(self, kind: str, rows: list[dict[str, object]]) -> dict[tuple[str, str], float]:
        """Peaks by problem and pass, as `tilewise plan` has them."""
        cases = [word for row in rows[::2] for word in ("--case", key_of(row)[0])]
        words = ("--impl", kind, *cases, "--device", "cuda:0", "--format", "json")
        done = self.run_cli("plan", *words)
        return {(p["problem"], p["pass"]): p["peak_MiB"] for p in json.loads(done.stdout)}


def key_of(row: dict[str, object]) -> tuple[str, str]:
    """Problem and pass of a row of `bench`."""
    problem = f"b{row['batch']} h{row['heads']} s{row['seq_q']} d{row['head_dim']} f32"
    return problem, "forward" if row["pass"] == "fwd" else "backward"


if __name__ == "__main__":
    if not CLI:
        print("this build has no command line")
        sys.exit(SKIPPED)
    unittest.main()
