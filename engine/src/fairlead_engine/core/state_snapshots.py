"""Snapshots of a recurrent model's states: which place holds the state behind which prefix.

A prefix whose keys and values are cached can be reused up to the deepest block with a snapshot. Hashes and places only;
the runner copies states.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import chain

from fairlead_common.wire.blocks import BlockHash

_LEAST_SPACING = 64
"""Blocks between two snapshots within a prompt, at least."""
_PROMPTS = 8
"""Prompts of the same length whose snapshots have places beside each other."""

Chain = tuple[BlockHash, ...]
"""Hashes of all blocks up to one of them, in order."""


class StateSnapshots:
    """Places 0 to `num_places - 1`. A new snapshot takes an empty place, or the place of the snapshot unused for
    longest, first of those that lie at no branch. A block is *usable* where it, or a later block of a prompt, has a
    snapshot; routers are told of usable blocks alone."""

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self.clear()

    def clear(self) -> None:
        self._place_of: OrderedDict[BlockHash, int] = OrderedDict()
        """By last use, the oldest first."""
        self._chains: dict[BlockHash, Chain] = {}
        """Of each hash with a place."""
        self._pending: dict[int, Chain] = {}
        """Places of snapshots that a step under way makes, and the chain whose snapshot was there."""
        self._branches: set[BlockHash] = set()
        """Of the hashes with a place, those behind which prompts were seen to part."""
        self._empty = list(reversed(range(self.num_places)))
        self._num_users: dict[BlockHash, int] = {}
        """Usable hash → number of chains with it."""

    def deepest(self, hashes: list[BlockHash], most: int) -> int:
        """Number of blocks up to the deepest snapshot among the first `most`; 0 = none."""
        return next((number for number in range(most, 0, -1) if hashes[number - 1] in self._place_of), 0)

    def is_usable(self, block_hash: BlockHash) -> bool:
        return block_hash in self._num_users

    def use(self, block_hash: BlockHash) -> int:
        """The place of a snapshot that a sequence begins with."""
        self._place_of.move_to_end(block_hash)
        return self._place_of[block_hash]

    def take(self) -> tuple[int | None, list[BlockHash]]:
        """A place for a state that the next step computes (None = no place is free), and hashes that are not usable any
        more. `name` or `give_back` follow."""
        lost: list[BlockHash] = []
        if not self._empty and self._place_of:
            lost = self.drop(self._least_wanted())
        if not self._empty:
            return None, lost
        place = self._empty.pop()
        self._pending[place] = ()
        return place, lost

    def lift(self, block_hash: BlockHash) -> int | None:
        """Takes a snapshot's place for the state of the same sequence further on; None = there is no snapshot, or
        it stays. Its blocks stay usable. `name` or `give_back` follow."""
        if block_hash in self._branches:
            return None
        place = self._place_of.pop(block_hash, None)
        if place is not None:
            self._pending[place] = self._chains.pop(block_hash)
        return place

    def give_back(self, place: int) -> list[BlockHash]:
        """What a step has made is not wanted; returns hashes that are not usable any more."""
        self._empty.append(place)
        return self._release(self._pending.pop(place))

    def name(
        self, hashes: Sequence[BlockHash], place: int, *, is_branch: bool = False
    ) -> tuple[list[BlockHash], list[BlockHash]]:
        """The place holds the state behind the blocks with these hashes, where perhaps prompts part; returns those that
        become usable, in order, and hashes that are not usable any more."""
        if hashes[-1] in self._place_of:
            return [], self.give_back(place)
        before, users = self._pending.pop(place), self._num_users
        self._place_of[hashes[-1]], self._chains[hashes[-1]] = place, tuple(hashes)
        if is_branch:
            self._branches.add(hashes[-1])
        num_known = len(before) if before and tuple(hashes[len(before) - 1 : len(before)]) == before[-1:] else 0
        new = [each for each in hashes[num_known:] if each not in users]
        for each in hashes[num_known:]:
            users[each] = users.get(each, 0) + 1
        return new, [] if num_known else self._release(before)

    def drop(self, block_hash: BlockHash) -> list[BlockHash]:
        """Forgets a snapshot, if there is one; returns hashes that are not usable any more."""
        if block_hash not in self._place_of:
            return []
        self._branches.discard(block_hash)
        self._empty.append(self._place_of.pop(block_hash))
        return self._release(self._chains.pop(block_hash))

    def spacing(self, num_blocks: int) -> int:
        """Blocks between two snapshots of a prompt of so many blocks."""
        return max(_LEAST_SPACING, -(-num_blocks * _PROMPTS // max(1, self.num_places)))

    def check(self) -> None:
        places = [*self._place_of.values(), *self._empty, *self._pending]
        assert sorted(places) == list(range(self.num_places)), "a snapshot's place is lost or shared"
        assert self._branches <= self._place_of.keys(), "a branch has no snapshot"
        assert self._chains.keys() == self._place_of.keys(), "a snapshot has no chain"
        counted = Counter(chain.from_iterable((*self._chains.values(), *self._pending.values())))
        assert dict(counted) == self._num_users, "usable blocks are counted wrongly"

    def _least_wanted(self) -> BlockHash:
        """The oldest snapshot: of those at branches where they have more than half of the places."""
        are_many, oldest = 2 * len(self._branches) > self.num_places, next(iter(self._place_of))
        return next((each for each in self._place_of if are_many == (each in self._branches)), oldest)

    def _release(self, hashes: Chain) -> list[BlockHash]:
        """Hashes without a user once this chain is none; the deepest first."""
        lost: list[BlockHash] = []
        for each in reversed(hashes):
            self._num_users[each] -= 1
            if not self._num_users[each]:
                del self._num_users[each]
                lost.append(each)
        return lost
