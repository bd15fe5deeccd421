"""What an operator without derivatives must say of a tensor that wants one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


def expect_refused(call: Callable[[Tensor], Tensor], name: str, given: Tensor) -> None:
    """Gradient and tangent of the argument `name` are refused, and so is an array in its place."""
    with pytest.raises(NotImplementedError, match=f"no gradient, and {name}"):
        call(given.clone().requires_grad_())
    with pytest.raises(NotImplementedError, match=f"forward-mode derivative of {name}"):
        torch.func.jvp(call, (given,), (torch.ones_like(given),))
    with pytest.raises(ValueError, match=f"{name} is of type ndarray"):
        call(given.numpy())
