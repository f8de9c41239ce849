"""The KV index: which replica holds which blocks, for all replicas at once. As exact as the engines' streams.

One dict maps a block's hash to its holders, as the bits of an int. One walk along a prompt's hashes finds the longest
cached prefix on every replica: `match` costs O(matched blocks + replicas), however many replicas and blocks exist. A
block costs some 100 bytes with up to eight replicas and 140 beyond; replicas have no list of their own. Departed
replicas' bits never take more than twice the room of held blocks, since each change sweeps twice its stored blocks.

`Datastore` feeds the index, routers ask it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from fairlead_common.wire.blocks import BlockHash, state_hash

SWEEP_SLICE = 2048
"""Blocks looked at per applied change for bits of replicas that left: well below a millisecond."""


class SeqGap(Exception):
    """A change is missing: the blocks must be listed again."""


@dataclass(slots=True, eq=False)
class Expectation:
    """Blocks that a replica will compute for a prompt of ours, until settled."""

    uid: str
    hashes: frozenset[BlockHash]
    due: float | None
    """When they should all be there; None where it is not known."""


class KVIndex:
    """Blocks by hash, replicas by uid.

    A replica's bit is its slot. Removing or relisting a replica retires the slot, which hides its bits at once; a sweep
    wipes them out a slice at a time, and then the slot is free. Losing a replica with a million blocks stops nobody.
    """

    def __init__(self, *, sweep_slice: int = SWEEP_SLICE) -> None:
        self._sweep_slice = sweep_slice
        self._blocks: dict[BlockHash, int] = {}
        """Holders of each block: bits of slots, retired ones included."""
        self._expected: dict[BlockHash, int] = {}
        """The same for blocks that are being computed; never with bits of retired slots."""
        self._expected_again: dict[tuple[str, BlockHash], int] = {}
        """How many more expectations there are of a block on a replica, beside the first."""
        self._open: dict[str, dict[Expectation, None]] = {}
        """Unsettled expectations by replica, the oldest first."""
        self._slots: dict[str, int] = {}
        self._uids: list[str | None] = []
        """By slot; None where it is free or retired."""
        self._in_use = 0
        """Bits of slots with a replica."""
        self._retired = 0
        self._seqs: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        """Blocks of each replica whose blocks are known."""
        self._sweeping = 0
        """Retired bits wiped out by the sweep under way."""
        self._sweep: Iterator[BlockHash] = iter(())

    def __len__(self) -> int:
        """Blocks in the index, unswept ones of retired slots included."""
        return len(self._blocks)

    def seq(self, uid: str) -> int | None:
        """The last change that is in the index; None for a replica whose blocks are unknown."""
        return self._seqs.get(uid)

    def num_blocks(self, uid: str) -> int:
        """Blocks of a replica without expected ones."""
        return self._counts.get(uid, 0)

    def hashes(self, uid: str) -> set[BlockHash]:
        """The blocks a replica holds, without expected ones. Looks at every block: for tests."""
        bit = self._bit(uid)
        return {block for block, holders in self._blocks.items() if holders & bit}

    def replace(self, uid: str, seq: int, hashes: Iterable[BlockHash]) -> None:
        """The replica holds exactly `hashes`, as of `seq`. Prompts under way there stay expected."""
        under_way = list(self._open.get(uid, ()))
        self.remove(uid)
        bit = self._take_slot(uid)
        self._counts[uid] = self._store(bit, hashes)
        self._seqs[uid] = seq
        self._sweep_on(2 * self._counts[uid])
        for expectation in under_way:
            self._enter(expectation)

    def apply(self, uid: str, seq: int, stored: Iterable[BlockHash], removed: Iterable[BlockHash]) -> None:
        """The next change: first `removed` goes, then `stored` comes. Raises SeqGap, and changes nothing, if a change
        is missing."""
        last = self._seqs.get(uid)
        if last is None or seq != last + 1:
            raise SeqGap(f"change {seq} of replica {uid} came after {last}")
        bit, blocks, num_removed = self._bit(uid), self._blocks, 0
        for block in removed:
            holders = blocks.get(block, 0)
            if not holders & bit:
                continue
            num_removed += 1
            if holders == bit:
                del blocks[block]
            else:
                blocks[block] = holders ^ bit
        num_stored = self._store(bit, stored)
        self._counts[uid] += num_stored - num_removed
        self._seqs[uid] = seq
        self._sweep_on(2 * num_stored)

    def remove(self, uid: str) -> None:
        """Nothing is known of the replica any more; prompts under way there are expected no longer."""
        for expectation in list(self._open.get(uid, ())):
            self.settle(expectation)
        self._counts.pop(uid, None)
        if self._seqs.pop(uid, None) is not None:
            self._retired |= self._bit(uid)
        self._leave_slot(uid)
        if self._in_use:
            self._sweep_on()
        else:  # nobody holds anything
            self._blocks.clear()
            self._retired = self._sweeping = 0

    def match(self, hashes: Sequence[BlockHash]) -> dict[str, int]:
        """By replica, how many of a prompt's first blocks it holds or is computing; no zeros."""
        blocks, expected, uids = self._blocks, self._expected, self._uids
        matched: dict[str, int] = {}
        holding, num_blocks = self._in_use, 0
        for num_blocks, block in enumerate(hashes):
            holders = blocks.get(block, 0)
            if expected:
                holders |= expected.get(block, 0)
            kept = holding & holders
            if kept == holding:
                continue
            if num_blocks:
                _record(matched, uids, holding ^ kept, num_blocks)
            holding = kept
            if not holding:
                return matched
        if hashes:
            _record(matched, uids, holding, num_blocks + 1)
        return matched

    def match_states(self, hashes: Sequence[BlockHash], matched: Mapping[str, int]) -> dict[str, int]:
        """By replica, the number of `matched` blocks of a prompt up to the last block with a kept or coming state; no
        zeros. For recurrent models."""
        found: dict[str, int] = {}
        ends: dict[int, int] = {}
        for uid, num_blocks in matched.items():
            ends[num_blocks] = ends.get(num_blocks, 0) | self._bit(uid)
        left = 0
        for num_blocks in range(max(ends, default=0), 0, -1):
            left |= ends.get(num_blocks, 0)
            if left:
                name = state_hash(hashes[num_blocks - 1])
                keeping = left & (self._blocks.get(name, 0) | self._expected.get(name, 0))
                _record(found, self._uids, keeping, num_blocks)
                left ^= keeping
        return found

    def num_held(self, uid: str, hashes: Sequence[BlockHash]) -> int:
        """How many of a prompt's first blocks one replica holds, apart from expected blocks."""
        bit, blocks = self._bit(uid), self._blocks
        return next((num for num, block in enumerate(hashes) if not blocks.get(block, 0) & bit), len(hashes))

    def expect(self, uid: str, hashes: Iterable[BlockHash], due: float | None = None) -> Expectation:
        """The replica is going to compute these blocks: they count as cached there until `settle`."""
        expectation = Expectation(uid, frozenset(hashes), due)
        self._enter(expectation)
        return expectation

    def settle(self, expectation: Expectation) -> None:
        """The prefill is over, or will not happen. Settling again, or after the replica was removed, does nothing."""
        expectations = self._open.get(expectation.uid, {})
        if expectation not in expectations:
            return
        del expectations[expectation]
        uid, bit = expectation.uid, self._bit(expectation.uid)
        for block in expectation.hashes:
            more = self._expected_again.pop((uid, block), 0)
            if more > 1:
                self._expected_again[uid, block] = more - 1
            elif not more:
                holders = self._expected[block] & ~bit
                if holders:
                    self._expected[block] = holders
                else:
                    del self._expected[block]
        if not expectations:
            del self._open[uid]
            if uid not in self._seqs:
                self._leave_slot(uid)

    def computing(self, uid: str, block: BlockHash) -> Collection[Expectation]:
        """The unsettled expectations of a block on a replica; none where the replica holds it already."""
        bit = self._bit(uid)
        if not self._expected.get(block, 0) & bit or self._blocks.get(block, 0) & bit:
            return ()
        return [expectation for expectation in self._open.get(uid, ()) if block in expectation.hashes]

    def check(self) -> None:
        """The index's invariants. Looks at every block."""
        users = {uid: slot for slot, uid in enumerate(self._uids) if uid is not None}
        if users != self._slots or self._in_use != sum(1 << slot for slot in users.values()):
            raise AssertionError(f"slots {self._slots} are not those in use: {self._uids}, {self._in_use:b}")
        if self._in_use & self._retired:
            raise AssertionError(f"slots are both in use and retired: {self._in_use:b}, {self._retired:b}")
        if users.keys() != self._seqs.keys() | self._open.keys():
            raise AssertionError(f"replicas with a slot: {users.keys()}; listed: {self._seqs.keys()}")
        if any(not holders or holders & ~(self._in_use | self._retired) for holders in self._blocks.values()):
            raise AssertionError("a block has no holder, or one that no slot belongs to")
        held = {uid: len(self.hashes(uid)) for uid in self._seqs}
        if held != self._counts:
            raise AssertionError(f"replicas hold {held} blocks, not {self._counts}")
        counts = Counter((uid, block) for uid, each in self._open.items() for one in each for block in one.hashes)
        expected: dict[BlockHash, int] = {}
        for uid, block in counts:
            expected[block] = expected.get(block, 0) | self._bit(uid)
        if expected != self._expected:
            raise AssertionError("expected blocks are not those of the open expectations")
        if self._expected_again != {key: count - 1 for key, count in counts.items() if count > 1}:
            raise AssertionError("blocks that are expected more than once are miscounted")

    def _store(self, bit: int, hashes: Iterable[BlockHash]) -> int:
        """The replica of this bit holds these blocks; how many of them it did not."""
        blocks, num_new = self._blocks, 0
        for block in hashes:
            holders = blocks.get(block, 0)
            if not holders & bit:
                blocks[block] = holders | bit
                num_new += 1
        return num_new

    def _bit(self, uid: str) -> int:
        slot = self._slots.get(uid)
        return 0 if slot is None else 1 << slot

    def _take_slot(self, uid: str) -> int:
        """The bit of an unused or swept slot."""
        slot = next(
            (slot for slot, user in enumerate(self._uids) if user is None and not self._retired >> slot & 1), None
        )
        if slot is None:
            slot = len(self._uids)
            self._uids.append(None)
        self._uids[slot] = uid
        self._slots[uid] = slot
        self._in_use |= 1 << slot
        return 1 << slot

    def _leave_slot(self, uid: str) -> None:
        slot = self._slots.pop(uid, None)
        if slot is not None:
            self._uids[slot] = None
            self._in_use ^= 1 << slot

    def _enter(self, expectation: Expectation) -> None:
        uid = expectation.uid
        bit = self._bit(uid) or self._take_slot(uid)
        self._open.setdefault(uid, {})[expectation] = None
        expected = self._expected
        for block in expectation.hashes:
            holders = expected.get(block, 0)
            if holders & bit:
                self._expected_again[uid, block] = self._expected_again.get((uid, block), 0) + 1
            else:
                expected[block] = holders | bit

    def _sweep_on(self, num_blocks: int = 0) -> None:
        """Wipes the bits of retired slots out of the next blocks, at least a slice; begins a sweep where needed."""
        limit = max(num_blocks, self._sweep_slice)
        if not self._sweeping:
            if not self._retired:
                return
            self._sweeping = self._retired
            self._sweep = iter(list(self._blocks))
        blocks, bits = self._blocks, self._sweeping
        num_seen = 0
        for num_seen, block in enumerate(islice(self._sweep, limit), 1):  # noqa: B007  # read after the loop
            holders = blocks.get(block, 0)
            if not holders & bits:
                continue
            if holders & ~bits:
                blocks[block] = holders & ~bits
            else:
                del blocks[block]
        if num_seen < limit:
            self._retired &= ~bits
            self._sweeping = 0
            self._sweep = iter(())


def _record(matched: dict[str, int], uids: Sequence[str | None], bits: int, num_blocks: int) -> None:
    """Notes `num_blocks` for the replica of each bit."""
    while bits:
        bit = bits & -bits
        uid = uids[bit.bit_length() - 1]
        if uid is not None:
            matched[uid] = num_blocks
        bits ^= bit
