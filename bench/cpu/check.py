"""What bench/cpu times is right: compared with float64 before it is measured."""

import math

import capi
import numpy as np

from cases import Case

# Relative to the largest element of a result; conformance's bounds are tighter and per element.
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}


def attention(case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """P of a group of heads (B, Hk, G, Sq, Sk) in float64."""
    scores = np.einsum("bhgqd,bhkd->bhgqk", q, k) / math.sqrt(case.dim)
    if case.causal:
        hidden = np.triu(np.ones((case.seq_q, case.seq_k), bool), 1 + case.seq_k - case.seq_q)
        scores[..., hidden] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def reference(case: Case, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """O, or dQ, dK and dV, of inputs q, k, v, dO of one batch entry."""
    grouped = (1, case.kv_heads, case.heads // case.kv_heads, case.seq_q, case.dim)
    q, k, v, d_o = (x.astype(np.float64) for x in inputs)
    q, d_o = q.reshape(grouped), d_o.reshape(grouped)
    p = attention(case, q, k, v)
    o = np.einsum("bhgqk,bhkd->bhgqd", p, v)
    if case.direction == "fwd":
        return [o.reshape(inputs[0].shape)]
    d_p = np.einsum("bhgqd,bhkd->bhgqk", d_o, v)
    d_s = p * (d_p - (o * d_o).sum(-1, keepdims=True)) / math.sqrt(case.dim)
    d_q = np.einsum("bhgqk,bhkd->bhgqd", d_s, k).reshape(inputs[0].shape)
    return [
        d_q,
        np.einsum("bhgqk,bhgqd->bhkd", d_s, q),
        np.einsum("bhgqk,bhgqd->bhkd", p, d_o),
    ]


def compare(case: Case, stored: list[np.ndarray], results: list[np.ndarray]) -> None:
    """Raises where the first or the last batch entry is off; other entries must be finite."""
    for result in results:
        if not np.isfinite(result).all():
            raise ArithmeticError(f"{case.label}: a result is not finite")
    for entry in {0, case.batch - 1} if case.seq_q * case.seq_k <= 2**20 else ():
        one = slice(entry, entry + 1)
        inputs = [capi.from_storage(x[one], case.dtype) for x in stored]
        wanted = reference(case, inputs)
        for found, right in zip(results, wanted, strict=True):
            error = float(np.abs(found[one] - right).max() / np.abs(right).max())
            if error > TOLERANCE[case.dtype]:
                raise ArithmeticError(f"{case.label}: {error:.2g} from float64")
