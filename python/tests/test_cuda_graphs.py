"""Dropout in CUDA graphs: each replay drops anew, forward and backward by one mask."""

import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402
from torch import Tensor  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [96, 1024])
def test_replays_drop_anew(dtype: torch.dtype, rows: int) -> None:
    q, k, v = (
        torch.randn(2, rows, 4, 64, device="cuda", dtype=dtype, requires_grad=True)
        for _ in range(3)
    )

    def step() -> tuple[Tensor, ...]:
        o = tilewise.attention(q, k, v, dropout_p=0.4)
        return (o, *torch.autograd.grad(o, (q, k, v), torch.ones_like(o)))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()  # compiles the kernels
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, _, _, dv = step()
    seen = []
    for _ in range(3):
        graph.replay()
        # With dO = 1 both are sums of the same dropped P: over keys times V, and over queries.
        products = (o.double() - dv.double() * v.double()).sum((1, 3))
        bound = 2e-3 * float((dv.double() * v.double()).abs().sum((1, 3)).max())
        assert float(products.abs().max()) < bound
        seen.append(o.clone())
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
    torch.cuda.manual_seed(5)
    graph.replay()
    first = o.clone()
    torch.cuda.manual_seed(5)
    graph.replay()
    assert torch.equal(first, o)
