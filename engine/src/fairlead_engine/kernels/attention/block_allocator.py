"""Which free block a table gets next: the protocol, and the plain way, least recently used first.

The block manager owns one allocator. It knows when blocks were freed and who grows where, not what they hold; an
attention backend that gains from where blocks lie brings its own.
"""

from collections import OrderedDict
from typing import Protocol


class BlockAllocator(Protocol):
    """Blocks 0 to `num_blocks - 1`: in use, *empty* (free, holding nothing) or *evictable* (free, holding a prefix)."""

    num_blocks: int

    def __len__(self) -> int:
        """How many are free."""
        ...

    def take(self, last: int | None, wanted: int) -> int:
        """Puts a free block to use; there must be one.

        Hints: block `last` is the one before it in its table, and the sequence is expected to need `wanted` blocks,
        this one included, from here on.
        """
        ...

    def reuse(self, block: int) -> None:
        """Puts this very block, which is free, to use."""
        ...

    def release(self, block: int, *, evictable: bool) -> None:
        """Frees a block in use. Of several that are evictable, the one released first is evicted first."""
        ...

    def empty(self, block: int) -> None:
        """Nobody can ask any more for what this evictable block holds."""
        ...

    def end_run(self, last: int) -> None:
        """The table that ends in block `last` will not grow any more."""
        ...

    def check(self, in_use: set[int], evictable: set[int]) -> None:
        """Raises AssertionError unless the states are these and every other block is empty."""
        ...


class LRUBlocks:
    """Empty blocks first, then what was unused for longest; where a block lies does not matter."""

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
