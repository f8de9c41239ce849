"""Events of a response in the background: written to the store as they come, for replay by every gateway."""

import asyncio
import logging
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec

from fairlead.gateway.stored.errors import StoreError

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.1
"""What comes within this time is one row."""
MAX_PENDING_BYTES = 16 * 2**20
"""Of events that a database which stands still does not take; then the log ends."""
BEFORE_FIRST = -1
"""Number of the empty row that every log begins with."""
_ENDINGS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class LoggedEvent(NamedTuple):
    """One event, as a stream carries it."""

    number: int
    data: bytes
    is_last: bool


class _EventHead(msgspec.Struct):
    type: str
    sequence_number: int


_head = msgspec.json.Decoder(_EventHead)


def events_in(data: bytes) -> Iterator[LoggedEvent]:
    """Those of a stream's bytes; comments are none."""
    for block in data.split(b"\n\n"):
        _, found, payload = block.partition(b"\ndata: ")
        with suppress(msgspec.DecodeError):
            if found:
                head = _head.decode(payload)
                yield LoggedEvent(head.sequence_number, block + b"\n\n", head.type in _ENDINGS)


def packed(events: Sequence[LoggedEvent]) -> bytes:
    """A row's data."""
    return zlib.compress(b"".join(event.data for event in events), 1)


def unpacked(data: bytes) -> Iterator[LoggedEvent]:
    """The events of a row."""
    return events_in(zlib.decompress(data)) if data else iter(())


class EventTable(Protocol):
    """Where rows go."""

    async def log(self, response_id: str, number: int, data: bytes) -> None:
        """Adds one. `number`: of its first event. Raises StoreError."""


class EventLog:
    """Of one response. `run` beside what makes the events, and `close` when that is over."""

    def __init__(self, store: EventTable, response_id: str) -> None:
        self._store, self._id = store, response_id
        self._pending: list[LoggedEvent] = []
        self._num_bytes = 0
        self._has_more = asyncio.Event()
        self._flushing = asyncio.Lock()
        self.grown = asyncio.Event()
        """Set, and at once replaced, when a row has been written."""

    def add(self, data: bytes) -> None:
        """More of the stream."""
        found = list(events_in(data))
        self._num_bytes += sum(len(event.data) for event in found)
        if self._num_bytes <= MAX_PENDING_BYTES:
            self._pending += found
            self._has_more.set()

    async def run(self) -> None:
        """Writes what comes, until it is cancelled."""
        while True:
            await self._has_more.wait()
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Writes what has come. What the database does not take is tried again with the next events."""
        async with self._flushing:
            self._has_more.clear()
            events = self._pending
            if not events:
                return
            try:
                await self._store.log(self._id, events[0].number, packed(events))
            except StoreError as error:
                logger.warning("events of the response %s were not stored: %s", self._id, error)
                return
            self._pending = self._pending[len(events) :]
            self._num_bytes = sum(len(event.data) for event in self._pending)
            grown, self.grown = self.grown, asyncio.Event()
            grown.set()
