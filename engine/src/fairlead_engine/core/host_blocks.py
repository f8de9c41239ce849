"""The second tier of the prefix cache: blocks that left the device and stay in the host's memory.

The block manager keeps evicted blocks here and loads them back for sequences whose prompts begin with them. Hashes,
block ids and places only; the `BlockMover` knows tensors.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from fairlead_common.wire.blocks import BlockHash


class BlockMover(Protocol):
    """Copies whole blocks between the device's cache and the host's places. A runner is one."""

    def save_blocks(self, blocks: list[int], places: list[int]) -> None:
        """Copies blocks to as many places, before later steps overwrite the blocks."""

    def load_blocks(self, places: list[int], blocks: list[int]) -> Callable[[], bool]:
        """Begins to copy places to as many blocks. Steps may read the blocks once the result is True."""


@dataclass(slots=True)
class HostLoad:
    """Blocks on their way from the host to the device."""

    hashes: list[BlockHash | None]
    """Hash of each block; None = it may not be shared any more."""
    blocks: list[int]
    prefix: list[int]
    """Blocks of the device before the loaded ones in the prompt, held until the load is over."""
    places: list[int]
    is_over: Callable[[], bool]

    @property
    def held(self) -> list[int]:
        """All blocks of the device that the load protects from eviction, in the order of the prompt."""
        return [*self.prefix, *self.blocks]


class HostTier:
    """Places 0 to `num_places - 1` of the host's memory. A new block takes an empty place, or the place of the block
    unused for longest; blocks being loaded stay."""

    def __init__(self, num_places: int, mover: BlockMover | None = None) -> None:
        """`mover`: None without places."""
        assert mover is not None or not num_places
        self.num_places = num_places
        self.num_saved = self.num_loaded = 0
        """Blocks copied to the host and back since the start."""
        self._mover = mover
        self.clear()

    def clear(self) -> None:
        self._place_of: OrderedDict[BlockHash, int] = OrderedDict()
        """By last use, the oldest first."""
        self._empty = list(reversed(range(self.num_places)))
        self._unsaved: dict[int, int] = {}
        """Block that each place will hold (`flush`)."""
        self.loads: list[HostLoad] = []

    def __contains__(self, block_hash: object) -> bool:
        return block_hash in self._place_of

    def __iter__(self) -> Iterator[BlockHash]:
        return iter(self._place_of)

    def keep(self, block_hash: BlockHash, block: int) -> BlockHash | None:
        """Takes over an evicted block. Returns the hash that lost its place: another, or the same while all load."""
        if block_hash in self._place_of:
            self._place_of.move_to_end(block_hash)
            return None
        left = None
        if not self._empty:
            loading = {place for load in self.loads for place in load.places}
            left = next((each for each, place in self._place_of.items() if place not in loading), None)
            if left is None:
                return block_hash
            self._empty.append(self._place_of.pop(left))
        place = self._place_of[block_hash] = self._empty.pop()
        self._unsaved[place] = block
        return left

    def drop(self, block_hash: BlockHash) -> bool:
        """Forbids sharing blocks with this hash, even while loading; returns whether the tier had such a block."""
        for load in self.loads:
            load.hashes = [None if each == block_hash else each for each in load.hashes]
        place = self._place_of.pop(block_hash, None)
        if place is None:
            return False
        self._unsaved.pop(place, None)
        if not any(place in load.places for load in self.loads):
            self._empty.append(place)
        return True

    def flush(self) -> None:
        """Copies blocks kept since the last call; before a step overwrites them."""
        if self._unsaved and self._mover is not None:
            self._mover.save_blocks(list(self._unsaved.values()), list(self._unsaved))
            self.num_saved += len(self._unsaved)
            self._unsaved.clear()

    def begin(self, hashes: list[BlockHash], prefix: list[int]) -> HostLoad:
        """Reserves places for a load; fill in its `blocks` before `load`."""
        for block_hash in reversed(hashes):  # the head of a chain is used by more prompts than its tail
            self._place_of.move_to_end(block_hash)
        load = HostLoad([*hashes], [], prefix, [self._place_of[each] for each in hashes], lambda: False)
        self.loads.append(load)
        return load

    def load(self, load: HostLoad) -> None:
        assert self._mover is not None, "nothing is kept that could be loaded"
        self.flush()
        load.is_over = self._mover.load_blocks(load.places, load.blocks)
        self.num_loaded += len(load.blocks)

    def is_loading(self, block_hash: BlockHash) -> bool:
        return any(block_hash in load.hashes for load in self.loads)

    def over(self) -> list[HostLoad]:
        """Loads that are over, each returned once."""
        over = [load for load in self.loads if load.is_over()]
        if over:
            self.loads = [load for load in self.loads if load not in over]
            used = {*self._place_of.values(), *self._empty, *(place for load in self.loads for place in load.places)}
            self._empty += [place for load in over for place in load.places if place not in used]
        return over

    def check(self) -> None:
        loading = {place for load in self.loads for place in load.places}
        kept = [*self._place_of.values(), *self._empty]
        assert len(kept) == len(set(kept)), "two hashes have one place in the host's memory"
        assert {*kept, *loading} == set(range(self.num_places)), "a place in the host's memory is lost"
        assert loading.isdisjoint(self._empty), "a place in the host's memory is empty that is being loaded"
        assert self._unsaved.keys() <= set(self._place_of.values()), "a block is to be saved in no place"
