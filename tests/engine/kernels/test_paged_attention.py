"""Attention over the paged cache against attention written out token by token."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.kernels.paged_attention import AttentionPlan, QuerySpan, causal_mask, paged_attention
from fairlead_engine.kernels.store_kv import store_kv

NUM_SLOTS = 96


def naive(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    """One softmax per token and head, as the definition says."""
    output = torch.empty_like(query)
    group = query.shape[1] // keys.shape[0]
    for span in plan.spans:
        in_place = range(span.first_slot, span.first_slot + span.context)
        slots = list(in_place) if span.slots is None else span.slots.tolist()
        for index in range(span.num_queries):
            visible = slots[: len(slots) - span.num_queries + index + 1]
            for head in range(query.shape[1]):
                scores = keys[head // group, visible] @ query[span.start + index, head] / math.sqrt(query.shape[2])
                output[span.start + index, head] = scores.softmax(0) @ values[head // group, visible]
    return output


def make_span(start: int, num_queries: int, slots: list[int]) -> QuerySpan:
    consecutive = slots == list(range(slots[0], slots[0] + len(slots)))
    needs_mask = 1 < num_queries < len(slots)
    return QuerySpan(
        start=start,
        num_queries=num_queries,
        context=len(slots),
        first_slot=slots[0],
        slots=None if consecutive else torch.tensor(slots),
        mask=causal_mask(num_queries, len(slots), torch.float32, torch.device("cpu")) if needs_mask else None,
    )


@st.composite
def plans(draw) -> AttentionPlan:
    spans, row = [], 0
    for _ in range(draw(st.integers(1, 4))):
        stretch = st.builds(
            lambda first, length: list(range(first, first + length)), st.integers(0, 70), st.integers(1, 20)
        )
        scattered = st.lists(st.integers(0, NUM_SLOTS - 1), min_size=1, max_size=20, unique=True)
        slots = draw(st.one_of(stretch, scattered))
        num_queries = draw(st.integers(1, len(slots)))
        spans.append(make_span(row, num_queries, slots))
        row += num_queries
    return AttentionPlan(tuple(spans))


@settings(deadline=None, max_examples=40)
@given(plans(), st.sampled_from([(4, 4), (4, 2), (6, 1)]), st.integers(0, 1000))
def test_any_plan_equals_the_definition(plan, heads, seed):
    num_heads, num_kv_heads = heads
    torch.manual_seed(seed)
    query = torch.randn(sum(span.num_queries for span in plan.spans), num_heads, 8)
    keys, values = torch.randn(2, num_kv_heads, NUM_SLOTS, 8)
    torch.testing.assert_close(
        paged_attention(query, keys, values, plan), naive(query, keys, values, plan), rtol=1e-4, atol=1e-5
    )


def test_slots_outside_the_context_are_never_read():
    query = torch.ones(3, 2, 4)
    keys, values = torch.full((2, 1, NUM_SLOTS, 4), float("nan"))
    slots = torch.tensor([8, 9, 40, 41])
    store_kv(torch.ones(4, 1, 4), torch.ones(4, 1, 4), keys, values, slots)
    plan = AttentionPlan((make_span(0, 2, [8, 9]), make_span(2, 1, [41, 40])))
    assert torch.equal(paged_attention(query, keys, values, plan), torch.ones(3, 2, 4))


def test_stored_tokens_land_in_their_slots_and_nowhere_else():
    keys, values = torch.zeros(2, 2, NUM_SLOTS, 4)
    key, value = torch.randn(2, 3, 2, 4)
    slots = [70, 3, 4]
    store_kv(key, value, keys, values, torch.tensor(slots))
    for token, slot in enumerate(slots):
        assert torch.equal(keys[:, slot], key[token])
        assert torch.equal(values[:, slot], value[token])
    assert int(keys.abs().sum(dim=(0, 2)).count_nonzero()) == 3


@pytest.mark.parametrize(("num_queries", "context"), [(2, 5), (4, 4), (3, 9)])
def test_the_mask_hides_what_comes_after_a_token(num_queries, context):
    mask = causal_mask(num_queries, context, torch.float32, torch.device("cpu"))
    for query in range(num_queries):
        for position in range(context):
            hidden = position > context - num_queries + query
            assert mask[query, position] == (float("-inf") if hidden else 0.0)
