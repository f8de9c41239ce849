"""MirrorListener: hears what followers of engines' streams tell, and keeps it; for tests of followers."""

import asyncio
from collections.abc import Callable, Iterable

from fairlead.routing.replica import Load
from fairlead_common.wire.blocks import BlockHash


class MirrorListener:
    """An `EngineListener` that knows each replica's blocks, by uid."""

    def __init__(self, max_blocks: int = 1_000_000) -> None:
        self.max_blocks = max_blocks
        self.blocks: dict[str, set[BlockHash]] = {}
        self.seqs: dict[str, int] = {}
        self.loads: dict[str, Load] = {}
        """The last ones."""
        self.num_listed = 0
        self.lost_uids: list[str] = []
        self.left_uids: list[str] = []
        self.distrusted_uids: dict[str, int] = {}
        """With the most blocks that each might have told."""
        self.mistakes: list[str] = []
        """Changes out of order, and of blocks that were not there: followers tell none such."""
        self._news = asyncio.Event()

    def listed(self, uid: str, seq: int, hashes: Iterable[BlockHash]) -> None:
        self.blocks[uid], self.seqs[uid] = set(hashes), seq
        self.num_listed += 1
        self._news.set()

    def changed(self, uid: str, seq: int, stored: Iterable[BlockHash], removed: Iterable[BlockHash]) -> None:
        if seq != self.seqs[uid] + 1:
            self.mistakes.append(f"change {seq} of {uid} came after {self.seqs[uid]}")
        blocks, gone = self.blocks[uid], set(removed)
        if not gone <= blocks:
            self.mistakes.append(f"change {seq} of {uid} removes what was not there")
        self.blocks[uid] = (blocks - gone) | set(stored)
        self.seqs[uid] = seq
        self._news.set()

    def num_blocks(self, uid: str) -> int:
        return len(self.blocks[uid])

    def loaded(self, uid: str, load: Load) -> None:
        self.loads[uid] = load
        self._news.set()

    def lost(self, uid: str) -> None:
        self.lost_uids.append(uid)
        self._forget(uid)

    def distrusted(self, uid: str, max_blocks: int) -> None:
        self.distrusted_uids[uid] = max_blocks
        self._forget(uid)

    def forget(self, uid: str) -> None:
        self.left_uids.append(uid)
        self._forget(uid)

    async def until(self, holds: Callable[[], object], seconds: float = 30.0) -> None:
        """Waits until what was told makes this true."""
        async with asyncio.timeout(seconds):
            while not holds():
                self._news.clear()
                await self._news.wait()

    def _forget(self, uid: str) -> None:
        for known in (self.blocks, self.seqs, self.loads):
            known.pop(uid, None)
        self._news.set()
