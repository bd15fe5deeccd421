"""A pytest plugin: draws some parameters of each test, says what the contract covers, counts.

Set in the environment: SUITE_RULES names the module of this package with `small(parameters)`,
whether a CPU can run it, and `outside(function, parameters)`, why the contract leaves it out;
SUITE_DRAW, SUITE_SEED, SUITE_RECORD (the file that is written).
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

RULES = importlib.import_module(f"suites.{os.environ['SUITE_RULES']}")
DRAW = int(os.environ["SUITE_DRAW"])
MOST = getattr(RULES, "MOST", 1000)  # of a suite that names its cases one by one
combinations = 0  # of all functions
outside: Counter[str] = Counter()
outcomes: Counter[str] = Counter()
failed: Counter[str] = Counter()
failures: list[str] = []


def pytest_configure() -> None:
    """A shell's background job ignores the signal, by which the runner ends a suite."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _names(mark: pytest.Mark) -> list[str]:
    return [name.strip() for name in mark.args[0].split(",")]


def _drawn(axes: list[tuple[list[str], list[Any]]], name: str) -> list[dict[str, Any]]:
    """Some combinations, each as likely as any other, that this machine can run."""
    draws = random.Random(f"{os.environ['SUITE_SEED']} {name}")
    everything = itertools.product(*(values for _, values in axes))
    total = math.prod(len(values) for _, values in axes)
    wanted = total if getattr(RULES, "ALL", False) else DRAW
    if total > 100 * wanted:
        everything = (tuple(draws.choice(values) for _, values in axes) for _ in range(100 * DRAW))
    seen = {}
    for choice in everything:
        parameters: dict[str, Any] = {}
        for (names, _), value in zip(axes, choice, strict=True):
            parameters |= dict(zip(names, value if len(names) > 1 else (value,), strict=True))
        if RULES.small(parameters):
            seen[str(parameters)] = parameters
    return draws.sample(list(seen.values()), min(wanted, len(seen)))


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Takes the place of the marks: their product has 10^5 cases a function."""
    global combinations
    marks = list(metafunc.definition.iter_markers("parametrize"))
    if not marks:
        return
    metafunc.definition.own_markers[:] = [
        mark for mark in metafunc.definition.own_markers if mark.name != "parametrize"
    ]
    axes = [(_names(mark), list((*mark.args, mark.kwargs.get("argvalues"))[1])) for mark in marks]
    combinations += math.prod(len(values) for _, values in axes)
    drawn = _drawn(axes, metafunc.function.__name__)
    names = [name for axis, _ in axes for name in axis]
    rows = [[parameters[name] for name in names] for parameters in drawn]
    ids = ["-".join(str(value).removeprefix("torch.") for value in row) for row in rows]
    metafunc.parametrize(names, rows, ids=ids)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    global combinations
    kept, left_out = [], []
    for item in items:
        combinations += not hasattr(item, "callspec")
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        why = RULES.outside(getattr(item, "originalname", item.name), parameters)
        if why:
            outside[why] += 1
        (left_out if why else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    if len(kept) > MOST:
        chosen = random.Random(os.environ["SUITE_SEED"]).sample(kept, MOST)
        config.hook.pytest_deselected(items=[item for item in kept if item not in set(chosen)])
        kept = chosen
    items[:] = kept


def _said(call: pytest.CallInfo) -> str:
    """The error's first line."""
    if call.excinfo is None:
        return ""
    said = str(call.excinfo.value).splitlines()
    return f"{call.excinfo.type.__name__}: {said[0] if said else ''}"


def _reason(call: pytest.CallInfo) -> str:
    """Without the numbers, which are of one case."""
    return re.sub(r"-?\d[\d.e+-]*", "N", _said(call))[:160]


def _tell(name: str, call: pytest.CallInfo) -> None:
    """A line of the log at once, which an interrupt does not lose."""
    where = call.excinfo.traceback[-1] if call.excinfo else None
    place = f"{where.path.name}:{where.lineno + 1}" if where else ""
    print(f"\nFAILED {name} {call.duration:.1f} s {place} {_said(call)}", file=sys.stderr, flush=True)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo
) -> Generator[None, Any, None]:
    report = (yield).get_result()
    if report.when == "call" or report.outcome != "passed":
        left_out = getattr(RULES, "left_out", None)
        if left_out:
            outside[left_out.pop()] += 1
            left_out.clear()
            return
        outcomes[report.outcome] += 1
        if report.outcome == "failed":
            failed[_reason(call)] += 1
            failures.append(item.nodeid.rpartition("/")[2])
            _tell(failures[-1], call)


def pytest_runtest_logfinish() -> None:
    _write()


def pytest_sessionfinish() -> None:
    _write()


def _write() -> None:
    record = {
        "combinations": combinations,
        "drawn": sum(outside.values()) + sum(outcomes.values()),
        "outside": dict(sorted(outside.items())),
        "skipped": outcomes["skipped"],
        "passed": outcomes["passed"],
        "failed": dict(failed.most_common()),
        "failures": sorted(failures),
    }
    Path(os.environ["SUITE_RECORD"]).write_text(json.dumps(record, indent=1) + "\n")
