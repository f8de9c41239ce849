"""Batches become flat tensors whose slots and extents follow the block tables."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.runner.batch import prepare
from fairlead_engine.types import Batch, SamplingParams, ScheduledSequence, Sequence

CPU = torch.device("cpu")


def make_item(tokens: list[int], table: list[int], start: int, num_tokens: int) -> ScheduledSequence:
    sequence = Sequence("r", tokens, len(tokens), SamplingParams(), block_table=table, num_computed_tokens=start)
    return ScheduledSequence(sequence, num_tokens)


@settings(deadline=None, max_examples=100)
@given(st.one_of(st.permutations(range(12)), st.just(list(range(3, 15)))), st.integers(1, 9), st.data())
def test_contexts_and_slots_follow_the_block_table(table, block_size, data):
    num_tokens = data.draw(st.integers(1, block_size * len(table)))
    start = data.draw(st.integers(0, num_tokens - 1))
    item = make_item([0] * num_tokens, list(table), start, num_tokens - start)
    step = prepare(Batch([item]), block_size, torch.float32, CPU)
    expected = [table[i // block_size] * block_size + i % block_size for i in range(num_tokens)]
    assert step.slots.tolist() == expected[start:]
    (span,) = step.attention.spans
    assert span.context == num_tokens
    assert (span.slots is None) == (expected == list(range(expected[0], expected[0] + num_tokens)))
    found = range(span.first_slot, span.first_slot + span.context) if span.slots is None else span.slots.tolist()
    assert list(found) == expected


def test_blocks_beyond_the_tokens_do_not_make_a_table_scattered():
    step = prepare(Batch([make_item([0] * 32, [7, 8, 2], start=31, num_tokens=1)]), 16, torch.float32, CPU)
    (span,) = step.attention.spans
    assert span.slots is None
    assert span.first_slot == 112


def test_a_batch_is_flattened_in_item_order():
    decode = make_item([5, 6, 7], [4], start=2, num_tokens=1)
    prompt = make_item([1, 2, 3, 4, 5, 6], [0, 2], start=0, num_tokens=6)
    step = prepare(Batch([decode, prompt]), 4, torch.float32, CPU)
    assert step.token_ids.tolist() == [7, 1, 2, 3, 4, 5, 6]
    assert step.positions.tolist() == [2, 0, 1, 2, 3, 4, 5]
    assert step.slots.tolist() == [18, 0, 1, 2, 3, 8, 9]
    assert step.logit_rows.tolist() == [0, 6]
    first, second = step.attention.spans
    assert (first.start, first.num_queries, first.context, first.first_slot) == (0, 1, 3, 16)
    assert (second.start, second.num_queries, second.context) == (1, 6, 6)
    assert first.slots is None
    assert second.slots.tolist() == [0, 1, 2, 3, 8, 9]


def test_only_a_chunk_that_looks_back_needs_a_mask():
    whole = make_item([1, 2, 3, 4], [0], start=0, num_tokens=3)
    later = make_item([1, 2, 3, 4], [1], start=1, num_tokens=3)
    single = make_item([1, 2, 3, 4], [2], start=3, num_tokens=1)
    spans = prepare(Batch([whole, later, single]), 4, torch.bfloat16, CPU).attention.spans
    assert [span.mask is None for span in spans] == [True, False, True]
    assert spans[1].mask.shape == (3, 4)
    assert spans[1].mask.dtype == torch.bfloat16


def test_an_unfinished_chunk_is_not_sampled():
    step = prepare(Batch([make_item([1, 2, 3], [0], start=0, num_tokens=2)]), 4, torch.float32, CPU)
    assert step.logit_rows.tolist() == []
