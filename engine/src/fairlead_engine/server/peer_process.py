"""One of several HTTP processes of an engine, but not the first: `python -m fairlead_engine.server.peer_process`.

Started by `Peers` and by nobody else. It takes requests on connections that the first process gives it, is a client of
the core by itself, and passes on what only the first can answer. It ends when the first says so, or with it.
"""

import asyncio
import logging
import os
import socket
import sys
from pathlib import Path

import msgspec
import uvloop

from fairlead_engine.core.socket_client import SocketClient
from fairlead_engine.errors import EngineError
from fairlead_engine.machine.child_process import die_with, leave_signals_to_parent, read_orders
from fairlead_engine.server.acceptor import Here
from fairlead_engine.server.app import build_app
from fairlead_engine.server.control_relay import ControlRelay
from fairlead_engine.server.http_server import make_http_server, settle_garbage
from fairlead_engine.server.peer_link import (
    Ask,
    Closed,
    CoreLost,
    Drained,
    DrainPeer,
    Hurry,
    Line,
    MalformedDispatch,
    NotLoaded,
    Passage,
    PeerFigures,
    PeerLoaded,
    PeerOrders,
    Seen,
    Serve,
    ToPeer,
)
from fairlead_engine.server.served_model import ModelFiles
from fairlead_engine.server.service import Service
from fairlead_engine.types import EngineInfo
from fairlead_protocol.http.connections import allow_descriptors
from fairlead_protocol.logs import configure_logging

log = logging.getLogger(__name__)


class PeerProcess:
    """Serves until its line to the first process ends."""

    def __init__(self, orders: PeerOrders) -> None:
        self._orders = orders
        self._client = SocketClient(orders.core_address)
        self._service = Service(
            orders.engine.name, self._client, orders.server, place=orders.place, num_places=orders.num_places
        )
        limit = orders.server.max_connections
        self._here = Here(limit, lambda connection: self._http.adopt(connection), self._tell_closed_soon)
        self._passage = Passage(socket.socket(fileno=orders.connections_fd), self._here.take, self._missed)
        self._relay = ControlRelay(build_app(self._service), self._passage.give)
        metrics = self._service.metrics
        self._http = make_http_server(self._relay, metrics, limit, self._here.closed)
        metrics.watch_connections(self._http.server_state.connections)
        self._model: tuple[ModelFiles, EngineInfo] | None = None
        self._tells_closed = False
        self._line: Line[ToPeer] | None = None

    async def serve(self) -> None:
        """Loads, then does what it is told."""
        line: Line[ToPeer] = await Line.over(socket.socket(fileno=self._orders.messages_fd), ToPeer)
        self._line = line
        dispatches = self._service.stream.dispatches
        dispatches.on_seen = lambda gateway, number: line.send(Seen(gateway, number, self._client.num_reports))
        dispatches.on_malformed = lambda: line.send(MalformedDispatch())
        http = asyncio.create_task(self._http.serve(sockets=[]))
        others = [asyncio.create_task(self._load(line)), asyncio.create_task(self._tell_drained(line))]
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

    async def _load(self, line: Line[ToPeer]) -> None:
        reading = self._service.load(Path(self._orders.folder))
        try:
            info, files = await asyncio.gather(self._client.start(), reading)
        except EngineError as error:
            line.send(NotLoaded(**error.to_dict()))
        else:
            self._model = files, info
            line.send(PeerLoaded())

    async def _tell_drained(self, line: Line[ToPeer]) -> None:
        await self._service.lifecycle.stopped.wait()
        line.send(Drained())

    def _obey(self, message: ToPeer, line: Line[ToPeer]) -> None:
        lifecycle = self._service.lifecycle
        match message:
            case Serve(created):
                assert self._model is not None  # it has said so
                settle_garbage()
                self._service.ready(*self._model, created)
                self._passage.open()
            case DrainPeer(grace_seconds, timeout_seconds):
                lifecycle.drain(grace_seconds=grace_seconds, timeout_seconds=timeout_seconds)
            case Hurry():
                lifecycle.hurry()
            case CoreLost(text):
                self._client.lost(text)
            case Ask():
                observed = self._service.metrics.observed()
                line.send(PeerFigures(lifecycle.num_running, observed, self._client.step_age_seconds))

    def _missed(self) -> None:
        log.warning("a connection is lost: this process may open no more files")
        self._here.missed()

    def _tell_closed_soon(self) -> None:
        """Connections that end in one round of the event loop are told together."""
        if not self._tells_closed:
            self._tells_closed = True
            asyncio.get_running_loop().call_soon(self._tell_closed)

    def _tell_closed(self) -> None:
        self._tells_closed = False
        if self._line is not None:
            self._line.send(Closed(self._here.num_closed))


def main() -> int:
    """Serves by the orders on standard input; returns the exit status."""
    leave_signals_to_parent()
    orders = msgspec.json.decode(read_orders(), type=PeerOrders)
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
