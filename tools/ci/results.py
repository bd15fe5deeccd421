"""What a check or a test came to, and how it is read from ctest and shown."""

import enum
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SHOWN_LINES = 40


class Status(enum.Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Result:
    stage: str
    name: str
    status: Status
    detail: str = ""


def skip_reason(output: str) -> str:
    """The message given to GTEST_SKIP, or the last line of a script that skipped itself."""
    message = re.search(r": Skipped\n(.*?)\n*\[  SKIPPED \]", output, re.DOTALL)
    if message:
        return " ".join(message.group(1).split())
    lines = output.strip().splitlines()
    return lines[-1] if lines else ""


def read_junit(path: Path, stage: str) -> list[Result]:
    """Results of `ctest --output-junit`; a test that could not be run has failed."""
    results = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        # Without googletest's dump of a test's parameter.
        name = case.get("name", "").partition("  # GetParam()")[0]
        output = case.findtext("system-out") or ""
        skipped = case.find("skipped")
        if case.get("status") == "run":
            results.append(Result(stage, name, Status.PASSED))
        elif skipped is not None and skipped.get("message", "").startswith("SKIP_"):
            results.append(Result(stage, name, Status.SKIPPED, skip_reason(output)))
        else:
            node = case.find("failure") if skipped is None else skipped
            reason = "" if node is None else node.get("message", "")
            results.append(Result(stage, name, Status.FAILED, f"{output}\n{reason}".strip()))
    return results


def read_pytest(path: Path, stage: str) -> list[Result]:
    """Results of `pytest --junit-xml`; what could not be collected has failed."""
    results = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        words = f"{case.get('classname', '')}.{case.get('name', '')}"
        name = words.removeprefix(".").removeprefix("python.tests.")
        skipped = case.find("skipped")
        broken = [node for kind in ("failure", "error") for node in case.findall(kind)]
        if broken:
            text = "\n".join(node.text or node.get("message", "") for node in broken)
            results.append(Result(stage, name, Status.FAILED, text))
        elif skipped is not None:
            # A module that skipped itself has its reason in the text.
            message = skipped.get("message", "")
            text = (skipped.text or "") if message == "collection skipped" else message
            reason = " ".join(text.rpartition("Skipped: ")[2].split()).rstrip("\"')")
            results.append(Result(stage, name, Status.SKIPPED, reason))
        else:
            results.append(Result(stage, name, Status.PASSED))
    return results


def print_result(result: Result) -> None:
    """One line; the end of its output too when it failed."""
    print(f"  {result.status.value}  {result.name}", flush=True)
    if result.status is Status.FAILED:
        for line in result.detail.splitlines()[-SHOWN_LINES:]:
            print(f"    {line}")
    elif result.status is Status.SKIPPED and result.detail:
        print(f"    {result.detail}")


def counts(results: list[Result]) -> str:
    number = Counter(result.status for result in results)
    return ", ".join(f"{number[status]} {status.value}" for status in Status)
