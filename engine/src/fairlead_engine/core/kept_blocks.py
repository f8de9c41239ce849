"""Free blocks that retention hints keep: in the order of eviction they come behind all other free blocks.

A hint is the moment until which a block's published prefix shall stay. The block manager asks here; allocators know
nothing of hints, and take kept blocks for blocks in use.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count

_NO_HINT = (0.0, 0)
_SPARE_ENDS = 1024
"""Entries of the heap that may be out of date before a rebuild, beside as many as there are hints."""


class KeptBlocks:
    """Free blocks with a hint, at most `most`: beyond `most` the block unused for longest loses its hint. While no
    block has a hint, the block manager finds the collections empty and calls nothing here."""

    def __init__(self, most: int, now: Callable[[], float]) -> None:
        """`now`: seconds since some moment, never set back."""
        self._most = most
        self._now = now
        self._serials = count()
        self.clear()

    def clear(self) -> None:
        self.free: OrderedDict[int, None] = OrderedDict()
        """The kept blocks, the least recently used first."""
        self.hints: dict[int, tuple[float, int]] = {}
        """Block, kept or in use → end and serial number of the block's hint."""
        self._ends: list[tuple[float, int, int]] = []
        """Heap of (end, serial number, block); entries that differ from `hints` are out of date."""

    def hint(self, blocks: Iterable[int], seconds: float) -> None:
        """Keeps blocks in use, once they are free, for so many seconds from now on, or longer by an earlier hint."""
        end = self._now() + seconds
        for block in blocks:
            if self.hints.get(block, _NO_HINT)[0] < end:
                self.hints[block] = hint = (end, next(self._serials))
                heappush(self._ends, (*hint, block))
        if len(self._ends) > 2 * len(self.hints) + _SPARE_ENDS:
            self._ends = [each for each in self._ends if self.hints.get(each[2]) == each[:2]]
            heapify(self._ends)

    def is_hinted(self, block: int) -> bool:
        return self.hints.get(block, _NO_HINT)[0] > self._now()

    def keep(self, block: int) -> bool:
        """Takes over a published block that became free, if the block has a hint; returns whether it has."""
        if not self.is_hinted(block):
            return False
        self.free[block] = None
        return True

    def surplus(self) -> Iterator[int]:
        """Gives up the oldest blocks beyond the limit."""
        while len(self.free) > self._most:
            yield self.give_up()

    def give_up(self) -> int:
        """Gives up the block unused for longest."""
        block = next(iter(self.free))
        self.forget(block)
        return block

    def forget(self, block: int) -> bool:
        """Ends a block's hint, if any; returns whether the block was kept."""
        was_kept = block in self.free
        if was_kept:
            del self.free[block]
        self.hints.pop(block, None)
        return was_kept

    def lapsed(self) -> Iterator[int]:
        """Gives up kept blocks whose hint has ended."""
        now = self._now()
        while self._ends and self._ends[0][0] <= now:
            *hint, block = heappop(self._ends)
            if self.hints.get(block) == tuple(hint) and self.forget(block):
                yield block

    def check(self) -> None:
        assert len(self.free) <= self._most, "hints keep too many blocks"
        assert self.free.keys() <= self.hints.keys(), "a block without a hint is kept"
        ends = set(self._ends)
        assert all((*hint, block) in ends for block, hint in self.hints.items()), "the end of a hint is lost"
