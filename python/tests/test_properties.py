"""Drawn shapes and options against torch in float64."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
hypothesis = pytest.importorskip("hypothesis")

import tilewise  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from oracle import assert_close, paper  # noqa: E402


@st.composite
def problems(draw: Any) -> dict[str, Any]:
    heads_k = draw(st.integers(1, 3))
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["causal"] = draw(st.sampled_from([True, "top_left"]))
    bound = st.none() | st.integers(-3, 40)
    if draw(st.booleans()):
        options["window"] = (draw(bound), draw(bound))
    if draw(st.booleans()):
        options["softcap"] = draw(st.floats(0.5, 10.0))
    if draw(st.booleans()):
        options["scale"] = draw(st.floats(-1.0, 1.0))
    return {
        "batch": draw(st.integers(1, 3)),
        "rows": draw(st.integers(1, 70)),
        "keys": draw(st.integers(1, 90)),
        "heads_k": heads_k,
        "heads_q": heads_k * draw(st.integers(1, 4)),
        "dim": draw(st.sampled_from([1, 3, 8, 16, 40, 64, 72, 128])),
        "dim_v": draw(st.sampled_from([1, 8, 16, 64, 96])),
        "dtype": draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
        "layout": draw(st.sampled_from(["bshd", "bhsd"])),
        "options": options,
    }


@hypothesis.settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(problem=problems())
def test_drawn_problems(device: str, problem: dict[str, Any]) -> None:
    b, sq, sk = problem["batch"], problem["rows"], problem["keys"]
    hq, hk = problem["heads_q"], problem["heads_k"]
    make: dict[str, Any] = {"device": device, "dtype": problem["dtype"]}
    q = torch.randn(b, sq, hq, problem["dim"], **make).requires_grad_()
    k = torch.randn(b, sk, hk, problem["dim"], **make).requires_grad_()
    v = torch.randn(b, sk, hk, problem["dim_v"], **make).requires_grad_()
    options = problem["options"]
    turned = problem["layout"] == "bhsd"
    given = tuple(t.transpose(1, 2) for t in (q, k, v)) if turned else (q, k, v)
    o, lse = tilewise.attention(*given, layout=problem["layout"], return_lse=True, **options)
    o = o.transpose(1, 2) if turned else o
    exact, exact_lse = paper(q, k, v, **options)
    rough, _ = paper(q, k, v, compute=torch.float32, rounded=True, **options)
    assert_close(o, exact, rough, "O")
    assert_close(lse, exact_lse, exact_lse, "LSE")
    d_o = torch.randn_like(o)
    of = (q, k, v)
    ours = torch.autograd.grad(o, of, d_o)
    wanted = torch.autograd.grad(exact, of, d_o.double())
    yardstick = torch.autograd.grad(rough, of, d_o.float())
    for name, a, w, y in zip(("dQ", "dK", "dV"), ours, wanted, yardstick, strict=True):
        # The yardstick is one draw: small results are allowed a rounding of their type too.
        step = torch.finfo(w.dtype).eps * float(w.double().abs().max())
        error = float((a.double() - w.double()).abs().max())
        bound = 2 * float((y.double() - w.double()).abs().max()) + 2 * step + 1e-5
        assert error <= bound, f"{name}: off by {error:.3g}, allowed {bound:.3g}"
