"""Whether an output may be timed: every one is first compared with float64 on the same inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .problem import Problem

# Largest norm of the error over the norm of the result. Products of bfloat16 inputs land between
# 1e-3 and 6e-3 (P and dS are rounded), float32 ones under 2e-6.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
SAMPLED_PAIRS = 2**30  # what one check computes; beyond it only some heads are compared
MOST_HEADS = 8
CHUNK_PAIRS = 2**28  # scores in memory at a time: 2 GiB of float64


@dataclass(frozen=True)
class Inputs:
    """Q, K, V (leaves of the autograd graph) and dO of one problem."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    d_o: torch.Tensor
    lengths: torch.Tensor | None = None  # int32 (batch): keys of each entry, where that is told
    table: torch.Tensor | None = None  # int32 (batch, pages); then k and v are pools of pages

    @staticmethod
    def random(problem: Problem, device: str = "cuda") -> Inputs:
        def tensor(heads: int, rows: int, *, leaf: bool) -> torch.Tensor:
            shape = (problem.batch, heads, rows, problem.dim)
            if problem.packed:
                shape = (rows, heads, problem.dim)
            if problem.layout == "bshd" and not problem.packed:
                shape = (shape[0], shape[2], shape[1], shape[3])
            made = torch.empty(shape, device=device, dtype=getattr(torch, problem.dtype)).normal_()
            if problem.packed:
                made = made.transpose(0, 1)[None]
            elif problem.layout == "bshd":
                made = made.transpose(1, 2)
            return made.requires_grad_(leaf)

        queries, keys = (problem.heads, problem.seq), (problem.kv_heads, problem.keys)
        if problem.packed:
            queries, keys = (problem.heads, problem.rows), (problem.kv_heads, problem.key_rows)
        q, d_o = tensor(*queries, leaf=True), tensor(*queries, leaf=False)
        if problem.is_served:
            return Inputs._served(problem, q, d_o)
        return Inputs(q, tensor(*keys, leaf=True), tensor(*keys, leaf=True), d_o)

    @staticmethod
    def _served(problem: Problem, q: torch.Tensor, d_o: torch.Tensor) -> Inputs:
        """A cache, or pools whose pages are in random order; table entries that nothing reads are
        -1."""
        own = {"device": q.device, "dtype": q.dtype}
        lengths = torch.tensor(problem.key_lengths, device=q.device, dtype=torch.int32)
        table, rows = None, (problem.batch, problem.keys)
        if problem.page:
            counts = [-(-n // problem.page) for n in problem.key_lengths]
            rows = (sum(counts), problem.page)
            order = torch.randperm(rows[0], dtype=torch.int32).split(counts)
            table = torch.full((problem.batch, max(counts)), -1, dtype=torch.int32)
            for entry, pages in zip(table, order, strict=True):
                entry[: len(pages)] = pages
            table = table.to(q.device)
        k, v = (torch.empty(*rows, problem.kv_heads, problem.dim, **own).normal_() for _ in "kv")
        return Inputs(q, k.transpose(1, 2), v.transpose(1, 2), d_o, lengths, table)

    def keys_of(self, x: torch.Tensor, b: int, h: int, count: int) -> torch.Tensor:
        """The first `count` rows of key head `h` of an entry, out of a cache or its pages."""
        if self.table is None:
            return x[b, h, :count]
        pages = self.table[b, : -(-count // x.shape[2])].long()
        return x[pages, h].flatten(0, 1)[:count]

    def refresh(self) -> None:
        """New values in place."""
        with torch.no_grad():
            for x in (self.q, self.k, self.v, self.d_o):
                x.normal_()


def offsets_on_device(problem: Problem, device: str = "cuda") -> torch.Tensor | None:
    """int32 offsets of packed sequences; None of a dense problem."""
    if not problem.packed:
        return None
    return torch.tensor(problem.offsets, device=device, dtype=torch.int32)


class Reference:
    """Float64 results of a problem's heads: of all where that is cheap, else from first to last."""

    def __init__(self, problem: Problem, inputs: Inputs, *, backward: bool) -> None:
        self._problem = problem
        self._group = problem.heads // problem.kv_heads
        all_heads = [(b, h) for b in range(problem.batch) for h in range(problem.kv_heads)]
        affordable = max(1, SAMPLED_PAIRS // max(1, problem.pairs // len(all_heads)))
        count = min(affordable, MOST_HEADS)
        if count < len(all_heads):
            step = (len(all_heads) - 1) / max(count - 1, 1)
            all_heads = [all_heads[round(i * step)] for i in range(count)]
        self._results = {at: self._attention(inputs, *at, backward=backward) for at in all_heads}

    def _at(self, b: int, h: int, *, keys: bool) -> tuple[int, int | slice, slice]:
        """Where the rows of key head `h` of an entry or packed sequence lie in Q or in K."""
        heads = h if keys else slice(h * self._group, (h + 1) * self._group)
        if not self._problem.packed:
            return b, heads, slice(None)
        begin, end = self._problem.offsets[b : b + 2]
        return 0, heads, slice(begin, end)

    def _attention(
        self, inputs: Inputs, b: int, h: int, *, backward: bool
    ) -> dict[str, torch.Tensor]:
        p, scale = self._problem, self._problem.scale
        if p.is_served:
            count = p.key_lengths[b]
            k, v = (inputs.keys_of(x, b, h, count).double() for x in (inputs.k, inputs.v))
        else:
            k, v = (x.detach()[self._at(b, h, keys=True)].double() for x in (inputs.k, inputs.v))
        q, d_o = (x.detach()[self._at(b, h, keys=False)].double() for x in (inputs.q, inputs.d_o))
        seq, n_keys = q.shape[1], k.shape[0]
        o, d_q = torch.empty_like(q), torch.empty_like(q)
        d_k, d_v = torch.zeros_like(k), torch.zeros_like(v)
        rows = max(1, CHUNK_PAIRS // (n_keys * self._group))
        left, right = p.band
        key_at = torch.arange(n_keys, device=k.device)
        diagonal = torch.arange(seq, device=k.device) + n_keys - seq
        for first in range(0, seq, rows):
            part = slice(first, min(first + rows, seq))
            s = (q[:, part] @ k.T).mul_(scale)
            slope: torch.Tensor | None = None  # of the softcap
            if p.softcap:
                s.div_(p.softcap).tanh_()
                slope = 1.0 - s.square() if backward else None
                s.mul_(p.softcap)
            if right is not None:
                s.masked_fill_(key_at > diagonal[part, None] + right, -torch.inf)
            if left is not None:
                s.masked_fill_(key_at < diagonal[part, None] - left, -torch.inf)
            lse = s.logsumexp(-1, keepdim=True)
            prob = s.sub_(lse.masked_fill_(lse == -torch.inf, 0.0)).exp_()  # rows without keys: 0
            o[:, part] = prob @ v
            if not backward:
                continue
            d_v += torch.einsum("gij,gid->jd", prob, d_o[:, part])
            d_s = d_o[:, part] @ v.T
            d_s.sub_((d_s * prob).sum(-1, keepdim=True)).mul_(prob).mul_(scale)
            if slope is not None:
                d_s.mul_(slope)
            d_q[:, part] = d_s @ k
            d_k += torch.einsum("gij,gid->jd", d_s, q[:, part])
        results = {"O": o}
        return results | {"dQ": d_q, "dK": d_k, "dV": d_v} if backward else results

    def refusal(self, outputs: dict[str, torch.Tensor]) -> str:
        """Why these outputs may not be timed; "" when they are right."""
        bound = TOLERANCE[self._problem.dtype]
        for name, got in outputs.items():
            if not bool(torch.isfinite(got).all()):
                return f"{name} has values that are not finite"
            for (b, h), results in self._results.items():
                ours = got[self._at(b, h, keys=name in ("dK", "dV"))]
                want = results[name]
                error = float((ours.double() - want).norm() / want.norm())
                if not error <= bound:
                    return f"{name} of batch {b}, head {h} is off by {error:.2g} of its norm"
        return ""
