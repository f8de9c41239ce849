"""Snapshots of a recurrent model's states: which place holds the state behind which prefix.

A prefix whose keys and values are cached can be reused up to the deepest block with a snapshot. Hashes and places only;
the runner copies states.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain

from fairlead_common.wire.blocks import BlockHash

_LEAST_SPACING = 64
"""Blocks between two snapshots within a prompt, at least."""
_PROMPTS = 8
"""Prompts of the same length whose snapshots have places beside each other."""


class StateSnapshots:
    """Places 0 to `num_places - 1`. A new snapshot takes an empty place, or the place of the snapshot unused for
    longest, first of those that lie at no branch. Up to half of the places are for blocks with a retention hint."""

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self.clear()

    def __iter__(self) -> Iterator[BlockHash]:
        """Hashes of the blocks with a snapshot."""
        return iter(self._place_of)

    def clear(self) -> None:
        self._place_of: OrderedDict[BlockHash, int] = OrderedDict()
        """By last use, the oldest first."""
        self._pending: set[int] = set()
        """Places of snapshots that a step under way makes."""
        self._branches: set[BlockHash] = set()
        """Of the hashes with a place, those behind which prompts were seen to part."""
        self._empty = list(reversed(range(self.num_places)))

    def deepest(self, hashes: list[BlockHash], most: int) -> int:
        """Number of blocks up to the deepest snapshot among the first `most`; 0 = none."""
        return next((number for number in range(most, 0, -1) if hashes[number - 1] in self._place_of), 0)

    def use(self, block_hash: BlockHash) -> int:
        """The place of a snapshot that a sequence begins with."""
        self._place_of.move_to_end(block_hash)
        return self._place_of[block_hash]

    def take(self, is_hinted: Callable[[BlockHash], bool] | None = None) -> tuple[int | None, BlockHash | None]:
        """A place for a state that the next step computes (None = no place is free), and the hash whose snapshot gave
        way (None = no snapshot had to). `name` or `give_back` follow. `is_hinted`: whether a hint keeps a block; None =
        there is no hint."""
        lost = None
        if not self._empty and self._place_of:
            self.drop(lost := self._least_wanted(is_hinted))
        if not self._empty:
            return None, lost
        self._pending.add(place := self._empty.pop())
        return place, lost

    def lift(self, block_hash: BlockHash) -> int | None:
        """Takes a snapshot's place for the state of the same sequence further on; None = there is no snapshot, or
        it stays. `name` or `give_back` follow."""
        if block_hash in self._branches:
            return None
        place = self._place_of.pop(block_hash, None)
        if place is not None:
            self._pending.add(place)
        return place

    def give_back(self, place: int) -> None:
        """What a step has made is not wanted."""
        self._pending.remove(place)
        self._empty.append(place)

    def name(self, block_hash: BlockHash, place: int, *, is_branch: bool = False) -> bool:
        """The place holds the state behind the block with this hash, where perhaps prompts part; False = another place
        does already."""
        if block_hash in self._place_of:
            self.give_back(place)
            return False
        self._pending.remove(place)
        self._place_of[block_hash] = place
        if is_branch:
            self._branches.add(block_hash)
        return True

    def drop(self, block_hash: BlockHash) -> bool:
        """Forgets a snapshot; False = there was none."""
        if block_hash not in self._place_of:
            return False
        self._branches.discard(block_hash)
        self._empty.append(self._place_of.pop(block_hash))
        return True

    def spacing(self, num_blocks: int) -> int:
        """Blocks between two snapshots of a prompt of so many blocks."""
        return max(_LEAST_SPACING, -(-num_blocks * _PROMPTS // max(1, self.num_places)))

    def check(self) -> None:
        places = [*self._place_of.values(), *self._empty, *self._pending]
        assert sorted(places) == list(range(self.num_places)), "a snapshot's place is lost or shared"
        assert self._branches <= self._place_of.keys(), "a branch has no snapshot"

    def _least_wanted(self, is_hinted: Callable[[BlockHash], bool] | None) -> BlockHash:
        """The oldest snapshot: of those without a hint, and of those at branches where they have more than half of the
        places."""
        are_many, wanted = 2 * len(self._branches) > self.num_places, iter(self._place_of)
        if is_hinted is not None:
            hinted = [each for each in self._place_of if is_hinted(each)]
            kept = set(hinted[max(0, len(hinted) - self.num_places // 2) :])
            wanted = iter([each for each in self._place_of if each not in kept] or self._place_of)
        oldest = next(wanted)
        return next((each for each in chain([oldest], wanted) if are_many == (each in self._branches)), oldest)
