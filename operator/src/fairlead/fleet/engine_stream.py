"""Follows engines' streams: lists an engine's blocks, watches its changes and loads, and tells an `EngineListener`.

One `ReplicaStream` per replica, for the replica's lifetime. The listener (`fairlead.routing.datastore`) keeps the
state; `replica_tasks.py` knows which replicas exist.

A gap between two changes, or an engine without our place in its stream (410: it restarted, or we were too slow), means
listing again; until then the known state stays. After a broken or silent stream nothing is known. Engines without these
endpoints are not followed, and are as good as before.

Limits on lists, lines, loads and names keep engines from growing a gateway. An engine with more blocks than it
declared, or than the listener keeps, is not followed until it restarts. Streams too fast for a gateway are read at the
pace its other work leaves (`loop_shares.py`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from fairlead.fleet.listing import Chain, Digits, Listing, packed, unpacked
from fairlead.kube.backoff import Backoff
from fairlead.routing.replica import Load, Replica
from fairlead_common.http.client import HttpClient, TimeLimits, batches
from fairlead_common.http.client_connection import Connection, TransportError, cause_of
from fairlead_common.http.loop_shares import LoopShares
from fairlead_common.http.origin import Origin
from fairlead_common.wire.blocks import BlockHash
from fairlead_common.wire.messages import LOAD_STALE_SECONDS, PATH_KV_BLOCKS, PATH_KV_EVENTS, Count, LoadLine

logger = logging.getLogger(__name__)

BLOCK_BYTES = 192
"""Most bytes of a block in a listing or change; a chain of one block has 107."""
MAX_LOAD_BYTES = 1024 * 1024
"""Longer loads are not read; an engine's largest load, with thousands of adapters, is shorter."""
MAX_LINE_BYTES = 2 * 1024 * 1024
"""A step's change of some 60,000 blocks, which takes some 30 ms. Larger changes cause a new listing. Less is read of
replicas with few blocks."""


class EngineListener(Protocol):
    """Hears of every replica's blocks and load, by the pod's uid, on the event loop; in a gateway the `Datastore`,
    whose docstrings explain the calls. Calls must return at once."""

    max_blocks: int

    def num_blocks(self, uid: str) -> int: ...
    def listed(self, uid: str, seq: int, hashes: Iterable[BlockHash]) -> None: ...
    def changed(self, uid: str, seq: int, stored: Iterable[BlockHash], removed: Iterable[BlockHash]) -> None: ...
    def loaded(self, uid: str, load: Load) -> None: ...
    def lost(self, uid: str) -> None: ...
    def distrusted(self, uid: str, max_blocks: int) -> None: ...
    def forget(self, uid: str) -> None: ...


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
    """A stream of at least this length ends a series of failures."""
    first_pause: float = 0.05
    """Before another attempt; doubled each time up to `last_pause`, and jittered by half."""
    last_pause: float = 5.0
    too_old: float = 60.0
    """Before asking an engine without a stream again."""


class _Gone(Exception):
    """The engine does not know our place in its stream, or we have missed a change: list again."""


class _Broken(Exception):
    """The stream is over or unusable; the text says why."""


class _TooMany(Exception):
    """The engine has more blocks than allowed; the text says how many."""


class _TooOld(Exception):
    """The engine has no such stream."""


class ReplicaStream:
    """One replica's stream, through all its interruptions. `run` it as a task."""

    def __init__(
        self,
        replica: Replica,
        listener: EngineListener,
        *,
        times: StreamTimes = StreamTimes(),
        on_load: Callable[[Load], None] = lambda load: None,
        shares: LoopShares | None = None,
    ) -> None:
        """`on_load`: called with loads before the listener. `shares`: of the loop, common to all streams; None = a loop
        of its own."""
        self._replica = replica
        self._listener = listener
        self._times = times
        self._on_load = on_load
        self._loop = asyncio.get_running_loop()
        self._share = (shares or LoopShares()).stream()
        self._http = HttpClient(max_idle=0)  # one connection at a time, for as long as the replica is there
        self._decode = msgspec.json.Decoder(_Line).decode
        self._decode_load = msgspec.json.Decoder(LoadLine).decode
        self._told_blocks = None if replica.limits is None else replica.limits.num_kv_blocks
        """Size of the engine's cache in blocks, as told last."""
        self._epoch = ""
        self._seq = 0
        self._announced_seq = 0
        """The engine's last change at the time of its last load."""
        self._is_known = False
        """Whether the listener knows anything that still holds."""
        self._is_failing = False
        """Whether a failure was logged whose end was not."""

    async def run(self) -> None:
        """Lists and watches, again and again, until cancelled, or until the engine tells of too many blocks."""
        backoff = Backoff(self._times.first_pause, self._times.last_pause, spread=0.5)
        while True:
            watching_since = None
            try:
                await self._list()
                watching_since = self._loop.time()
                await self._watch()
            except _Gone as reason:
                logger.debug("listing %s again: %s", self._replica.name, reason)
            except _TooMany as error:
                self._give_up(str(error))
                return
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
        """Asks for all blocks, up to a million, and tells them a slice at a time."""
        whole = self._times.list
        limits = TimeLimits(connect=self._times.connect, first_byte=whole, silence=whole, whole=whole)
        async with self._get(PATH_KV_BLOCKS, limits) as response:
            listing, num_bytes, max_bytes = Listing(), 0, MAX_LOAD_BYTES + BLOCK_BYTES * self._max_blocks
            while data := await response.chunk():
                num_bytes += len(data)
                if num_bytes > max_bytes:
                    raise _TooMany(f"its list of blocks has more than {max_bytes} bytes")
                self._share.begin()
                for _ in listing.feed(data):
                    if listing.num_blocks > self._max_blocks:
                        raise _TooMany(f"its list has {listing.num_blocks} blocks")
                    await self._share.rest()
            listing.end()
        self._epoch, self._seq = listing.epoch, listing.seq
        is_first, self._is_known = True, True
        self._share.begin()
        for number, hashes in listing.slices():
            if is_first:
                self._listener.listed(self._replica.uid, number, hashes)
            else:
                self._listener.changed(self._replica.uid, number, hashes, ())
            is_first = False
            self._count_blocks()
            await self._share.rest()

    async def _watch(self) -> None:
        """Hears lines until there are no more. Always raises."""
        place = {"epoch": self._epoch, "seq": str(self._seq)}
        self._announced_seq = self._seq
        connect = self._times.connect
        limits = TimeLimits(connect=connect, first_byte=connect, silence=self._times.silence)
        async with self._get(PATH_KV_EVENTS, limits, place) as response:
            max_bytes = min(MAX_LINE_BYTES, MAX_LOAD_BYTES + BLOCK_BYTES * self._max_blocks)
            async for batch in batches(response, limit=max_bytes):
                self._share.begin()
                for line in batch:
                    if line.strip():
                        self._hear(line)
                    if self._share.is_long:
                        await self._share.rest()
                await self._share.rest()
        raise _Broken("the engine ended it")

    def _hear(self, raw: bytes) -> None:
        line, uid = self._decode(raw), self._replica.uid
        if num_bytes := memoryview(line.load).nbytes:
            if num_bytes > MAX_LOAD_BYTES:
                raise _Broken(f"a load has more than {MAX_LOAD_BYTES} bytes")
            told = self._decode_load(line.load)
            self._told_blocks = told.kv_blocks_total + told.kv_blocks_host + told.kv_states
            if self._announced_seq > self._seq:
                raise _Gone(f"change {self._announced_seq} was announced, {self._seq} is the last that came")
            self._announced_seq = told.seq
            self._is_known = True
            load = Load(time=self._loop.time(), **msgspec.structs.asdict(told))
            self._on_load(load)
            self._listener.loaded(uid, load)
            if self._is_failing:
                logger.info("following %s again", self._replica.name)
                self._is_failing = False
        elif line.seq:
            if line.seq != self._seq + 1:
                raise _Gone(f"change {line.seq} came after {self._seq}")
            self._seq = line.seq
            stored = unpacked(packed(each for chain in line.stored for each in chain.hashes))
            removed = unpacked(packed(line.removed))
            self._listener.changed(uid, line.seq, stored, removed)
            self._count_blocks()

    @property
    def _max_blocks(self) -> int:
        """Most blocks allowed: as many as the engine has, and as the listener keeps."""
        most = self._listener.max_blocks
        return most if self._told_blocks is None else min(most, self._told_blocks)

    def _count_blocks(self) -> None:
        """Raises _TooMany where the listener keeps more than may be."""
        if (num_blocks := self._listener.num_blocks(self._replica.uid)) > self._max_blocks:
            raise _TooMany(f"it told of {num_blocks} blocks")

    def _give_up(self, reason: str) -> None:
        """The engine is not followed any more."""
        told = "an unknown number" if self._told_blocks is None else self._told_blocks
        logger.error(
            "%s tells of more blocks than it may have: %s, says that it has %s, and %d are kept of any "
            "(--max-kv-blocks); its stream is not followed any more, and what it holds is approximated until it "
            "restarts",
            *(self._replica.name, reason, told, self._listener.max_blocks),
        )
        self._listener.distrusted(self._replica.uid, self._max_blocks)

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
        """Nothing is known any more; logs the first failure of a series."""
        self._lose()
        if not self._is_failing:
            logger.log(level, message, self._replica.name, *details)
        self._is_failing = True

    def _lose(self) -> None:
        if self._is_known:
            self._is_known = False
            self._listener.lost(self._replica.uid)


class _Line(msgspec.Struct):
    """`StreamLine` with its load still encoded."""

    seq: Count = 0
    stored: list[Chain] = []
    removed: list[Digits] = []
    load: msgspec.Raw = msgspec.Raw()
