"""tilewise without torch: NumPy arrays and whatever else speaks DLPack."""

import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest
import tilewise

Array = np.ndarray[Any, np.dtype[Any]]


def softmax_attention(q: Array, k: Array, v: Array, causal: bool = False) -> tuple[Array, Array]:
    """O (B, S, H, D) and LSE (B, H, S), in float64."""
    q, k, v = (np.swapaxes(t, 1, 2).astype(np.float64) for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if causal:
        rows, keys = s.shape[-2:]
        s = np.where(np.arange(keys) <= np.arange(rows)[:, None] + keys - rows, s, -np.inf)
    lse = np.log(np.exp(s).sum(-1))
    return np.swapaxes(np.exp(s - lse[..., None]) @ v, 1, 2), lse


def arrays(dtype: str = "float32") -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    shapes = ((2, 17, 4, 16), (2, 23, 2, 16), (2, 23, 2, 8))
    q, k, v = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return q, k, v


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("float16", 5e-3)])
def test_numpy_forward(dtype: str, bound: float) -> None:
    q, k, v = arrays(dtype)
    o, lse = tilewise.attention(q, k, v, causal=True, return_lse=True)
    exact, exact_lse = softmax_attention(q, k, v, causal=True)
    assert isinstance(o, np.ndarray) and o.dtype == q.dtype and lse.dtype == np.float32
    np.testing.assert_allclose(o, exact, atol=bound)
    np.testing.assert_allclose(lse, exact_lse, atol=1e-4)


def test_numpy_backward_is_the_slope() -> None:
    q, k, v = arrays()
    bias = np.random.default_rng(1).standard_normal((4, 17, 23)).astype(np.float32)
    d_o = np.random.default_rng(2).standard_normal((2, 17, 4, 8)).astype(np.float32)
    o, lse = tilewise.attention(q, k, v, bias=bias, return_lse=True)
    got = tilewise.attention_backward(d_o, q, k, v, o, lse, bias=bias)
    assert got.dsinks is None

    def loss(**changed: Array) -> float:
        given = {"q": q, "k": k, "v": v, "bias": bias, **changed}
        given = {name: t.astype(np.float64) for name, t in given.items()}
        value = tilewise.attention(
            given["q"], given["k"], given["v"], bias=given["bias"], implementation="reference"
        )
        return float((value * d_o).sum())

    for name, of, gradient in (
        ("q", q, got.dq),
        ("k", k, got.dk),
        ("v", v, got.dv),
        ("bias", bias, got.dbias),
    ):
        step = np.random.default_rng(3).standard_normal(of.shape)
        h = 1e-2 if name == "bias" else 1e-5  # a bias is used in float32, its steps too
        slope = (loss(**{name: of + h * step}) - loss(**{name: of - h * step})) / (2 * h)
        assert float((gradient * step).sum()) == pytest.approx(slope, rel=5e-4, abs=5e-4), name


def test_bfloat16_of_ml_dtypes() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v = (t.astype(bfloat16) for t in arrays())
    bias = np.random.default_rng(1).standard_normal((17, 23)).astype(bfloat16)
    o, lse = tilewise.attention(q, k, v, bias=bias, return_lse=True)
    assert isinstance(o, np.ndarray) and o.dtype == bfloat16 and lse.dtype == np.float32
    wide = [t.astype(np.float32) for t in (q, k, v)]
    exact, exact_lse = tilewise.attention(*wide, bias=bias.astype(np.float32), return_lse=True)
    np.testing.assert_allclose(o.astype(np.float32), exact, atol=2e-2)
    np.testing.assert_allclose(lse, exact_lse, atol=1e-4)
    turned = np.asfortranarray(q)
    turned.flags.writeable = False
    np.testing.assert_array_equal(tilewise.attention(turned, k, v, bias=bias), o)
    d_o = np.ones_like(o)
    got = tilewise.attention_backward(d_o, q, k, v, o, lse, bias=bias)
    wanted = tilewise.attention_backward(
        d_o.astype(np.float32), *wide, exact, exact_lse, bias=bias.astype(np.float32)
    )
    for a, b in zip(got[:4], wanted[:4], strict=True):
        assert a.dtype == bfloat16
        np.testing.assert_allclose(a.astype(np.float32), b, atol=3e-2 * float(np.abs(b).max()))


def test_strides_and_read_only_arrays() -> None:
    q, k, v = arrays()
    o = tilewise.attention(q, k, v)
    turned = [np.asfortranarray(t) for t in (q, k, v)]
    for t in turned:
        t.flags.writeable = False
    np.testing.assert_array_equal(tilewise.attention(*turned), o)
    np.testing.assert_array_equal(tilewise.attention(q[:, ::-1], k, v), o[:, ::-1])


def test_packed() -> None:
    q, k, v = arrays()
    cu_q, cu_k = np.array([0, 17, 34], np.int32), np.array([0, 23, 46], np.int64)
    flat = [t.reshape(-1, *t.shape[2:]) for t in (q, k, v)]
    o, lse = tilewise.attention(*flat, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, return_lse=True)
    assert lse.shape == (4, 34)
    np.testing.assert_allclose(o.reshape(2, 17, 4, 8), tilewise.attention(q, k, v), atol=1e-6)


def test_dropout_needs_a_seed() -> None:
    q, k, v = arrays()
    with pytest.raises(ValueError, match="dropout_seed"):
        tilewise.attention(q, k, v, dropout_p=0.5)
    a = tilewise.attention(q, k, v, dropout_p=0.5, dropout_seed=2**64 - 1)
    np.testing.assert_array_equal(
        a, tilewise.attention(q, k, v, dropout_p=0.5, dropout_seed=2**64 - 1)
    )
    o, lse = tilewise.attention(q, k, v, dropout_p=0.5, dropout_seed=5, return_lse=True)
    with pytest.raises(ValueError, match="dropout_seed"):
        tilewise.attention_backward(o, q, k, v, o, lse, dropout_p=0.5)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "one"])
def test_dropout_seed_has_64_bits(seed: Any) -> None:
    q, k, v = arrays()
    with pytest.raises(ValueError, match="dropout_seed is .*2\\^64 - 1"):
        tilewise.attention(q, k, v, dropout_p=0.5, dropout_seed=seed)


class Exchanged:
    """An array of nobody's library: DLPack and nothing else."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Library:
    """The part of the array API standard that gives arrays back."""

    @staticmethod
    def from_dlpack(array: Any) -> Exchanged:
        return Exchanged(np.from_dlpack(array))


class Namespaced(Exchanged):
    def __array_namespace__(self) -> type[Library]:
        return Library


def test_dlpack() -> None:
    q, k, v = arrays()
    o = tilewise.attention(q, k, v)
    plain = tilewise.attention(*map(Exchanged, (q, k, v)))
    np.testing.assert_array_equal(np.from_dlpack(plain), o)
    named, lse = tilewise.attention(*map(Namespaced, (q, k, v)), return_lse=True)
    assert isinstance(named, Exchanged)
    np.testing.assert_array_equal(named.array, o)
    gradients = tilewise.attention_backward(named, *map(Namespaced, (q, k, v)), named, lse)
    wanted = tilewise.attention_backward(o, q, k, v, o, lse.array)
    np.testing.assert_array_equal(gradients.dq.array, wanted.dq)


def test_a_library_is_found_by_its_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's arrays have no namespace method; the module of their class gives them."""
    library = types.ModuleType("strange")
    monkeypatch.setattr(library, "from_dlpack", Library.from_dlpack, raising=False)
    monkeypatch.setitem(sys.modules, "strange", library)
    kind = type("ndarray", (Exchanged,), {"__module__": "strange.core"})
    q, k, v = arrays()
    o = tilewise.attention(*map(kind, (q, k, v)))
    assert isinstance(o, Exchanged)
    np.testing.assert_array_equal(o.array, tilewise.attention(q, k, v))


def test_plan_of_arrays() -> None:
    q, k, v = arrays()
    assert tilewise.plan(q, k, v).kernel.startswith("flash_fwd")
    assert tilewise.plan(q, k, v, backward=True).kernel.startswith("flash_bwd")


@pytest.mark.parametrize("wrong", [3.5, "array", [1, 2], np.zeros(4, np.complex64)])
def test_what_is_no_array(wrong: Any) -> None:
    q, k, v = arrays()
    with pytest.raises(ValueError, match="k"):
        tilewise.attention(q, wrong, v)
    with pytest.raises((ValueError, AttributeError)):
        tilewise.attention(wrong, k, v)


def test_arrays_that_dlpack_cannot_say() -> None:
    """A NumPy array is not told that a NumPy array is expected, but what is wrong with it."""
    q, k, v = arrays()
    for wrong in (k.astype(">f4"), k.astype(object)):
        with pytest.raises(ValueError, match=f"k is of type ndarray of {wrong.dtype}"):
            tilewise.attention(q, wrong, v)
        with pytest.raises(ValueError, match=f"q is of type ndarray of {wrong.dtype}"):
            tilewise.attention(wrong, k, v)
    with pytest.raises(ValueError, match="q is None"):
        tilewise.attention(None, k, v)


@pytest.mark.parametrize("fallback", ["torch", "jax"])
def test_fallback_is_for_torch_tensors(fallback: str) -> None:
    q, k, v = arrays()
    with pytest.raises(ValueError, match="fallback is"):
        tilewise.attention(q, k, v, fallback=fallback)


def test_torch_is_not_imported() -> None:
    code = (
        "import sys, numpy, tilewise; q = numpy.ones((1, 2, 1, 8), 'float32');"
        "tilewise.attention(q, q, q); assert 'torch' not in sys.modules;"
        "assert not hasattr(tilewise, 'sdpb')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
