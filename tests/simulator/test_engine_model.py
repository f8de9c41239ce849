"""One engine without tensors: its cache, its steps, and its limits and costs by a profile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.routing.predictor import prefill_context, step_seconds
from fairlead.routing.replica import Limits
from fairlead.simulator.counted_blocks import CountedBlocks
from fairlead.simulator.engine_model import EngineModel, ModelSequence
from fairlead_common.wire.blocks import hash_blocks
from fairlead_common.wire.messages import StepCost
from fairlead_common.wire.profiles import BatchWeight
from fairlead_engine_testing import FakeRunner
from fairlead_engine_testing.profiles import profile_of

COST = StepCost(base=0.01, prefill_step=0.002, prefill_token=0.001, prefill_context=1e-6, decode_seq=0.003)


def engine_of(most: int) -> EngineModel:
    weight = BatchWeight(most=most, by_memory=most, request_weight=10)
    return EngineModel.of_profile(profile_of(FakeRunner(), block_size=4, cost=COST, max_batch_weight=weight))


def test_steps_take_what_the_profile_says() -> None:
    engine = engine_of(256)
    engine.add(ModelSequence(num_prompt_tokens=20, max_tokens=3))
    step = engine.begin_step()
    assert step is not None
    prefill = step_seconds(COST, running=0, kv_tokens=0, prefill_tokens=20, prefill_context=prefill_context(0, 20))
    assert step.seconds == pytest.approx(prefill)
    load = engine.load()
    assert (load.step_cost, load.token_budget, load.max_num_seqs, load.kv_blocks_total) == (COST, 32, 8, 64)


@pytest.mark.parametrize(("most", "together"), [(256, 3), (25, 2), (1, 1)])
def test_as_many_run_at_once_as_the_batch_weight_allows(most: int, together: int) -> None:
    engine = engine_of(most)
    for _ in range(3):
        engine.add(ModelSequence(num_prompt_tokens=8, max_tokens=4))
    engine.begin_step()
    assert len(engine.running) == together


def test_steps_taken_together_take_what_they_take_one_by_one_and_are_cut_when_a_request_comes() -> None:
    limits = Limits(max_num_seqs=2, max_num_queued_tokens=100, block_size=4)
    engine = EngineModel(limits, num_blocks=100, token_budget=20, step_cost=COST)
    engine.add(ModelSequence(num_prompt_tokens=4, max_tokens=50))
    engine.begin_step(together_seconds=100.0)
    (sequence,) = engine.end_step().answered
    one = engine.begin_step()
    assert one is not None
    together = engine.begin_step(together_seconds=10.5 * one.seconds)
    assert together is not None
    assert (together.num_steps, together.seconds) == (10, pytest.approx(10 * one.seconds))
    together.cut(2.5 * one.seconds)
    assert (together.num_steps, together.seconds) == (3, pytest.approx(3 * one.seconds))
    engine.end_step()
    assert (sequence.num_generated, engine.num_steps) == (4, 4)
    assert engine.begin_step(together_seconds=1e9) is not None
    assert engine.end_step().finished == [sequence]
    assert (engine.num_requests, engine.begin_step()) == (0, None)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 4)), max_size=40))
def test_changes_add_up_to_what_the_cache_holds(actions: list[tuple[int, int, int]]) -> None:
    """Random prompts that share prefixes come, are computed and go."""
    cache, mirror = CountedBlocks(8, 1), set()
    users: list[tuple[list[bytes], int]] = []
    for kind, family, length in actions:
        hashes = hash_blocks([family // 2, *([family] * (length - 1))], 1)
        matched = cache.match(hashes)
        if kind and length - matched <= cache.num_free - matched:
            cache.share(hashes[:matched])
            cache.take(length - matched)
            for index in range(matched, length):
                cache.publish(hashes[index - 1] if index else None, hashes[index])
            users.append((hashes, 0))
        elif users:
            cache.free(*users.pop(0))
        cache.check()
        changes = cache.take_changes()
        if changes is not None:
            stored, removed = changes
            gone = {bytes.fromhex(each) for each in removed}
            assert gone <= mirror
            mirror = (mirror - gone) | {bytes.fromhex(each) for blocks in stored for each in blocks.hashes}
        assert mirror == cache.hashes
    listed = [bytes.fromhex(each) for blocks in cache.listing() for each in blocks.hashes]
    assert set(listed) == cache.hashes
    assert len(listed) == len(cache.hashes)


def test_the_tail_of_the_chain_used_longest_ago_goes_first() -> None:
    cache = CountedBlocks(4, 1)
    chains = [hash_blocks([first, first], 1) for first in (1, 2)]
    for hashes in chains:
        cache.take(2)
        cache.publish(None, hashes[0])
        cache.publish(hashes[0], hashes[1])
        cache.free(hashes, 0)
    cache.take(1)
    assert cache.hashes == {chains[0][0], *chains[1]}
