"""Spans follow the block tables, and say where a context is one stretch."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.kernels.attention.backend import CacheLayout, DeviceBatch
from fairlead_engine.kernels.attention.cpu_spans import CPUSpans, SpanMetadata
from fairlead_engine_testing.kv_caches import device_batch


def make_layout(block_size: int, dtype: torch.dtype = torch.float32) -> CacheLayout:
    return CacheLayout(
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        block_size=block_size,
        dtype=dtype,
        device=torch.device("cpu"),
    )


def prepare(layout: CacheLayout, batch: DeviceBatch) -> SpanMetadata:
    backend = CPUSpans()
    return backend.prepare(batch, backend.tables(layout, len(batch.slots), 20))


@settings(deadline=None, max_examples=50)
@given(st.one_of(st.permutations(range(12)), st.just(list(range(3, 15)))), st.integers(1, 9), st.data())
def test_contexts_and_slots_follow_the_block_table(table, block_size, data):
    context = data.draw(st.integers(1, block_size * len(table)))
    start = data.draw(st.integers(0, context - 1))
    step = prepare(make_layout(block_size), device_batch([0], [context - start], [context], [list(table)]))
    expected = [table[i // block_size] * block_size + i % block_size for i in range(context)]
    assert step.slots.tolist() == expected[start:]
    (span,) = step.spans
    assert span.context == context
    assert (span.slots is None) == (expected == list(range(expected[0], expected[0] + context)))
    found = range(span.first_slot, span.first_slot + span.context) if span.slots is None else span.slots.tolist()
    assert list(found) == expected


def test_blocks_beyond_the_tokens_do_not_make_a_table_scattered():
    (span,) = prepare(make_layout(16), device_batch([0], [1], [32], [[7, 8, 2]])).spans
    assert span.slots is None
    assert span.first_slot == 112


def test_only_a_chunk_that_looks_back_needs_a_mask():
    whole, later, single = ([0], 3, 3), ([1], 4, 3), ([2], 4, 1)
    tables, contexts, queries = (list(each) for each in zip(whole, later, single, strict=True))
    spans = prepare(make_layout(4, torch.bfloat16), device_batch([0, 1, 2], queries, contexts, tables)).spans
    assert [span.mask is None for span in spans] == [True, False, True]
    assert spans[1].mask.shape == (3, 4)
    assert spans[1].mask.dtype == torch.bfloat16
