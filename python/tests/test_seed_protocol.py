"""bench/peers: the seeds' own protocol, of torch's paths and of sessions that launch themselves."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.peers import measure, torch_paths  # noqa: E402
from bench.peers.autograd import as_function  # noqa: E402
from bench.peers.problem import Cell, Problem  # noqa: E402
from bench.peers.protocol import Samples  # noqa: E402
from bench.peers.reference import Inputs  # noqa: E402
from bench.peers.seed_runs import RUNS, WARM_UPS, seed_runs  # noqa: E402

PROBLEM = Problem(2, 1, 1, 32, 16, "float32", False)
MIB = 2**20


class Launches:
    """A session that is no torch function, as ours is by the C API."""

    def __init__(self, inputs: Inputs, calls: dict[str, int]) -> None:
        self._torch = torch_paths.TorchSession(torch_paths._formula(PROBLEM), inputs)
        self._calls = calls

    def forward_for_backward(self) -> None:
        self._calls["forward"] += 1
        with torch.enable_grad():
            self._torch.forward_for_backward()

    def backward(self) -> None:
        self._calls["backward"] += 1
        self._torch.backward()

    def outputs(self) -> dict[str, torch.Tensor]:
        return self._torch.outputs()


class Contender:
    """Opens such sessions and counts their launches."""

    name = "flash"
    dtypes = ("float32",)

    def __init__(self) -> None:
        self.calls = {"forward": 0, "backward": 0}

    def kernel(self, problem: Problem, which: str) -> str:
        return f"row_{which}"

    def open(self, problem: Problem, inputs: Inputs) -> Launches:
        return Launches(inputs, self.calls)


@pytest.fixture
def inputs(device: str, monkeypatch: pytest.MonkeyPatch) -> Inputs:
    if device == "cpu":
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 7 * MIB)
        monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    q, k, v, d_o = torch.randn(4, 2, 1, 32, 16, device=device)
    return Inputs(*(t.clone().requires_grad_() for t in (q, k, v)), d_o)


def test_a_session_s_launches_are_a_function(inputs: Inputs) -> None:
    leaves = (inputs.q, inputs.k, inputs.v)
    gradient = torch.randn_like(inputs.d_o)
    exact = torch_paths._formula(PROBLEM)(*leaves)
    ours = as_function(Contender().open(PROBLEM, inputs), inputs.d_o)(*leaves)
    torch.testing.assert_close(ours, exact)
    for a, b in zip(
        torch.autograd.grad(ours, leaves, gradient),
        torch.autograd.grad(exact, leaves, gradient),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_runs_are_the_seeds(device: str, inputs: Inputs) -> None:
    contender = Contender()
    runs = seed_runs(contender, PROBLEM, inputs)
    assert len(runs.forward_ms) == len(runs.backward_ms) == RUNS
    assert contender.calls == {"forward": WARM_UPS + RUNS, "backward": WARM_UPS + 1 + RUNS}
    assert min(runs.forward_ms + runs.backward_ms) > 0
    assert inputs.q.grad is None
    tensor = inputs.q.numel() * 4 / MIB
    eager = seed_runs(torch_paths.torch_paths()["torch-eager"], PROBLEM, inputs)
    if device == "cpu":
        assert runs.live_mib == pytest.approx(3 * tensor)  # all that the counter does not see
    else:  # Q, K, V, O and the two matrices that the formula keeps, cuBLAS's workspaces
        scores = 2 * 32 * 32 * 4 / MIB
        assert 4 * tensor + 2 * scores <= eager.live_mib <= 1 + 2 * 33


def test_rows_say_how_they_were_timed() -> None:
    entry = measure.Entry(Contender(), ("fwd", "bwd", "fwd+bwd"))
    entry.samples = {("seed", which): Samples([1.0, 3.0]) for which in ("fwd", "bwd")}
    entry.peak_mib, entry.live_mib, entry.seed_live_mib = {"fwd": 5.0, "bwd": 6.0}, 1.0, 2.0
    cell = Cell(PROBLEM, ("flash",), ("fwd", "bwd", "fwd+bwd"))
    rows = measure.rows_of(cell, [entry], ("seed",))
    assert [(row["pass"], row["kernel"]) for row in rows] == [
        ("fwd", "row_fwd, by autograd"),
        ("bwd", "row_bwd, by autograd"),
    ]
    assert {(row["ms_mean"], row["live_mib"]) for row in rows} == {(2.0, 2.0)}


def test_live_memory_is_without_workspace() -> None:
    """As `tilewise bench` counts it: a session of ours says what it holds for the next launch."""

    class Ours:
        def workspace_bytes(self) -> int:
            return 32 * MIB

    assert measure.live_mib(96 * MIB, Ours()) == 64.0
    assert measure.live_mib(96 * MIB, object()) == 96.0
