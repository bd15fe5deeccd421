"""PyTorch's ways to compute attention: its fused backends, FlexAttention, eager, torch.compile."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable

import torch
import torch._dynamo.config
import torch._functorch.config
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from .contender import RefusedError
from .problem import Problem
from .reference import Inputs, offsets_on_device

# The timed backward runs many times after one forward, which donated buffers forbid.
torch._functorch.config.donated_buffer = False
# Every problem is compiled for its own shapes.
torch._dynamo.config.recompile_limit = 100_000
torch._dynamo.config.accumulated_recompile_limit = 100_000

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class TorchSession:
    """See contender.Session."""

    def __init__(self, attention: Attention, inputs: Inputs) -> None:
        self.attention = attention
        self._inputs = inputs
        self._leaves = (inputs.q, inputs.k, inputs.v)
        self._o = inputs.q
        self._gradients: tuple[torch.Tensor, ...] = ()

    def forward(self) -> None:
        with torch.no_grad():
            self._o = self.attention(*self._leaves)

    def forward_for_backward(self) -> None:
        self._o = self.attention(*self._leaves)

    def backward(self) -> None:
        self._gradients = torch.autograd.grad(
            self._o, self._leaves, self._inputs.d_o, retain_graph=True
        )

    def both(self) -> None:
        self._o = self.attention(*self._leaves)
        self._gradients = torch.autograd.grad(self._o, self._leaves, self._inputs.d_o)

    def outputs(self) -> dict[str, torch.Tensor]:
        named = zip(("dQ", "dK", "dV"), self._gradients, strict=False)
        return {"O": self._o.detach()} | dict(named)


class TorchPath:
    """A contender whose attention is a torch function, made for each problem."""

    def __init__(
        self, name: str, kernel: str, make: Callable[[Problem], Attention], dtypes: tuple[str, ...]
    ) -> None:
        self.name = name
        self._kernel = kernel
        self._make = make
        self.dtypes = dtypes

    def kernel(self, problem: Problem, which: str) -> str:
        del problem, which
        return self._kernel

    def open(self, problem: Problem, inputs: Inputs) -> TorchSession:
        if problem.is_served:
            raise RefusedError("this path is written for keys of one length, side by side")
        return TorchSession(self._make(problem), inputs)


def _dense_alone(problem: Problem) -> None:
    if problem.packed:
        raise RefusedError("this path is written for tensors without packed sequences")


def _sdpa(backend: SDPBackend) -> Callable[[Problem], Attention]:
    def make(problem: Problem) -> Attention:
        if problem.has_window or problem.softcap:
            raise RefusedError("scaled_dot_product_attention takes no window and no softcap")
        if problem.packed:
            return _nested(problem, backend)
        if problem.causal and problem.keys != problem.seq:
            raise RefusedError("its causal mask is aligned to the first key, not the last")
        gqa = problem.heads != problem.kv_heads

        def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=problem.causal, enable_gqa=gqa
                )

        return attention

    return make


def _nested(problem: Problem, backend: SDPBackend) -> Attention:
    """Packed sequences as nested tensors: how scaled_dot_product_attention takes them."""
    offsets = offsets_on_device(problem)
    shortest, longest = min(problem.packed), max(problem.packed)

    def nested(x: torch.Tensor) -> torch.Tensor:  # (1, H, total, D) to (B, H, lengths, D)
        made = torch.nested.nested_tensor_from_jagged(
            x[0].transpose(0, 1), offsets, min_seqlen=shortest, max_seqlen=longest
        )
        return made.transpose(1, 2)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if problem.heads != problem.kv_heads:
            raise RefusedError("nested tensors take no grouped heads")
        with sdpa_kernel(backend):
            o = torch.nn.functional.scaled_dot_product_attention(
                nested(q), nested(k), nested(v), is_causal=problem.causal
            )
        return o.transpose(1, 2).values().transpose(0, 1)[None]

    return attention


def _flash_operator(problem: Problem, window: tuple[int | None, int | None]) -> Attention:
    """The operator behind scaled_dot_product_attention, whose tensors are (B, S, H, D) or, of
    packed sequences, (total, H, D)."""
    offsets = offsets_on_device(problem) if problem.packed else None
    keys = problem.seq if problem.packed else problem.keys
    left, right = (-1 if side is None else side for side in window)

    def rows(x: torch.Tensor) -> torch.Tensor:
        return x[0].transpose(0, 1) if problem.packed else x.transpose(1, 2)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        o = torch.ops.aten._flash_attention_forward(
            *map(rows, (q, k, v)),
            offsets,
            offsets,
            problem.seq,
            keys,
            0.0,
            problem.causal,
            False,
            scale=problem.scale,
            window_size_left=left,
            window_size_right=right,
        )[0]
        return o.transpose(0, 1)[None] if problem.packed else o.transpose(1, 2)

    return attention


def _flash(problem: Problem) -> Attention:
    """FlashAttention-2 as torch has it; windows, causal masks aligned to the last key, and packed
    sequences by the operator behind scaled_dot_product_attention."""
    if problem.packed:
        if problem.softcap:
            raise RefusedError("the operator takes no softcap")
        return _flash_operator(problem, problem.window)
    aligned = not problem.causal or problem.keys == problem.seq
    if problem.softcap or (aligned and not problem.has_window):
        return _sdpa(SDPBackend.FLASH_ATTENTION)(problem)
    return _flash_operator(problem, problem.band)


def visible(problem: Problem, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    """Whether query i sees key j, elementwise."""
    left, right = problem.band
    ahead = j - i - (problem.keys - problem.seq)
    seen = ahead == ahead
    if right is not None:
        seen = seen & (ahead <= right)
    return seen if left is None else seen & (ahead >= -left)


@functools.lru_cache(maxsize=1)
def _hidden(problem: Problem, device: str) -> torch.Tensor:
    """True where the mask hides; made before anything is timed."""
    i, j = (torch.arange(n, device=device) for n in (problem.seq, problem.keys))
    return ~visible(problem, i[:, None], j[None])


def _formula(problem: Problem, device: str = "cuda") -> Attention:
    """The textbook in torch's own operations."""
    _dense_alone(problem)
    if problem.heads != problem.kv_heads:
        raise RefusedError("the plain formula is written for as many key heads as query heads")
    hidden = None if problem.band == (None, None) else _hidden(problem, device)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = q @ k.transpose(-1, -2) * problem.scale
        if problem.softcap:
            s = torch.tanh(s / problem.softcap) * problem.softcap
        if hidden is not None:
            s = s.masked_fill(hidden, float("-inf"))
        return torch.softmax(s, -1) @ v

    return attention


@functools.lru_cache(maxsize=1)
def _compiled(problem: Problem) -> Attention:
    return torch.compile(_formula(problem), dynamic=False)


@functools.lru_cache(maxsize=4)
def _blocks(problem: Problem) -> BlockMask:
    def mask(b: object, h: object, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        del b, h
        return visible(problem, i, j)

    return create_block_mask(mask, None, None, problem.seq, problem.keys, device="cuda")


@functools.cache
def _compiled_flex() -> Callable[..., torch.Tensor]:
    return torch.compile(flex_attention, dynamic=False)


def _flex(problem: Problem) -> Attention:
    _dense_alone(problem)
    compiled = _compiled_flex()
    blocks = None if problem.band == (None, None) else _blocks(problem)
    gqa = problem.heads != problem.kv_heads

    def capped(score: torch.Tensor, *at: object) -> torch.Tensor:
        del at
        return torch.tanh(score / problem.softcap) * problem.softcap

    modify = capped if problem.softcap else None

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return compiled(q, k, v, score_mod=modify, block_mask=blocks, enable_gqa=gqa)

    return attention


def _package(module: str, function: str) -> Callable[[Problem], Attention]:
    """A function of flash_attn's packages, whose tensors are (B, S, H, D)."""

    def make(problem: Problem) -> Attention:
        _dense_alone(problem)
        run = getattr(importlib.import_module(module), function)
        options: dict[str, object] = {"causal": problem.causal}
        if problem.has_window:
            options["window_size"] = tuple(-1 if side is None else side for side in problem.band)
        if problem.softcap:
            options["softcap"] = problem.softcap

        def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            o = run(*(x.transpose(1, 2) for x in (q, k, v)), **options)
            return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)

        return attention

    return make


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False


# FlashAttention's own packages, where they are installed: name of the rows, module.
PACKAGES = {
    "flash-attn-2": "flash_attn",
    "flash-attn-3": "flash_attn_interface",
    "flash-attn-4": "flash_attn.cute",
}
HALF = ("bfloat16", "float16")
ALL = ("float32", *HALF)


def torch_paths() -> dict[str, TorchPath]:
    """Every path by the name of its rows."""
    cudnn = torch.backends.cudnn.version()
    paths = [
        TorchPath("cudnn", f"sdpa cuDNN {cudnn}", _sdpa(SDPBackend.CUDNN_ATTENTION), HALF),
        TorchPath("fa2", "sdpa flash", _flash, HALF),
        # Seed 003 forces this kernel in float32: a contender of its own, for those who ask.
        TorchPath("forced-flash", "sdpa flash, forced", _flash, ("float32",)),
        TorchPath("memeff", "sdpa memory-efficient", _sdpa(SDPBackend.EFFICIENT_ATTENTION), ALL),
        TorchPath("math", "sdpa math", _sdpa(SDPBackend.MATH), ALL),
        TorchPath("flex", "flex_attention", _flex, ALL),
        TorchPath("torch-eager", "matmul, softmax, matmul", _formula, ALL),
        TorchPath("torch-compile", "torch.compile of the formula", _compiled, ALL),
    ]
    paths += [
        TorchPath(name, f"{module}.flash_attn_func", _package(module, "flash_attn_func"), HALF)
        for name, module in PACKAGES.items()
        if _installed(module)
    ]
    return {path.name: path for path in paths}
