"""The HTTP server of uvicorn, stopped by a call instead of by signals and without waking up ten times a second; and an
ASGI extension that writes parts of a streamed answer straight to the connection.

The `send` of ASGI is awaited, so a task has to be woken for each part: for answers that grow by a token at a time, on
hundreds of connections at once, that would cost more than the token. An application finds the writer in the
`extensions` of its scope, and goes back to `send` whenever the writer is not ready.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl


class HttpServer(uvicorn.Server):
    """Serves one ASGI application: `await serve([socket])` until `stop` was called and what runs has ended."""

    def __init__(
        self, app: Any, protocol: type[asyncio.Protocol], *, backlog: int, keep_alive_seconds: float, grace_seconds: int
    ) -> None:
        """`keep_alive_seconds`: how long idle connections stay open. `grace_seconds`: for running requests after
        `stop`."""
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="none",
                interface="asgi3",
                lifespan="off",
                access_log=False,
                proxy_headers=False,
                log_config=None,
                server_header=False,
                backlog=backlog,
                timeout_keep_alive=int(keep_alive_seconds),
                timeout_graceful_shutdown=grace_seconds,
            )
        )
        self._stopping = asyncio.Event()
        self._cut = asyncio.Event()
        self._opened = asyncio.Event()
        self._adopting: set[asyncio.Task[bool]] = set()

    def adopt(self, connection: socket.socket) -> "asyncio.Task[bool]":
        """Serves a connection that was accepted elsewhere, once the server has started. The result: whether the server
        took the connection, which it does not when stopping."""
        task = asyncio.create_task(self._adopt(connection))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)
        return task

    def stop(self) -> None:
        """Takes no new requests and finishes running requests; a second call cuts running requests."""
        if self.should_exit:
            self._cut.set()
        self.should_exit = True
        self._stopping.set()

    def cut(self) -> None:
        """Takes no new requests and ends running requests, as after the grace: each client gets an error."""
        self._cut.set()
        self.stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._opened.set()

    async def _adopt(self, connection: socket.socket) -> bool:
        await self._opened.wait()
        try:
            if not self.should_exit:
                await asyncio.get_running_loop().connect_accepted_socket(self._make_protocol, connection)
                return True
        except OSError:  # its client has left already
            pass
        connection.close()
        return False

    def _make_protocol(self) -> asyncio.Protocol:
        """As uvicorn's `startup` makes them."""
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=None
        )
        return protocol

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # renews the Date header
            try:
                await asyncio.wait_for(self._stopping.wait(), 1.0)
            except TimeoutError:
                pass

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """The shutdown of uvicorn, which waits for running requests up to the grace; ends at once after `cut`."""
        waits = {asyncio.create_task(super().shutdown(sockets)), asyncio.create_task(self._cut.wait())}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        for task in done:
            task.result()
        if self._cut.is_set():
            for running in list(self.server_state.tasks):
                running.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


STREAM_WRITER = "fairlead.stream_writer"
"""Key in `extensions` of an HTTP scope."""


class StreamWriter:
    """Writes parts of one answer. Only for answers with a sent head without Content-Length, before the last part."""

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow

    @property
    def is_ready(self) -> bool:
        """Whether a part may be written: the client is connected and keeps up with reading."""
        return not (self._flow.write_paused or self._transport.is_closing())

    def write(self, part: bytes) -> None:
        """Writes a part that is not empty, as a chunk of its own."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))
