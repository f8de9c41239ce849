"""What attention is told of a step, written as lists."""

import numpy as np

from fairlead_engine.kernels.attention.backend import DeviceBatch, NewBlocks


def device_batch(
    slots: list[int],
    num_queries: list[int],
    context_lens: list[int],
    block_tables: list[list[int]],
    num_known: list[int] | None = None,
) -> DeviceBatch:
    """`num_known`: how many blocks of each table earlier steps have told of; None = these are their first."""
    known = num_known or [0] * len(slots)
    tables = zip(slots, block_tables, known, strict=True)
    new_blocks = [NewBlocks(slot, first, table[first:]) for slot, table, first in tables if first < len(table)]
    return DeviceBatch(np.array(slots), np.array(num_queries), np.array(context_lens), new_blocks)
