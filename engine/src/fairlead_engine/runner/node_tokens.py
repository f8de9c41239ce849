"""The tokens before each guess of a tree, for those whose logits are changed for what they hold.

On the device a slot's row has the guesses in the order of the step. What stands before one of them is its way: that is
written out in a row of its own, for as long as a step's tokens are chosen.
"""

from collections.abc import Sequence as Many

import numpy as np
import torch
from torch import Tensor

from fairlead_engine.kernels.staging import to_device
from fairlead_engine.sequences import ScheduledSequence


def with_ways(items: Many[ScheduledSequence], slot_tokens: Tensor) -> Tensor:
    """`slot_tokens` int32 [slots, columns], and behind them a row for each item whose way needs one, where its
    `token_row` then points; as many columns as the items have tokens, where that is a copy."""
    bent = [item for item in items if item.way and item.way[-1] != len(item.way)]
    if not bent:
        return slot_tokens
    before, places = slot_tokens[:, : max(item.end for item in items)], []
    for index, item in enumerate(bent):
        known = item.end - len(item.way)
        item.token_row = len(slot_tokens) + index
        places += [(index, known + place, item.sequence.slot, known + node - 1) for place, node in enumerate(item.way)]
    slots = to_device(np.array([item.sequence.slot for item in bent]), slot_tokens.device)
    row, column, slot, source = to_device(np.array(places), slot_tokens.device).unbind(1)
    ways = before[slots]
    ways[row, column] = slot_tokens[slot, source]
    return torch.cat((before, ways))
