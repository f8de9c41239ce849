"""KV events of vLLM and SGLang over ZMQ: decoded, followed, and requested again after a gap.

A ZMQ message is `topic, sequence number, payload`. Sequence numbers count up from 0; a restarted server begins at 0
again. A second socket replays the messages kept by the server. Messages lost for good are reported as lost, and
`ForeignBlocks` goes on with an approximation.

A payload is msgpack of a batch: `[time, [event…], rank]`, or a map with `events`. An event is an array of the name and
optional trailing fields, or a map with `type`: vLLM moved from arrays to maps in June 2026. Hashes are integers or
bytes. vLLM sends a prompt's salt as an extra key of the first block, SGLang as a field of all events.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from fairlead_engine.external.foreign_engine import (
    BlockEvent,
    Cleared,
    EventsInterrupted,
    ForeignHash,
    Removed,
    Resumed,
    Stored,
)

_FIELDS: Mapping[str, Sequence[str]] = {
    "BlockStored": (
        "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
        "group_idx", "kv_cache_spec_kind",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}  # fmt: skip
"""Fields of each event, in the array's order."""
_WHOLE_ATTENTION = (None, "full_attention", "mla_attention")
"""Kinds of layers whose blocks show the cached prompts: layers that attend to the whole prompt."""
_MAX_TOKEN_ID = 2**32 - 1
_decode = msgspec.msgpack.Decoder().decode


class MalformedEvents(ValueError):
    """A payload is not a batch of events."""


def decode_events(payload: bytes) -> list[BlockEvent]:
    """The events of one batch, in order, without unknown kinds and other layers. Raises `MalformedEvents`."""
    try:
        batch = _decode(payload)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise MalformedEvents(f"not msgpack: {error}") from error
    if isinstance(batch, Mapping):
        events = batch.get("events")
    else:
        events = batch[1] if isinstance(batch, list) and len(batch) > 1 else None
    if not isinstance(events, list):
        raise MalformedEvents("a batch has no list of events")
    read = (_event(each) for each in events)
    return [event for event in read if event is not None]


def _event(raw: Any) -> BlockEvent | None:
    if isinstance(raw, Mapping):
        kind, fields = raw.get("type"), raw
    elif isinstance(raw, list) and raw:
        kind = raw[0]
        fields = dict(zip(_FIELDS.get(kind, ()), raw[1:])) if isinstance(kind, str) else {}  # noqa: B905  # see above
    else:
        raise MalformedEvents("an event is neither an array nor a map")
    match kind:
        case "BlockStored":
            return _stored(fields)
        case "BlockRemoved":
            if fields.get("group_idx") not in (None, 0):
                return None
            return Removed(hashes=_hashes(fields.get("block_hashes")), medium=_text(fields.get("medium")) or "")
        case "AllBlocksCleared":
            return Cleared()
    return None


def _stored(fields: Mapping[Any, Any]) -> Stored | None:
    hashes, parent, block_size = (
        _hashes(fields.get("block_hashes")),
        fields.get("parent_block_hash"),
        fields.get("block_size"),
    )
    if parent is not None and not _is_hash(parent):
        raise MalformedEvents("a parent is no hash")
    if type(block_size) is not int or block_size < 1:
        raise MalformedEvents("a block has no size")
    tokens = fields.get("token_ids")
    if not isinstance(tokens, list) or len(tokens) != len(hashes) * block_size:
        raise MalformedEvents(f"{len(hashes)} blocks of {block_size} have other than as many tokens")
    if not all(type(token) is int and 0 <= token <= _MAX_TOKEN_ID for token in tokens):
        raise MalformedEvents("a token is no id")
    kind = fields.get("kv_cache_spec_kind")
    if (kind is None and fields.get("group_idx") not in (None, 0)) or kind not in _WHOLE_ATTENTION:
        return None
    return Stored(
        hashes=hashes,
        parent=parent,
        token_ids=tuple(tokens),
        block_size=block_size,
        medium=_text(fields.get("medium")) or "",
        adapter=_text(fields.get("lora_name")),
        extra_keys=_extra_keys(fields.get("extra_keys"), len(hashes))
        or _salt(_text(fields.get("cache_salt")), len(hashes), begins=parent is None),
    )


def _extra_keys(raw: Any, num_blocks: int) -> tuple[tuple[object, ...], ...]:
    if raw is None:
        return ()
    if not isinstance(raw, list) or len(raw) != num_blocks:
        raise MalformedEvents("extra keys are not one for each block")
    return tuple(tuple(each) if isinstance(each, list) else () if each is None else (each,) for each in raw)


def _salt(salt: str | None, num_blocks: int, *, begins: bool) -> tuple[tuple[object, ...], ...]:
    """The salt as a key of a prompt's first block, from which the hashes of later blocks follow."""
    return ((salt,), *(() for _ in range(num_blocks - 1))) if salt and begins and num_blocks else ()


def _hashes(raw: Any) -> tuple[ForeignHash, ...]:
    if not isinstance(raw, list) or not all(map(_is_hash, raw)):
        raise MalformedEvents("an event has no list of hashes")
    return tuple(raw)


def _is_hash(raw: Any) -> bool:
    return type(raw) is int or isinstance(raw, bytes)


def _text(raw: Any) -> str | None:
    if raw is not None and not isinstance(raw, str):
        raise MalformedEvents("a name is no text")
    return raw


log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 * 2**20
"""A longer message ends the connection: a step stores some thousand blocks, 100 bytes each."""
REPLAY_SECONDS = 5.0
MAX_REPLAYED = 100_000
_HIGH_WATER = 100_000
"""Messages that may wait to be read; servers keep as many."""
_SEQ_BYTES = 8
_END = (-1).to_bytes(_SEQ_BYTES, "big", signed=True)
_CONNECTED, _CUT = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED

Numbered = tuple[int, bytes]
"""A message: number and payload."""


class EventSubscription:
    """One server's events, through all interruptions."""

    def __init__(self, endpoint: str, replay_endpoint: str | None) -> None:
        """ZMQ's addresses, as tcp://HOST:PORT. None = no replays."""
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._last: Numbered | None = None
        """The latest message; None = no message since the server's start."""
        self._is_complete = False
        self._is_following = False
        self._has_complained = False

    async def events(self) -> AsyncIterator[BlockEvent]:
        """All events, endlessly."""
        context = zmq.asyncio.Context()
        try:
            with context.socket(zmq.SUB) as socket:
                _set_up(socket)
                socket.setsockopt(zmq.RECONNECT_IVL, 100)
                socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
                socket.setsockopt(zmq.SUBSCRIBE, b"")
                with socket.get_monitor_socket(_CONNECTED | _CUT) as monitor:
                    socket.connect(self._endpoint)
                    poller = zmq.asyncio.Poller()
                    poller.register(monitor, zmq.POLLIN)
                    poller.register(socket, zmq.POLLIN)
                    try:
                        while True:
                            ready = dict(await poller.poll())
                            if monitor in ready:
                                told = parse_monitor_message(await monitor.recv_multipart())["event"]
                                for event in await self._monitored(int(told), context):
                                    yield event
                            elif socket in ready:
                                for event in await self._heard(await socket.recv_multipart(), context):
                                    yield event
                    finally:
                        socket.disable_monitor()
        finally:
            context.destroy(linger=0)

    async def _monitored(self, told: int, context: zmq.asyncio.Context) -> list[BlockEvent]:
        if told == _CONNECTED:
            self._is_following = True
            log.info("following block events", extra={"endpoint": self._endpoint})
            events = await self._catch_up(context)
            if events is not None:
                return events
            # Without replays a restart of the server cannot be recognised.
            forgotten: list[BlockEvent] = [] if self._last is None else [Cleared()]
            self._last = None
            return forgotten + self._resumed(False)
        if self._is_following:
            self._is_following = False
            log.warning(
                "block events are cut off: what the cache holds is approximated", extra={"endpoint": self._endpoint}
            )
            return [EventsInterrupted()]
        return []

    async def _heard(self, frames: Sequence[bytes], context: zmq.asyncio.Context) -> list[BlockEvent]:
        if len(frames) < 2 or len(frames[-2]) != _SEQ_BYTES:
            return self._malformed("a message has no sequence number")
        number, payload = int.from_bytes(frames[-2], "big"), frames[-1]
        if number > self._next:
            events = await self._catch_up(context) or []
            if number > self._next:  # the server does not keep the messages any more
                events += self._resumed(False)
                self._last = (number - 1, b"")
        else:
            events = []
        if number == self._next:
            events += self._take((number, payload))
        return events

    @property
    def _next(self) -> int:
        return 0 if self._last is None else self._last[0] + 1

    async def _catch_up(self, context: zmq.asyncio.Context) -> list[BlockEvent] | None:
        """Events since the last message, or since the beginning of a restarted server; None = not available."""
        last = self._last
        replayed = await self._replay(context, 0 if last is None else last[0])
        if replayed is None:
            return None
        if last is not None and replayed[:1] == [last]:
            return self._taken(replayed[1:]) + self._resumed(self._is_complete)
        if last is not None:
            replayed = await self._replay(context, 0)
            if replayed is None:
                return None
            if not replayed or replayed[0][0] == 0:  # another run of the server, with an empty cache
                self._last = None
            else:
                replayed = [each for each in replayed if each[0] > last[0]]
        is_complete = self._last is None and (not replayed or replayed[0][0] == 0)
        events: list[BlockEvent] = [Cleared()] if is_complete else []
        if replayed and replayed[0][0] != self._next:
            self._last = (replayed[0][0] - 1, b"")
        return events + self._taken(replayed) + self._resumed(is_complete)

    def _taken(self, messages: Sequence[Numbered]) -> list[BlockEvent]:
        events: list[BlockEvent] = []
        for message in messages:
            if message[0] == self._next:
                events += self._take(message)
        return events

    def _take(self, message: Numbered) -> list[BlockEvent]:
        self._last = message
        try:
            return decode_events(message[1])
        except MalformedEvents as error:
            return self._malformed(str(error))

    def _malformed(self, why: str) -> list[BlockEvent]:
        if not self._has_complained:
            self._has_complained = True
            log.warning("block events cannot be read, said once", extra={"endpoint": self._endpoint, "error": why})
        return self._resumed(False)

    def _resumed(self, is_complete: bool) -> list[BlockEvent]:
        self._is_complete = is_complete
        return [Resumed(is_complete)]

    async def _replay(self, context: zmq.asyncio.Context, start: int) -> list[Numbered] | None:
        """The server's kept messages from this number on; None = no answer."""
        if self._replay_endpoint is None:
            return None
        messages: list[Numbered] = []
        with context.socket(zmq.DEALER) as socket:
            _set_up(socket)
            socket.connect(self._replay_endpoint)
            try:
                async with asyncio.timeout(REPLAY_SECONDS):
                    await socket.send_multipart([b"", start.to_bytes(_SEQ_BYTES, "big")])
                    while len(messages) < MAX_REPLAYED:
                        frames = await socket.recv_multipart()
                        if len(frames) < 2 or len(frames[-2]) != _SEQ_BYTES:
                            return None
                        if frames[-2] == _END:
                            return messages
                        messages.append((int.from_bytes(frames[-2], "big"), frames[-1]))
            except TimeoutError:
                pass
        return None


def _set_up(socket: zmq.asyncio.Socket) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 5000)
