"""Foreign blocks under our names: exact by events, an approximation without."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlead_common.wire.blocks import extra_bytes, hash_blocks
from fairlead_engine.core.messages import BlocksChanged
from fairlead_engine.external.foreign_blocks import ForeignBlocks
from fairlead_engine.external.foreign_engine import BlockEvent, Cleared, EventsInterrupted, Removed, Resumed, Stored
from fairlead_engine.host.engine_stream import KVMirror

SIZE = 2
IDS = (1, 2, 3, 4, 5, 6)
NAMES = hash_blocks(IDS, SIZE)


def stored(*hashes: int, parent: int | None = None, ids: tuple[int, ...] = IDS, **fields) -> Stored:
    return Stored(hashes=hashes, parent=parent, token_ids=ids[: len(hashes) * SIZE], block_size=SIZE, **fields)


@pytest.fixture
def blocks() -> ForeignBlocks:
    made = ForeignBlocks(SIZE, 100)
    made.told([Resumed(True)])
    return made


def test_blocks_get_the_names_that_gateways_compute(blocks: ForeignBlocks) -> None:
    assert blocks.told([stored(7, 8), stored(9, parent=8, ids=IDS[4:])]) == BlocksChanged(
        stored=[(bytes(16), NAMES)], removed=[]
    )
    assert blocks.num_held(NAMES) == 3
    assert blocks.told([Removed(hashes=(9,))]) == BlocksChanged(stored=[], removed=[NAMES[2]])
    assert blocks.num_held(NAMES) == 2
    assert blocks.told([Cleared()]) is not None
    assert blocks.num_held(NAMES) == 0


def test_adapter_and_salt_are_part_of_a_name(blocks: ForeignBlocks) -> None:
    blocks.told([stored(1, 2, 3, adapter="pirate", extra_keys=(("pirate",), ("pirate",), ("pirate",)))])
    assert blocks.num_held(hash_blocks(IDS, SIZE, extra=extra_bytes(adapter="pirate"))) == 3
    blocks.told([stored(4, 5, extra_keys=(("blue",), ())), stored(6, parent=5, ids=IDS[4:])])
    assert blocks.num_held(hash_blocks(IDS, SIZE, extra=extra_bytes(cache_salt="blue"))) == 3
    assert blocks.num_held(NAMES) == 0


def test_a_block_with_an_image_is_found_by_no_prompt(blocks: ForeignBlocks) -> None:
    blocks.told([stored(1, 2, 3, extra_keys=((), (("image", 3),), ()))])
    assert blocks.num_held(NAMES) == 1


def test_a_block_in_two_places_goes_with_the_last(blocks: ForeignBlocks) -> None:
    blocks.told([stored(1, medium="GPU"), stored(1, medium="CPU")])
    assert blocks.told([Removed(hashes=(1,), medium="GPU")]) is None
    assert blocks.told([Removed(hashes=(1,), medium="CPU")]) == BlocksChanged(stored=[], removed=[NAMES[0]])


def test_blocks_without_a_history_have_no_name_and_nor_have_their_children(blocks: ForeignBlocks) -> None:
    assert blocks.told([stored(2, parent=1), stored(3, parent=2)]) is None
    assert blocks.told([Removed(hashes=(2, 3))]) is None


def test_what_was_computed_is_assumed_while_events_are_missed(blocks: ForeignBlocks) -> None:
    assert blocks.computed(NAMES) is None  # events tell
    blocks.told([stored(7), EventsInterrupted()])
    assert blocks.computed(NAMES) == BlocksChanged(stored=[(NAMES[0], NAMES[1:])], removed=[])
    changed = blocks.told([stored(8, parent=7, ids=IDS[2:]), Resumed(True)])
    assert changed == BlocksChanged(stored=[], removed=[NAMES[2]])
    assert blocks.num_held(NAMES) == 2


def test_without_events_the_last_used_prompts_are_assumed_as_many_as_fit() -> None:
    blocks = ForeignBlocks(SIZE, 3)
    others = hash_blocks((9, 9, 8, 8), SIZE)
    blocks.computed(NAMES)
    blocks.computed(others)
    assert blocks.num_held(others) == 2
    assert sum(name in blocks for name in (*NAMES, *others)) == 3


def test_a_server_that_removes_nothing_does_not_fill_the_memory() -> None:
    blocks, number = ForeignBlocks(SIZE, 10), 0
    for number in range(200):
        blocks.told([stored(number, ids=(number, number))])
    assert sum(hash_blocks((each, each), SIZE)[0] in blocks for each in range(200)) <= 50
    assert not blocks.is_exact


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_the_books_agree_with_a_cache_whatever_happens(seed: int) -> None:
    """Chains of a small alphabet come and go at random, events are missed and told again: a follower's mirror holds
    what the books hold, and that is what the cache holds once everything was told."""
    rng, blocks, mirror = random.Random(seed), ForeignBlocks(SIZE, 1000), KVMirror(SIZE)
    cache: dict[tuple[int, ...], int] = {}
    missed: list[BlockEvent] = []
    is_cut = False
    blocks.told([Resumed(True)])
    for serial in range(40):
        event: BlockEvent
        ids = tuple(rng.randrange(3) for _ in range(2 * rng.randrange(1, 5)))
        have = [ids[:end] for end in range(SIZE, len(ids) + 1, SIZE)]
        new = next((index for index, prefix in enumerate(have) if prefix not in cache), len(have))
        if rng.random() < 0.3 and cache:
            gone = rng.choice(list(cache))
            event = Removed(hashes=(cache.pop(gone),))
        elif new < len(have):
            end = next((index for index in range(new, len(have)) if have[index] in cache), len(have))
            hashes = tuple(serial * 10 + index for index in range(new, end))
            parent = cache[have[new - 1]] if new else None
            event = Stored(hashes=hashes, parent=parent, token_ids=ids[new * SIZE : end * SIZE], block_size=SIZE)
            cache |= dict(zip(have[new:end], hashes, strict=True))
        else:
            continue
        if rng.random() < 0.1:
            is_cut = not is_cut
            told = [EventsInterrupted()] if is_cut else [*missed, Resumed(True)]
            missed = missed if is_cut else []
            apply(mirror, blocks.told(told))
        if is_cut:
            missed.append(event)
            apply(mirror, blocks.computed(hash_blocks(ids, SIZE)))
        else:
            apply(mirror, blocks.told([event]))
        for prefix in (*cache, ids):
            name = hash_blocks(prefix, SIZE)[-1]
            assert (name in mirror.hashes()) == (name in blocks)
    if is_cut:
        apply(mirror, blocks.told([*missed, Resumed(True)]))
    assert mirror.hashes() == {hash_blocks(prefix, SIZE)[-1] for prefix in cache}


def apply(mirror: KVMirror, changed: BlocksChanged | None) -> None:
    if changed is not None:
        mirror.apply(changed)


def test_what_was_given_up_is_exact_again_once_it_is_told_from_its_beginning(blocks: ForeignBlocks) -> None:
    blocks.told([stored(7, 8)])
    assert blocks.lost() is None and blocks.is_exact  # the events go on, and tell what becomes of it
    blocks.told([EventsInterrupted()])
    assert blocks.lost() is not None and blocks.num_held(NAMES) == 0
    blocks.told([Resumed(True)])
    assert not blocks.is_exact
    blocks.told([Cleared(), stored(7, 8), Resumed(True)])
    assert blocks.is_exact and blocks.num_held(NAMES) == 2


@pytest.mark.parametrize("is_exact", [True, False])
@example(steps=[(1, [0, 0, 0, 0, 0, 0]), (1, [0, 0, 0, 0, 0, 0]), (1, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0])])
@given(steps=st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(0, 2), min_size=2, max_size=12))))
def test_gateways_are_told_of_no_more_blocks_than_there_are(is_exact: bool, steps: list[tuple[int, list[int]]]) -> None:
    """A server that keeps others elsewhere, or whose removals were missed, knows more."""
    blocks, mirror = ForeignBlocks(SIZE, 4), KVMirror(SIZE)
    blocks.told([Resumed(True)] if is_exact else [EventsInterrupted()])
    for serial, (kind, ids) in enumerate(steps):
        num = len(ids) // SIZE
        if kind:
            told = [stored(*range(100 * serial, 100 * serial + num), ids=tuple(ids))]
            apply(mirror, blocks.told(told))
        else:
            apply(mirror, blocks.computed(hash_blocks(ids, SIZE)))
        assert len(mirror.hashes()) <= 4
        assert all(name in blocks for name in mirror.hashes())
