"""Follows engines' streams: lists an engine's blocks, watches its changes and loads, and tells an `EngineListener`.

One `EngineStream` per replica, for as long as it is there. What is told is kept elsewhere
(`fairlead.routing.datastore`), and who is there is not decided here either (`replica_tasks.py`).

A gap between two changes, or an engine that no longer knows our place (410: it restarted, or we were too slow), means
listing again; what was known stays until then. A stream that breaks or falls silent means that nothing is known any
more. An engine without these endpoints is followed by nobody, and is as good a replica as before.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from fairlead.kube.backoff import Backoff
from fairlead.routing.replica import Load, Replica
from fairlead_protocol.blocks import BlockHash
from fairlead_protocol.http.client import HttpClient, TimeLimits
from fairlead_protocol.http.client_connection import Connection, TransportError, cause_of
from fairlead_protocol.http.lines import lines
from fairlead_protocol.http.origin import Origin
from fairlead_protocol.messages import LOAD_STALE_SECONDS, PATH_KV_BLOCKS, PATH_KV_EVENTS, StreamLine

logger = logging.getLogger(__name__)

MAX_LIST_BYTES = 512 * 1024 * 1024
"""A longer listing is not read; some ten million blocks."""
MAX_LINE_BYTES = 16 * 1024 * 1024
"""One step's change: some hundred thousand blocks."""
SLICE_BYTES = 256 * 1024
"""Of a listing that is told at once: some 7,000 blocks, one or two milliseconds for whoever listens."""


class EngineListener(Protocol):
    """Hears of every replica's blocks and load, by the pod's uid, on the event loop. Calls must return at once.
    A gateway's pools are one."""

    def blocks_listed(self, uid: str, seq: int, hashes: Iterable[BlockHash]) -> None:
        """The replica's cache holds exactly these, as of `seq`: at the start, after a restart, after a gap."""

    def blocks_changed(self, uid: str, seq: int, stored: Iterable[BlockHash], removed: Iterable[BlockHash]) -> None:
        """The next change: first everything in `removed` goes, then everything in `stored` comes."""

    def load_changed(self, uid: str, load: Load) -> None:
        """A load line came."""

    def lost(self, uid: str) -> None:
        """The stream broke or fell silent: load and blocks are unknown until they are listed again."""

    def left(self, uid: str) -> None:
        """The replica is gone for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimes:
    """How patient followers are, in seconds."""

    connect: float = 5.0
    """For a connection, and for the beginning of a reply."""
    list: float = 60.0
    """For a whole listing."""
    silence: float = LOAD_STALE_SECONDS
    """Without a line: the stream counts as broken."""
    healthy: float = 1.0
    """A stream that lasted this long ends a series of failures."""
    first_pause: float = 0.05
    """Before another attempt; doubled each time up to `last_pause`, and jittered by half."""
    last_pause: float = 5.0
    too_old: float = 60.0
    """Before asking an engine again that does not have a stream."""


class _Gone(Exception):
    """The engine does not know our place in its stream, or we have missed a change: list again."""


class _Broken(Exception):
    """The stream is over or unusable; the text says why."""


class _TooOld(Exception):
    """The engine has no such stream."""


class EngineStream:
    """One replica's stream, through all its interruptions. `run` it as a task."""

    def __init__(
        self,
        replica: Replica,
        listener: EngineListener,
        *,
        times: StreamTimes = StreamTimes(),
        on_load: Callable[[Load], None] = lambda load: None,
    ) -> None:
        """The listener is told everything but that the replica has left. `on_load` hears of loads before it does."""
        self._replica = replica
        self._listener = listener
        self._times = times
        self._on_load = on_load
        self._loop = asyncio.get_running_loop()
        self._http = HttpClient(max_idle=0)  # one connection at a time, for as long as the replica is there
        self._decode = msgspec.json.Decoder(StreamLine).decode
        self._epoch = ""
        self._seq = 0
        self._announced_seq = 0
        """The last change that had happened when the last load was told."""
        self._is_known = False
        """Whether the listener has been told anything that is not void by now."""
        self._is_failing = False
        """Whether trouble has been logged, and its end has not."""

    async def run(self) -> None:
        """Lists and watches, again and again, until cancelled."""
        backoff = Backoff(self._times.first_pause, self._times.last_pause, spread=0.5)
        while True:
            watching_since = None
            try:
                await self._list()
                watching_since = self._loop.time()
                await self._watch()
            except _Gone as reason:
                logger.debug("listing %s again: %s", self._replica.name, reason)
            except _TooOld:
                self._fail(logging.INFO, "%s does not tell its blocks and loads: it is used without")
                await backoff.wait(self._times.too_old)
                continue
            except (_Broken, TransportError, TimeoutError, ValueError) as error:
                self._fail(logging.WARNING, "the stream of %s broke: %s", cause_of(error))
            except Exception:
                logger.exception("what the stream of %s told could not be used", self._replica.name)
                self._lose()
            if watching_since is not None and self._loop.time() - watching_since >= self._times.healthy:
                backoff.reset()
            await backoff.pause()

    async def _list(self) -> None:
        """Asks for all blocks, and tells them a slice at a time: there may be a million."""
        whole = self._times.list
        limits = TimeLimits(connect=self._times.connect, first_byte=whole, silence=whole, whole=whole)
        async with self._get(PATH_KV_BLOCKS, limits) as response:
            body = bytearray()
            while data := await response.chunk():
                body += data
                if len(body) > MAX_LIST_BYTES:
                    raise _Broken("its list of blocks has no end")
        listing = Listing(body)
        self._epoch, self._seq = listing.epoch, listing.seq
        is_first, self._is_known = True, True
        for number, hashes in listing.slices():
            if is_first:
                self._listener.blocks_listed(self._replica.uid, number, hashes)
            else:
                self._listener.blocks_changed(self._replica.uid, number, hashes, ())
            is_first = False
            await asyncio.sleep(0)

    async def _watch(self) -> None:
        """Hears lines until there are no more. Always raises."""
        place = {"epoch": self._epoch, "seq": str(self._seq)}
        self._announced_seq = self._seq
        connect = self._times.connect
        limits = TimeLimits(connect=connect, first_byte=connect, silence=self._times.silence)
        async with self._get(PATH_KV_EVENTS, limits, place) as response:
            async for line in lines(response, limit=MAX_LINE_BYTES):
                self._hear(line)
        raise _Broken("the engine ended it")

    def _hear(self, raw: bytes) -> None:
        line, uid = self._decode(raw), self._replica.uid
        if line.load is not None:
            if self._announced_seq > self._seq:
                raise _Gone(f"change {self._announced_seq} was announced, {self._seq} is the last that came")
            self._announced_seq = line.load.seq
            self._is_known = True
            load = Load(time=self._loop.time(), **msgspec.structs.asdict(line.load))
            self._on_load(load)
            self._listener.load_changed(uid, load)
            if self._is_failing:
                logger.info("following %s again", self._replica.name)
                self._is_failing = False
        elif line.seq:
            if line.seq != self._seq + 1:
                raise _Gone(f"change {line.seq} came after {self._seq}")
            self._seq = line.seq
            stored = [bytes.fromhex(each) for blocks in line.stored for each in blocks.hashes]
            removed = [bytes.fromhex(each) for each in line.removed]
            self._listener.blocks_changed(uid, line.seq, stored, removed)

    @asynccontextmanager
    async def _get(
        self, path: str, limits: TimeLimits, query: dict[str, str] | None = None
    ) -> AsyncIterator[Connection]:
        """The response with status 200; any other is the exception that it means."""
        origin = Origin(self._replica.host, self._replica.port)
        async with self._http.request(origin, "GET", path, limits, params=query) as response:
            if response.status == 404:
                raise _TooOld
            if response.status == 410:
                raise _Gone("the engine does not know our place any more")
            if response.status != 200:
                raise _Broken(f"HTTP {response.status}")
            yield response

    def _fail(self, level: int, message: str, *details: str) -> None:
        """Nothing is known any more; the first time since it went well, that is logged."""
        self._lose()
        if not self._is_failing:
            logger.log(level, message, self._replica.name, *details)
        self._is_failing = True

    def _lose(self) -> None:
        if self._is_known:
            self._is_known = False
            self._listener.lost(self._replica.uid)


class _Chain(msgspec.Struct):
    """The part of `StoredBlocks` that is used here."""

    hashes: list[str]


class _Blocks(msgspec.Struct):
    """`KVBlocks` with its chains still encoded."""

    epoch: str
    seq: int
    blocks: list[msgspec.Raw]


class Listing:
    """An engine's blocks. There may be a million, so they are decoded and told a slice at a time.

    Finding the slices takes 10 to 80 ms for a million blocks (35 to 108 MB), each slice one or two.
    """

    def __init__(self, body: bytes | bytearray) -> None:
        """`body`: a `KVBlocks` as it came. Raises ValueError where it is none."""
        blocks = msgspec.json.decode(body, type=_Blocks)
        self.epoch = blocks.epoch
        self.seq = blocks.seq
        self._slices: list[list[msgspec.Raw]] = [[]]  # one is told even where there is no block
        num_bytes = 0
        for chain in blocks.blocks:
            if num_bytes >= SLICE_BYTES:
                self._slices.append([])
                num_bytes = 0
            self._slices[-1].append(chain)
            num_bytes += memoryview(chain).nbytes

    def slices(self) -> Iterator[tuple[int, list[BlockHash]]]:
        """Blocks to tell, each time with a number: the first ones as a listing, the others as changes that complete it.

        The numbers are counted back from the listing's own, which the last slice has: each follows the one before, as
        those of changes do.
        """
        decode = msgspec.json.Decoder(_Chain).decode
        for number, chains in enumerate(self._slices, self.seq - len(self._slices) + 1):
            yield number, [bytes.fromhex(each) for chain in chains for each in decode(chain).hashes]
