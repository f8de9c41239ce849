"""The block manager: prefix cache, reference counts, events; and that no sequence of calls breaks them."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairlead_common.wire.blocks import ROOT, BlockHash, extra_bytes, hash_blocks
from fairlead_engine.core.block_manager import BlockManager
from fairlead_engine.kernels.attention.block_allocator import BlockAllocator, ConsecutiveBlocks, LRUBlocks
from fairlead_engine.types import SamplingParams
from fairlead_engine.types.sequences import Sequence
from fairlead_engine_testing import FakeClock

BLOCK_SIZE = 2


class RecordingListener:
    """Mirrors the cache from its events, as a follower over the network would."""

    def __init__(self) -> None:
        self.hashes: set[BlockHash] = set()
        self.stored_calls: list[tuple[BlockHash, list[BlockHash]]] = []

    def stored(self, parent: BlockHash, hashes: list[BlockHash]) -> None:
        assert self.hashes.isdisjoint(hashes), "stored twice"
        self.hashes.update(hashes)
        self.stored_calls.append((parent, hashes))

    def removed(self, block_hash: BlockHash) -> None:
        self.hashes.remove(block_hash)


def make_sequence(tokens: list[int], request_id: str = "s", salt: str | None = None) -> Sequence:
    return Sequence(
        request_id=request_id,
        token_ids=list(tokens),
        num_prompt_tokens=len(tokens),
        sampling=SamplingParams(),
        extra=extra_bytes(cache_salt=salt),
    )


def admit(blocks: BlockManager, sequence: Sequence) -> list[int]:
    """Shares the cached prefix and allocates the rest; returns what was shared."""
    matched = blocks.match(sequence)
    blocks.share(sequence, matched)
    sequence.num_computed_tokens = len(matched) * blocks.block_size
    blocks.extend(sequence, sequence.num_tokens, sequence.num_tokens)
    return matched


def compute(blocks: BlockManager, sequence: Sequence) -> None:
    """Pretends that all its tokens were computed."""
    start, sequence.num_computed_tokens = sequence.num_computed_tokens, sequence.num_tokens
    blocks.publish(sequence, start)


def run_through(blocks: BlockManager, tokens: list[int], salt: str | None = None) -> list[int]:
    """Admits, computes and frees a sequence; returns what it shared."""
    sequence = make_sequence(tokens, salt=salt)
    matched = admit(blocks, sequence)
    compute(blocks, sequence)
    blocks.free(sequence)
    blocks.check([])
    return matched


def test_a_prefix_is_found_once_it_is_computed() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    first, second = make_sequence([1, 2, 3, 4, 5], "a"), make_sequence([1, 2, 3, 4, 9], "b")
    admit(blocks, first)
    assert blocks.match(second) == []
    compute(blocks, first)
    assert blocks.match(second) == first.block_table[:2]


def test_the_last_token_of_a_prompt_never_comes_from_the_cache() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    run_through(blocks, [1, 2, 3, 4])
    assert len(blocks.match(make_sequence([1, 2, 3, 4]))) == 1
    assert len(blocks.match(make_sequence([1, 2, 3, 4, 5]))) == 2


def test_a_prefix_survives_its_sequence_and_is_shared_by_reference() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    run_through(blocks, [1, 2, 3, 4, 5])
    first, second = make_sequence([1, 2, 3, 4, 5], "a"), make_sequence([1, 2, 3, 4, 6], "b")
    assert admit(blocks, first) == admit(blocks, second)
    blocks.check([first, second])
    blocks.free(first)
    blocks.check([second])
    assert blocks.num_free == 5


def test_other_salts_never_share() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    run_through(blocks, [1, 2, 3], salt="a")
    assert run_through(blocks, [1, 2, 3], salt="b") == []
    assert run_through(blocks, [1, 2, 3]) == []
    assert len(run_through(blocks, [1, 2, 3], salt="a")) == 1


def test_a_hash_is_removed_only_with_its_last_block() -> None:
    listener = RecordingListener()
    blocks = BlockManager(4, BLOCK_SIZE, listener=listener)
    twins = [make_sequence([1, 2], name) for name in "ab"]
    for twin in twins:
        admit(blocks, twin)
    for twin in twins:
        compute(blocks, twin)
        blocks.free(twin)
    other = make_sequence([7] * 6)
    admit(blocks, other)
    assert len(listener.hashes) == 1
    blocks.extend(other, 8, 8)
    assert not listener.hashes


def test_stored_events_name_parent_and_chain() -> None:
    listener = RecordingListener()
    blocks = BlockManager(8, BLOCK_SIZE, listener=listener)
    run_through(blocks, [1, 2, 3, 4])
    run_through(blocks, [1, 2, 3, 4, 5, 6])
    hashes = hash_blocks([1, 2, 3, 4, 5, 6], BLOCK_SIZE)
    assert listener.stored_calls == [(ROOT, hashes[:2]), (hashes[1], hashes[2:])]


def test_nothing_is_cached_when_caching_is_off() -> None:
    listener = RecordingListener()
    blocks = BlockManager(8, BLOCK_SIZE, enable_prefix_caching=False, listener=listener)
    run_through(blocks, [1, 2, 3, 4])
    assert run_through(blocks, [1, 2, 3, 4]) == []
    assert not listener.stored_calls


def test_the_head_of_a_chain_outlives_its_tail() -> None:
    blocks = BlockManager(6, BLOCK_SIZE)
    run_through(blocks, [1, 2, 3, 4, 5, 6, 7, 8])
    other = make_sequence([9] * 8)
    admit(blocks, other)  # takes the two empty blocks and two cached ones
    assert len(blocks.match(make_sequence([1, 2, 3, 4, 5, 6, 7, 8]))) == 2


def test_a_matched_block_that_nobody_uses_counts_as_needed() -> None:
    blocks = BlockManager(4, BLOCK_SIZE)
    run_through(blocks, [1, 2, 3, 4])
    sequence = make_sequence([1, 2, 3, 4, 5])
    assert blocks.num_needed(sequence, blocks.match(sequence)) == 3
    user = make_sequence([1, 2, 3], "user")
    admit(blocks, user)
    assert blocks.num_needed(sequence, blocks.match(sequence)) == 2


def test_among_equal_blocks_the_one_that_follows_is_matched() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    twins = [make_sequence([1, 2, 3, 4], name) for name in "ab"]
    for twin in twins:
        admit(blocks, twin)
    blocks.publish(twins[1], 0)
    twins[0].num_computed_tokens = 2
    blocks.publish(twins[0], 0)
    twins[1].num_computed_tokens = 4
    blocks.publish(twins[1], 0)
    compute(blocks, twins[0])
    matched = blocks.match(make_sequence([1, 2, 3, 4, 5]))
    assert matched == twins[0].block_table


def test_check_notices_a_wrong_reference_count() -> None:
    blocks = BlockManager(4, BLOCK_SIZE)
    sequence = make_sequence([1, 2])
    admit(blocks, sequence)
    with pytest.raises(AssertionError, match="reference counts"):
        blocks.check([])


class BlockManagerMachine(RuleBasedStateMachine):
    """Any order of calls a scheduler could make, on tokens so few that prefixes collide all the time."""

    allocator: Callable[[int], BlockAllocator] = LRUBlocks

    def __init__(self) -> None:
        super().__init__()
        self.listener = RecordingListener()
        self.clock = FakeClock()
        self.blocks = BlockManager(
            7, BLOCK_SIZE, listener=self.listener, make_allocator=type(self).allocator, now=self.clock.monotonic
        )
        self.sequences: list[Sequence] = []
        # What a cache in memory would hold: for each block the tokens up to its end.
        self.contents: dict[int, tuple[int, ...]] = {}

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def admit(self, tokens: list[int]) -> None:
        sequence = make_sequence(tokens)
        matched = self.blocks.match(sequence)
        for index, block in enumerate(matched):
            assert self.contents[block] == tuple(tokens[: (index + 1) * BLOCK_SIZE])
        if self.blocks.num_needed(sequence, matched) <= self.blocks.num_free:
            assert admit(self.blocks, sequence) == matched
            assert len(sequence.block_table) == self.blocks.num_blocks_for(len(tokens))
            self.sequences.append(sequence)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        start = sequence.num_computed_tokens
        end = data.draw(st.integers(start, sequence.num_tokens))
        for index in range(start // BLOCK_SIZE, self.blocks.num_blocks_for(end)):
            block = sequence.block_table[index]
            assert sum(block in other.block_table for other in self.sequences) == 1, "a shared block is written"
            self.contents[block] = tuple(sequence.token_ids[: (index + 1) * BLOCK_SIZE])
        sequence.num_computed_tokens = end
        self.blocks.publish(sequence, start)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), token=st.integers(0, 1), expected=st.integers(0, 30))
    def grow(self, data: st.DataObject, token: int, expected: int) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        if self.blocks.can_extend(sequence, sequence.num_tokens + 1):
            before = list(sequence.block_table)
            sequence.token_ids.append(token)
            self.blocks.extend(sequence, sequence.num_tokens, expected)
            assert sequence.block_table[: len(before)] == before

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), keep_seconds=st.sampled_from([None, 1.0, 60.0]))
    def free(self, data: st.DataObject, keep_seconds: float | None) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        self.sequences.remove(sequence)
        sequence.keep_seconds = keep_seconds
        self.blocks.free(sequence)
        assert not sequence.block_table

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        self.blocks.retract(sequence)
        assert not any(map(self.blocks.holds, sequence.block_hashes))  # those of tokens not yet looked up are missing

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def retract_what_nobody_uses(self, tokens: list[int]) -> None:
        sequence = make_sequence(tokens)
        self.blocks.match(sequence)
        self.blocks.retract(sequence)

    @rule(seconds=st.sampled_from([0.5, 1.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.blocks.settle()

    @invariant()
    def holds_together(self) -> None:
        self.blocks.check(self.sequences)
        assert self.listener.hashes == self.blocks.published()


class ConsecutiveBlocksMachine(BlockManagerMachine):
    allocator = ConsecutiveBlocks


BlockManagerMachine.TestCase.settings = settings(deadline=None, max_examples=40, stateful_step_count=40)
ConsecutiveBlocksMachine.TestCase.settings = BlockManagerMachine.TestCase.settings
TestBlockManagerMachine = BlockManagerMachine.TestCase
TestConsecutiveBlocksMachine = ConsecutiveBlocksMachine.TestCase
