"""tree_mask: the mask of a tree of speculative tokens."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _trace

MOST_NODES = 1024


def _ancestors(parents: Any) -> Any:
    """bool (B, n, n): True if node t is node i or an ancestor of it."""
    given = np.asarray(parents)
    if given.size == 0 and isinstance(parents, list | tuple):
        given = given.astype(np.int64)  # NumPy takes an empty list for floats
    if given.ndim not in (1, 2) or not np.issubdtype(given.dtype, np.integer):
        raise ValueError(
            f"parents is {given.dtype} {given.shape}: expected integers (n,) or (B, n)"
        )
    nodes = given.shape[-1]
    of = given.reshape(math.prod(given.shape[:-1]), nodes)
    batch = len(of)
    if nodes > MOST_NODES:
        raise ValueError(f"parents has {nodes} nodes: expected at most {MOST_NODES}")
    sees = np.zeros((batch, nodes, nodes), bool)
    for i in range(nodes):
        parent = of[:, i]
        if ((parent < -1) | (parent >= i)).any():
            raise ValueError(
                f"parents names {parent.tolist()} for node {i}: expected a node before it, or -1 "
                "for none"
            )
        sees[:, i] = np.where(parent[:, None] < 0, False, sees[np.arange(batch), parent])
        sees[:, i, i] = True
    return sees.reshape(*given.shape, nodes)


def tree_words(parents: Any) -> Any:
    """The words of tree_mask: NumPy int32 (n, W) or (B, n, W), W a power of two, n <= 32 W.

    Bit t % 32 of word t / 32 of row i is 1 if node t is node i or its ancestor. parents are
    integers on the host: (n,), or (B, n) with a tree per sequence. An entry is the parent of
    its node, which must come before it, or -1 for a root. Raises ValueError for a parent that does
    not come before its node, and for more than 1024 nodes.
    """
    sees = _ancestors(parents)
    nodes = sees.shape[-1]
    words = 1
    while 32 * words < nodes:
        words *= 2
    bits = np.zeros((*sees.shape[:-1], 32 * words), np.uint32)
    bits[..., :nodes] = sees
    bits <<= np.arange(32 * words, dtype=np.uint32) % 32
    summed = bits.reshape(*sees.shape[:-1], words, 32).sum(-1, dtype=np.uint32)
    return summed.view(np.int32)


def tree_mask(parents: Any = None, *, words: Any = None, device: Any = None) -> Callable[..., Any]:
    """The mask_mod of a tree of speculative tokens, for attention and prefix_attention.

    The queries of a sequence are the nodes of its tree, parents first. The last keys of the
    sequence belong to them. A node sees all keys before the tree, its ancestors and itself.

    - parents: as for tree_words. device: the device of the words as a torch tensor; None keeps a
      NumPy array.
    - words: instead of parents, int32 (n, W) or (B, n, W) on the device of q, as from tree_words.
      Values may change between calls. n is at least Sq.

    Kernels read the words directly: a tree costs as much as a causal mask. Raises ValueError unless
    exactly one of parents and words is given, and the errors of tree_words.
    """
    if (parents is None) == (words is None):
        raise ValueError("parents and words: expected exactly one of them")
    if words is None:
        words = tree_words(parents)
        if device is not None:
            import torch

            words = torch.as_tensor(words, device=device)
    if not hasattr(words, "shape"):
        raise ValueError(f"words is of type {type(words).__name__}: expected a tensor or an array")
    shape = tuple(words.shape)
    rank = len(shape)
    width = int(shape[-1]) if rank in (2, 3) else 0
    if width & (width - 1) or not 1 <= width <= MOST_NODES // 32:
        raise ValueError(
            f"words has shape {shape}: expected (n, W) or (B, n, W), W a power "
            f"of two up to {MOST_NODES // 32}"
        )

    def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        side = sys.modules.get("tilewise._torch")
        if side is not None and side.is_dynamo_compiling():  # which traces tensors alone
            table: Any = side.as_tensor(words)
            keys, queries = side.leaf(table, "key_length"), side.leaf(table, "query_length")
        else:
            table = _trace.Captured(words)
            keys, queries = _trace.LEAVES["key_length"], _trace.LEAVES["query_length"]
        # NOTE: expression/tree.h knows this very formula again.
        before = keys - queries
        node = j - before
        word = (node >> 5) & (width - 1)
        bits = table[b, i, word] if rank == 3 else table[i, word]
        shown = ((bits >> (node & 31)) & 1) == 1
        return (j <= i + before) & ((node < 0) | shown)

    return mask_mod
