"""Batches become flat tensors, and what attention is told of their sequences."""

import torch

from fairlead_engine.kernels.attention.backend import CacheLayout, DeviceBatch
from fairlead_engine.runner.batch import prepare
from fairlead_engine.types import Batch, SamplingParams, ScheduledSequence, Sequence

LAYOUT = CacheLayout(
    num_layers=1, num_kv_heads=1, head_dim=2, block_size=4, dtype=torch.float32, device=torch.device("cpu")
)


class Recording:
    """An attention backend that only shows what it is asked to prepare for."""

    def prepare(self, batch: DeviceBatch) -> DeviceBatch:
        return batch


def make_item(tokens: list[int], table: list[int], start: int, num_tokens: int) -> ScheduledSequence:
    sequence = Sequence("r", tokens, len(tokens), SamplingParams(), block_table=table, num_computed_tokens=start)
    return ScheduledSequence(sequence, num_tokens)


def test_a_batch_is_flattened_in_item_order():
    decode = make_item([5, 6, 7], [4], start=2, num_tokens=1)
    prompt = make_item([1, 2, 3, 4, 5, 6], [0, 2], start=0, num_tokens=6)
    step = prepare(Batch([decode, prompt]), LAYOUT, Recording())
    assert step.token_ids.tolist() == [7, 1, 2, 3, 4, 5, 6]
    assert step.positions.tolist() == [2, 0, 1, 2, 3, 4, 5]
    assert step.logit_rows.tolist() == [0, 6]
    assert step.attention == DeviceBatch(LAYOUT, [1, 6], [3, 6], [[4], [0, 2]])


def test_an_unfinished_chunk_is_not_sampled():
    step = prepare(Batch([make_item([1, 2, 3], [0], start=0, num_tokens=2)]), LAYOUT, Recording())
    assert step.logit_rows.tolist() == []
