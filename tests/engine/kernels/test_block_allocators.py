"""What every allocator promises, whatever it prefers: each free block once, empty ones first, then the oldest."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.kernels.attention.block_allocator import BlockAllocator, LRUBlocks
from fairlead_engine.kernels.attention.consecutive_blocks import ConsecutiveBlocks

ALLOCATORS = [LRUBlocks, ConsecutiveBlocks]


@pytest.mark.parametrize("make", ALLOCATORS)
@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["take", "grow", "free", "keep", "reuse", "empty"]), st.integers(0, 50))))
def test_every_block_is_in_exactly_one_state(make, actions):
    blocks: BlockAllocator = make(9)
    tables: list[list[int]] = []
    evictable: list[int] = []
    for action, number in actions:
        table = tables[number % len(tables)] if tables else None
        if action in ("take", "grow") and len(blocks):
            grown = table if action == "grow" and table else []
            block = blocks.take(grown[-1] if grown else None, 1 + number % 4)
            assert block not in {each for held in tables for each in held}, "a block in use was given away"
            if block in evictable:
                evictable.remove(block)
            if not grown:
                tables.append(grown)
            grown.append(block)
        elif action in ("free", "keep") and table:
            tables.remove(table)
            blocks.end_run(table[-1])
            for block in reversed(table):
                blocks.release(block, evictable=action == "keep")
                evictable += [block] * (action == "keep")
        elif action == "reuse" and evictable:
            block = evictable.pop(number % len(evictable))
            blocks.reuse(block)
            tables.append([block])
        elif action == "empty" and evictable:
            blocks.empty(evictable.pop(number % len(evictable)))
        in_use = {each for held in tables for each in held}
        blocks.check(in_use, set(evictable))
        assert len(blocks) == 9 - len(in_use)


@pytest.mark.parametrize("make", ALLOCATORS)
def test_prefixes_are_evicted_only_for_want_of_empty_blocks(make):
    blocks = make(4)
    held = [blocks.take(None, 1) for _ in range(3)]
    for block in held:
        blocks.release(block, evictable=True)
    assert blocks.take(None, 1) not in held
    assert blocks.take(None, 1) == held[0]


def test_plain_blocks_are_evicted_by_when_they_were_last_used():
    blocks = LRUBlocks(4)
    table = [blocks.take(None, 1) for _ in range(4)]
    for block in (2, 0, 3, 1):
        blocks.release(block, evictable=True)
    blocks.reuse(0)
    blocks.release(0, evictable=True)
    assert [blocks.take(None, 1) for _ in range(4)] == [2, 3, 1, 0]
    assert sorted(table) == [0, 1, 2, 3]


@pytest.mark.parametrize("make", ALLOCATORS)
def test_check_notices_a_leaked_block_and_one_in_two_states(make):
    blocks = make(4)
    blocks.release(blocks.take(None, 1), evictable=True)
    last = blocks.take(None, 1)
    blocks.check(in_use={last}, evictable={0})
    with pytest.raises(AssertionError):
        blocks.check(in_use=set(), evictable={0})
    with pytest.raises(AssertionError):
        blocks.check(in_use={last, 0}, evictable={0})
    with pytest.raises(AssertionError):
        blocks.check(in_use={last}, evictable=set())
