"""One cell after another: check every contender, then let them take turns."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .board import board_step
from .contender import Contender, RefusedError, Session
from .problem import Cell, Problem
from .protocol import Card, Samples
from .reference import Inputs, Reference
from .seed_runs import seed_runs

MIB = 2**20


@dataclass
class Entry:
    """A contender in a cell: what the check found, and its samples by pass."""

    contender: Contender
    passes: tuple[str, ...]
    status: dict[str, str] = field(default_factory=dict)
    reason: dict[str, str] = field(default_factory=dict)
    live_mib: float = 0.0
    seed_live_mib: float = 0.0  # before backward, as the protocol "seed" reads it
    peak_mib: dict[str, float] = field(default_factory=dict)
    samples: dict[tuple[str, str], Samples] = field(default_factory=dict)  # (protocol, pass)

    def refuse(self, status: str, reason: str, which: tuple[str, ...] | None = None) -> None:
        for one in which if which is not None else self.passes:
            self.status[one] = status
            self.reason[one] = " ".join(reason.split())[:200]

    def ok(self) -> list[str]:
        return [one for one in self.passes if self.status.get(one, "ok") == "ok"]


def is_free(contender: Contender) -> bool:
    """Whether it is ours with the choice left to the plan."""
    return bool(getattr(contender, "is_free", False))


@dataclass(frozen=True)
class Options:
    """How long and how to measure."""

    rounds: int  # of turns; the other protocols take one
    protocols: tuple[str, ...] = ("burst",)
    seconds: float = 1.0  # of a launch sustained
    seed: int = 0


class Bench:
    """Measures cells on the current device."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._card = Card()
        self._random = random.Random(options.seed)
        self._has_free = False  # a contender of the cell leaves the choice to the plan
        torch.manual_seed(options.seed)

    def run(self, cell: Cell, contenders: list[Contender]) -> list[Entry]:
        entries = [Entry(one, cell.passes) for one in contenders]
        self._has_free = any(is_free(one) for one in contenders)
        inputs = Inputs.random(cell.problem)
        backward = cell.passes != ("fwd",)
        reference = Reference(cell.problem, inputs, backward=backward)
        for entry in entries:
            self._guarded(entry, self._check, entry, cell, inputs, reference)
        del reference
        for protocol in self._options.protocols:
            for _ in range(self._options.rounds if protocol == "burst" else 1):
                inputs.refresh()
                self._random.shuffle(entries)
                for entry in entries:
                    if entry.ok():
                        self._guarded(entry, self._turn, entry, cell, inputs, protocol)
        return sorted(entries, key=lambda e: contenders.index(e.contender))

    @staticmethod
    def _guarded(entry: Entry, work: Callable[..., None], *args: object) -> None:
        """What a contender cannot do is a row of its own; a broken context ends the run."""
        try:
            work(*args)
        except RefusedError as refusal:
            entry.refuse("unsupported", str(refusal))
        except torch.OutOfMemoryError as error:
            entry.refuse("oom", str(error))
        except torch.AcceleratorError:
            raise
        except Exception as error:
            entry.refuse("unsupported", f"{type(error).__name__}: {error}")
        torch.cuda.synchronize()

    def _check(self, entry: Entry, cell: Cell, inputs: Inputs, reference: Reference) -> None:
        """Compares every output with the reference, and meters memory on the way.

        Memory is counted as `tilewise bench` does: Q, K, V, O and what is kept live after the
        forward; at the peak of the backward also dO, the gradients and its workspace.
        """
        mine = sum(x.numel() * x.element_size() for x in (inputs.q, inputs.k, inputs.v))
        gc.collect()  # the traceback of a contender out of memory holds its tensors in a cycle
        base = torch.cuda.memory_allocated() - mine
        torch.cuda.reset_peak_memory_stats()
        session = entry.contender.open(cell.problem, inputs)
        session.forward()
        # The comparison allocates too: the peak is read before it.
        entry.peak_mib = {"fwd": (torch.cuda.max_memory_allocated() - base) / MIB}
        refused = reference.refusal(session.outputs())
        if refused:
            entry.refuse("failed", refused)
            return
        if cell.passes == ("fwd",):
            entry.live_mib = live_mib(torch.cuda.memory_allocated() - base, session)
            self._note_choice(entry, session)
            return
        del session
        self._check_backward(entry, cell, inputs, reference, base)

    def _check_backward(
        self, entry: Entry, cell: Cell, inputs: Inputs, reference: Reference, base: int
    ) -> None:
        torch.cuda.reset_peak_memory_stats()
        session = entry.contender.open(cell.problem, inputs)
        session.forward_for_backward()
        torch.cuda.synchronize()
        entry.live_mib = live_mib(torch.cuda.memory_allocated() - base, session)
        entry.peak_mib["fwd"] = (torch.cuda.max_memory_allocated() - base) / MIB
        torch.cuda.reset_peak_memory_stats()
        try:
            session.backward()
        except RefusedError as refusal:
            later = tuple(one for one in cell.passes if one != "fwd")
            entry.refuse("unsupported", str(refusal), later)
            self._note_choice(entry, session)
            return
        torch.cuda.synchronize()
        d_o_bytes = inputs.d_o.numel() * inputs.d_o.element_size()
        peak = (torch.cuda.max_memory_allocated() - base + d_o_bytes) / MIB
        entry.peak_mib |= {"bwd": peak, "fwd+bwd": peak}
        refused = reference.refusal(session.outputs())
        if refused:
            entry.refuse("failed", refused)
        self._note_choice(entry, session)

    def _note_choice(self, entry: Entry, session: Session) -> None:
        """Marks the plan's own choice. Where it has a contender of its own, rows that are forced
        and would be chosen anyway are not timed again."""
        choice: dict[str, bool] = getattr(session, "own_choice", {})
        if not choice:
            return
        verbs = {"fwd": ["forward"], "bwd": ["backward"], "fwd+bwd": ["forward", "backward"]}
        chosen = [w for w in entry.passes if all(choice.get(verb) for verb in verbs[w])]
        if self._has_free and not is_free(entry.contender):
            entry.passes = tuple(w for w in entry.passes if w not in chosen)
            return
        mark = "the plan's own choice" if is_free(entry.contender) else "also the plan's own choice"
        for which in chosen:
            if which in entry.ok():
                entry.reason[which] = mark

    def _turn(self, entry: Entry, cell: Cell, inputs: Inputs, protocol: str) -> None:
        if protocol == "board":
            ms = self._card.board(board_step(entry.contender, cell.problem), self._options.seconds)
            entry.samples["board", "fwd+bwd"] = Samples(ms)
            return
        if protocol == "seed":
            if "bwd" not in entry.ok():
                raise RefusedError("the seeds' protocol needs a backward")
            runs = seed_runs(entry.contender, cell.problem, inputs)
            entry.samples["seed", "fwd"] = Samples(runs.forward_ms)
            entry.samples["seed", "bwd"] = Samples(runs.backward_ms)
            entry.seed_live_mib = runs.live_mib
            return
        session = entry.contender.open(cell.problem, inputs)
        steps = {
            "fwd": (lambda: None, session.forward),
            "bwd": (session.forward_for_backward, session.backward),
            "fwd+bwd": (lambda: None, session.both),
        }
        for which in entry.ok():
            warm, launch = steps[which]
            if protocol == "burst":
                ms = self._card.burst(warm, launch)
            else:
                warm()
                ms = self._card.sustained(launch, self._options.seconds)
            entry.samples.setdefault((protocol, which), Samples()).ms.extend(ms)


def live_mib(held: int, session: Session) -> float:
    """Live memory in the one meaning of the schema, that of `tilewise bench`: `held` bytes without
    the workspace of a session of ours, which a caller may give back between the passes."""
    workspace = getattr(session, "workspace_bytes", lambda: 0)()
    return (held - workspace) / MIB


def passes_of(cell: Cell, protocol: str) -> tuple[str, ...]:
    """What a protocol times of a cell."""
    if protocol == "board":
        return ("fwd+bwd",)
    return ("fwd", "bwd") if protocol == "seed" else cell.passes


def rows_of(cell: Cell, entries: list[Entry], protocols: tuple[str, ...]) -> list[dict[str, Any]]:
    """The cell's rows in the schema of `tilewise bench --format json`."""
    rows = []
    for protocol in protocols:
        for entry in entries:
            for which in passes_of(cell, protocol):
                if which in cell.passes and which not in entry.passes:
                    continue
                rows.append(row_of(cell.problem, entry, protocol, which))
    return rows


def row_of(p: Problem, entry: Entry, protocol: str, which: str) -> dict[str, Any]:
    status = entry.status.get(which, "ok")
    measured: dict[str, Any] = dict.fromkeys(
        ("ms_mean", "ms_std", "ms_median", "tflops", "gbps", "live_mib", "peak_mib")
    )
    if status == "ok":
        measured |= entry.samples[protocol, which].statistics()
        measured["tflops"] = p.flops(which) / measured["ms_median"] * 1e-9
        measured["gbps"] = p.bytes_moved(which) / measured["ms_median"] * 1e-6
        measured["live_mib"] = entry.seed_live_mib if protocol == "seed" else entry.live_mib
        measured["peak_mib"] = entry.peak_mib[which]
    # Host and autograd are in these times: no tool may take them for the kernel's own.
    beside = ", by autograd" if protocol == "seed" else ""
    return {
        "implementation": entry.contender.name,
        "kernel": entry.contender.kernel(p, which) + beside,
        "device": "cuda:0",
        "dtype": p.dtype,
        "batch": p.batch,
        "heads": p.heads,
        "kv_heads": p.kv_heads,
        "seq_q": p.rows if p.packed else p.seq,
        "seq_k": p.key_rows if p.packed else p.keys,
        "head_dim": p.dim,
        "head_dim_v": p.dim,
        "causal": p.causal,
        "mask": p.options,
        "precision": "exact",
        "deterministic": False,
        "layout": "bshd" if p.packed else p.layout,
        "threads": torch.get_num_threads(),
        "protocol": protocol,
        "pass": which,
        **measured,
        "status": status,
        "reason": entry.reason.get(which, ""),
    }


class Deadline:
    """When to stop so that what was measured is still written."""

    def __init__(self, seconds: float, begun: float) -> None:
        """`begun` is of time.monotonic()."""
        self._end = begun + seconds if seconds > 0 else float("inf")
        self._asked = float("inf")
        self._longest = 0.0

    def has_time(self) -> bool:
        """Whether another step fits that is as long as the longest between two calls."""
        now = time.monotonic()
        self._longest = max(self._longest, now - self._asked)
        self._asked = now
        return now + self._longest < self._end
