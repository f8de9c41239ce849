"""A batch of sequences as the tensors of one forward pass. Pure: it reads sequences and changes nothing."""

import torch
from torch import Tensor

from fairlead_engine.kernels.paged_attention import AttentionPlan, QuerySpan, causal_mask
from fairlead_engine.model.layers import ForwardInput
from fairlead_engine.types import Batch, ScheduledSequence


def prepare(batch: Batch, block_size: int, dtype: torch.dtype, device: torch.device) -> ForwardInput:
    """Flattens a batch's tokens in item order; `dtype` is that of the model's activations.

    Logits are wanted of the rows that choose a token, in item order, then of those that score prompts.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    sample_rows: list[int] = []
    score_rows: list[int] = []
    spans: list[QuerySpan] = []
    for item in batch.items:
        row, table = len(token_ids), item.sequence.block_table
        token_ids += item.sequence.token_ids[item.start : item.end]
        positions += range(item.start, item.end)
        slots += [table[i // block_size] * block_size + i % block_size for i in range(item.start, item.end)]
        spans.append(_span(item, row, block_size, dtype, device))
        if item.samples:
            sample_rows.append(row + item.num_tokens - 1)
        score_rows += [row + position - 1 - item.start for position in item.scores]  # logits tell of the next token
    per_token = torch.tensor([token_ids, positions, slots], dtype=torch.int64).to(device)
    return ForwardInput(
        token_ids=per_token[0],
        positions=per_token[1],
        slots=per_token[2],
        logit_rows=torch.tensor(sample_rows + score_rows, dtype=torch.int64).to(device),
        attention=AttentionPlan(tuple(spans)),
    )


def _span(item: ScheduledSequence, row: int, block_size: int, dtype: torch.dtype, device: torch.device) -> QuerySpan:
    """Slots are listed only for a table with gaps; a mask is needed only where a chunk also looks back."""
    table = item.sequence.block_table[: -(-item.end // block_size)]
    scattered = table != list(range(table[0], table[0] + len(table)))
    looks_back = item.num_tokens > 1 and item.start > 0
    return QuerySpan(
        start=row,
        num_queries=item.num_tokens,
        context=item.end,
        first_slot=table[0] * block_size,
        slots=_slots(table, block_size, device)[: item.end] if scattered else None,
        mask=causal_mask(item.num_tokens, item.end, dtype, device) if looks_back else None,
    )


def _slots(table: list[int], block_size: int, device: torch.device) -> Tensor:
    """int64 [blocks x block_size]: every slot of these blocks, in their order."""
    first = torch.tensor(table, dtype=torch.int64).mul_(block_size).unsqueeze(1)
    return (first + torch.arange(block_size)).flatten().to(device)
