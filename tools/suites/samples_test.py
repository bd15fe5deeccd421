"""PyTorch's sample inputs of scaled_dot_product_attention, ours beside torch's own."""

import os
from typing import Any

import pytest
import tilewise.sdpa
import torch
from torch.testing._internal.common_methods_invocations import op_db

DEVICE = os.environ["SUITE_DEVICE"]
(SDPA,) = (o for o in op_db if o.name == "nn.functional.scaled_dot_product_attention")


class Sample:
    """One sample, named by its shapes."""

    def __init__(self, made: Any) -> None:  # noqa: ANN401
        self.kwargs = dict(made.kwargs)
        self.tensors = [made.input, *made.args]

    def __str__(self) -> str:
        shapes = ["x".join(map(str, t.shape)) for t in self.tensors]
        options = [
            f"{k}={tuple(v.shape) if hasattr(v, 'shape') else v}" for k, v in self.kwargs.items()
        ]
        return " ".join([*shapes, *options])


torch.manual_seed(0)
SAMPLES = [Sample(made) for made in SDPA.sample_inputs(DEVICE, torch.float32, requires_grad=True)]


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sample(sample: Sample, dtype: torch.dtype) -> None:
    """The output and every gradient, whose error in that type is beside torch's own.

    Scores reach 200 here: an error of 2e-5 in a probability is that of float32.
    """
    found = []
    for of_type, function in (
        (dtype, tilewise.sdpa.scaled_dot_product_attention),
        (dtype, torch.nn.functional.scaled_dot_product_attention),
        (torch.float64, torch.nn.functional.scaled_dot_product_attention),
    ):
        leaves = [t.detach().to(dtype).to(of_type).requires_grad_() for t in sample.tensors]
        options = {
            name: value.to(dtype).to(of_type)
            if torch.is_tensor(value) and value.is_floating_point()
            else value
            for name, value in sample.kwargs.items()
        }
        o = function(*leaves, **options)
        found.append((o, *torch.autograd.grad(o.sin().sum(), leaves)))
    for ours, theirs, exact in zip(*found, strict=True):
        own, other = ((x.double() - exact).abs().max().item() for x in (ours, theirs))
        largest = exact.abs().max().item()
        assert (
            own <= 4 * other + 4 * torch.finfo(dtype).eps * largest
        ), f"off by {own}, torch by {other}"
