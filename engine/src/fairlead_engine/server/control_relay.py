"""What only the first HTTP process of an engine can answer, asked of another: its peers pass the question on.

Who asks need not know which process has its connection. The way is HTTP over Unix sockets that are made for it.
"""

import asyncio
import socket
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead_engine.errors import EngineDead
from fairlead_engine.server.refusals import refusal
from fairlead_protocol.http.client import HttpClient, TimeLimits
from fairlead_protocol.http.client_connection import ConnectFailed, Connection, TransportError
from fairlead_protocol.http.origin import Origin
from fairlead_protocol.messages import HEADER_REQUEST_ID, PATH_DRAIN, PATH_KV_BLOCKS, PATH_KV_EVENTS

CONTROL_PATHS = frozenset({"/health", "/ready", "/metrics", PATH_DRAIN, PATH_KV_BLOCKS, PATH_KV_EVENTS})
"""Life, load and blocks of the engine, which the first process knows."""
_LIMITS = TimeLimits(connect=5.0, first_byte=60.0, silence=60.0)
_OWN_HEADERS = frozenset({b"transfer-encoding", b"date", b"keep-alive"})
"""Each hop has its own of these."""
_FIRST = Origin("engine", 80)

Give = Callable[[socket.socket], bool]
"""Gives the first process a connection; False where that cannot be done."""


class ControlRelay:
    """ASGI in front of a peer's application."""

    def __init__(self, app: ASGIApp, give: Give) -> None:
        """`give` gets the first process's end of each new connection to it."""
        self._app = app
        self._give = give
        self._http = HttpClient(connect=self._connect)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in CONTROL_PATHS:
            await self._app(scope, receive, send)
            return
        answer = asyncio.ensure_future(self._answer(scope, send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                answer.result()
        finally:
            for task in (answer, leaving):
                task.cancel()
            await asyncio.gather(answer, leaving, return_exceptions=True)

    def close(self) -> None:
        """Closes what is kept open."""
        self._http.close()

    async def _answer(self, scope: Scope, send: Send) -> None:
        """What a body may say, nobody here reads. A HEAD is asked as the GET it stands for, whose body is left."""
        is_head = scope["method"] == "HEAD"
        method = "GET" if is_head else scope["method"]
        target = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _PASSED_ON}
        has_begun = False
        try:
            body = None if method == "GET" else b""
            async with self._http.request(_FIRST, method, target, _LIMITS, headers=headers, body=body) as response:
                fields = [(name, value) for name, value in response.headers.items() if name not in _OWN_HEADERS]
                await send({"type": "http.response.start", "status": response.status, "headers": fields})
                has_begun = True
                while not is_head and (chunk := await response.chunk()):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except TransportError as error:
            if has_begun:  # the client must not take what it has for the whole
                raise
            answer = refusal(EngineDead(f"the engine's first process does not answer: {error}"))
            fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer.body()))]
            await send({"type": "http.response.start", "status": answer.status, "headers": fields})
            await send({"type": "http.response.body", "body": answer.body()})
            return
        await send({"type": "http.response.body", "body": b""})

    async def _connect(self, origin: Origin, limit: float) -> Connection:
        """A connection to the first process, which gets its end by hand."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:  # this process may open no more files
            raise ConnectFailed(str(error.strerror)) from error
        with theirs:
            if not self._give(theirs):
                ours.close()
                raise ConnectFailed("it takes no connection")
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_unix_connection(lambda: Connection(loop), sock=ours)
        return connection


_PASSED_ON = frozenset({HEADER_REQUEST_ID.encode()})


async def _left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
