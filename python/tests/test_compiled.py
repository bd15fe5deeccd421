"""Score and mask functions in torch.compile(fullgraph=True): values, gradients, one graph."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
from tilewise import create_block_mask, flex_attention  # noqa: E402
from torch import Tensor  # noqa: E402
from zoo import MASKS, SCORES  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Graphs:
    """A backend that counts what it compiles."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.count += 1
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)


def inputs(rows: int = 64, heads: int = 4) -> list[Tensor]:
    return [torch.randn(2, heads, rows, 8, requires_grad=True) for _ in range(3)]


def gradients(step: Callable[..., Tensor], of: list[Tensor], *rest: Any) -> tuple[Tensor, ...]:
    o = step(*of[:3], *rest)
    return o.detach(), *torch.autograd.grad(o.square().sum(), of)


@pytest.mark.parametrize("name", ["documents_by_id", "draft_tree", "natten"])
def test_masks(name: str) -> None:
    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o: Tensor = tilewise.attention(q, k, v, layout="bhsd", mask_mod=MASKS[name].function)
        return o

    given = inputs()
    whole = torch.compile(step, backend="aot_eager", fullgraph=True)
    for made, wanted in zip(gradients(whole, given), gradients(step, given), strict=True):
        assert torch.equal(made, wanted)


@pytest.mark.parametrize("name", ["t5_buckets", "mla_rope", "temperature"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_learned_scores(name: str, backend: str) -> None:
    entry = SCORES[name]

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o: Tensor = flex_attention(q, k, v, entry.function)
        return o

    given = [*inputs(), *entry.learned]
    whole = torch.compile(step, backend=backend, fullgraph=True)
    for made, wanted in zip(gradients(whole, given), gradients(step, given), strict=True):
        assert torch.equal(made, wanted)


def test_one_graph_for_all_lengths() -> None:
    """The functions read lengths, a number and a table: one compile, whatever they are."""
    table = torch.randn(4, 128, requires_grad=True)

    def step(q: Tensor, k: Tensor, v: Tensor, table: Tensor, window: int) -> Tensor:
        rows = q.shape[2]
        mask = create_block_mask(
            lambda b, h, i, j: (i - j < window) & (i >= j), None, None, rows, k.shape[2]
        )
        o: Tensor = flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h, i - j + rows], mask)
        return o

    graphs, counts = Graphs(), []
    whole = torch.compile(step, backend=graphs, fullgraph=True, dynamic=True)
    for rows, window in ((24, 7), (37, 9), (64, 11)):
        given = [*inputs(rows), table]
        made = gradients(whole, given, table, window)
        for ours, wanted in zip(made, gradients(step, given, table, window), strict=True):
            assert torch.equal(ours, wanted)
        counts.append(graphs.count)
    assert counts[0] == counts[-1]


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.randn(4))
        self.register_buffer("document", torch.arange(24) // 9)
        self.words: Any = np.arange(24, dtype=np.int32) % 5

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        words = torch.as_tensor(self.words)

        def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return torch.where(words[j] > 3, s * 0.5, s + self.slopes[h] * (j - i))

        def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
            return self.document[i] == self.document[j]

        o, lse = tilewise.attention(
            q, k, v, layout="bhsd", score_mod=score, mask_mod=mask, causal=True, return_lse=True
        )
        return o * lse[..., None].sigmoid()


def test_module_of_parameters_buffers_and_arrays() -> None:
    layer, given = Layer(), inputs(24)
    whole = torch.compile(layer, backend="aot_eager", fullgraph=True)
    of = [*given, layer.slopes]
    for made, wanted in zip(gradients(whole, of), gradients(layer, of), strict=True):
        torch.testing.assert_close(made, wanted)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool) -> None:
    layer, given = Layer(), inputs(24)
    layer.words = torch.from_numpy(layer.words)  # torch cannot export an array
    program = torch.export.export(layer, tuple(given), strict=strict)
    assert "tilewise.expression_forward" in str(program.graph)
    torch.testing.assert_close(program.module()(*given), layer(*given))


@pytest.mark.parametrize("strict", [False, True])
def test_export_of_lengths_that_vary(strict: bool) -> None:
    """The mask is made in the graph, of its own length."""

    class Masked(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            n = q.shape[2]
            mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 9), None, None, n, n)
            o: Tensor = flex_attention(q, k, v, lambda s, b, h, i, j: s - 0.1 * (i - j), mask)
            return o

    length = torch.export.Dim("length", min=2, max=512)
    of_each = ({2: length},) * 3
    program = torch.export.export(
        Masked(), tuple(inputs(24)), dynamic_shapes=of_each, strict=strict
    )
    given = inputs(37)
    torch.testing.assert_close(program.module()(*given), Masked()(*given))


def test_a_changed_closure_is_compiled_anew() -> None:
    def step(q: Tensor, k: Tensor, v: Tensor, shift: float) -> Tensor:
        o: Tensor = flex_attention(q, k, v, lambda s, b, h, i, j: s + shift * j)
        return o

    given = inputs(16)
    whole = torch.compile(step, backend="aot_eager", fullgraph=True)
    for shift in (0.5, -2.0, 3.25):
        torch.testing.assert_close(whole(*given, shift), step(*given, shift))


@pytest.mark.parametrize("constant", [True, False])
def test_masks_that_are_constants(constant: bool) -> None:
    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o: Tensor = tilewise.attention(q, k, v, layout="bhsd", mask_mod=lambda b, h, i, j: constant)
        return o

    given = inputs(16)
    whole = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert torch.equal(whole(*given), step(*given))


def test_checkpoint_in_a_compiled_step() -> None:
    table = torch.randn(4, 48, requires_grad=True)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o: Tensor = flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h, i - j + 24])
        return o

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(attend, q, k, v, use_reentrant=False)

    given = [*inputs(24), table]
    whole = torch.compile(step, backend="aot_eager", fullgraph=True)
    for made, wanted in zip(gradients(whole, given), gradients(attend, given), strict=True):
        assert torch.equal(made, wanted)


def test_a_vector_as_the_value_is_an_error() -> None:
    table = torch.randn(24, 4)
    whole = torch.compile(
        lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s + table[i]),
        backend="aot_eager",
        fullgraph=True,
    )
    with pytest.raises(Exception, match="short vector"):
        whole(*inputs(24))


@pytest.mark.parametrize("device", ["cpu", None])
def test_tree_mask(device: str | None) -> None:
    mask = tilewise.tree_mask([-1, 0, 0, 1, 2, 2], device=device)

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o: Tensor = tilewise.attention(q, k, v, layout="bhsd", mask_mod=mask)
        return o

    given = inputs(6)
    assert torch.equal(
        torch.compile(step, backend="aot_eager", fullgraph=True)(*given), step(*given)
    )


@pytest.mark.parametrize("shape", [(24, 24), (4, 24, 24), (2, 1, 24, 24)])
@pytest.mark.parametrize("array", [False, True])
def test_packed_mask(shape: tuple[int, ...], array: bool) -> None:
    seen = torch.rand(shape) > 0.4
    mask = tilewise.packed_mask(seen.numpy() if array else seen)

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o: Tensor = tilewise.attention(q, k, v, layout="bhsd", mask_mod=mask)
        return o

    given = inputs(24)
    whole = torch.compile(step, backend="aot_eager", fullgraph=True)
    for made, wanted in zip(gradients(whole, given), gradients(step, given), strict=True):
        assert torch.equal(made, wanted)


def test_functions_that_the_compiler_cannot_read() -> None:
    """Without fullgraph the graph breaks there, and the call is made as without a compiler."""
    helper = torch.compiler.disable(lambda i, j: (i - j).abs() < 5)

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o: Tensor = tilewise.attention(
            q, k, v, layout="bhsd", mask_mod=lambda b, h, i, j: helper(i, j)
        )
        return o

    given = inputs(16)
    made = gradients(torch.compile(step, backend="aot_eager"), given)
    for ours, wanted in zip(made, gradients(step, given), strict=True):
        assert torch.equal(ours, wanted)
