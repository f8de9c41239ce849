"""BlocksStream: the engine's side of list and watch, for a fake engine: epochs, numbered lines, a ring, followers."""

import asyncio
import uuid
from collections import deque
from collections.abc import Iterable
from urllib.parse import parse_qs

import msgspec

from fairlead.simulator.counted_blocks import CountedBlocks
from fairlead_common.wire.blocks import BlockHash
from fairlead_common.wire.messages import KVBlocks, LoadLine, StoredBlocks, StreamLine
from fairlead_testing.http import Responder

RING_SIZE = 1024
BUFFER_SIZE = 4096
"""Lines that a follower may be behind before it is cut off."""


class _Follower:
    """Lines on their way to one follower."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.is_cut = False
        self.news = asyncio.Event()


class BlocksStream:
    """Publishes what happens in `cache`. Its attributes let it misbehave; change them at any time."""

    def __init__(self, cache: CountedBlocks) -> None:
        self.cache = cache
        self.epoch = uuid.uuid4().hex
        self.seq = 0
        self.is_known = True
        """False: an engine too old to have these endpoints."""
        self.num_unknown = 0
        """How often it was asked for them nevertheless."""
        self.is_silent = False
        """True: nothing is sent any more, as by an engine that hangs; lines are lost."""
        self.num_to_drop = 0
        """So many of the next changes are not sent, though they count."""
        self.ring_size = RING_SIZE
        self.buffer_size = BUFFER_SIZE
        self.num_listed = 0
        """How often the blocks were listed."""
        self._ring: deque[tuple[int, bytes]] = deque()
        self._followers: set[_Follower] = set()
        self._encoder = msgspec.json.Encoder()

    @property
    def num_followers(self) -> int:
        return len(self._followers)

    def flush(self) -> None:
        """Sends what changed in the cache, as one line. Called after every step."""
        changes = self.cache.take_changes()
        if changes is None:
            return
        self.seq += 1
        stored, removed = changes
        line = self._encoder.encode(StreamLine(seq=self.seq, stored=stored, removed=removed)) + b"\n"
        self._ring.append((self.seq, line))
        while len(self._ring) > self.ring_size:
            self._ring.popleft()
        if self.num_to_drop:
            self.num_to_drop -= 1
        else:
            self._send(line)

    def pretend(self, hashes: Iterable[BlockHash]) -> None:
        """Sends that these blocks are there, which they are not."""
        self.seq += 1
        chain = StoredBlocks(parent=None, hashes=[each.hex() for each in hashes])
        self._send(self._encoder.encode(StreamLine(seq=self.seq, stored=[chain])) + b"\n")

    def send_load(self, load: LoadLine) -> None:
        """Sends a load to whoever follows."""
        if self._followers:
            self._send(self._load_line(load))

    def cut_followers(self) -> None:
        """Cuts every follower's connection."""
        for follower in self._followers:
            follower.is_cut = True
            follower.news.set()

    def restart(self, cache: CountedBlocks) -> None:
        """The engine was restarted: another epoch, another cache, and everybody is cut off."""
        self.cut_followers()
        self.cache = cache
        self.epoch, self.seq = uuid.uuid4().hex, 0
        self._ring.clear()

    async def list(self, responder: Responder) -> None:
        """Answers with every block."""
        self.num_listed += 1
        self.flush()  # a step may be under way; what is listed is what `seq` says
        blocks = KVBlocks(epoch=self.epoch, seq=self.seq, block_size=self.cache.block_size, blocks=self.cache.listing())
        await responder.whole(200, self._encoder.encode(blocks))

    async def watch(self, query: str, load: LoadLine, responder: Responder) -> None:
        """Answers with `load`, the changes after the one that `query` names, and everything that comes."""
        wanted = {name: values[-1] for name, values in parse_qs(query).items()}
        seq = int(wanted["seq"])
        first = self.seq - len(self._ring) + 1
        if wanted["epoch"] != self.epoch or not first - 1 <= seq <= self.seq:
            await responder.json(410, {"error": {"message": "list the blocks again", "type": "gone"}})
            return
        follower = _Follower()
        if not self.is_silent:
            follower.lines = [self._load_line(load), *(line for number, line in self._ring if number > seq)]
            follower.news.set()
        self._followers.add(follower)
        try:
            await responder.start(200, {"content-type": "application/x-ndjson"})
            await self._serve(follower, responder)
        finally:
            self._followers.discard(follower)

    async def _serve(self, follower: _Follower, responder: Responder) -> None:
        while True:
            await follower.news.wait()
            follower.news.clear()
            if follower.is_cut:
                responder.abort()
                return
            lines, follower.lines = follower.lines, []
            await responder.chunk(b"".join(lines))

    def _send(self, line: bytes) -> None:
        if self.is_silent:
            return
        for follower in self._followers:
            follower.lines.append(line)
            follower.is_cut = follower.is_cut or len(follower.lines) > self.buffer_size
            follower.news.set()

    def _load_line(self, load: LoadLine) -> bytes:
        return self._encoder.encode(StreamLine(load=load)) + b"\n"
