"""Chooses a table's next free block: least recently used, or consecutive ids where they cost little.

The block manager owns one allocator, made by the attention backend. An allocator knows when blocks were freed and which
sequence grows where, but no contents of blocks.
"""

from collections import OrderedDict
from typing import Protocol

import numpy as np
import numpy.typing as npt


class BlockAllocator(Protocol):
    """Blocks 0 to `num_blocks - 1`: in use, *empty* (free, holding nothing) or *evictable* (free, holding a prefix)."""

    num_blocks: int

    def __len__(self) -> int:
        """How many are free."""

    def take(self, last: int | None, wanted: int) -> int:
        """Takes a free block; at least one must be free. Hints: block `last` precedes the new block in its table, and
        the sequence is expected to need `wanted` blocks from here on, the new one included."""

    def reuse(self, block: int) -> None:
        """Takes this very block, which is free."""

    def release(self, block: int, *, evictable: bool) -> None:
        """Frees a block in use. Evictable blocks are evicted in the order of their release."""

    def empty(self, block: int) -> None:
        """Empties an evictable block, which lost its published prefix."""

    def end_run(self, last: int) -> None:
        """The table that ends in block `last` will not grow any more."""

    def check(self, in_use: set[int], evictable: set[int]) -> None:
        """Raises AssertionError unless the blocks have these states and every other block is empty."""


class LRUBlocks:
    """Empty blocks first, then the least recently used; ids do not matter."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._empty = OrderedDict.fromkeys(range(num_blocks))
        self._evictable: OrderedDict[int, None] = OrderedDict()  # the least recently used first

    def __len__(self) -> int:
        return len(self._empty) + len(self._evictable)

    def take(self, last: int | None, wanted: int) -> int:
        return (self._empty or self._evictable).popitem(last=False)[0]

    def reuse(self, block: int) -> None:
        del (self._evictable if block in self._evictable else self._empty)[block]

    def release(self, block: int, *, evictable: bool) -> None:
        (self._evictable if evictable else self._empty)[block] = None

    def empty(self, block: int) -> None:
        del self._evictable[block]
        self._empty[block] = None

    def end_run(self, last: int) -> None:
        """Nothing was kept for it."""

    def check(self, in_use: set[int], evictable: set[int]) -> None:
        assert self._evictable.keys() == evictable, "a block is evictable and should not be, or the other way round"
        assert in_use.isdisjoint(self._empty), "a block in use is empty"
        assert in_use.isdisjoint(evictable), "a block in use is evictable"
        assert evictable.isdisjoint(self._empty), "an evictable block is empty"
        assert len(in_use) + len(self) == self.num_blocks, "a block is leaked"


_TAKEN = 1 << 40
"""Added to a block's state while it cannot be chosen; above every number of frees."""
_RECENT_SHARE = 0.25
"""The most recent part of the evictable blocks' time span that is kept from eviction for consecutive ids.

Simulated: 32 sequences of some 25 blocks in 1,500 blocks have tables of 1.0 runs with a share of 0, 2.4 with 0.25, 5.9
with 0.5, and 17 in plain least-recently-used order; conversations that return later, in 16,000 blocks, find 73, 79, 81
and 81 % of their prompts cached.
"""


class ConsecutiveBlocks:
    """Least recently used first, in stretches.

    On a CPU a table of consecutive ids is a view of the cache, read by attention without a gather. Ids are therefore
    chosen in runs:

    1. A new run begins at a stretch of as many blocks as its sequence is expected to need: all empty or evictable and
    not recently used; of several stretches, the one unused for longest in sum. Without such a stretch, at the longest
    shorter one.

    2. The rest of the stretch is *reserved*: its blocks stay free, and their contents reusable, but new runs begin
    elsewhere. A run goes on into its own reservation, and behind it over blocks that a new run might use.

    3. When nothing else is left, a reservation yields from its far end.

    Going on costs dictionary operations. A new run costs a few passes over one array of `num_blocks` integers: 10 µs
    for 1,500 blocks, 25 µs for 16,000, 0.3 ms for 45,000.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # Per block: 0 = empty, n = evictable since the n-th free, _TAKEN = in use; plus _TAKEN while reserved.
        self._state: npt.NDArray[np.int64] = np.zeros(num_blocks, np.int64)
        self._evictable: OrderedDict[int, int] = OrderedDict()  # block → n, the least recently used first
        self._num_empty = num_blocks
        self._num_frees = 0
        self._reserved_end: dict[int, int] = {}  # last block of a growing run → end of what is reserved behind it

    def __len__(self) -> int:
        return self._num_empty + len(self._evictable)

    def take(self, last: int | None, wanted: int) -> int:
        """Takes a free block, behind block `last` if possible; there must be one."""
        block = -1 if last is None else last + 1
        end = None if last is None else self._reserved_end.pop(last, None)
        if end is not None and self._state[block] >= 2 * _TAKEN:  # reserved, but in use by somebody else
            self._state[block:end] -= _TAKEN
            end = None
        if end is not None:
            self._state[block] -= _TAKEN
        elif last is None or block >= self.num_blocks or self._state[block] > self._newest_to_give_up():
            block, end = self._new_run(wanted)
            self._state[block + 1 : end] += _TAKEN
        if end is not None and block + 1 < end:
            self._reserved_end[block] = end
        self.reuse(block)
        return block

    def reuse(self, block: int) -> None:
        freed = self._evictable.pop(block, None)
        if freed is None:
            freed = 0
            self._num_empty -= 1
        self._state[block] += _TAKEN - freed

    def release(self, block: int, *, evictable: bool) -> None:
        self._state[block] -= _TAKEN
        if not evictable:
            self._num_empty += 1
            return
        self._num_frees += 1
        self._evictable[block] = self._num_frees
        self._state[block] += self._num_frees

    def empty(self, block: int) -> None:
        self._state[block] -= self._evictable.pop(block)
        self._num_empty += 1

    def end_run(self, last: int) -> None:
        """Gives up the reservation behind block `last`, as its sequence leaves."""
        end = self._reserved_end.pop(last, None)
        if end is not None:
            self._state[last + 1 : end] -= _TAKEN

    def check(self, in_use: set[int], evictable: set[int]) -> None:
        expected = np.zeros(self.num_blocks, np.int64)
        for last, end in self._reserved_end.items():
            expected[last + 1 : end] += _TAKEN
        assert (expected <= _TAKEN).all(), "reservations overlap"
        for block in in_use:
            expected[block] += _TAKEN
        for block, freed in self._evictable.items():
            expected[block] += freed
        assert set(self._evictable) == evictable, "a block is evictable and should not be, or the other way round"
        assert in_use.isdisjoint(evictable), "a block in use is evictable"
        assert len(in_use) + len(self) == self.num_blocks, "a block is leaked"
        assert (self._state == expected).all(), "a block's state is wrong"
        assert list(self._evictable.values()) == sorted(self._evictable.values()), "eviction order is wrong"

    def _newest_to_give_up(self) -> int:
        """Latest free, by number, whose block may be evicted for consecutive ids."""
        if not self._evictable:
            return 0
        oldest = next(iter(self._evictable.values()))
        return oldest + int((self._num_frees - oldest) * (1.0 - _RECENT_SHARE))

    def _new_run(self, wanted: int) -> tuple[int, int]:
        """The stretch [start, end) for a new run, its first block and a reservation: the cheapest, else the longest
        shorter one, else the last free block reserved for another run."""
        cost = self._costs()
        if wanted <= self.num_blocks:
            total = np.zeros(self.num_blocks + 1, np.int64)
            np.cumsum(cost, out=total[1:])
            of_stretch = total[wanted:] - total[:-wanted]
            start = int(np.argmin(of_stretch))
            if of_stretch[start] < _TAKEN:
                return start, start + wanted
        limits = np.concatenate(([-1], np.flatnonzero(cost >= _TAKEN), [self.num_blocks]))
        longest = int(np.argmax(np.diff(limits)))
        start, end = int(limits[longest]) + 1, int(limits[longest + 1])
        if start < end:
            return start, end
        return next(  # there is a free block behind some run, as there is none elsewhere
            (block, block + 1)
            for last, end in self._reserved_end.items()
            for block in reversed(range(last + 1, end))
            if self._state[block] < 2 * _TAKEN
        )

    def _costs(self) -> npt.NDArray[np.int64]:
        """Cost of giving up each block [num_blocks]: 0 if empty, more the later it was freed, or at least _TAKEN."""
        if not self._evictable:
            return self._state
        before_oldest = next(iter(self._evictable.values())) - 1
        cost = np.maximum(self._state - before_oldest, 0)
        cost[cost > self._newest_to_give_up() - before_oldest] = _TAKEN
        return cost
