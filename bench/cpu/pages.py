#!/usr/bin/env python3
"""Decoding over pages beside decoding over contiguous keys, and beside reading the same rows.

Contestants of a cell take turns, round after round; the best round counts. `reading` reads the rows
of K, then those of V, in the order of the keys, from the memory that is decoded. One thread is
timed by its CPU time, more by the clock. Writes bench/results/cpu/<model>/pages.json.
"""

import argparse
import ctypes
import itertools
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # cases reads presets as bench.peers does

import capi  # noqa: E402
import check  # noqa: E402
from run import Contestant, Probe, environment, laid_out, measure, raise_priority, row  # noqa: E402
from run import aligned as at_a_line  # noqa: E402

from cases import Case  # noqa: E402

PAGES = (256, 64, 16, 1)
CELLS = (
    Case("fwd", 1, 16384, 128, dtype="bfloat16", heads=32, kv_heads=8, layout="bshd"),
    Case("fwd", 1, 16384, 128, dtype="bfloat16", heads=32, kv_heads=8),
    Case("fwd", 1, 16384, 128, dtype="bfloat16", layout="bshd"),
    Case("fwd", 1, 16384, 128, heads=32, kv_heads=8, layout="bshd"),
    Case("fwd", 4, 16384, 128, dtype="bfloat16", heads=32, kv_heads=8, layout="bshd"),
    Case("fwd", 1, 32768, 64, dtype="bfloat16", heads=64, kv_heads=8, layout="bshd"),
)


class Cell:
    """The tensors of a cell, contiguous and in pages, and the calls on them."""

    def __init__(self, library: capi.Library, case: Case, kernel: str) -> None:
        self._library, self._case, self._kernel = library, case, kernel
        rng = np.random.default_rng(1)
        shapes = [(1, case.heads, case.seq_q, case.dim)] + 2 * [
            (1, case.kv_heads, case.seq_k, case.dim)
        ]
        stored = [capi.to_storage(rng.standard_normal(s, np.float32), case.dtype) for s in shapes]
        self._q, self._k, self._v = (self._laid_out(x) for x in stored)
        inputs = [capi.from_storage(x, case.dtype) for x in stored]
        self._truth = check.reference(case, [*inputs, inputs[0]])[0]
        self._rng = rng

    def _laid_out(self, x: np.ndarray) -> np.ndarray:
        return laid_out(x, self._case, at_a_line)

    def contestants(self, page: int, probe: Probe) -> tuple[Contestant, Contestant]:
        """Over contiguous keys (page 0), or over pages in a random order; and reading them."""
        case = self._case
        q, k, v = self._q, self._k, self._v
        o = self._laid_out(capi.to_storage(np.full(q.shape, np.nan, np.float32), case.dtype))
        options, keep = {}, []
        table = np.zeros((1, 1), np.int32)
        if page:
            order = self._rng.permutation(case.seq_k // page).astype(np.int32)
            k, v = (self._paged(x, page, order) for x in (k, v))
            table = np.argsort(order).astype(np.int32)[None]
            lengths = np.array([case.seq_k], np.int32)
            keep = [table, lengths]
            options = {
                "block_table": capi.tensor(table, "int32"),
                "key_lengths": capi.tensor(lengths, "int32"),
            }
        named = {
            name: capi.tensor(x, case.dtype) for name, x in zip("qkvo", (q, k, v, o), strict=True)
        }
        call, plan = self._library.prepare(
            capi.Forward(**named),
            causal=False,
            one_thread=case.threads == 1,
            implementation="" if self._kernel else "flash",
            kernel=self._kernel,
            **options,
        )
        call()
        error = np.abs(capi.from_storage(o, case.dtype) - self._truth).max()
        if not error < (2e-3 if case.dtype == "bfloat16" else 1e-5):
            raise RuntimeError(f"{case.label}, pages of {page}: off by {error:.1e}")
        keep += [q, k, v, o]
        name = plan.kernel.decode()
        ours = Contestant("flash", name, lambda _keep=keep: call(), plan.live_bytes / 2**20)
        return ours, Contestant("reading", "", self._reading(probe, k, v, table[0]))

    def _reading(
        self, probe: Probe, k: np.ndarray, v: np.ndarray, pages: np.ndarray
    ) -> Callable[[], object]:
        """Threads have parts of the rows. Heads that lie side by side are one row."""
        case, itemsize = self._case, k.itemsize
        page = k.shape[2]
        keys = np.arange(case.seq_k)
        at = pages[keys // page] * k.strides[0] + keys % page * k.strides[2]
        row = case.dim * itemsize
        if k.strides[1] == row:
            row *= case.kv_heads
        else:
            at = np.add.outer(np.arange(case.kv_heads) * k.strides[1], at).ravel()
        parts = [np.ascontiguousarray(x) for x in np.array_split(at, case.threads)]

        def read(part: np.ndarray) -> None:
            for x in (k, v):
                probe.read_rows(
                    ctypes.c_void_p(x.ctypes.data),
                    ctypes.c_void_p(part.ctypes.data),
                    ctypes.c_int64(part.size),
                    ctypes.c_int64(row),
                )

        if case.threads == 1:
            return lambda: read(parts[0])
        pool = ThreadPoolExecutor(case.threads)
        return lambda: list(pool.map(read, parts))

    def key_bytes(self) -> int:
        return self._k.nbytes + self._v.nbytes

    def _paged(self, x: np.ndarray, page: int, order: np.ndarray) -> np.ndarray:
        """(pages, heads, page, D) in memory of (pages, page, heads, D), or of that order."""
        heads, keys, dim = x.shape[1:]
        pools = x[0].reshape(heads, keys // page, page, dim).transpose(1, 0, 2, 3)[order]
        return self._laid_out(np.ascontiguousarray(pools))


def measured(
    probe: Probe, library: capi.Library, case: Case, args: argparse.Namespace
) -> list[dict]:
    cell = Cell(library, case, args.kernel)
    sizes = (0, *PAGES)
    pairs = [cell.contestants(page, probe) for page in sizes]
    # Each memory is used once in every half of a round.
    measure(
        case, [ours for ours, _ in pairs] + [reading for _, reading in pairs], probe, args.rounds
    )
    rows = []
    print(case.label, flush=True)
    for page, (ours, reading) in zip(sizes, pairs, strict=True):
        read = cell.key_bytes() / min(reading.ms) * 1e-6
        made = row(case, ours, read)
        if page:
            made["mask"] = f"lengths={case.seq_k}+paged={page}"
        rows.append(made)
        gbps = cell.key_bytes() / made["ms_min"] * 1e-6
        print(
            f"  {f'page {page}' if page else 'contiguous':<12}{made['ms_min']:>8.3f} ms"
            f"  (median {made['ms_median']:.3f})  x {made['ms_min'] / rows[0]['ms_min']:.3f}"
            f"  {gbps:.1f} GB/s, {gbps / read:.2f} of reading ({read:.1f})  {ours.kernel}",
            flush=True,
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", default="1,2", help="numbers of threads, comma-separated")
    parser.add_argument("--kernel", default="", help="a kernel to force")
    parser.add_argument("--cells", default="", help="numbers of cells, comma-separated")
    parser.add_argument("--output", type=Path, help="append to this file of results")
    args = parser.parse_args()
    probe = Probe(args.build / "bench/cpu/libbench_cpu_probe.so")
    library = capi.Library(args.build / "libtilewise.so", probe.run_alone)
    report = {"schema_version": 1, "environment": environment(args.build / "tilewise")}
    report["environment"]["priority"] = raise_priority()
    chosen = [int(n) for n in args.cells.split(",")] if args.cells else range(len(CELLS))
    rows = []
    for n, threads in itertools.product(chosen, args.threads.split(",")):
        rows += measured(probe, library, replace(CELLS[n], threads=int(threads)), args)
        if args.output:
            args.output.write_text(json.dumps(report | {"rows": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
