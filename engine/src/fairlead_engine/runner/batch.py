"""A batch of sequences as the tensors of one forward pass. Pure but for the tables and tokens it brings up to date."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fairlead_engine.kernels.attention.backend import AttentionBackend, DeviceBatch
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.model.layers import ForwardInput
from fairlead_engine.runner.slot_tokens import SlotTokens
from fairlead_engine.types import Batch

Numbers = npt.NDArray[np.int64]


class PreparedBatch(NamedTuple):
    """A batch on the device."""

    forward: ForwardInput
    sample_slots: Tensor
    """int64 [items that sample]: the slot of each,"""
    sample_ends: Tensor
    """and the position that its token will have."""


def prepare(
    batch: Batch, backend: AttentionBackend[Any, Any], tables: Any, tokens: SlotTokens, device: torch.device
) -> PreparedBatch:
    """Flattens a batch's tokens in item order; `tables` are the backend's. All numbers but the backend's go to the
    device in one copy.

    Hidden states are wanted of the rows that choose a token, in item order, then of those that score prompts, then of
    those that go into vectors.
    """
    items = batch.items
    tokens.update(items)
    slots = [item.sequence.slot for item in items]
    num_queries = [item.num_tokens for item in items]
    context_lens = [item.end for item in items]
    per_item = np.array([slots, num_queries, context_lens, [item.samples for item in items]])
    row_ends = per_item[1].cumsum()
    num_rows = int(row_ends[-1])
    if num_rows == len(items):
        row_slots, positions = per_item[0], per_item[2] - 1
    else:
        row_slots = per_item[0].repeat(per_item[1])
        positions = np.arange(num_rows) + (per_item[2] - row_ends).repeat(per_item[1])
    sampling = per_item[3].astype(bool)
    read_rows = _rows_that_read_prompts(batch, row_ends)
    columns = [
        row_slots,
        positions,
        np.concatenate((row_ends[sampling] - 1, read_rows)),
        per_item[0][sampling],
        per_item[2][sampling],
    ]
    numbers = to_device(np.concatenate(columns), device)
    row_slots_on_device, positions_on_device, logit_rows, sample_slots, sample_ends = torch.split(
        numbers, [len(column) for column in columns]
    )
    device_batch = DeviceBatch(
        slots=slots,
        num_queries=num_queries,
        context_lens=context_lens,
        block_tables=[item.block_table for item in items],
    )
    forward = ForwardInput(
        token_ids=tokens.at(row_slots_on_device, positions_on_device),
        positions=positions_on_device,
        logit_rows=logit_rows,
        backend=backend,
        attention=backend.prepare(device_batch, tables),
    )
    return PreparedBatch(forward, sample_slots, sample_ends)


def _rows_that_read_prompts(batch: Batch, row_ends: Numbers) -> Numbers:
    score_rows: list[int] = []
    pool_rows: list[int] = []
    for item, row_end in zip(batch.items, row_ends.tolist(), strict=True):
        if item.reads_prompt:
            offset = row_end - item.end
            score_rows += [offset + position - 1 for position in item.scores]  # logits tell of the next token
            pool_rows += [offset + position for position in item.pools]
    return np.array(score_rows + pool_rows, np.int64)
