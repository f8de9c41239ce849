"""A gateway of which only the signals are real: what the operator follows, line by line as a test says it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from fairlead.api.signals_message import PATH_SIGNALS, ModelSignals, SignalsLine
from fairlead_testing.http import RecordedRequest, Responder, serve_http


class FakeGateway:
    """Figures of one model. Whoever begins to follow hears at once how they stand."""

    def __init__(self, model: str = "default/dinghy", *, gateway: str = "run-1") -> None:
        """`model`: the LLMDeployment's `namespace/name`. `gateway`: names this run."""
        self.signals = ModelSignals()
        self.line = SignalsLine(gateway=gateway, uptime_seconds=0.0, models={model: self.signals})
        self.is_broken = False
        """Whether it answers with an error."""
        self.num_followers = 0
        self._followers: set[asyncio.Queue[bytes | None]] = set()

    def say(self, *, wake: bool = False, seconds: float = 1.0, **figures: Any) -> None:
        """One more line, `seconds` after the last one on its own clock; `figures`: fields of ModelSignals."""
        self.line.uptime_seconds += seconds
        for name, value in figures.items():
            setattr(self.signals, name, value)
        self.line.wake = wake
        self._send(msgspec.json.encode(self.line) + b"\n")
        self.line.wake = False

    def mumble(self, text: bytes) -> None:
        """Something that is no line of signals."""
        self._send(text)

    def hang_up(self) -> None:
        """Ends every stream."""
        self._send(None)

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[int]:
        """Serves its signals on a port of 127.0.0.1, 0 = a free one; the port."""
        server = await serve_http(self._answer, port=port)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    async def _answer(self, request: RecordedRequest, responder: Responder) -> None:
        if self.is_broken or request.path != PATH_SIGNALS:
            await responder.json(500, {})
            return
        said: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._followers.add(said)
        self.num_followers = len(self._followers)
        try:
            await responder.start(200, {"content-type": "application/x-ndjson"})
            await responder.chunk(msgspec.json.encode(self.line) + b"\n")
            while (text := await said.get()) is not None:
                await responder.chunk(text)
            await responder.end()
        finally:
            self._followers.discard(said)
            self.num_followers = len(self._followers)

    def _send(self, text: bytes | None) -> None:
        for follower in self._followers:
            follower.put_nowait(text)
