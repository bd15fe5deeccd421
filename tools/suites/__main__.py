"""Runs peers' own tests on Tilewise: `./tw peers-suites [SUITE...]`.

They are fetched at pinned states and adapted in build/peers-suites: nothing of them is the
project's. Of each test function some combinations of its parameters are drawn; what the contract
leaves out is counted apart, with the reason. Exits 1 when a suite passes less than 99 % of what
the contract covers.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from . import sources

HERE = Path(__file__).resolve().parent
SUITES = {
    "flash-attention": "flash_attention",
    "attention-gym": "attention_gym",
    "torch-samples": "torch_samples",
    "torch-sdpa": "torch_sdpa",
    "transformers": "transformers_models",
    "xformers": "xformers_ops",
}
ENOUGH = 0.99  # of what the contract covers
ENDED = (0, 1, 5)  # what pytest returns: all passed, some failed, there were none


def run_suite(name: str, options: argparse.Namespace, device: str) -> dict[str, Any]:
    rules = importlib.import_module(f"suites.{SUITES[name]}")
    into = sources.BUILD / name
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    fetched = None
    if rules.SOURCE is not None:
        fetched = sources.fetch(rules.SOURCE, options.places)
    made = rules.adapt(fetched, into, device)
    environment = {
        "SUITE_RULES": SUITES[name],
        "SUITE_DRAW": str(options.draw),
        "SUITE_SEED": str(options.seed),
        "SUITE_DEVICE": device,
        "SUITE_FETCHED": str(fetched.folder) if fetched else "",
        "PYTHONPATH": os.pathsep.join(
            [str(HERE / "shims"), str(into), str(HERE.parent), *filter(None, sys.path)]
        ),
    }
    command = [sys.executable, "-m", "pytest", str(made), "-q", "-p", "suites.plugin"]
    command += ["-p", "no:cacheprovider", "--tb=short", "-W", "ignore", f"--rootdir={into}"]
    # Not this project's settings, which know no other marks.
    (into / "pytest.ini").write_text("[pytest]\n")
    command += ["-c", str(into / "pytest.ini")]
    if options.filter:
        command += ["-k", options.filter]
    started = time.monotonic()
    interrupted, returned = run_tests(command, environment, into, options.jobs)
    records = []
    for part in range(options.jobs):
        record, log = into / f"record-{part}.json", into / f"log-{part}"
        ended = interrupted or returned[part] in ENDED
        if record.exists() and ended:
            records.append(json.loads(record.read_text()))
        elif not interrupted:
            sys.exit(f"peers-suites: {name} could not be run:\n{log.read_text()[-2000:]}")
    if not records:
        sys.exit(f"peers-suites: {name} was interrupted before its first test")
    found = joined(records)
    state: dict[str, str] = {}
    if isinstance(rules.SOURCE, sources.Distribution):
        state = {"of": rules.SOURCE.name, "ref": rules.SOURCE.version}
    elif fetched:
        state = {"of": f"{rules.SOURCE.owner}/{rules.SOURCE.name}", "ref": rules.SOURCE.ref}
        state |= {"commit": fetched.commit}
    found |= {"seconds": round(time.monotonic() - started)}
    return state | found | ({"interrupted": True} if interrupted else {})


def run_tests(
    command: list[str], environment: dict[str, str], into: Path, jobs: int
) -> tuple[bool, list[int]]:
    """Whether a signal ended them, which pytest takes as an interrupt and then reports; and what
    each part returned."""
    running: list[subprocess.Popen] = []
    interrupted = False

    def hand_on(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        del number, frame
        interrupted = True
        for tests in running:
            tests.send_signal(signal.SIGINT)

    before = {s: signal.signal(s, hand_on) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        for part in range(jobs):
            record = str(into / f"record-{part}.json")
            own = {"SUITE_PART": f"{part} of {jobs}", "SUITE_RECORD": record}
            with (into / f"log-{part}").open("w") as log:
                # A session of its own: a terminal's interrupt would reach the tests twice.
                tests = subprocess.Popen(
                    command,
                    env=os.environ | environment | own,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            running.append(tests)
            if interrupted:  # perhaps before this part was known
                tests.send_signal(signal.SIGINT)
                break
        returned = [tests.wait() for tests in running]
    finally:
        for tests in running:
            tests.kill()
        for number, handler in before.items():
            signal.signal(number, handler)
    return interrupted, returned


def joined(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts and failures of all parts of a suite."""
    total = records[0]
    for record in records[1:]:
        for name, found in record.items():
            if isinstance(found, dict):
                total[name] = dict(sorted((Counter(total[name]) + Counter(found)).items()))
            else:
                total[name] += found
    return total


def share(suite: dict[str, Any]) -> float:
    """Of the tests that the contract covers and that did not skip themselves, those that pass."""
    ran = suite["passed"] + sum(suite["failed"].values())
    return suite["passed"] / ran if ran else 0.0


def tell(name: str, suite: dict[str, Any]) -> None:
    ran = suite["passed"] + sum(suite["failed"].values())
    print(
        f"{name}: {suite['passed']} of {ran} pass ({100 * share(suite):.1f} %); "
        f"{suite['drawn']} drawn of {suite['combinations']}, "
        f"{sum(suite['outside'].values())} outside the contract, "
        f"{suite['skipped']} skip themselves; {suite['seconds']} s"
        f"{', interrupted' if 'interrupted' in suite else ''}"
    )
    for why, count in suite["failed"].items():
        print(f"  {count:4} {why}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="./tw peers-suites", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}")
    parser.add_argument(
        "--from",
        dest="places",
        type=Path,
        metavar="DIR",
        help="take the repositories from DIR/NAME instead of fetching them",
    )
    parser.add_argument("--draw", type=int, default=40, help="combinations of a test function")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes that share a suite's tests")
    parser.add_argument("-k", dest="filter", help="tests whose name matches, as pytest's -k")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=sources.BUILD / "peers-suites.json",
        help="counts of these suites are put into this file, beside others that stand there",
    )
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: it must be at least 1")
    for name in options.suites:
        if name not in SUITES:
            parser.error(f"no such suite: {name}")
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    document = json.loads(options.output.read_text()) if options.output.exists() else {}
    document |= {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "torch": torch.__version__,
    }
    document.setdefault("suites", {})
    failures = 0
    for name in options.suites or SUITES:
        suite = run_suite(name, options, device)
        tell(name, suite)
        failures += share(suite) < ENOUGH
        document["suites"][name] = suite | {"draw": options.draw, "seed": options.seed}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(document, indent=1) + "\n")
        if "interrupted" in suite:
            return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
