"""Retention hints change the order of eviction and nothing else."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_common.wire.blocks import BlockHash, hash_blocks
from fairlead_engine.core.block_manager import BlockManager
from fairlead_engine.core.state_snapshots import StateSnapshots
from fairlead_engine.types import SamplingParams
from fairlead_engine.types.sequences import Sequence
from fairlead_engine_testing import FakeClock

BLOCK_SIZE = 2
HOUR = 3600.0


def run_through(blocks: BlockManager, tokens: list[int], keep_seconds: float | None = None) -> int:
    """Computes a prompt and frees its blocks; returns the tokens found in the cache."""
    sequence = Sequence("s", list(tokens), len(tokens), SamplingParams(), keep_seconds=keep_seconds)
    blocks.settle()
    matched = blocks.match(sequence)
    blocks.share(sequence, matched)
    blocks.extend(sequence, len(tokens), len(tokens))
    sequence.num_computed_tokens = len(tokens)
    blocks.publish(sequence, len(matched) * BLOCK_SIZE)
    blocks.check([sequence])
    blocks.free(sequence)
    blocks.check([])
    return len(matched) * BLOCK_SIZE


def prompt_of(number: int, num_blocks: int) -> list[int]:
    """A prompt of whole blocks and one more token, which shares no block with other numbers' prompts."""
    return [number] * (BLOCK_SIZE * num_blocks) + [0]


class Reference:
    """The cache as it is documented, by hashes alone, for prompts one after another."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.plain = OrderedDict[BlockHash, None]()
        self.kept = OrderedDict[BlockHash, None]()
        self.ends = OrderedDict[BlockHash, float]()

    def run_through(self, tokens: list[int], seconds: float | None, now: float) -> None:
        for each in [each for each, end in sorted(self.ends.items(), key=lambda item: item[1]) if end <= now]:
            self._unhint(each)
        hashes = hash_blocks(tokens, BLOCK_SIZE)
        held = hashes[: next((i for i, each in enumerate(hashes) if each not in self.plain | self.kept), len(hashes))]
        for each in held:
            self.plain.pop(each, None), self.kept.pop(each, None)
        room = self.num_blocks - len(held) - (len(hashes) - len(held)) - 1  # the last token has a block of its own
        while len(self.plain) + len(self.kept) > room:
            if not self.plain:
                self._unhint(next(iter(self.kept)))
            self.plain.popitem(last=False)
        for each in reversed(hashes):
            self.plain[each] = None
            self.plain.move_to_end(each)
            if seconds is not None and self.ends.get(each, 0.0) < now + seconds:
                self.ends.pop(each, None)
                self.ends[each] = now + seconds
            if each in self.ends:
                self.kept[each] = self.plain.pop(each)
        while len(self.kept) > self.num_blocks // 2:
            self._unhint(next(iter(self.kept)))

    def _unhint(self, each: BlockHash) -> None:
        del self.ends[each]
        if each in self.kept:
            self.plain[each] = self.kept.pop(each)


STEPS = st.lists(
    st.tuples(
        st.integers(1, 3), st.integers(0, 5), st.integers(0, 5), st.sampled_from([None, None, 10.0, 60.0]),
        st.sampled_from([0.0, 5.0, 30.0]),
    ),
    max_size=40,
)  # fmt: skip


@given(steps=STEPS, hints=st.booleans())
def test_what_is_evicted_is_what_is_documented(steps: list[tuple[int, int, int, float | None, float]], hints: bool):
    """Plain least recent use where nobody hints; each prompt shares a head with some, and has its own tail."""
    clock = FakeClock()
    blocks, reference = BlockManager(12, BLOCK_SIZE, now=clock.monotonic), Reference(12)
    for head, num_shared, num_own, seconds, pause in steps:
        tokens = [head] * (BLOCK_SIZE * num_shared) + [head + 3] * (BLOCK_SIZE * num_own) + [0]
        run_through(blocks, tokens, seconds if hints else None)
        if blocks._copies:  # behind a gap in a chain: the reference has one block for a hash
            return
        reference.run_through(tokens, seconds if hints else None, clock.monotonic())
        assert blocks.published() == (reference.plain | reference.kept).keys()
        assert list(blocks.kept.free) == [blocks.block_of[each] for each in reference.kept]
        clock.advance(pause)


@pytest.mark.parametrize(("seconds", "is_kept"), [(None, False), (59.0, False), (61.0, True)])
def test_a_hinted_prompt_outlives_a_flood_until_its_hint_ends(seconds: float | None, is_kept: bool) -> None:
    clock = FakeClock()
    blocks = BlockManager(20, BLOCK_SIZE, now=clock.monotonic)
    run_through(blocks, prompt_of(1, 8), seconds)
    clock.advance(60.0)
    for number in range(10, 40):
        run_through(blocks, prompt_of(number, 6))
    assert run_through(blocks, prompt_of(1, 8)) == (16 if is_kept else 0)


def test_a_hint_outlives_users_without_one() -> None:
    blocks = BlockManager(20, BLOCK_SIZE, now=FakeClock().monotonic)
    run_through(blocks, prompt_of(1, 4), HOUR)
    run_through(blocks, [*prompt_of(1, 4)[:-1], 7, 7, 0])
    for number in range(10, 40):
        run_through(blocks, prompt_of(number, 6))
    assert len(blocks.kept.free) == 4
    assert run_through(blocks, prompt_of(1, 5)) == 8


def test_hints_hold_back_half_of_the_blocks_and_yield_where_nothing_else_is_free() -> None:
    blocks = BlockManager(20, BLOCK_SIZE, now=FakeClock().monotonic)
    for number in range(10):
        run_through(blocks, prompt_of(number, 4), 24 * HOUR)
        assert len(blocks.kept.free) <= 10
    for number in range(10, 40):
        run_through(blocks, prompt_of(number, 4))
    assert run_through(blocks, prompt_of(9, 4)) == 8
    assert run_through(blocks, prompt_of(7, 4)) == 4, "two blocks were left for its head"
    run_through(blocks, prompt_of(50, 19))
    assert len(blocks.published()) == 19


def test_many_hints_for_the_same_blocks_take_no_more_memory() -> None:
    clock = FakeClock()
    blocks = BlockManager(20, BLOCK_SIZE, now=clock.monotonic)
    for _ in range(3000):
        run_through(blocks, prompt_of(1, 4), 24 * HOUR)
        clock.advance(1.0)
    assert len(blocks.kept._ends) < 1100
    clock.advance(24 * HOUR)
    blocks.settle()
    assert not blocks.kept.free and not blocks.kept.hints


def test_snapshots_of_hinted_blocks_give_way_last() -> None:
    """Up to half of the places."""
    states = StateSnapshots(4)
    for name in b"abcd":
        place, _ = states.take()
        assert place is not None
        states.name(bytes([name]), place)
    lost = []
    for name in b"efgh":
        place, left = states.take(lambda each: each in (b"a", b"b", b"c"))
        assert place is not None
        states.name(bytes([name]), place)
        lost.append(left)
    assert lost == [b"a", b"d", b"e", b"f"], "b and c are the newest two with a hint"
