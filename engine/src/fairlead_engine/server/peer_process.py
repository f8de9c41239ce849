"""An HTTP process of an engine beside the first: `python -m fairlead_engine.server.peer_process`.

Started by `Peers` alone. A peer takes requests on connections from the first process, is itself a client of the core,
and relays questions about the whole engine to the first process. A peer ends on the first process's order, or with it.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead_common.http.client import HttpClient, TimeLimits
from fairlead_common.http.client_connection import ConnectFailed, Connection, TransportError
from fairlead_common.http.connections import allow_descriptors
from fairlead_common.http.origin import Origin
from fairlead_common.logs import configure_logging
from fairlead_common.wire.messages import HEADER_REQUEST_ID, PATH_DRAIN, PATH_KV_BLOCKS, PATH_KV_EVENTS
from fairlead_engine.api.served_model import ModelFiles
from fairlead_engine.api.service import Service
from fairlead_engine.core.process_client import SocketClient
from fairlead_engine.errors import EngineDead, EngineError
from fairlead_engine.host import peer_link
from fairlead_engine.host.exchange import left
from fairlead_engine.host.http_server import make_http_server, settle_garbage
from fairlead_engine.host.lifecycle import first_of
from fairlead_engine.host.refusals import refusal
from fairlead_engine.machine.child_process import die_with, leave_signals_to_parent, read_orders
from fairlead_engine.server.app import build_app
from fairlead_engine.types import EngineInfo

CONTROL_PATHS = frozenset(
    {"/health", "/load", "/ping", "/ready", "/metrics", PATH_DRAIN, PATH_KV_BLOCKS, PATH_KV_EVENTS}
)
"""Paths about the engine's health, load and blocks, known to the first process."""
_LIMITS = TimeLimits(connect=5.0, first_byte=60.0, silence=60.0)
_OWN_HEADERS = frozenset({b"transfer-encoding", b"date", b"keep-alive"})
"""Headers that each hop sets itself."""
_PASSED_ON = frozenset({HEADER_REQUEST_ID.encode()})
_FIRST = Origin("engine", 80)


class ControlRelay:
    """ASGI in front of a peer's application."""

    def __init__(self, app: ASGIApp, give: Callable[[socket.socket], bool]) -> None:
        """`give` hands the other end of each new connection to the first process; False where it cannot."""
        self._app = app
        self._give = give
        self._http = HttpClient(connect=self._connect)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in CONTROL_PATHS:
            await self._app(scope, receive, send)
            return
        await first_of(self._answer(scope, send), left(receive))

    def close(self) -> None:
        self._http.close()

    async def _answer(self, scope: Scope, send: Send) -> None:
        """Relays without the request's body. A HEAD is relayed as a GET, and the reply's body dropped."""
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
        """A connection whose other end is given to the first process."""
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


log = logging.getLogger(__name__)


class PeerProcess:
    """Serves until the line to the first process ends."""

    def __init__(self, orders: peer_link.PeerOrders) -> None:
        self._orders = orders
        self._client = SocketClient(orders.core_address)
        self._service = Service(
            orders.engine.name, self._client, orders.server, place=orders.place, num_places=orders.num_places
        )
        limit = orders.server.max_connections
        self._here = peer_link.Here(limit, lambda connection: self._http.adopt(connection), self._tell_closed_soon)
        self._passage = peer_link.Passage(socket.socket(fileno=orders.connections_fd), self._here.take, self._missed)
        self._relay = ControlRelay(build_app(self._service), self._passage.give)
        metrics = self._service.metrics
        self._http = make_http_server(self._relay, metrics, limit, self._here.closed)
        metrics.watch_connections(self._http.server_state.connections)
        self._model: tuple[ModelFiles, EngineInfo] | None = None
        self._tells_closed = False
        self._line: peer_link.Line[peer_link.ToPeer] | None = None

    async def serve(self) -> None:
        """Loads, then obeys."""
        line: peer_link.Line[peer_link.ToPeer] = await peer_link.Line.over(
            socket.socket(fileno=self._orders.messages_fd), peer_link.ToPeer
        )
        self._line = line
        dispatches = self._service.stream.dispatches
        dispatches.on_seen = lambda gateway, number: line.send(
            peer_link.Seen(gateway, number, self._client.num_reports)
        )
        dispatches.on_malformed = lambda: line.send(peer_link.MalformedDispatch())

        async def tell_drained() -> None:
            await self._service.lifecycle.stopped.wait()
            line.send(peer_link.Drained())

        http = asyncio.create_task(self._http.serve(sockets=[]))
        others = [asyncio.create_task(self._load(line)), asyncio.create_task(tell_drained())]
        try:
            while (message := await line.receive()) is not None:
                self._obey(message, line)
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            self._http.stop()
            await http
            self._relay.close()
            self._passage.close()
            self._service.close()
            await self._client.close()

    async def _load(self, line: peer_link.Line[peer_link.ToPeer]) -> None:
        reading = self._service.load(Path(self._orders.folder))
        try:
            info, files = await asyncio.gather(self._client.start(), reading)
        except EngineError as error:
            line.send(peer_link.NotLoaded(**error.to_dict()))
        else:
            self._model = files, info
            line.send(peer_link.PeerLoaded())

    def _obey(self, message: peer_link.ToPeer, line: peer_link.Line[peer_link.ToPeer]) -> None:
        lifecycle = self._service.lifecycle
        match message:
            case peer_link.Serve(created):
                assert self._model is not None  # it has said so
                settle_garbage()
                self._service.ready(*self._model, created)
                self._passage.open()
            case peer_link.DrainPeer(grace_seconds, timeout_seconds):
                lifecycle.drain(grace_seconds=grace_seconds, timeout_seconds=timeout_seconds)
            case peer_link.Hurry():
                lifecycle.hurry()
            case peer_link.CoreLost(text):
                self._client.lost(text)
            case peer_link.Ask():
                observed = self._service.metrics.observed()
                line.send(peer_link.PeerFigures(lifecycle.num_running, observed, self._client.step_age_seconds))

    def _missed(self) -> None:
        log.warning("a connection is lost: this process may open no more files")
        self._here.missed()

    def _tell_closed_soon(self) -> None:
        """Reports all connections that end in one round of the event loop together."""
        if not self._tells_closed:
            self._tells_closed = True
            asyncio.get_running_loop().call_soon(self._tell_closed)

    def _tell_closed(self) -> None:
        self._tells_closed = False
        if self._line is not None:
            self._line.send(peer_link.Closed(self._here.num_closed))


def main() -> int:
    """Serves by the orders on standard input; returns the exit status."""
    leave_signals_to_parent()
    orders = msgspec.json.decode(read_orders(), type=peer_link.PeerOrders)
    die_with(orders.parent_pid)
    configure_logging(orders.server.log_level, orders.server.log_format)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    allow_descriptors(orders.server.max_connections, per_connection=2)  # its client's, and what ControlRelay opens

    async def serve() -> None:  # made on the loop that it belongs to
        await PeerProcess(orders).serve()

    uvloop.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
