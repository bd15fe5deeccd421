"""tilewise run: results, layouts, formats, and files that are not what they should be."""

import csv
import json
import math
import shlex
import struct
from pathlib import Path

from cli_testing import (
    BAD_INPUT,
    CHECK_FAILED,
    NO_DEVICE,
    OUT_OF_MEMORY,
    SOURCE,
    UNSUPPORTED,
    CliTest,
    Shape,
    Values,
    attention,
    main,
    normals,
    read_npy,
    read_safetensors,
    run,
    write_npy,
    write_safetensors,
)

SHAPE = (2, 9, 4)
COUNT = math.prod(SHAPE)
Q, K, V, DO = (normals(COUNT, seed) for seed in (1, 2, 3, 4))
EXAMPLE = SOURCE / "examples" / "data" / "minilm_layer5_qkv.safetensors"


class Results(CliTest):
    def write_npys(self) -> list[Path]:
        tensors = {"q": (SHAPE, Q), "k": (SHAPE, K), "v": (SHAPE, V)}
        for name, (shape, values) in tensors.items():
            write_npy(self.folder / f"{name}.npy", shape, values)
        return [self.folder / f"{name}.npy" for name in tensors]

    def test_npy(self) -> None:
        out = self.folder / "out"
        self.ok("run", *self.write_npys(), "-o", out)
        expected_o, expected_lse = attention(Q, K, V, SHAPE)
        shape, values = read_npy(out / "O.npy")
        self.assertEqual(shape, SHAPE)
        self.assert_close(values, expected_o, 1e-5)
        shape, values = read_npy(out / "LSE.npy")
        self.assertEqual(shape, SHAPE[:2])
        self.assert_close(values, expected_lse, 1e-5)

    def test_safetensors_with_gradients(self) -> None:
        path, out = self.folder / "in.safetensors", self.folder / "out.safetensors"
        write_safetensors(
            path,
            {
                name: ("F32", SHAPE, x)
                for name, x in zip(("q", "k", "v", "dO"), (Q, K, V, DO), strict=True)
            },
        )
        self.ok("run", path, "-o", out, "--causal", "--compare", "reference")
        results = read_safetensors(out)
        self.assertEqual(set(results), {"O", "LSE", "dQ", "dK", "dV"})
        self.assert_close(results["O"][2], attention(Q, K, V, SHAPE, causal=True)[0], 1e-5)
        # dV by a difference quotient: O is linear in V.
        bumped = list(V)
        bumped[7] += 1.0
        change = attention(Q, K, bumped, SHAPE, causal=True)[0]
        base = attention(Q, K, V, SHAPE, causal=True)[0]
        slope = sum((c - b) * d for c, b, d in zip(change, base, DO, strict=True))
        self.assertAlmostEqual(results["dV"][2][7], slope, delta=1e-5)

    def test_layouts_agree(self) -> None:
        """(B, S, H, D) and (B, H, S, D) files of the same values give the same results."""
        batch, seq, heads, dim = 2, 5, 3, 4
        count = batch * seq * heads * dim
        x = {name: normals(count, seed) for seed, name in enumerate("qkv")}

        def transposed(values: Values) -> list[float]:
            return [
                values[((b * seq + s) * heads + h) * dim + d]
                for b in range(batch)
                for h in range(heads)
                for s in range(seq)
                for d in range(dim)
            ]

        bshd, bhsd = self.folder / "bshd.safetensors", self.folder / "bhsd.safetensors"
        write_safetensors(bshd, {n: ("F32", (batch, seq, heads, dim), y) for n, y in x.items()})
        write_safetensors(
            bhsd,
            {n: ("F32", (batch, heads, seq, dim), transposed(y)) for n, y in x.items()},
            metadata={"layout": "BHSD"},
        )
        self.ok("run", bshd, "--layout", "bshd", "-o", self.folder / "1.safetensors")
        self.ok("run", bhsd, "-o", self.folder / "2.safetensors")
        first = read_safetensors(self.folder / "1.safetensors")
        second = read_safetensors(self.folder / "2.safetensors")
        self.assertEqual(first["LSE"], second["LSE"])
        self.assert_close(transposed(first["O"][2]), second["O"][2], 1e-6)

    def test_float64_runs_on_the_reference(self) -> None:
        path, out = self.folder / "in.safetensors", self.folder / "out.safetensors"
        write_safetensors(
            path, {n: ("F64", SHAPE, x) for n, x in zip("qkv", (Q, K, V), strict=True)}
        )
        text = self.ok("run", path, "-o", out)
        self.assertIn("reference_fwd", text)
        results = read_safetensors(out)
        self.assertEqual(results["O"][0], "F64")
        self.assert_close(results["O"][2], attention(Q, K, V, SHAPE)[0], 1e-14)

    def test_bias_and_mask(self) -> None:
        """A bool mask equals a bias of -inf, and a constant bias changes nothing but LSE."""
        seq = SHAPE[1]
        hidden = [j % 3 == 0 for _ in range(seq) for j in range(seq)]
        tensors = {n: ("F32", SHAPE, x) for n, x in zip("qkv", (Q, K, V), strict=True)}
        masked, biased = self.folder / "mask.safetensors", self.folder / "bias.safetensors"
        write_safetensors(
            masked, {**tensors, "mask": ("BOOL", (1, 1, seq, seq), [not h for h in hidden])}
        )
        bias = [-math.inf if h else 2.0 for h in hidden]
        write_safetensors(biased, {**tensors, "bias": ("F32", (1, 1, seq, seq), bias)})
        self.ok("run", masked, "-o", self.folder / "1.safetensors")
        self.ok("run", biased, "-o", self.folder / "2.safetensors")
        first = read_safetensors(self.folder / "1.safetensors")
        second = read_safetensors(self.folder / "2.safetensors")
        self.assert_close(first["O"][2], second["O"][2], 1e-6)
        self.assert_close([x + 2.0 for x in first["LSE"][2]], second["LSE"][2], 1e-5)

    def test_packed(self) -> None:
        """Two sequences packed together are the two apart."""
        total, heads, dim = 12, 2, 4
        x = {n: normals(total * heads * dim, 10 + i) for i, n in enumerate("qkv")}
        split = 5 * heads * dim
        packed = {n: ("F32", (total, heads, dim), y) for n, y in x.items()}
        for name in ("cu_seqlens_q", "cu_seqlens_k"):
            packed[name] = ("I32", (3,), [0, 5, 12])
        write_safetensors(self.folder / "p.safetensors", packed)
        apart = {n: ("F32", (1, 5, heads, dim), y[:split]) for n, y in x.items()}
        write_safetensors(self.folder / "a.safetensors", apart)
        self.ok("run", self.folder / "p.safetensors", "-o", self.folder / "po.safetensors")
        self.ok("run", self.folder / "a.safetensors", "-o", self.folder / "ao.safetensors")
        together = read_safetensors(self.folder / "po.safetensors")["O"][2]
        alone = read_safetensors(self.folder / "ao.safetensors")["O"][2]
        self.assert_close(together[:split], alone, 1e-6)

    def test_every_implementation_on_the_example(self) -> None:
        text = self.ok("run", EXAMPLE, "--impl", "all", "--compare", "reference", "--format", "csv")
        lines = text.splitlines()
        names = [line.split(",")[0] for line in lines[1:]]
        self.assertEqual(names, ["baseline", "eager", "fused", "flash", "reference"])
        self.assertTrue(all(line.endswith(",yes") for line in lines[1:]), text)

    def test_attended(self) -> None:
        text = self.ok("run", EXAMPLE, "--attended", "birds@11,extinction@4", "--top", "2")
        self.assertRegex(text, r"birds +\| +11 \| worms [0-9.]+ %")
        self.assertRegex(text, r"extinction +\| +4 \| famine [0-9.]+ %")
        text = self.ok("run", EXAMPLE, "--attended", "birds@11", "--format", "json")
        document = json.loads(text)
        self.assertEqual(document["runs"][0]["implementation"], "flash")
        self.assertEqual(document["attended"][0]["word"], "birds")
        self.fails(BAD_INPUT, "run", EXAMPLE, "--attended", "aardvark")
        self.fails(BAD_INPUT, "run", EXAMPLE, "--attended", "birds@12")

    def test_forced_kernel_is_the_one_that_runs(self) -> None:
        text = self.ok("run", EXAMPLE, "--kernel", "flash_fwd_scalar", "--format", "json")
        self.assertEqual(json.loads(text)[0]["kernel"], "flash_fwd_scalar")


class BadFiles(CliTest):
    def setUp(self) -> None:
        super().setUp()
        self.out = self.folder / "out.safetensors"

    def write(self, **changes: tuple[str, Shape, Values] | None) -> Path:
        path = self.folder / "in.safetensors"
        tensors = {n: ("F32", SHAPE, x) for n, x in zip("qkv", (Q, K, V), strict=True)}
        tensors.update(changes)
        write_safetensors(path, {n: t for n, t in tensors.items() if t is not None})
        return path

    def refused(self, path: Path, *args: str) -> str:
        message = self.fails(BAD_INPUT, "run", path, *args, "-o", self.out)
        self.assertFalse(self.out.exists())
        self.assertEqual(message.count("\n"), 1, message)
        return message

    def test_nan(self) -> None:
        values = list(K)
        values[13] = math.nan
        message = self.refused(self.write(k=("F32", SHAPE, values)))
        self.assertIn("k has a NaN at (0, 3, 1)", message)

    def test_missing(self) -> None:
        self.assertIn("v is missing", self.refused(self.write(v=None)))

    def test_unknown_name(self) -> None:
        self.assertIn("expected q, k, v", self.refused(self.write(mystery=("F32", (1,), [0.0]))))

    def test_shapes_that_disagree(self) -> None:
        self.assertIn("k", self.refused(self.write(k=("F32", (2, 12, 3), K))))
        self.assertIn("axes", self.refused(self.write(bias=("F32", (1,) * 5, [0.0]))))
        self.assertIn("expected (batch, seq", self.refused(self.write(q=("F32", (COUNT,), Q))))

    def test_truncated(self) -> None:
        path = self.write()
        data = path.read_bytes()
        for length in (0, 7, 8, 40, len(data) - 1):
            path.write_bytes(data[:length])
            self.refused(path)

    def test_huge_header(self) -> None:
        path = self.folder / "in.safetensors"
        path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
        self.refused(path)

    def test_not_there(self) -> None:
        self.refused(self.folder / "none.safetensors")
        self.refused(self.folder / "none.txt")

    def test_output_folder_missing(self) -> None:
        target = self.folder / "no" / "such" / "o.safetensors"
        self.fails(BAD_INPUT, "run", self.write(), "-o", target)
        self.fails(BAD_INPUT, "run", self.write(), "-o", self.folder / "o.npy")
        self.assertEqual([p.name for p in self.folder.iterdir()], ["in.safetensors"])


class ExitCodes(CliTest):
    def test_numbers_name_what_is_accepted(self) -> None:
        for option, text, expected in (
            ("--repeat", "x", "an integer from 1 to 1000000000"),
            ("--repeat", "1e3", "an integer from 1 to 1000000000"),
            ("--threads", "0", "an integer from 1 to 1024"),
            ("--threads", "2.5", "an integer from 1 to 1024"),
            ("--top", "101", "an integer from 1 to 100"),
            ("--dropout-seed", "-1", "an integer of at least 0"),
            ("--dropout-seed", "1.5", "an integer of at least 0"),
            ("--dropout-offset", "0x10", "an integer of at least 0"),
        ):
            expected = f"{option} '{text}': expected {expected}\n"
            self.assertIn(expected, self.fails(BAD_INPUT, "run", EXAMPLE, option, text))
            if option != "--top":
                self.assertIn(expected, self.fails(BAD_INPUT, "bench", option, text))
        message = self.fails(BAD_INPUT, "bench", "--seq", "8", "--budget-s", "nan")
        self.assertIn("--budget-s 'nan': expected a number of at least 0", message)
        message = self.fails(BAD_INPUT, "bench", "--hidden", "2048", "--kv-heads", "5")
        self.assertIn("--kv-heads '5': expected divisors of --hidden / --dim = 32", message)
        message = self.fails(BAD_INPUT, "bench", "--hidden", "100", "--dim", "64")
        self.assertIn("--hidden '100': expected a multiple of --dim 64", message)

    def test_commands_and_environment_name_what_is_accepted(self) -> None:
        for words in ([], ["fly"]):
            self.assertIn("expected one of run, bench, plan", self.fails(BAD_INPUT, *words))
        message = self.fails(BAD_INPUT, "kernels", "fly")
        self.assertIn("'fly' is not a command: expected one of list, build, diff, clear", message)
        message = self.fails(BAD_INPUT, "fly", "--help")
        self.assertIn("'fly' is not a command", message)
        done = run("plan", "--seq", "8", env={"TILEWISE_CPU_ISA": "avx3"})
        self.assertEqual(done.returncode, BAD_INPUT)
        self.assertIn('TILEWISE_CPU_ISA is "avx3": expected scalar, avx2', done.stderr)

    def test_sizes_beyond_any_memory(self) -> None:
        huge = ["--seq", "9223372036854775807"]
        for command in ("plan", "bench"):
            self.assertIn("more than 2^56 elements", self.fails(BAD_INPUT, command, *huge))
        eager = ["plan", "--impl", "eager", "--seq", "2000000000"]
        self.assertIn("more than 2^56", self.fails(OUT_OF_MEMORY, *eager))
        done = run("plan", "--impl", "eager", "--seq", "64,2000000000", "--format", "csv")
        self.assertEqual(done.returncode, 0)
        rows = csv.DictReader(done.stdout.splitlines())
        self.assertEqual([row["verdict"] for row in rows], ["ok", "ok", "oom", "oom"])

    def test_bad_arguments(self) -> None:
        for args in (
            [],
            ["fly"],
            ["run"],
            ["run", EXAMPLE, "--impl", "magic"],
            ["run", EXAMPLE, "--kernel", "magic"],
            ["run", EXAMPLE, "--window", "3"],
            ["run", EXAMPLE, "--scale", "nan"],
            ["run", EXAMPLE, "--causal", "--causal-top-left"],
            ["run", EXAMPLE, "--device", "tpu"],
            ["run", EXAMPLE, "--layout", "sdbh"],
            ["run", EXAMPLE, "--dropout", "2"],
        ):
            message = self.fails(BAD_INPUT, *args)
            self.assertLess(len(message), 500, message)

    def test_no_device(self) -> None:
        if json.loads(self.ok("info", "--format", "json"))["environment"]["gpus"]:
            self.skipTest("this machine has a GPU")
        message = self.fails(NO_DEVICE, "run", EXAMPLE, "--device", "cuda:0")
        self.assertIn("cuda:0", message)

    def test_out_of_memory(self) -> None:
        self.fails(OUT_OF_MEMORY, "run", EXAMPLE, "--impl", "eager", "--mem-limit", "1MiB")

    def test_unsupported(self) -> None:
        path = self.folder / "in.safetensors"
        names = ("q", "k", "v", "dO")
        write_safetensors(
            path, {n: ("F32", SHAPE, x) for n, x in zip(names, (Q, K, V, DO), strict=True)}
        )
        message = self.fails(UNSUPPORTED, "run", path, "--impl", "baseline")
        self.assertIn("baseline", message)

    def test_check_failed(self) -> None:
        """A sound problem that is said to be an error fails."""
        result = run("check", "--kernel", "flash_fwd_scalar", "--case", "s8 d4 f32 expect=invalid")
        self.assertEqual(result.returncode, CHECK_FAILED, result.stdout + result.stderr)

    def test_help(self) -> None:
        """Fits a terminal of 80 columns."""
        names = "run bench plan tune check mask info layer kernels".split()
        nested = [["layer", name] for name in ("run", "bench", "train")]
        nested += [["kernels", name] for name in ("list", "build", "diff", "clear")]
        for command in ([], *([name] for name in names), *nested):
            text = self.ok(*command, "--help")
            self.assertLessEqual(max(map(len, text.splitlines())), 80, text)
        self.assertRegex(self.ok("--version"), r"^tilewise \d+\.\d+\.\d+\n$")

    def test_examples_of_the_help(self) -> None:
        """Those that need neither files nor much time run."""
        for command in ("plan", "mask", "info"):
            ran = 0
            for line in self.ok(command, "--help").split("Examples:")[1].splitlines():
                words = shlex.split(line)[1:]
                if words and words[0] == command and "--measure" not in words and "-o" not in words:
                    self.ok(*words)
                    ran += 1
            self.assertGreater(ran, 0, command)


if __name__ == "__main__":
    main()
