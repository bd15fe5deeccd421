#!/usr/bin/env python3
"""Our CPU kernels beside their peers, each repetition between two probes of the FMA peak.

Contestants of a case take turns, round after round, so that a ratio compares neighbours in time.
One thread is timed by the CPU time of the thread, more by the clock. The best round counts:
a busy neighbour can only slow a round down. Writes bench/results/cpu/<model>.json.
"""

import argparse
import ctypes
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # cases reads presets as bench.peers does

import capi  # noqa: E402
import check  # noqa: E402
import peers as peer_room  # noqa: E402

from cases import Case, cases, preset_cases  # noqa: E402

PROBE_SECONDS = 3e-3
LEAST_SECONDS = 20e-3  # a timed run repeats short calls until it is this long


@dataclass
class Contestant:
    implementation: str
    kernel: str
    call: Callable[[], object]
    live_mib: float | None = None
    peak_mib: float | None = None
    ms: list[float] = field(default_factory=list)
    probe: list[float] = field(default_factory=list)


LANES = {"avx512": 16, "avx2": 8}


class Probe:
    """Ceilings of one thread, from the library that probe.cpp builds to."""

    def __init__(self, path: Path) -> None:
        self._lib = ctypes.CDLL(str(path))
        self._lib.probe_fma_gflops.restype = ctypes.c_double
        self._lib.probe_read_gbps.restype = ctypes.c_double
        self.run_alone = self._lib.probe_run_alone
        self.read_rows = self._lib.probe_read_rows  # address, byte offsets, their count, row bytes

    def fma_gflops(self, kind: str) -> float:
        lanes = LANES[kind]
        rounds = int(PROBE_SECONDS * 100e9 / (2 * lanes * 12))
        return self._lib.probe_fma_gflops(lanes, ctypes.c_int64(rounds))

    def read_gbps(self, memory: np.ndarray, threads: int) -> float:
        """Of all threads at once, each with a part of its own; the best of a few."""
        part = memory.nbytes // threads // 256 * 256

        def read(thread: int) -> float:
            return self._lib.probe_read_gbps(
                ctypes.c_void_p(memory.ctypes.data + thread * part), ctypes.c_int64(part)
            )

        with ThreadPoolExecutor(threads) as pool:
            return max(sum(pool.map(read, range(threads))) for _ in range(7))


def aligned(x: np.ndarray) -> np.ndarray:
    """A copy as frameworks allocate it, at a cache line: NumPy's own lie 16 bytes past one."""
    line = 64
    memory = np.empty(x.nbytes + line, np.uint8)
    begin = -memory.ctypes.data % line
    copy = memory[begin : begin + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def as_numpy(x: np.ndarray) -> np.ndarray:
    """A copy 16 bytes past a cache line: where NumPy's own large arrays lie."""
    line, past = 64, 16
    memory = np.empty(x.nbytes + line + past, np.uint8)
    begin = -memory.ctypes.data % line + past
    copy = memory[begin : begin + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


Place = Callable[[np.ndarray], np.ndarray]


def laid_out(x: np.ndarray, case: Case, place: Place) -> np.ndarray:
    """x (B, H, S, D) in memory of the case's layout."""
    if case.layout == "bshd":
        return place(np.ascontiguousarray(x.transpose(0, 2, 1, 3))).transpose(0, 2, 1, 3)
    return place(x)


def ours(
    library: capi.Library,
    case: Case,
    arrays: list[np.ndarray],
    implementation: str,
    place: Place = aligned,
) -> Contestant:
    """`arrays` are q, k, v, dO in float32; outputs are NaN until they are written."""

    def like(x: np.ndarray) -> np.ndarray:
        empty = capi.to_storage(np.full(x.shape, np.nan, np.float32), case.dtype)
        return laid_out(empty, case, place)

    stored = [capi.to_storage(x, case.dtype) for x in arrays]
    q, k, v, d_o = (laid_out(x, case, place) for x in stored)
    o = like(q)
    lse = np.zeros(q.shape[:3], np.float32)
    named = {
        name: capi.tensor(x, case.dtype) for name, x in (("q", q), ("k", k), ("v", v), ("o", o))
    } | {"lse": capi.tensor(lse)}
    forced = {"implementation": implementation, "kernel": ""}
    alone = case.threads == 1
    if case.direction == "bwd":
        library.prepare(
            capi.Forward(**named), causal=case.causal, one_thread=False, implementation="flash"
        )[0]()
        gradients = [like(x) for x in (q, k, v)]
        args = capi.Backward(
            **named,
            d_o=capi.tensor(d_o, case.dtype),
            **{
                name: capi.tensor(x, case.dtype)
                for name, x in zip(("dq", "dk", "dv"), gradients, strict=True)
            },
        )
    else:
        gradients = []
        args = capi.Forward(**named)
    if implementation == "flash" and case.kernel:
        forced = {"kernel": case.kernel}
    call, plan = library.prepare(args, causal=case.causal, one_thread=alone, **forced)
    keep = (q, k, v, d_o, o, lse, gradients)
    one = Contestant(
        implementation,
        plan.kernel.decode(),
        lambda _keep=keep: call(),
        plan.live_bytes / 2**20,
        plan.peak_bytes / 2**20,
    )
    one.call()
    results = gradients if case.direction == "bwd" else [o]
    check.compare(case, stored, [capi.from_storage(x, case.dtype) for x in results])
    return one


def others(
    library: capi.Library, case: Case, arrays: list[np.ndarray], chosen: str, place: Place
) -> list[Contestant]:
    """Ours by each other row that takes the case."""
    found = []
    for isa in ("amx", "avx512bf16", "avx512", "avx2"):
        kernel = f"flash_{case.direction}_{isa}"
        if kernel == chosen:
            continue
        try:
            found.append(ours(library, replace(case, kernel=kernel), arrays, "flash", place))
        except RuntimeError:  # the row refuses
            continue
    return found


def timed(call: Callable[[], object], repeats: int, one_thread: bool) -> float:
    """Seconds of one call."""
    clock = time.thread_time if one_thread else time.perf_counter
    begin = clock()
    for _ in range(repeats):
        call()
    return (clock() - begin) / repeats


def measure(case: Case, contestants: list[Contestant], probe: Probe, rounds: int) -> None:
    repeats = []
    for one in contestants:
        one.call()
        seconds = timed(one.call, 1, case.threads == 1)
        repeats.append(max(1, int(LEAST_SECONDS / max(seconds, 1e-6))))
    for _ in range(rounds):
        before = probe.fma_gflops(case.probe)
        for one, count in zip(contestants, repeats, strict=True):
            seconds = timed(one.call, count, case.threads == 1)
            after = probe.fma_gflops(case.probe)
            one.ms.append(seconds * 1e3)
            one.probe.append((before + after) / 2)
            before = after


def row(case: Case, one: Contestant, read_gbps: float | None) -> dict:
    """One row in the schema of `tilewise bench --format json`, and what only we measure."""
    median = statistics.median(one.ms)
    usual = statistics.median(one.probe)  # a probe that was disturbed flatters the run beside it
    best = min(range(len(one.ms)), key=lambda i: one.ms[i])
    itemsize = 4 if case.dtype == "float32" else 2
    rows = 2 * case.heads * case.seq_q + 2 * case.kv_heads * case.seq_k
    moved = itemsize * case.batch * case.dim * rows
    return {
        "implementation": one.implementation,
        "kernel": one.kernel,
        "device": "cpu",
        "dtype": case.dtype,
        "batch": case.batch,
        "heads": case.heads,
        "kv_heads": case.kv_heads,
        "seq_q": case.seq_q,
        "seq_k": case.seq_k,
        "head_dim": case.dim,
        "head_dim_v": case.dim,
        "causal": case.causal,
        "mask": "none",
        "precision": "exact",
        "deterministic": False,
        "layout": case.layout,
        "threads": case.threads,
        "protocol": "interleaved",
        "pass": case.direction,
        "ms_mean": statistics.fmean(one.ms),
        "ms_std": statistics.pstdev(one.ms),
        "ms_median": median,
        "ms_min": one.ms[best],
        "tflops": case.flops / median * 1e-9,
        "gbps": moved / median * 1e-6,
        "live_mib": one.live_mib,
        "peak_mib": one.peak_mib,
        "status": "ok",
        "reason": "",
        "probe_gflops": one.probe[best],
        "probe_isa": case.probe,
        "probe_fraction": max(
            case.flops / ms * 1e-6 / (case.threads * max(gflops, usual))
            for ms, gflops in zip(one.ms, one.probe, strict=True)
        ),
        "read_gbps": read_gbps,
    }


def show(case: Case, rows: list[dict]) -> None:
    """Ratios are times of others over ours, of the best rounds."""
    print(case.label, flush=True)
    for one in rows:
        rate = case.flops / one["ms_min"] * 1e-6
        line = f"  {one['implementation']:<12}{one['ms_min']:>10.3f} ms {rate:>7.1f} GFLOP/s"
        line += f"  {one['probe_fraction']:.3f} of the probe  {one['kernel']}"
        line += f"  x {one['ms_min'] / rows[0]['ms_min']:.2f}"
        if one["read_gbps"]:
            gbps = one["gbps"] * one["ms_median"] / one["ms_min"]
            line += f"  {gbps:.1f} GB/s, {gbps / one['read_gbps']:.2f} of reading"
        print(line, flush=True)


def environment(tilewise: Path) -> dict:
    """As the command line reports it, but for the GPU."""
    text = subprocess.run(
        [tilewise, "bench", "--seq", "16", "--dim", "16", "--repeat", "1", "--format", "json"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = json.loads(text)["environment"]
    return {name: x for name, x in found.items() if name not in ("gpus", "driver", "nvrtc")}


def raise_priority() -> str:
    """Real-time scheduling where it is allowed: other processes then hardly disturb."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    except (PermissionError, OSError):
        return "normal"
    return "fifo"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="one length per path")
    parser.add_argument("--preset", default="", help="cells of cases/presets, as NumPy allocates")
    parser.add_argument("--threads", type=int, default=1, help="of a preset's cells")
    parser.add_argument("--kernels", action="store_true", help="our other rows, forced, as peers")
    parser.add_argument("--isa", default="", help="force flash_fwd_ISA and flash_bwd_ISA")
    parser.add_argument("--only", default="", help="regular expression on a case's label")
    parser.add_argument("--peers", default="eager,torch,onnxruntime", help="names, comma-separated")
    parser.add_argument(
        "--ggml", type=Path, help="a build of ggml as another peer (see ggml_peer.py)"
    )
    parser.add_argument("--output", type=Path, help="default: bench/results/cpu/<model>.json")
    args = parser.parse_args()

    names = args.peers.split(",")
    peers, versions = peer_room.available(names, args.ggml)
    probe = Probe(args.build / "bench/cpu/libbench_cpu_probe.so")
    library = capi.Library(args.build / "libtilewise.so", probe.run_alone)
    report = {"schema_version": 1, "environment": environment(args.build / "tilewise")}
    report["environment"] |= {"peers": versions, "priority": raise_priority()}
    if args.preset:
        report["environment"]["note"] = "Arrays lie 16 bytes past a cache line, as NumPy's do"
    model = re.sub(r"[^a-z0-9]+", "-", report["environment"]["cpu"].lower()).strip("-")
    output = args.output or ROOT / f"bench/results/cpu/{model}.json"
    rng = np.random.default_rng(0)
    rows = []
    measured = cases(args.quick)
    place = as_numpy if args.preset else aligned
    if args.preset:
        measured = preset_cases(ROOT / f"cases/presets/{args.preset}.txt", args.threads)
    for case in measured:
        if not re.search(args.only, case.label):
            continue
        if args.isa:
            case = replace(case, kernel=f"flash_{case.direction}_{args.isa}")
        sides = ((case.heads, case.seq_q), (case.kv_heads, case.seq_k))
        shapes = [(case.batch, heads, s, case.dim) for heads, s in sides]
        arrays = [place(rng.standard_normal(shapes[i], np.float32)) for i in (0, 1, 1, 0)]
        contestants = [ours(library, case, arrays, "flash", place)]  # q, k, v, dO
        if "eager" in names:
            contestants.append(ours(library, case, arrays, "eager", place))
        if args.kernels:
            contestants += others(library, case, arrays, contestants[0].kernel, place)
        for peer in peers:
            peer.threads(case.threads)
            call = peer.prepare(case, *arrays)
            if call is not None:
                contestants.append(Contestant(peer.name, peer.version, call))
        measure(case, contestants, probe, args.rounds)
        read = None
        if case.seq_q == 1:
            memory = np.ones(arrays[1].nbytes * 2, np.uint8)
            read = probe.read_gbps(memory, case.threads)
        done = [row(case, one, read) for one in contestants]
        show(case, done)
        rows += done
        # After each case: what was measured outlives an interruption.
        output.write_text(json.dumps(report | {"rows": rows}, indent=2) + "\n")
    print(f"{len(rows)} rows in {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
