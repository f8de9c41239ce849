"""The engine's stream to followers, mostly gateways: every change of the reusable blocks, and the load.

`KVMirror` is this process's copy of the core's reusable blocks and a ring of recent changes as encoded lines;
`Followers` have a bounded buffer each, so a slow reader costs nobody else. `EngineStream` gets each report of the core
on the event loop without blocking the loop. Wired in `Service`, served by `control_endpoints`.
"""

import asyncio
import logging
import math
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec

from fairlead_common.wire.blocks import ROOT, BlockHash
from fairlead_common.wire.messages import KVBlocks, LoadLine, StoredBlocks, StreamLine
from fairlead_engine.core.messages import BlocksChanged
from fairlead_engine.errors import Draining, EngineDead
from fairlead_engine.host.dispatches import Dispatch, Dispatches
from fairlead_engine.host.lifecycle import Lifecycle
from fairlead_engine.types import EngineLoad

RING_BYTES = 4 * 2**20
"""Changes that a follower may have missed: minutes of decoding, many seconds of prefill at full speed."""


class NotInRing(Exception):
    """Changes after this epoch and seq are no longer known, or never were."""


class KVMirror:
    """The reusable blocks as of `seq`, each with its parent, and the last `ring_bytes` of changes."""

    def __init__(self, block_size: int = 0, *, ring_bytes: int = RING_BYTES) -> None:
        self.epoch = uuid.uuid4().hex
        self.seq = 0
        self.block_size = block_size
        """Tokens per block; known once the core has started."""
        self._parents: dict[BlockHash, BlockHash] = {}
        self._ring: deque[bytes] = deque()  # the lines of the changes up to `seq`
        self._ring_bytes = 0
        self._max_ring_bytes = ring_bytes

    def __len__(self) -> int:
        """How many blocks can be reused."""
        return len(self._parents)

    def hashes(self) -> set[BlockHash]:
        """All reusable blocks, as a new set."""
        return set(self._parents)

    def apply(self, changed: BlocksChanged) -> bytes:
        """Applies the next change and returns its line, encoded once for all followers. A core that resets its books
        may remove unknown blocks, which are left out of the line."""
        self.seq += 1
        removed = [each for each in changed.removed if self._parents.pop(each, None) is not None]
        for parent, hashes in changed.stored:
            for block_hash in hashes:
                self._parents[block_hash] = parent
                parent = block_hash
        stored = [_stored(parent, hashes) for parent, hashes in changed.stored]
        line = encoded(StreamLine(seq=self.seq, stored=stored, removed=[each.hex() for each in removed]))
        self._ring.append(line)
        self._ring_bytes += len(line)
        while self._ring_bytes > self._max_ring_bytes:
            self._ring_bytes -= len(self._ring.popleft())
        return line

    def since(self, epoch: str, seq: int) -> list[bytes]:
        """The lines after `seq`. Raises `NotInRing`."""
        num_missed = self.seq - seq
        if epoch != self.epoch or not 0 <= num_missed <= len(self._ring):
            raise NotInRing
        return [self._ring[index] for index in range(len(self._ring) - num_missed, len(self._ring))]

    def blocks(self) -> KVBlocks:
        """All blocks as one message. Takes about 1 µs for each block."""
        blocks = [_stored(parent, hashes) for parent, hashes in self._chains()]
        return KVBlocks(epoch=self.epoch, seq=self.seq, block_size=self.block_size, blocks=blocks)

    def _chains(self) -> Iterator[tuple[BlockHash, list[BlockHash]]]:
        """Every block once, in chains of maximal length, no block before its parent. The order of arrival would not do:
        a block may be evicted and stored again while its child stays."""
        children: dict[BlockHash, list[BlockHash]] = {}
        for block_hash, parent in self._parents.items():
            children.setdefault(parent, []).append(block_hash)
        heads = [(parent, head) for head, parent in self._parents.items() if parent not in self._parents]
        while heads:
            parent, head = heads.pop()
            chain = [head]
            while following := children.get(chain[-1]):
                heads += [(chain[-1], other) for other in following[1:]]
                chain.append(following[0])
            yield parent, chain


def encoded(line: StreamLine) -> bytes:
    """A line of the stream, its newline included."""
    return msgspec.json.encode(line) + b"\n"


def _stored(parent: BlockHash, hashes: list[BlockHash]) -> StoredBlocks:
    return StoredBlocks(parent=None if parent == ROOT else parent.hex(), hashes=[each.hex() for each in hashes])


BUFFER_BYTES = 8 * 2**20
"""Most unread bytes of a follower, twice the size of the ring: seconds of prefill on a fast device."""


class Follower:
    """One reader's unsent lines. A reader with more than `max_bytes` is cut off."""

    def __init__(self, lines: Iterable[bytes], max_bytes: int) -> None:
        self.was_cut_off = False
        self._lines = list(lines)
        self._num_bytes = sum(map(len, self._lines))
        self._max_bytes = max_bytes
        self._has_ended = False
        self._something = asyncio.Event()
        if self._lines:
            self._something.set()

    def put(self, line: bytes) -> bool:
        """Adds a line; False when the buffer is full."""
        self._num_bytes += len(line)
        if self._num_bytes > self._max_bytes:
            self.was_cut_off = True
            self._lines.clear()
            self.end()
            return False
        self._lines.append(line)
        self._something.set()
        return True

    def end(self) -> None:
        """No more lines follow."""
        self._has_ended = True
        self._something.set()

    async def take(self) -> bytes:
        """All lines that have come, waiting for one; empty at the end."""
        await self._something.wait()
        if not self._has_ended:
            self._something.clear()
        chunk = b"".join(self._lines)
        self._lines.clear()
        self._num_bytes = 0
        return chunk


class Followers:
    def __init__(self, *, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.num_cut_off = 0
        """Followers that were too slow, since the start."""
        self._following: set[Follower] = set()
        self._buffer_bytes = buffer_bytes

    def __len__(self) -> int:
        return len(self._following)

    @contextmanager
    def joined(self, first: Iterable[bytes]) -> Iterator[Follower]:
        """A new follower, which gets `first` and then every sent line."""
        follower = Follower(first, self._buffer_bytes)
        self._following.add(follower)
        try:
            yield follower
        finally:
            self._following.discard(follower)

    def send(self, line: bytes) -> None:
        """Gives a line to all, and cuts off followers without room."""
        for follower in [each for each in self._following if not each.put(line)]:
            self._following.discard(follower)
            self.num_cut_off += 1

    def end(self) -> None:
        for follower in self._following:
            follower.end()
        self._following.clear()


log = logging.getLogger(__name__)

BUSY_SECONDS = 0.1
"""Between two load lines while something waits or runs."""
IDLE_SECONDS = 1.0


class Core(Protocol):
    @property
    def load(self) -> EngineLoad: ...

    @property
    def num_reports(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    @property
    def step_age_seconds(self) -> float: ...


class EngineStream:
    """The engine's state as a stream of lines. Load lines are made only for followers, in a steady beat, and at once
    when the engine becomes full, stops being full or begins to drain."""

    def __init__(self, client: Core, lifecycle: Lifecycle) -> None:
        self.mirror = KVMirror()
        self.followers = Followers()
        self.dispatches = Dispatches()
        self.has_ended = False
        """Whether the server stops and refuses followers."""
        self._client = client
        self._lifecycle = lifecycle
        self._was_full = False
        self._told_at = -math.inf  # loop time of the last load line
        self._beat: asyncio.Handle | None = None  # uvloop's handle does not say when
        self._beats_at = math.inf  # loop time of the next load line

    def stepped(self, changed: BlocksChanged | None, num_commands: int) -> None:
        """Takes over what a step changed; see `StepListener`."""
        self.dispatches.obeyed(num_commands)
        self.dispatches.reported(self._client.num_reports)
        if changed is not None:
            self.followers.send(self.mirror.apply(changed))
        load = self._client.load
        is_full = load.running + load.waiting >= load.max_num_seqs
        if is_full != self._was_full:
            self._was_full = is_full
            self.tell_load()
        else:
            self._hasten()

    def sent(self, command: int, dispatch: Dispatch) -> None:
        """A part of a request went to the core as this command."""
        dispatch.command = command
        self._hasten()  # the first step may take longer than the beat

    def seen_elsewhere(self, gateway: str, number: int, report: int) -> None:
        """Another process has sent the core a gateway's request; see `Dispatches`."""
        self.dispatches.seen_elsewhere(gateway, number, report)
        self.dispatches.reported(self._client.num_reports)

    @contextmanager
    def followed(self, epoch: str, seq: int) -> Iterator[Follower]:
        """A follower with every change up to `seq`, who gets the load, the missed changes, then new lines. Raises
        `NotInRing` where the follower must list the blocks first."""
        with self.followers.joined([self._load_line(), *self.mirror.since(epoch, seq)]) as follower:
            if self._beat is None:
                self._told_at = asyncio.get_running_loop().time()
                self._schedule()
            yield follower

    def check(self) -> None:
        """Raises `EngineDead` or `Draining` once nobody may follow."""
        if not self._client.alive:
            raise EngineDead
        if self.has_ended:
            raise Draining

    def tell_load(self) -> None:
        """Tells every follower the load now."""
        if self.followers:
            self._told_at = asyncio.get_running_loop().time()
            self.followers.send(self._load_line())
            self._schedule()

    def end(self) -> None:
        """The server stops, or the core is gone: ends every follower's stream."""
        self.has_ended = True
        self.followers.end()
        self._stop_beat()

    def _on_beat(self) -> None:
        self._beat = None
        if not self._client.alive:  # the last load is obsolete
            self.end()
        else:
            self.tell_load()

    def _schedule(self) -> None:
        self._stop_beat()
        self._beats_at = self._next_beat()
        self._beat = asyncio.get_running_loop().call_at(self._beats_at, self._on_beat)

    def _hasten(self) -> None:
        """Quickens the beat when the engine becomes busy."""
        if self._beat is not None and self._beats_at > self._next_beat():
            self._schedule()

    def _stop_beat(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    def _next_beat(self) -> float:
        is_busy = self._client.load.num_sequences > 0 or self._client.step_age_seconds > 0.0
        return self._told_at + (BUSY_SECONDS if is_busy else IDLE_SECONDS)

    def _load_line(self) -> bytes:
        own = {"step_age_seconds": round(self._client.step_age_seconds, 6), "draining": self._lifecycle.is_draining}
        line = LoadLine(**self._client.load.figures | own, seq=self.mirror.seq, seen=self.dispatches.seen)
        return encoded(StreamLine(load=line))
