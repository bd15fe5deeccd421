"""Score functions and masks: what the tracer writes, and attention with it."""

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
import zoo  # noqa: E402
from tilewise import _trace  # noqa: E402
from tilewise._spec import make_spec  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from zoo import MASKS, SCORES, B, H, S  # noqa: E402

ENTRIES = {**MASKS, **SCORES}
CLOSE = {"atol": 2e-5, "rtol": 1e-5}

# A reader of the text, in torch's float64 and int64: Python's own grammar is near enough.

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Invert: torch.bitwise_not,
    ast.USub: torch.neg,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        n: getattr(torch, n)
        for n in "abs exp exp2 log sqrt rsqrt tanh sigmoid sin cos atan erf".split()
    },
    **{n: getattr(torch, n) for n in "floor ceil round sign pow where relu".split()},
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "min": torch.minimum,
    "max": torch.maximum,
    "int": lambda x: x.long(),
    "float": lambda x: x.double(),
    "bool": lambda x: x.bool(),
}
_OVER_LANES = {"any": operator.or_, "all": operator.and_, "sum": operator.add}


class Reader:
    def __init__(self, captures: Any, values: dict[str, Tensor]) -> None:
        names = {"inf": torch.tensor(float("inf")), "nan": torch.tensor(float("nan"))}
        arrays = {f"c{n}": torch.as_tensor(c) for n, c in enumerate(captures)}
        self.values: dict[str, Any] = {**values, **names, **arrays}
        self.lets: dict[str, ast.expr] = {}

    def whole(self, text: str) -> Any:
        *lets, last = ast.parse(text.replace("true", "True").replace("false", "False")).body
        for let in lets:
            assert isinstance(let, ast.Assign) and isinstance(let.targets[0], ast.Name)
            self.lets[let.targets[0].id] = let.value
        assert isinstance(last, ast.Expr)
        return self.read(last.value)

    def read(self, node: Any) -> Any:
        match node:
            case ast.Constant(value):
                return torch.tensor(value, dtype=torch.float64 if type(value) is float else None)
            case ast.Name(name):
                return self.read(self.lets[name]) if name in self.lets else self.values[name]
            case ast.UnaryOp(op, operand):
                return _OPERATORS[type(op)](self.read(operand))
            case ast.BinOp(left, op, right):
                return _OPERATORS[type(op)](self.read(left), self.read(right))
            case ast.Compare(left, [op], [right]):
                return _OPERATORS[type(op)](self.read(left), self.read(right))
            case ast.Subscript(ast.Name(name), index):
                indices = index.elts if isinstance(index, ast.Tuple) else [index]
                return self.values[name][tuple(self.read(i) for i in indices)]
            case ast.Call(ast.Name(name), [count, body]) if name in _OVER_LANES:
                return self.reduced(_OVER_LANES[name], self.read(count).item(), body)
            case ast.Call(ast.Name(name), arguments):
                return _FUNCTIONS[name](*map(self.read, arguments))
        raise AssertionError(ast.dump(node))

    def reduced(self, join: Callable[..., Any], count: int, body: ast.expr) -> Any:
        total = None
        for lane in range(count):
            self.values["lane"] = torch.tensor(lane)
            value = self.read(body)
            total = value if total is None else join(total, value)
        return total


def traced(name: str) -> tuple[str, Any]:
    """The text of an entry of the zoo and what it reads."""
    if name in SCORES:
        score, _, captures = _trace.formulas(SCORES[name].function, None)
        return score, captures
    _, mask, captures = _trace.formulas(None, MASKS[name].function)
    return mask, captures


def grid(**more: Tensor) -> dict[str, Tensor]:
    """b, h, i, j of every pair, by broadcasting."""
    sizes = {"b": B, "h": H, "i": S, "j": S}
    indices = {
        name: torch.arange(size).reshape([-1 if n == axis else 1 for n in range(4)])
        for axis, (name, size) in enumerate(sizes.items())
    }
    return {**indices, **more}


@pytest.mark.parametrize("name", ENTRIES)
def test_text_says_what_the_function_does(name: str) -> None:
    """On single pairs, where the function itself runs on numbers."""
    text, captures = traced(name)
    generator = torch.Generator().manual_seed(5)
    for _ in range(150):
        b, h, i, j = (torch.randint(0, n, (), generator=generator) for n in (B, H, S, S))
        score = 4 * torch.randn((), generator=generator, dtype=torch.float64)
        leaves = (score, b, h, i, j) if name in SCORES else (b, h, i, j)
        with torch.no_grad():
            wanted = ENTRIES[name].function(*leaves)
            got = Reader(captures, {"score": score, "b": b, "h": h, "i": i, "j": j}).whole(text)
        torch.testing.assert_close(
            torch.as_tensor(got).double(), torch.as_tensor(wanted).double(), atol=1e-6, rtol=1e-6
        )


def dense(name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The paper's formula in the type of q, (B, S, H, D), from the text on every pair."""
    text, captures = traced(name)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    visible: Any = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    if name in SCORES:
        scores = Reader(captures, grid(score=scores)).whole(text)
    else:
        visible = Reader(captures, grid()).whole(text)
    hidden = torch.exp(scores - scores.amax(-1, keepdim=True).detach())
    p = torch.where(visible, hidden, 0.0)
    total = p.sum(-1, keepdim=True)
    p = torch.where(total > 0, p / total.clamp(min=1e-300), 0.0)
    return torch.einsum("bhij,bjhd->bihd", p, v)


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(B, S, H, 8, generator=generator) for _ in range(4)]


@pytest.mark.parametrize("implementation", ["", "reference"])
@pytest.mark.parametrize("name", ENTRIES)
def test_attention_of_the_zoo(name: str, implementation: str) -> None:
    """O and every gradient, those of captured tensors too, against float64."""
    q, k, v, w = inputs()
    function, learned = ENTRIES[name]
    leaves = [t.requires_grad_() for t in (q, k, v)] + list(learned)
    option = {"score_mod" if name in SCORES else "mask_mod": function}
    try:
        o = tilewise.attention(q, k, v, **option, implementation=implementation)
        got = torch.autograd.grad(o, leaves, w)
    except NotImplementedError as refusal:
        assert implementation == "", refusal
        pytest.skip(f"not on this CPU yet: {refusal}")
    exact = dense(name, q.double(), k.double(), v.double())
    torch.testing.assert_close(o, exact, check_dtype=False, **CLOSE)
    wanted = torch.autograd.grad(exact, leaves, w.double())
    for ours, theirs in zip(got, wanted, strict=True):
        scale = max(1.0, theirs.abs().max().item())
        torch.testing.assert_close(ours / scale, theirs / scale, check_dtype=False, **CLOSE)


BIAS = torch.randn(H, 2 * S, requires_grad=True)
TERMS = torch.randn(H, S, 5, requires_grad=True)
WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "if": (lambda s, b, h, i, j: s if i > j else 0, "write torch.where"),
    "and": (lambda s, b, h, i, j: torch.where(i > j and i > 3, s, 0), "write torch.where, &"),
    "chain": (lambda s, b, h, i, j: torch.where(0 < i < j, s, 0), r"\(a < b\) & \(b < c\)"),
    "float": (lambda s, b, h, i, j: s * float(i), r"write x.float\(\)"),
    "item": (lambda s, b, h, i, j: s * i.item(), "leave it out"),
    "list": (lambda s, b, h, i, j: s + [1.0, 2.0][h], "index a tensor"),
    "range": (lambda s, b, h, i, j: s + sum(range(i)), "index a tensor"),
    "in place": (lambda s, b, h, i, j: s.add_(1), "writes in place"),
    "into a tensor": (lambda s, b, h, i, j: BIAS.__setitem__((h, i), 0), "writes in place"),
    "random": (lambda s, b, h, i, j: s + torch.rand(()), "random: draw it before"),
    "dropout": (lambda s, b, h, i, j: torch.nn.functional.dropout(s), "random: draw it before"),
    "slice": (lambda s, b, h, i, j: s + BIAS[h, :3], "an integer for each axis"),
    "long row": (lambda s, b, h, i, j: s + BIAS[h].sum(), "short vectors have 1 to 64"),
    "missing axes": (lambda s, b, h, i, j: s + TERMS[h] * 2, "expected one for each axis"),
    "entry": (lambda s, b, h, i, j: s + TERMS[h, i][5], "index 5 of a short vector of 5"),
    "axis of a row": (lambda s, b, h, i, j: TERMS[h, i].unsqueeze(-1).sum(), "for one number"),
    "vector": (lambda s, b, h, i, j: s + BIAS[:, :5].detach()[h], r"reduce it by .any\(-1\)"),
    "unknown": (lambda s, b, h, i, j: torch.cumsum(s, 0), "cumsum is not traced"),
    "text": (lambda s, b, h, i, j: "score", "str cannot appear"),
    "nothing": (lambda s, b, h, i, j: None, "return the value"),
    "max": (lambda s, b, h, i, j: s + max(i, j), "torch.maximum"),
    "dtype": (lambda s, b, h, i, j: s + i.to(s.dtype), r"write x.float\(\)"),
    "gather": (lambda s, b, h, i, j: s + torch.take(BIAS, i), r"index the tensor, table\[i\]"),
    "arguments": (lambda s, b, h, i: s, r"does not take \(score, b, h, i, j\)"),
}


# Two ways to write the same.
SAME: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "one after the other": (
        lambda s, b, h, i, j: s + TERMS[h][i][3],
        lambda s, b, h, i, j: s + TERMS[h, i, 3],
    ),
    "from the end": (
        lambda s, b, h, i, j: s + TERMS[h, i][-1],
        lambda s, b, h, i, j: s + TERMS[h, i, 4],
    ),
    "of a formula": (
        lambda s, b, h, i, j: s + (2 * TERMS[h, i] + j)[j % 5],
        lambda s, b, h, i, j: s + 2 * TERMS[h, i, j % 5] + j,
    ),
    "unsqueeze": (
        lambda s, b, h, i, j: s + (TERMS[h, i] * i.unsqueeze(-1)).sum(dim=-1),
        lambda s, b, h, i, j: s + (TERMS[h, i] * i).sum(-1),
    ),
    "None": (
        lambda s, b, h, i, j: s + (TERMS[h, i] * i[..., None]).sum(dim=-1),
        lambda s, b, h, i, j: s + (TERMS[h, i] * i).sum(-1),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_entries_of_short_vectors(name: str) -> None:
    """O and every gradient, of the table too, as where the index is written at once."""
    q, k, v, w = inputs()
    leaves = [t.requires_grad_() for t in (q, k, v)]
    found = []
    for function in SAME[name]:
        o = tilewise.attention(*leaves, score_mod=function)
        found.append((o, *torch.autograd.grad(o, [*leaves, TERMS], w)))
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, **CLOSE)


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_traced_says_the_cure(name: str) -> None:
    q, k, v, _ = inputs()
    function, cure = WRONG[name]
    with pytest.raises(ValueError, match=rf"score_mod: .*{cure}"):
        tilewise.attention(q, k, v, score_mod=function)


def test_mask_and_score_of_the_wrong_kind() -> None:
    q, k, v, _ = inputs()
    with pytest.raises(ValueError, match="mask_expression is a number"):
        tilewise.attention(q, k, v, mask_mod=lambda b, h, i, j: i - j)
    with pytest.raises(ValueError, match="score_expression is a boolean"):
        tilewise.attention(q, k, v, score_mod=lambda s, b, h, i, j: i > j)
    with pytest.raises(ValueError, match="mask_mod is 3: expected a function"):
        tilewise.attention(q, k, v, mask_mod=3)


def test_texts_stay_as_short_as_the_graph() -> None:
    """A value that is used again has a name: 40 doublings are 40 steps, not 2^40 words."""

    def doubled(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        for _ in range(40):
            s = s * 0.5 + s * 0.25
        return s

    text, _, _ = _trace.formulas(doubled, None)
    assert len(text) < 40 * 60


def test_closures_may_change_between_calls() -> None:
    q, k, v, _ = inputs()
    slope = 0.1

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s - slope * (i - j).abs()

    first = tilewise.attention(q, k, v, score_mod=score_mod, implementation="reference")
    slope = 2.0
    second = tilewise.attention(q, k, v, score_mod=score_mod, implementation="reference")
    slopes = torch.full((H,), 2.0)
    wanted = tilewise.attention(q, k, v, alibi_slopes=slopes, implementation="reference")
    assert not torch.allclose(first, second, atol=1e-3)
    torch.testing.assert_close(second, wanted)


TABLE = np.random.default_rng(0).standard_normal((H, 2 * S)).astype("float32")


def test_integers_of_more_than_32_bits_are_refused() -> None:
    """Two hashed ids with the same low half would be one document."""
    q, k, v, _ = inputs()
    ids = torch.arange(S) % 3 * 2**40 + 5
    for _ in range(2):  # the second call is planned already
        with pytest.raises(ValueError, match=r"int64 .* expected integers of 32 bits"):
            tilewise.attention(q, k, v, mask_mod=lambda b, h, i, j: ids[i] == ids[j])
    small = torch.arange(S) % 3
    tilewise.attention(q, k, v, mask_mod=lambda b, h, i, j: small[i] == small[j])
    with pytest.raises(ValueError, match=r"expected integers of 32 bits"):
        small += 2**33
        tilewise.attention(q, k, v, mask_mod=lambda b, h, i, j: small[i] == small[j])


NARROW = torch.randint(-3, 9, (S,), dtype=torch.int16)
ROWS = torch.randn(2, S, 8)
SAYS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "integers of 16 and 8 bits": (
        lambda s, b, h, i, j: s + NARROW[j] * 0.1 + NARROW.to(torch.int8)[i],
        lambda b, h, i, j: (NARROW[i] == NARROW[j]) | (i == j),
    ),
    "quotients towards 0": (
        lambda s, b, h, i, j: s + 0.1 * torch.div(j - i, 3, rounding_mode="trunc"),
        lambda b, h, i, j: torch.ones_like(j, dtype=torch.bool),
    ),
    "activations": (
        lambda s, b, h, i, j: (
            torch.nn.functional.leaky_relu(s, 0.2)
            + torch.nn.functional.hardtanh(s)
            + torch.nn.functional.logsigmoid(s)
        ),
        lambda b, h, i, j: torch.full_like(i, 1, dtype=torch.bool) & (i >= j),
    ),
    "distances": (
        lambda s, b, h, i, j: s - torch.hypot(i.float(), j.float()) - torch.log10(i + j + 1.0),
        lambda b, h, i, j: ~torch.isinf(i / torch.abs(i - j)) | torch.zeros_like(i, dtype=bool),
    ),
    "products of rows": (
        lambda s, b, h, i, j: s + (ROWS[0][i] * ROWS[1][j]).sum(-1),
        lambda b, h, i, j: i >= 0,
    ),
}


@pytest.mark.parametrize("what", SAYS)
def test_says_as_torch_does(what: str) -> None:
    q, k, v, _ = inputs()
    score_mod, mask_mod = SAYS[what]
    traced = score_mod
    if what == "products of rows":  # @ reduces a row of a captured tensor
        traced = lambda s, b, h, i, j: s + ROWS[0][i] @ ROWS[1][j]  # noqa: E731
    o = tilewise.attention(q, k, v, score_mod=traced, mask_mod=mask_mod)
    b, h, i, j = (torch.arange(n) for n in (B, H, S, S))
    at = b[:, None, None, None], h[:, None, None], i[:, None], j
    scores = torch.einsum("bihd,bjhd->bhij", q, k).double() / 8**0.5
    if what == "products of rows":
        scores = scores + ROWS[0].double() @ ROWS[1].double().T
    else:
        scores = score_mod(scores, *at)
    p = scores.masked_fill(~mask_mod(*at), -float("inf")).softmax(-1)
    exact = torch.einsum("bhij,bjhd->bihd", p, v.double())
    torch.testing.assert_close(o, exact, check_dtype=False, **CLOSE)


def _helped(h: Any, i: Any, j: Any) -> Any:
    return TABLE[h, i - j + S]


def test_arrays_of_numpy_in_closures_globals_and_helpers() -> None:
    document = np.sort(np.random.default_rng(1).integers(0, 4, S))
    q, k, v, _ = (t.numpy() for t in inputs())

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + _helped(h, i, j) + np.minimum(np.abs(i - j), 3) * 0.1

    def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        return np.logical_and(document[i] == document[j], document[0] <= document[i])

    options = {"score_mod": score_mod, "mask_mod": mask_mod}
    o = tilewise.attention(q, k, v, **options, implementation="reference")
    i, j = np.arange(S)[:, None], np.arange(S)
    scores = np.einsum("bihd,bjhd->bhij", q, k, dtype=np.float64) / 8**0.5
    scores = scores + TABLE[:, i - j + S] + np.minimum(np.abs(i - j), 3) * 0.1
    p = np.where(document[:, None] == document, np.exp(scores), 0.0)
    exact = np.einsum("bhij,bjhd->bihd", p / p.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(o, exact, atol=2e-5)


def test_onlookers_see_the_operators() -> None:
    """A profiler, and torch.compile, which stops where the caller's functions are traced."""
    q, k, v, w = inputs()
    leaves = [t.requires_grad_() for t in (q, k, v)] + list(SCORES["t5_relative"].learned)
    score_mod = SCORES["t5_relative"].function

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o: Tensor = tilewise.attention(q, k, v, score_mod=score_mod, implementation="reference")
        return o

    wanted = torch.autograd.grad(run(q, k, v), leaves, w)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        got = torch.autograd.grad(run(q, k, v), leaves, w)
    names = {event.key for event in profile.key_averages()}
    assert {"tilewise::expression_forward", "tilewise::expression_backward"} <= names
    torch._dynamo.reset()
    compiled = torch.autograd.grad(torch.compile(run, backend="aot_eager")(q, k, v), leaves, w)
    for a, b, c in zip(wanted, got, compiled, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)


def test_operators_keep_torch_s_rules() -> None:
    q, k, v, d_o = inputs()
    (table,) = SCORES["t5_relative"].learned
    score, mask, captures = _trace.formulas(
        SCORES["t5_relative"].function, MASKS["prefix"].function
    )
    fields = make_spec(score_expression=score, mask_expression=mask)[:-1]
    arguments = (q.requires_grad_(), k, v, *fields, list(captures), [])
    operator = torch.ops.tilewise.expression_forward
    torch.library.opcheck(operator.default, arguments)
    o, lse = (t.detach() for t in operator(*arguments))
    torch.library.opcheck(
        torch.ops.tilewise.expression_backward.default,
        (d_o, None, q, k, v, o, lse, False, False, [True, False], *fields, list(captures), []),
        # Its autograd refuses: there is no second derivative.
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(operator(*arguments)[0], table, d_o)
    with FlopCounterMode(display=False) as plain:
        torch.autograd.grad(tilewise.attention(q, k, v), q, d_o)
    assert counter.get_total_flops() == plain.get_total_flops() > 0


def test_transforms_of_torch_func() -> None:
    q, k, v, w = inputs()
    plain = torch.func.vmap(lambda t: tilewise.attention(t, k, v, mask_mod=zoo.dilated))
    with_table = torch.func.vmap(
        lambda t: tilewise.attention(t, k, v, mask_mod=MASKS["prefix"].function)
    )
    for mapped, name in ((plain, "dilated"), (with_table, "prefix")):
        function = MASKS[name].function
        try:
            got = mapped(torch.stack([q, w]))
        except NotImplementedError as refusal:
            pytest.skip(f"not on this CPU yet: {refusal}")
        for n, t in enumerate((q, w)):
            torch.testing.assert_close(got[n], tilewise.attention(t, k, v, mask_mod=function))
    with pytest.raises(NotImplementedError, match="in the derivatives of torch.func"):
        torch.func.grad(
            lambda t: tilewise.attention(t, k, v, mask_mod=MASKS["prefix"].function).sum()
        )(q)
