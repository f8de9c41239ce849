"""A batch of sequences as the tensors of one forward pass. Pure: it reads sequences and changes nothing."""

from typing import Any

import numpy as np
import torch

from fairlead_engine.kernels.attention.backend import AttentionBackend, DeviceBatch
from fairlead_engine.model.layers import ForwardInput
from fairlead_engine.types import Batch


def prepare(batch: Batch, backend: AttentionBackend[Any, Any], tables: Any, device: torch.device) -> ForwardInput:
    """Flattens a batch's tokens in item order; `tables` are the backend's.

    Hidden states are wanted of the rows that choose a token, in item order, then of those that score prompts, then of
    those that go into vectors.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    sample_rows: list[int] = []
    score_rows: list[int] = []
    pool_rows: list[int] = []
    for item in batch.items:
        row, start = len(token_ids), item.start
        if item.num_tokens == 1:
            token_ids.append(item.sequence.token_ids[start])
            positions.append(start)
        else:
            token_ids += item.sequence.token_ids[start : item.end]
            positions += range(start, item.end)
        if item.samples:
            sample_rows.append(row + item.num_tokens - 1)
        if item.reads_prompt:
            score_rows += [row + position - 1 - start for position in item.scores]  # logits tell of the next token
            pool_rows += [row + position - start for position in item.pools]
    per_token = torch.from_numpy(np.array([token_ids, positions])).to(device)
    device_batch = DeviceBatch(
        slots=[item.sequence.slot for item in batch.items],
        num_queries=[item.num_tokens for item in batch.items],
        context_lens=[item.end for item in batch.items],
        block_tables=[item.sequence.block_table for item in batch.items],
    )
    return ForwardInput(
        token_ids=per_token[0],
        positions=per_token[1],
        logit_rows=torch.tensor(sample_rows + score_rows + pool_rows, dtype=torch.int64).to(device),
        backend=backend,
        attention=backend.prepare(device_batch, tables),
    )
