"""What attention is told of a step, written as lists."""

import numpy as np
import torch

from fairlead_engine.kernels.attention.backend import DeviceBatch, NewBlocks


def device_batch(
    slots: list[int],
    num_queries: list[int],
    context_lens: list[int],
    block_tables: list[list[int]],
    num_known: list[int] | None = None,
    device: torch.device | None = None,
) -> DeviceBatch:
    """`num_known`: how many blocks of each table earlier steps have told of; None = these are their first."""
    known = num_known or [0] * len(slots)
    tables = zip(slots, block_tables, known, strict=True)
    new_blocks = [NewBlocks(slot, first, table[first:]) for slot, table, first in tables if first < len(table)]
    shares = list(zip(slots, num_queries, context_lens, strict=True))
    row_slots = torch.tensor([slot for slot, queries, _ in shares for _ in range(queries)], device=device)
    positions = torch.tensor([row for _, queries, end in shares for row in range(end - queries, end)], device=device)
    numbers = (np.array(slots), np.array(num_queries), np.array(context_lens))
    return DeviceBatch(*numbers, row_slots, positions, new_blocks)
