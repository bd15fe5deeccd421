"""tools/suites: where peers' files come from, what is drawn of them and how it is counted."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path[:0] = [str(TOOLS), str(TOOLS / "suites" / "shims")]

import suites.__main__ as runner  # noqa: E402
from flash_attn.layers.rotary import apply_rotary_emb  # noqa: E402
from suites import sources, xformers_ops  # noqa: E402

FILE = """
import pytest

@pytest.mark.parametrize("dropout_p", [0.0, 0.17])
@pytest.mark.parametrize("seqlen_q, seqlen_k", [(3, 4), (5, 4), (9000, 9000)])
def test_flash_attn_output(dropout_p, seqlen_q, seqlen_k):
    assert (seqlen_q, dropout_p) != (5, 0.0), f"off by {seqlen_q}"

@pytest.mark.parametrize("seqlen_q", **{"argvalues": range(200), "ids": str})
def test_many(seqlen_q):
    if seqlen_q % 2:
        pytest.skip()
"""

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "suites.plugin", "-p", "no:cacheprovider"]
DYING = """
import os

def test_flash_attn_right():
    pass

def test_flash_attn_that_dies():
    os.abort()
"""
SLOW = """
import time

def test_flash_attn_wrong():
    raise ValueError("said 3 at once")

def test_flash_attn_slow():
    time.sleep(600)
"""


def environment_of(record: Path) -> dict[str, str]:
    return os.environ | {
        "SUITE_RULES": "flash_attention",
        "SUITE_DRAW": "30",
        "SUITE_SEED": "1",
        "SUITE_RECORD": str(record),
        "SUITE_PART": "0 of 1",
        "SUITE_DEVICE": "cpu",
        "PYTHONPATH": str(TOOLS),
    }


def test_draws_and_counts(tmp_path: Path) -> None:
    """Large problems are not drawn on a CPU; what the contract leaves out is not run."""
    (tmp_path / "test_it.py").write_text(FILE)
    command = [*PYTEST, str(tmp_path), f"--rootdir={tmp_path}"]
    environment = environment_of(tmp_path / "record.json")
    subprocess.run(command, env=environment, capture_output=True, check=False)
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["combinations"] == 206
    assert list(record["outside"].values()) == [2]  # with dropout, of 3 and 5 queries
    assert record["failed"] == {"AssertionError: off by N": 1}
    assert record["failures"] == ["test_it.py::test_flash_attn_output[5-4-0.0]"]
    assert record["drawn"] == 34
    assert record["passed"] + record["skipped"] == 31 and record["skipped"] > 5


def test_operators_of_xformers_are_outside() -> None:
    """Under whatever name a test takes them; the adapter's are inside."""
    own, ours = (
        type("FwOp", (), {"__module__": name})
        for name in ("xformers.ops.fmha.cutlass", "suites.xformers_operator")
    )
    mask = type("LowerTriangularMask", (), {"__module__": "xformers.ops.fmha.attn_bias"})
    assert xformers_ops.outside("test_logsumexp_mqa", {"op": own}) == "xformers' own kernels"
    assert xformers_ops.outside("test_backward_gqa", {"opBW": own}) == "xformers' own kernels"
    for inside in ({"op": ours}, {"case": (ours, mask)}, {"mask": mask}, {}):
        assert xformers_ops.outside("test_forward_gqa", inside) == ""


def test_parts_are_joined(tmp_path: Path) -> None:
    """Two processes run and count what one does."""
    (tmp_path / "test_it.py").write_text(FILE)
    command = [*PYTEST, str(tmp_path), f"--rootdir={tmp_path}"]
    environment = environment_of(tmp_path / "record.json")
    found = []
    for jobs in (1, 2):
        interrupted, returned = runner.run_tests(command, environment, tmp_path, jobs)
        assert not interrupted and len(returned) == jobs and set(returned) <= {0, 1}
        records = [json.loads((tmp_path / f"record-{i}.json").read_text()) for i in range(jobs)]
        assert all(record["passed"] for record in records)
        found.append(runner.joined(records))
    assert found[0] == found[1] and found[0]["drawn"] == 34


def test_a_suite_that_dies_has_not_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its record held until then."""
    monkeypatch.setattr(sources, "BUILD", tmp_path)
    rules = types.SimpleNamespace(SOURCE=None, adapt=write_tests)
    monkeypatch.setitem(sys.modules, "suites.flash_attention", rules)
    options = argparse.Namespace(draw=30, seed=1, filter=None, jobs=1, places=None)
    with pytest.raises(SystemExit, match="could not be run"):
        runner.run_suite("flash-attention", options, "cpu")
    assert json.loads((tmp_path / "flash-attention/record-0.json").read_text())["passed"] == 1


def write_tests(fetched: object, into: Path, device: str) -> Path:
    del fetched, device
    made = into / "test_it.py"
    made.write_text(DYING)
    return made


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_is_found(tmp_path: Path, number: int) -> None:
    """A failure is in the log at once, and in the record when a signal ends the runner."""
    (tmp_path / "test_it.py").write_text(SLOW)
    log, record = tmp_path / "log-0", tmp_path / "record-0.json"
    command = [*PYTEST, str(tmp_path), f"--rootdir={tmp_path}"]
    runs = f"run_tests({command!r}, {{}}, Path({str(tmp_path)!r}), 1)[0]"
    program = f"from pathlib import Path; from suites.__main__ import run_tests; print({runs})"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment_of(record),
        stdout=subprocess.PIPE,
        text=True,
    ) as program_run:
        until = time.monotonic() + 120
        while not (log.exists() and "FAILED" in log.read_text()) and time.monotonic() < until:
            time.sleep(0.1)
        program_run.send_signal(number)
        said, _ = program_run.communicate(timeout=60)
    assert said.strip() == "True"
    line = next(line for line in log.read_text().splitlines() if line.startswith("FAILED"))
    assert "test_flash_attn_wrong" in line and "test_it.py:5 ValueError: said 3 at once" in line
    found = json.loads(record.read_text())
    assert found["failed"] == {"ValueError: said N at once": 1} and found["drawn"] == 1


def test_the_pinned_state_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a repository at hand; its newest where it lacks the state; a plain folder as it is."""
    monkeypatch.setattr(sources, "BUILD", tmp_path / "build")
    place = tmp_path / "peer"
    place.mkdir()

    def git(*arguments: str) -> str:
        command = [
            "git",
            "-C",
            str(place),
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b.c",
            *arguments,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet")
    for text in ("old", "new"):
        (place / "test.py").write_text(text)
        git("add", "test.py")
        git("commit", "--quiet", "-m", text)
        git("tag", text)
    for ref, wanted in (("old", "old"), ("new", "new"), ("no-such", "new")):
        source = sources.Source("owner", "peer", ref, ("*.py",))
        found = sources.fetch(source, tmp_path)
        assert (found.folder / "test.py").read_text() == wanted
        assert found.commit == git("rev-parse", wanted)
    plain = tmp_path / "places" / "peer"
    plain.mkdir(parents=True)
    (plain / "test.py").write_text("plain")
    found = sources.fetch(source, plain.parent)
    assert found.commit == "" and (found.folder / "test.py").read_text() == "plain"
    with pytest.raises(SystemExit, match="holds no peer"):
        sources.fetch(source, tmp_path / "build")


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_is_a_turn(interleaved: bool) -> None:
    """Of complex numbers, by the angle of the position."""
    x = torch.randn(2, 5, 3, 12, dtype=torch.float64)
    angle = torch.randn(20, 4, dtype=torch.float64)
    offsets = torch.tensor([3, 11])
    got = apply_rotary_emb(x, angle.cos(), angle.sin(), interleaved, offsets)
    at = offsets[:, None] + torch.arange(5)
    turn = torch.polar(torch.ones(()).double(), angle[at])[:, :, None]
    real, imaginary = (x[..., 0:8:2], x[..., 1:8:2]) if interleaved else (x[..., :4], x[..., 4:8])
    turned = torch.complex(real, imaginary) * turn
    parts = (turned.real, turned.imag)
    wanted = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    torch.testing.assert_close(got[..., :8], wanted, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(got[..., 8:], x[..., 8:])


def test_folders_of_a_distribution_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the archive of that version at hand, and nothing but what is asked for."""
    monkeypatch.setattr(sources, "BUILD", tmp_path / "build")
    for name in ("tests/test_it.py", "src/it.py"):
        path = tmp_path / "peer-1.2" / name
        path.parent.mkdir(parents=True)
        path.write_text(name)
    with tarfile.open(tmp_path / "peer-1.2.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "peer-1.2", "peer-1.2")
    fetched = sources.fetch(sources.Distribution("peer", "1.2", ("tests",)), tmp_path)
    files = [path for path in fetched.folder.rglob("*") if path.is_file()]
    assert [str(path.relative_to(fetched.folder)) for path in files] == ["tests/test_it.py"]
    with pytest.raises(SystemExit, match=r"peer-1\.3"):
        sources.fetch(sources.Distribution("peer", "1.3", ("tests",)), tmp_path)
