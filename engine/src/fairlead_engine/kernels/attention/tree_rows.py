"""What the rows of a step see where some of them are a tree of guesses: everything before the tree, and in it the nodes
that lead to them.

A tree lies in the cache as it lies in the step, node by node behind the last known token, which is its root. So what a
node sees is a number, before which all tokens are seen, and a bit for each token from there on.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MOST_NODES = 64
"""Of one tree, its root included: a bit for each."""


class TreeRows(NamedTuple):
    """Of all rows of a step, those that are in no tree too."""

    limits: Tensor
    """int64 [rows]: tokens of the context that are seen without exception, from its first one on;"""
    bits: Tensor
    """int64 [rows]: bit j is set where token j behind those is seen, the row's own included. 0 = none is, so that a row
    that is in no tree sees as many as its limit."""


def ancestor_bits(parents: list[int]) -> npt.NDArray[np.int64]:
    """Bits of each node of a tree [nodes], the root first: itself, and those on the way to it. `parents`: of each but
    the root, which node it hangs on; parents come before their children."""
    found = [1]
    for node, parent in enumerate(parents, start=1):
        found.append(found[parent] | 1 << node)
    return np.array(found, np.uint64).view(np.int64)


def visible_tokens(limits: Tensor, bits: Tensor, context: int) -> Tensor:
    """bool [..., context]: which tokens of a context each row sees; `limits` and `bits` int64 [...]."""
    offset = torch.arange(context, device=limits.device) - limits.unsqueeze(-1)
    is_set = (bits.unsqueeze(-1) >> offset.clamp(0, MOST_NODES - 1)) & 1 == 1
    return (offset < 0) | (is_set & (offset < MOST_NODES))


def within_window(visible: Tensor, window: int) -> Tensor:
    """The same without those that are too far back: of what a row sees [..., tokens], the last `window`."""
    return visible & (visible.flip(-1).cumsum(-1).flip(-1) <= window)
