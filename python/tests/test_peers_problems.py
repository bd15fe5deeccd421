"""bench/peers: its reference and what its paths see, against the formula written out."""

import itertools
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.peers import torch_paths  # noqa: E402
from bench.peers.contender import RefusedError  # noqa: E402
from bench.peers.fa3 import Fa3  # noqa: E402
from bench.peers.problem import Problem, Window  # noqa: E402
from bench.peers.reference import Inputs, Reference  # noqa: E402

PROBLEMS = [
    Problem(2, 4, 2, 24, 8, "float32", causal=True),
    Problem(1, 4, 1, 9, 8, "float32", causal=True, seq_k=30),
    Problem(1, 2, 2, 30, 8, "float32", causal=True, seq_k=9),
    Problem(1, 2, 2, 24, 8, "float32", causal=True, window=(5, 0)),
    Problem(1, 2, 1, 20, 8, "float32", causal=False, seq_k=27, window=(4, 3), softcap=1.5),
    Problem(1, 2, 2, 24, 8, "float32", causal=True, softcap=0.7),
    Problem(3, 6, 2, 1, 8, "float32", causal=False, seq_k=40),
]


def random_inputs(p: Problem) -> Inputs:
    generator = torch.Generator().manual_seed(3)

    def tensor(heads: int, rows: int) -> torch.Tensor:
        return torch.randn(p.batch, heads, rows, p.dim, generator=generator)

    q, k, v = tensor(p.heads, p.seq), tensor(p.kv_heads, p.keys), tensor(p.kv_heads, p.keys)
    d_o = tensor(p.heads, p.seq)
    return Inputs(*(t.requires_grad_() for t in (q, k, v)), d_o)


def written_out(p: Problem, inputs: Inputs) -> torch.Tensor:
    """Softmax over the visible keys of every row, one row at a time; rows without keys are 0."""
    rows = []
    left, right = (10**9 if side is None else side for side in p.window)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in (p.batch, p.heads, p.seq))):
        at = int(i) + p.keys - p.seq
        last = at + (min(right, 0) if p.causal else right)
        begin, end = max(0, at - left), max(0, min(p.keys, last + 1))
        kv = int(h) // (p.heads // p.kv_heads)
        s = inputs.k[b, kv, begin:end].double() @ inputs.q[b, h, i].double() * p.scale
        s = p.softcap * torch.tanh(s / p.softcap) if p.softcap else s
        rows.append(torch.softmax(s, -1) @ inputs.v[b, kv, begin:end].double())
    return torch.stack(rows).reshape(p.batch, p.heads, p.seq, p.dim)


@pytest.mark.parametrize("p", PROBLEMS, ids=str)
def test_reference_takes_what_is_right_and_nothing_else(p: Problem) -> None:
    inputs = random_inputs(p)
    leaves = (inputs.q, inputs.k, inputs.v)
    o = written_out(p, inputs)
    gradients = torch.autograd.grad(o, leaves, inputs.d_o.double())
    outputs = {"O": o.detach()} | dict(zip(("dQ", "dK", "dV"), gradients, strict=True))
    reference = Reference(p, inputs, backward=True)
    assert reference.refusal(outputs) == ""
    for name, right in outputs.items():
        wrong = right.clone()
        wrong[0, 0, -1] += 0.1
        assert name in reference.refusal(outputs | {name: wrong})


@pytest.mark.parametrize("p", [p for p in PROBLEMS if p.heads == p.kv_heads], ids=str)
def test_formula_in_torch(p: Problem) -> None:
    inputs = random_inputs(p)
    o = torch_paths._formula(p, "cpu")(inputs.q, inputs.k, inputs.v)
    hidden = torch.isnan(o)  # rows without keys, which the plain formula does not know
    # The formula computes in float32: its tolerance, not that of the float64 beside it.
    torch.testing.assert_close(
        torch.where(hidden, 0.0, o).double(), written_out(p, inputs), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("window", [(None, None), (5, 0), (3, None), (None, 2)])
def test_mask_of_blocks(window: Window) -> None:
    p = Problem(1, 1, 1, 12, 8, "float32", causal=False, seq_k=17, window=window)
    i, j = torch.arange(p.seq), torch.arange(p.keys)
    assert int(torch_paths.visible(p, i[:, None], j[None]).sum()) == p.pairs


def test_sdpa_refuses_what_it_has_not() -> None:
    paths = torch_paths.torch_paths()
    inputs = random_inputs(PROBLEMS[0])
    for p in (
        Problem(1, 2, 2, 8, 8, "bfloat16", causal=True, window=(3, 0)),
        Problem(1, 2, 2, 8, 8, "bfloat16", causal=False, softcap=2.0),
        Problem(1, 2, 2, 8, 8, "bfloat16", causal=True, seq_k=16),
    ):
        with pytest.raises(RefusedError):
            paths["cudnn"].open(p, inputs)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_are_checked_one_by_one(causal: bool) -> None:
    """Each as a problem of its own; a wrong element of any of them is found."""
    torch.manual_seed(3)
    p = Problem.of_packed((5, 17, 2, 8), Problem(1, 4, 2, 1, 8, "float32", causal=causal))
    inputs = Inputs.random(p, "cpu")
    leaves = (inputs.q, inputs.k, inputs.v)
    parts = []
    for begin, end in itertools.pairwise(p.offsets):
        rows = (x[:, :, begin:end] for x in (*leaves, inputs.d_o))
        alone = Problem(1, 4, 2, end - begin, 8, "float32", causal=causal)
        parts.append(written_out(alone, Inputs(*rows)))
    o = torch.cat(parts, 2)
    gradients = torch.autograd.grad(o, leaves, inputs.d_o.double())
    outputs = {"O": o.detach()} | dict(zip(("dQ", "dK", "dV"), gradients, strict=True))
    reference = Reference(p, inputs, backward=True)
    assert reference.refusal(outputs) == ""
    for name, right in outputs.items():
        for at in (0, 21, 30):
            wrong = right.clone()
            wrong[0, 1, at] += 0.1
            assert name in reference.refusal(outputs | {name: wrong})


def test_paths_without_packed_sequences_say_so() -> None:
    p = Problem.of_packed((5, 17), Problem(1, 2, 2, 1, 8, "bfloat16", causal=True))
    inputs = Inputs.random(p, "cpu")
    for name in ("flex", "torch-eager"):
        with pytest.raises(RefusedError, match="without packed sequences"):
            torch_paths.torch_paths()[name].open(p, inputs)


@pytest.mark.parametrize("packed", [(), (5, 17)], ids=["dense", "packed"])
def test_fa3_is_called_as_its_interfaces_call_it(
    packed: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splits and packed heads are its own choice; offsets go along with packed sequences."""
    p = Problem(2, 4, 2, 24, 64, "float16", causal=True, window=(7, 0), softcap=3.0)
    p = Problem.of_packed(packed, p) if packed else p
    inputs = Inputs.random(p, "cpu")
    seen: dict[str, tuple[tuple[torch.Tensor, ...], dict[str, object]]] = {}

    class Operators:
        @staticmethod
        def fwd(*args: torch.Tensor, **options: object) -> list[torch.Tensor]:
            seen["fwd"] = args, options
            return [args[0], torch.zeros(1)]

        @staticmethod
        def bwd(*args: torch.Tensor, **options: object) -> None:
            seen["bwd"] = args, options

    monkeypatch.setattr(torch.ops, "flash_attn_3", Operators, raising=False)
    monkeypatch.setattr(Fa3, "_load", lambda self: None)
    session = Fa3(Path("unused")).open(p, inputs)
    session.both()
    rows = (p.rows,) if packed else (2, 24)
    for name, first in (("fwd", 0), ("bwd", 1)):
        args, options = seen[name]
        shapes = [tuple(x.shape) for x in args[first : first + 3]]
        assert shapes == [(*rows, 4, 64), (*rows, 2, 64), (*rows, 2, 64)]
        assert args[first].data_ptr() == inputs.q.data_ptr()
        assert (options["window_size_left"], options["softcap"]) == (7, 3.0)
        offsets = options.get("cu_seqlens_q")
        assert (offsets.tolist() if packed else offsets) == ([0, 5, 22] if packed else None)
    splits = seen["fwd"][1]
    assert (splits["num_splits"], splits["pack_gqa"]) == (1 if packed else 0, None)
    assert {x.shape for x in session.outputs().values()} == {inputs.q.shape, inputs.k.shape}


def test_fa3_refuses_head_dims_that_it_has_not() -> None:
    p = Problem(1, 2, 2, 8, 100, "bfloat16", causal=True)
    with pytest.raises(RefusedError, match="no head dim 100"):
        Fa3(Path("unused")).open(p, random_inputs(p))
