"""The HTTP process's mirror of the reusable blocks: what it lists, what it can still tell, and what it cannot."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_common.wire.blocks import ROOT, BlockHash, hash_blocks
from fairlead_common.wire.messages import KVBlocks, StreamLine
from fairlead_engine.core.messages import BlocksChanged
from fairlead_engine.host.engine_stream import KVMirror, NotInRing

A, B, C, D = hash_blocks(range(16), 4)
OTHER = hash_blocks([9] * 4, 4)[0]


def stored(*hashes: BlockHash, parent: BlockHash = ROOT) -> BlocksChanged:
    return BlocksChanged([(parent, list(hashes))], [])


def removed(*hashes: BlockHash) -> BlocksChanged:
    return BlocksChanged([], list(hashes))


def listed(blocks: KVBlocks) -> list[BlockHash]:
    """All hashes of a list, after checking that no parent comes behind its child."""
    order = [bytes.fromhex(each) for chain in blocks.blocks for each in chain.hashes]
    for chain in blocks.blocks:
        if chain.parent is not None and bytes.fromhex(chain.parent) in order:
            assert order.index(bytes.fromhex(chain.parent)) < order.index(bytes.fromhex(chain.hashes[0]))
    return order


def followed(start: set[BlockHash], lines: list[bytes]) -> set[BlockHash]:
    """What a follower makes of lines."""
    hashes = set(start)
    for raw in lines:
        line = msgspec.json.decode(raw, type=StreamLine)
        hashes -= {bytes.fromhex(each) for each in line.removed}
        hashes |= {bytes.fromhex(each) for chain in line.stored for each in chain.hashes}
    return hashes


def test_a_line_says_what_changed() -> None:
    mirror = KVMirror(4)
    line = mirror.apply(BlocksChanged([(ROOT, [A, B]), (OTHER, [C])], []))
    assert line.endswith(b"}\n")
    decoded = msgspec.json.decode(line, type=StreamLine)
    assert (decoded.seq, decoded.removed, decoded.load) == (1, [], None)
    assert [(chain.parent, chain.hashes, chain.tier) for chain in decoded.stored] == [
        (None, [A.hex(), B.hex()], "device"),
        (OTHER.hex(), [C.hex()], "device"),
    ]
    assert msgspec.json.decode(mirror.apply(removed(C)), type=StreamLine).removed == [C.hex()]


def test_what_was_never_told_is_not_told_to_be_gone() -> None:
    mirror = KVMirror(4)
    mirror.apply(stored(A))
    assert msgspec.json.decode(mirror.apply(removed(A, B)), type=StreamLine).removed == [A.hex()]


def test_the_list_says_whose_it_is_and_as_of_when() -> None:
    mirror = KVMirror(4)
    assert msgspec.structs.replace(mirror.blocks(), epoch="") == KVBlocks(epoch="", seq=0, block_size=4, blocks=[])
    mirror.apply(stored(A, B))
    mirror.apply(stored(C, parent=B))
    blocks = mirror.blocks()
    assert (blocks.epoch, blocks.seq, blocks.block_size) == (mirror.epoch, 2, 4)
    assert [(chain.parent, chain.hashes) for chain in blocks.blocks] == [(None, [A.hex(), B.hex(), C.hex()])]
    assert KVMirror().epoch != mirror.epoch


def test_a_block_that_goes_and_comes_in_one_step_stays() -> None:
    mirror = KVMirror(4)
    mirror.apply(stored(A))
    mirror.apply(BlocksChanged([(ROOT, [A])], [A]))
    assert mirror.hashes() == {A}


def test_what_was_missed_is_told_from_the_ring_and_nothing_else() -> None:
    mirror = KVMirror(4)
    lines = [mirror.apply(stored(each, parent=parent)) for parent, each in ((ROOT, A), (A, B), (B, C))]
    assert [mirror.since(mirror.epoch, seq) for seq in range(4)] == [lines, lines[1:], lines[2:], []]
    for epoch, seq in (("", 0), ("0" * 32, 3), (mirror.epoch, 4), (mirror.epoch, -1)):
        with pytest.raises(NotInRing):
            mirror.since(epoch, seq)


def test_the_ring_is_bounded_by_bytes() -> None:
    mirror = KVMirror(4, ring_bytes=290)
    lines = [mirror.apply(stored(each)) for each in hash_blocks(range(40), 4)]
    assert len(lines[-1]) * 2 < 290 < len(lines[-1]) * 3
    assert mirror.since(mirror.epoch, 8) == lines[8:]
    with pytest.raises(NotInRing):
        mirror.since(mirror.epoch, 7)
    small = KVMirror(4, ring_bytes=1)
    small.apply(stored(A))
    assert small.since(small.epoch, 1) == []
    with pytest.raises(NotInRing):
        small.since(small.epoch, 0)


tokens = st.lists(st.integers(0, 1), min_size=1, max_size=6)


@settings(deadline=None)
@given(changes=st.lists(st.tuples(st.booleans(), tokens, st.integers(0, 5)), max_size=40), joins=st.integers(0, 40))
def test_whoever_lists_and_watches_has_what_the_mirror_has(
    changes: list[tuple[bool, list[int], int]], joins: int
) -> None:
    """Chains come whole or in part and go from any place; somebody lists in the middle and takes the rest as lines."""
    mirror, known, parents = KVMirror(1), set[BlockHash](), dict[BlockHash, BlockHash]()
    start: tuple[set[BlockHash], int] = (set(), 0)
    for index, (comes, token_ids, number) in enumerate(changes):
        if index == joins:
            start = (set(listed(mirror.blocks())), mirror.seq)
        chain = hash_blocks(token_ids, 1)
        if comes:
            parents.update(zip(chain, [ROOT, *chain], strict=False))
            new = [each for each in chain if each not in known]
            mirror.apply(BlocksChanged([(parents[each], [each]) for each in new], []))
            known.update(new)
        elif known:
            gone = sorted(known)[number % len(known)]
            mirror.apply(removed(gone))
            known.remove(gone)
        assert sorted(listed(mirror.blocks())) == sorted(known)
    assert followed(start[0], mirror.since(mirror.epoch, start[1])) == known == mirror.hashes()
