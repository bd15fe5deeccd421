"""What the tests of the command line share: running it, and files in the formats that it reads."""

import ast
import json
import math
import os
import random
import struct
import subprocess
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path

Argument = str | Path
Shape = Sequence[int]
Values = Sequence[float]
# name -> (type, shape, values)
Tensors = dict[str, tuple[str, Shape, Values]]

STATE = tempfile.TemporaryDirectory(prefix="tilewise-state-")
CLI = os.environ.get("TILEWISE_CLI", "")
# A sanitizer's build takes a part of the cases, and fewer repeats.
SANITIZED = os.environ.get("TILEWISE_SANITIZED") == "1"
SOURCE = Path(os.environ.get("TILEWISE_SOURCE_DIR", Path(__file__).resolve().parents[2]))

DONE, CHECK_FAILED, BAD_INPUT, NO_DEVICE, OUT_OF_MEMORY, UNSUPPORTED, INTERRUPTED = (
    0,
    1,
    2,
    3,
    4,
    5,
    130,
)


def run(
    *args: Argument, env: dict[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Runs the command line with its output in pipes. What `info --measure` keeps of this machine
    for its user is neither read nor overwritten."""
    own = {"TILEWISE_CASES_DIR": str(SOURCE / "cases"), "TILEWISE_STATE_DIR": STATE.name}
    environment = {**os.environ, **own, **(env or {})}
    return subprocess.run(
        [CLI, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        check=False,
    )


def write_npy(path: Path, shape: Shape, values: Values, dtype: str = "<f4") -> None:
    """A version 1.0 .npy file in C order."""
    code = {"<f4": "f", "<f8": "d", "<f2": "e", "|b1": "?", "<i4": "i"}[dtype]
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    body = struct.pack(f"<{len(values)}{code}", *values)
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()
    Path(path).write_bytes(header + body)


def read_npy(path: Path) -> tuple[tuple[int, ...], Values]:
    """(shape, values) of a .npy file."""
    data = Path(path).read_bytes()
    length = struct.unpack("<H", data[8:10])[0]
    header = ast.literal_eval(data[10 : 10 + length].decode().strip())
    code = {"<f4": "f", "<f8": "d", "<f2": "e"}[header["descr"]]
    count = math.prod(header["shape"])
    return header["shape"], struct.unpack(f"<{count}{code}", data[10 + length :])


def write_safetensors(path: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> None:
    """tensors: name -> (type, shape, values); types F32, F64, BOOL, I32."""
    codes = {"F32": "f", "F64": "d", "BOOL": "?", "I32": "i"}
    header, body = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (kind, shape, values) in tensors.items():
        data = struct.pack(f"<{len(values)}{codes[kind]}", *values)
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": offsets}
        body += data
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)


def read_safetensors(path: Path) -> Tensors:
    """name -> (type, shape, values)."""
    data = Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    out = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        code = {"F32": "f", "F64": "d"}[entry["dtype"]]
        count = math.prod(entry["shape"])
        values = struct.unpack(f"<{count}{code}", data[begin:end])
        out[name] = (entry["dtype"], tuple(entry["shape"]), values)
    return out


def normals(count: int, seed: int) -> list[float]:
    """Reproducible N(0, 1) values, rounded to float32."""
    source = random.Random(seed)
    raw = [source.gauss(0.0, 1.0) for _ in range(count)]
    return list(struct.unpack(f"<{count}f", struct.pack(f"<{count}f", *raw)))


def attention(
    q: Values, k: Values, v: Values, shape: Shape, *, causal: bool = False
) -> tuple[list[float], list[float]]:
    """O and LSE of (batch, seq, dim) lists, one head, in the textbook's words."""
    batch, seq, dim = shape
    out, lses = [], []
    for b in range(batch):
        rows = [slice((b * seq + i) * dim, (b * seq + i + 1) * dim) for i in range(seq)]
        for i in range(seq):
            last = i + 1 if causal else seq
            s = [
                sum(x * y for x, y in zip(q[rows[i]], k[rows[j]], strict=True)) / math.sqrt(dim)
                for j in range(last)
            ]
            lse = max(s) + math.log(sum(math.exp(x - max(s)) for x in s))
            p = [math.exp(x - lse) for x in s]
            out += [sum(p[j] * v[rows[j]][d] for j in range(last)) for d in range(dim)]
            lses.append(lse)
    return out, lses


class CliTest(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self) -> None:
        if not CLI:
            self.skipTest("TILEWISE_CLI names no command line")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def ok(self, *args: Argument) -> str:
        result = run(*args)
        self.assertEqual(result.returncode, DONE, result.stderr)
        return result.stdout

    def fails(self, code: int, *args: Argument) -> str:
        """Ends with that exit code and a message; returns the message."""
        result = run(*args)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertTrue(result.stderr.startswith("tilewise: "), result.stderr)
        return result.stderr

    def assert_close(self, actual: Values, expected: Values, bound: float) -> None:
        self.assertEqual(len(actual), len(expected))
        worst = max((abs(a - e) for a, e in zip(actual, expected, strict=True)), default=0.0)
        self.assertLessEqual(worst, bound)

    def assert_aligned(self, markdown: str) -> list[list[str]]:
        """Each column of the text's tables begins at one place, and lines are as long as the first
        but for a text of the last column that is too long for it. Returns the first table's cells.
        """
        blocks = [block.splitlines() for block in markdown.split("\n\n")]
        tables = [lines for lines in blocks if lines and lines[0].startswith("|")]
        self.assertTrue(tables, markdown)
        for lines in tables:
            table = [line for line in lines if line.startswith("|")]
            head, rule, *rows = table
            bars = [at for at, sign in enumerate(rule) if sign == "|"]
            self.assertEqual(len(head), len(rule), markdown)
            for line in [head, *rows]:
                self.assertEqual({line[at] for at in bars[:-1]}, {"|"}, markdown)
                text = line[bars[-2] : -1].strip("| ")
                longer = len(text) - (bars[-1] - bars[-2] - 3)
                self.assertEqual(len(line), len(rule) + max(longer, 0), markdown)
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[0]]


def main() -> None:
    unittest.main(verbosity=1)
