"""KV events over ZMQ, as vLLM and SGLang publish them: subscribes, notices what was missed, and asks for it again.

Messages are `topic, sequence number, payload`; numbers go up by one from 0, and a server that starts anew begins anew.
A second socket replays what is kept of the past, from a number on. What was missed for good is said as such: whoever
listens goes on with an approximation.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from fairlead_engine.front.foreign_engine import BlockEvent, Cleared, EventsInterrupted, Resumed
from fairlead_engine.front.vllm_events import MalformedEvents, decode_events

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 * 2**20
"""A longer one ends the connection: a step stores some thousand blocks, 100 bytes each."""
REPLAY_SECONDS = 5.0
"""For the whole of what is asked for again."""
MAX_REPLAYED = 100_000
_HIGH_WATER = 100_000
"""Messages that may wait to be read; servers keep as many."""
_SEQ_BYTES = 8
_END = (-1).to_bytes(_SEQ_BYTES, "big", signed=True)
_CONNECTED, _CUT = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED

Numbered = tuple[int, bytes]
"""A message: its number and its payload."""


class EventSubscription:
    """One server's events, through all interruptions."""

    def __init__(self, endpoint: str, replay_endpoint: str | None) -> None:
        """ZMQ's addresses, as tcp://HOST:PORT. None = nothing can be asked for again."""
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._last: Numbered | None = None
        """What was heard last; None = nothing yet, or the server has begun anew."""
        self._is_complete = False
        self._is_following = False
        self._has_complained = False

    async def events(self) -> AsyncIterator[BlockEvent]:
        """All of them, for ever."""
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
            # Nor does anybody say whether it is the server of before.
            forgotten: list[BlockEvent] = [] if self._last is None else [Cleared()]
            self._last = None
            return forgotten + self._missed()
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
            if number > self._next:  # it is not kept any more, or nothing is
                events += self._missed()
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
        """What has happened since the last message; from the server's beginning, where that is another one. None where
        it is not told."""
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
        """The next message in order."""
        self._last = message
        try:
            return decode_events(message[1])
        except MalformedEvents as error:
            return self._malformed(str(error))

    def _malformed(self, why: str) -> list[BlockEvent]:
        if not self._has_complained:
            self._has_complained = True
            log.warning("block events cannot be read, said once", extra={"endpoint": self._endpoint, "error": why})
        return self._missed()

    def _missed(self) -> list[BlockEvent]:
        return self._resumed(False)

    def _resumed(self, is_complete: bool) -> list[BlockEvent]:
        self._is_complete = is_complete
        return [Resumed(is_complete)]

    async def _replay(self, context: zmq.asyncio.Context, start: int) -> list[Numbered] | None:
        """The messages from this number on that the server keeps; None where it does not say."""
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
