"""Where tables are placed: consecutive ids, reservations, and what is given up for them."""

import random
from itertools import pairwise

import pytest

from fairlead_engine.kernels.attention.block_allocator import ConsecutiveBlocks


def take_run(free: ConsecutiveBlocks, length: int, wanted: int | None = None, last: int | None = None) -> list[int]:
    """A table of `length` blocks that is expected to become `wanted` long."""
    table: list[int] = []
    for index in range(length):
        last = free.take(last, (wanted or length) - index)
        table.append(last)
    return table


def release(free: ConsecutiveBlocks, table: list[int], *, evictable: bool = True) -> None:
    free.end_run(table[-1])
    for block in reversed(table):
        free.release(block, evictable=evictable)


def test_a_table_is_consecutive_when_there_is_room() -> None:
    free = ConsecutiveBlocks(8)
    assert take_run(free, 5) == [0, 1, 2, 3, 4]
    assert len(free) == 3


def test_a_new_run_stays_clear_of_what_another_is_expected_to_need() -> None:
    free = ConsecutiveBlocks(16)
    first = take_run(free, 2, wanted=6)
    assert take_run(free, 2) == [6, 7]
    assert take_run(free, 4, last=first[-1]) == [2, 3, 4, 5]


def test_a_run_goes_on_behind_its_reservation_while_nobody_is_there() -> None:
    free = ConsecutiveBlocks(8)
    table = take_run(free, 2)
    assert free.take(table[-1], 1) == 2


def test_a_released_reservation_is_used_by_others() -> None:
    free = ConsecutiveBlocks(8)
    release(free, take_run(free, 1, wanted=8), evictable=False)
    assert take_run(free, 8) == list(range(8))


def test_a_reservation_yields_from_its_far_end_when_nothing_else_is_left() -> None:
    free = ConsecutiveBlocks(8)
    table = take_run(free, 2, wanted=8)
    assert take_run(free, 3) == [7, 6, 5]
    assert take_run(free, 3, last=table[-1]) == [2, 3, 4]
    assert len(free) == 0


def test_a_run_whose_reserved_block_was_taken_starts_again_elsewhere() -> None:
    free = ConsecutiveBlocks(8)
    table = take_run(free, 1, wanted=4)
    free.reuse(1)
    assert free.take(table[-1], 2) == 2
    assert len(free) == 5


def test_the_stretch_unused_for_longest_is_given_up_first() -> None:
    free = ConsecutiveBlocks(12)
    tables = [take_run(free, 4) for _ in range(3)]
    for index in (1, 0, 2):
        release(free, tables[index])
    assert take_run(free, 4) == tables[1]
    assert take_run(free, 4) == tables[0]


def test_a_recently_used_prefix_is_not_given_up_for_consecutive_ids() -> None:
    free = ConsecutiveBlocks(8)
    old, recent = take_run(free, 6), take_run(free, 2)
    release(free, old)
    release(free, recent)
    assert free.take(old[-1], 8) not in recent


def test_the_tail_of_a_released_table_is_evicted_before_its_head() -> None:
    free = ConsecutiveBlocks(4)
    release(free, take_run(free, 4))
    assert [free.take(None, 1) for _ in range(4)] == [3, 2, 1, 0]


def test_a_reused_block_becomes_the_most_recently_used_again() -> None:
    free = ConsecutiveBlocks(3)
    release(free, take_run(free, 3))
    free.reuse(2)
    free.release(2, evictable=True)
    assert free.take(None, 1) == 1


def test_all_blocks_can_be_taken_however_fragmented_they_are() -> None:
    free = ConsecutiveBlocks(9)
    table = take_run(free, 9)
    for block in table[::2]:
        free.release(block, evictable=False)
    assert sorted(take_run(free, 5)) == table[::2]


@pytest.mark.parametrize("wanted", [9, 100])
def test_wanting_more_than_there_is_takes_the_longest_stretch(wanted: int) -> None:
    free = ConsecutiveBlocks(8)
    table = take_run(free, 8)
    for block in (1, 4, 5, 6):
        free.release(block, evictable=False)
    assert free.take(None, wanted) == 4
    assert table == list(range(8))


def num_runs(table: list[int]) -> int:
    return 1 + sum(block != before + 1 for before, block in pairwise(table))


def test_tables_stay_nearly_consecutive_when_the_cache_is_full_of_old_prefixes() -> None:
    rng = random.Random(0)
    free = ConsecutiveBlocks(1000)
    tables: list[list[int]] = []
    lengths: list[int] = []
    ended: list[int] = []
    while len(ended) < 1000:
        if len(tables) < 20:
            tables.append([])
            lengths.append(rng.randint(10, 30))
        index = rng.randrange(len(tables))
        table = tables[index]
        table.append(free.take(table[-1] if table else None, 30 - len(table)))
        if len(table) == lengths[index]:
            ended.append(num_runs(table))
            release(free, tables.pop(index))
            lengths.pop(index)
    assert sum(ended[-500:]) / 500 < 2.0, "20 blocks in least-recently-used order are 19 runs"
