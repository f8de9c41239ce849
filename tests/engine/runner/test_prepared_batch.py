"""Batches become flat tensors, and what attention is told of their sequences."""

import torch

from fairlead_engine.kernels.attention.backend import DeviceBatch
from fairlead_engine.runner.prepared_batch import PreparedBatch, prepare
from fairlead_engine.runner.slot_tokens import SlotTokens
from fairlead_engine.runner.step_plan import SentSlots, plan_step
from fairlead_engine.types import SamplingParams
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import ScheduledSequence, Sequence

CPU = torch.device("cpu")


class Recording:
    """An attention backend that only shows what it is asked to prepare for."""

    def prepare(self, batch: DeviceBatch, tables: None) -> DeviceBatch:
        return batch


def make_item(tokens: list[int], table: list[int], start: int, num_tokens: int, slot: int = 0) -> ScheduledSequence:
    sequence = Sequence("r", tokens, len(tokens), SamplingParams(), block_table=table, num_computed_tokens=start)
    sequence.slot = slot
    return ScheduledSequence(sequence, num_tokens)


def prepare_batch(batch: Batch) -> PreparedBatch:
    tokens = SlotTokens(6, 8, CPU)
    plan = plan_step(batch, SentSlots(6), most_scored=2)
    return prepare(plan, Recording(), None, tokens, CPU)


def test_a_batch_is_flattened_in_item_order():
    decode = make_item([5, 6, 7], [4], start=2, num_tokens=1, slot=5)
    prompt = make_item([1, 2, 3, 4, 5, 6], [0, 2], start=0, num_tokens=6, slot=2)
    step, sample_slots, sample_ends = prepare_batch(Batch([decode, prompt]))
    assert step.token_ids.tolist() == [7, 1, 2, 3, 4, 5, 6]
    assert step.positions.tolist() == [2, 0, 1, 2, 3, 4, 5]
    assert step.logit_rows.tolist() == [0, 6]
    told = step.attention
    assert (told.slots.tolist(), told.num_queries.tolist(), told.context_lens.tolist()) == ([5, 2], [1, 6], [3, 6])
    assert told.new_blocks == [(5, 0, [4]), (2, 0, [0, 2])]
    assert (sample_slots.tolist(), sample_ends.tolist()) == ([5, 2], [3, 6])


def test_an_unfinished_chunk_is_not_sampled():
    item = make_item([1, 2, 3], [0], start=0, num_tokens=2)
    step, sample_slots, _ = prepare_batch(Batch([item]))
    assert step.logit_rows.tolist() == sample_slots.tolist() == []
