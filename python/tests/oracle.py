"""Attention as it is written on paper, in torch, and how far a result may be from it.

The rule is that of docs/numerics.md: max |ours - f64| <= 2 max |unfused - f64| + 1e-5; `unfused`
takes float32 products of the given inputs and rounds S and P to their type.
"""

import functools
import math
from typing import Any

import pytest
import tilewise
import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]


def positions(
    sq: int, sk: int, causal: Any, window: Any, device: Any, key_lengths: Tensor | None = None
) -> Tensor:
    """Which keys each row sees by position: bool (Sq, Sk), with key lengths (B, 1, Sq, Sk)."""
    i = torch.arange(sq, device=device)[:, None]
    j = torch.arange(sk, device=device)
    seen = torch.ones(sq, sk, dtype=torch.bool, device=device)
    shift: Any = sk - sq
    if key_lengths is not None:
        lengths = key_lengths[:, None, None, None]
        seen = seen & (j < lengths)
        shift = lengths - sq
    if causal == "top_left":
        seen = seen & (j <= i)
    elif causal:
        seen = seen & (j <= i + shift)
    left, right = window or (None, None)
    if left is not None:
        seen = seen & (j >= i + shift - left)
    if right is not None:
        seen = seen & (j <= i + shift + right)
    return seen


def paper(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    compute: torch.dtype = torch.float64,
    rounded: bool = False,
    causal: Any = False,
    window: Any = None,
    scale: float | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    key_lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """O (B, Sq, Hq, Dv) and LSE (B, Hq, Sq) of q (B, Sq, Hq, D), k, v (B, Sk, Hk, ...)."""
    given = q.dtype

    def rounding(x: Tensor) -> Tensor:
        return x.to(given).to(compute) if rounded else x

    q, k, v = (t.transpose(1, 2).to(compute) for t in (q, k, v))
    group = q.shape[1] // k.shape[1] if k.shape[1] else 1
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    sq, sk = q.shape[2], k.shape[2]
    s = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias.to(compute)
    if alibi_slopes is not None:
        i = torch.arange(sq, device=q.device)[:, None]
        keys = sk if key_lengths is None else key_lengths[:, None, None, None]
        distance = (i + keys - sq - torch.arange(sk, device=q.device)).abs()
        s = s - alibi_slopes.to(compute)[..., None, None] * distance
    s = rounding(s)
    seen = positions(sq, sk, causal, window, q.device, key_lengths)
    if mask is not None:
        seen = seen & mask
    s = s.masked_fill(~seen, float("-inf"))
    logits = s
    if sinks is not None:
        column = sinks.to(compute)[None, :, None, None].expand(*s.shape[:3], 1)
        logits = torch.cat([s, column], -1)
    lse = torch.logsumexp(logits, -1)
    empty = torch.isneginf(lse)
    p = torch.exp(s - lse.masked_fill(empty, 0.0)[..., None])
    o = rounding(p) @ v
    return rounding(o).transpose(1, 2), lse


def cases_tolerance(ours: Tensor, exact: Tensor, unfused: Tensor) -> tuple[float, float]:
    """The error, and what it may be."""
    if ours.numel() == 0:
        return 0.0, 0.0
    exact = exact.detach()
    error = (ours.detach().double() - exact).abs().max().item()
    yardstick = (unfused.detach().double() - exact).abs().max().item()
    return error, 2 * yardstick + 1e-5


def assert_close(ours: Tensor, exact: Tensor, unfused: Tensor, name: str) -> None:
    assert ours.shape == exact.shape, name
    finite = torch.isfinite(exact)
    assert torch.equal(torch.isfinite(ours), finite), f"{name}: not finite where it should be"
    error, bound = cases_tolerance(ours[finite], exact[finite], unfused[finite])
    assert error <= bound, f"{name}: off by {error:.3g}, allowed {bound:.3g}"


def supported(device: str, *arguments: Any, **options: Any) -> Any:
    """tilewise.attention; a kernel's refusal on a GPU skips the test with its reason."""
    try:
        return tilewise.attention(*arguments, **options)
    except NotImplementedError as error:
        if device == "cpu":
            raise
        pytest.skip(f"on {device}: {error}")


def gradients(o: Tensor, lse: Tensor, d_o: Tensor, d_lse: Tensor | None, of: Tensors) -> Tensors:
    outputs, given = [o], [d_o.to(o.dtype)]
    if d_lse is not None:
        outputs.append(lse)
        given.append(d_lse.to(lse.dtype))
    return torch.autograd.grad(outputs, of, given)


@functools.cache
def has_gradient(device: str, option: str) -> bool:
    """Whether `bias` or `sinks` has a gradient of its own: on a GPU a kernel may refuse it."""
    # Cached: it must draw nothing from the generator of the test that asks first.
    q = torch.ones(1, 4, 2, 16, device=device)
    given = torch.ones((2, 4, 4) if option == "bias" else (2,), device=device, requires_grad=True)
    try:
        tilewise.attention(q, q, q, **{option: given}).sum().backward()
    except NotImplementedError:
        assert device != "cpu"
        return False
    return True


def check(device: str, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> None:
    """Forward and every gradient, LSE's too, against the paper."""
    optional = [n for n in ("bias", "sinks") if n in options and has_gradient(device, n)]
    leaves = [q, k, v] + [options[name] for name in optional]
    for leaf in leaves:
        leaf.requires_grad_()
    of = tuple(leaves)
    o, lse = supported(device, q, k, v, return_lse=True, **options)
    exact_o, exact_lse = paper(q, k, v, **options)
    rough_o, rough_lse = paper(q, k, v, compute=torch.float32, rounded=True, **options)
    assert o.dtype == q.dtype and lse.dtype == torch.float32
    assert_close(o, exact_o, rough_o, "O")
    assert_close(lse, exact_lse, exact_lse, "LSE")
    d_o = torch.randn_like(o)
    d_lse = torch.where(torch.isfinite(lse), torch.randn_like(lse), 0.0).detach()
    try:
        ours = gradients(o, lse, d_o, d_lse, of)
    except NotImplementedError as error:
        if device == "cpu":
            raise
        pytest.skip(f"on {device}: {error}")
    exact = gradients(exact_o, exact_lse, d_o, d_lse, of)
    rough = gradients(rough_o, rough_lse, d_o, d_lse, of)
    names = ("dQ", "dK", "dV", *(f"d{name}" for name in optional))
    for name, a, b, c in zip(names, ours, exact, rough, strict=True):
        # The exact gradient was rounded to the leaf's type by autograd; so may ours be.
        assert_close(a, b.double(), c, name)
