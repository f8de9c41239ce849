"""What every allocator promises, whatever it prefers: each free block once, empty ones first, then the oldest."""

import pytest

from fairlead_engine.kernels.attention.block_allocator import ConsecutiveBlocks, LRUBlocks

ALLOCATORS = [LRUBlocks, ConsecutiveBlocks]


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
