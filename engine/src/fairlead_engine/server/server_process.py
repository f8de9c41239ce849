"""An engine's first serving process: wires HTTP, lifecycle, signals, core and peers together."""

import asyncio
import logging
import signal
import socket
import time
from pathlib import Path
from typing import Any

from fairlead_common.http.addresses import authority
from fairlead_common.workers.root import WorkerRoot
from fairlead_engine.api.service import Service
from fairlead_engine.config import EngineConfig, ServerConfig
from fairlead_engine.core.process_client import ProcessClient
from fairlead_engine.errors import EngineDead
from fairlead_engine.host.http_server import make_http_server, settle_garbage
from fairlead_engine.host.lifecycle import first_of
from fairlead_engine.host.peer_link import Acceptor, Here, HttpProcess
from fairlead_engine.server.app import build_app
from fairlead_engine.server.peers import Peers, share
from fairlead_engine.types import EngineInfo

log = logging.getLogger(__name__)

_INTERRUPT_SECONDS = 5.0
"""Time for running requests after Ctrl-C, when a person waits."""
_DEAD_LINGER_SECONDS = 3.0
"""Time to answer after the core's death: clients and probes learn the reason."""
_WATCH_SECONDS = 0.2
_MAX_CONTROL_CONNECTIONS = 1_000_000
"""For peers, which limit clients' connections already."""


class ServerProcess:
    """Serves `client`, whose core is still `starting`, on `listener`."""

    def __init__(
        self,
        engine: EngineConfig,
        server: ServerConfig,
        folder: Path,
        listener: socket.socket,
        client: ProcessClient,
        starting: "asyncio.Task[EngineInfo]",
        root: WorkerRoot,
        began: float,
    ) -> None:
        """`root`: of the workers. `began`: start of this program, in seconds of `time.perf_counter`."""
        self._engine = engine
        self._server = server
        self._folder = folder
        self._listener = listener
        self._client = client
        self._starting = starting
        self._began = began
        own = share(server, 0)
        self._service = Service(engine.name, client, own, num_places=server.api_servers, root=root)
        app, metrics = build_app(self._service), self._service.metrics
        self._here = Here(own.max_connections, lambda connection: self._http.adopt(connection))
        on_closed = self._here.closed if self._has_peers else None
        self._http = make_http_server(app, metrics, own.max_connections, on_closed)
        metrics.watch_connections(self._http.server_state.connections)
        self._control = make_http_server(app, metrics, _MAX_CONTROL_CONNECTIONS)
        self._peers = Peers(client, self._service.stream, take_control=self._control.adopt, on_lost=self._service.drain)
        self._service.siblings = self._peers
        metrics.elsewhere = self._peers.samples
        self._acceptor = Acceptor(listener, self._places)

    async def serve(self) -> None:
        """Loads, serves, drains; then stops the core. Raises errors of starting and serving."""
        loop = asyncio.get_running_loop()
        # Supervisors repeat SIGTERM, and nothing may be cut before the drain's time is over.
        loop.add_signal_handler(signal.SIGTERM, self._service.drain)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        if self._has_peers:
            self._acceptor.open()
            servers = [self._http.serve(sockets=[]), self._control.serve(sockets=[])]
        else:  # a server alone accepts connections itself
            servers = [self._http.serve(sockets=[self._listener])]
        http: asyncio.Future[Any] = asyncio.gather(*servers)
        try:
            await first_of(asyncio.shield(http), self._live(), self._until_drained())
        finally:
            self._service.stream.end()  # or the server would wait for streams that end with it
            if self._has_peers:
                self._acceptor.close()
            await self._peers.stop()
            for server in (self._http, self._control):
                server.stop()
            await http
            self._service.close()
            await self._client.close()
            log.info("stopped")

    @property
    def _has_peers(self) -> bool:
        return self._server.api_servers > 1

    def _places(self) -> list[HttpProcess]:
        """This process comes last, as it has other work."""
        return [*self._peers.places, self._here]

    async def _until_drained(self) -> None:
        """Returns when a drain is over, in all processes. Raises the error that caused it, if any."""
        await self._service.lifecycle.stopped.wait()
        await self._peers.drained()
        if self._peers.error is not None:
            raise self._peers.error

    async def _live(self) -> None:
        """Becomes ready, and watches the core; ends only with an error."""
        loading = asyncio.create_task(self._load())
        try:
            await asyncio.wait({self._starting, loading}, return_when=asyncio.FIRST_COMPLETED)
            while self._client.alive:
                if loading.done():
                    loading.result()
                    await asyncio.sleep(_WATCH_SECONDS)
                else:  # peers may take longer than the core, and would wait for a dead one for ever
                    await asyncio.wait([loading], timeout=_WATCH_SECONDS)
            self._peers.core_lost(self._client.death or "the engine core has died")
            await asyncio.wait([loading], timeout=_DEAD_LINGER_SECONDS)
            if loading.done():
                loading.result()
                await asyncio.sleep(_DEAD_LINGER_SECONDS)
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
        raise EngineDead("the engine core has died; its last words are in the log above")

    async def _load(self) -> None:
        url = f"http://{authority(*self._listener.getsockname()[:2])}"
        log.info("loading", extra={"folder": str(self._folder), "url": url})
        info, files, _ = await asyncio.gather(
            self._starting,
            self._service.load(self._folder),
            self._peers.start(self._engine, self._server, self._folder),
        )
        settle_garbage()
        self._service.ready(files, info)
        self._peers.serve(self._service.model().created)
        facts = {
            "model": self._engine.name,
            "url": url,
            "architecture": info.architecture,
            "dtype": info.dtype,
            "device": info.device,
            "attention_backend": info.attention_backend,
            "kv_cache_dtype": info.kv_cache_dtype,
            "max_model_len": info.max_model_len,
            "num_kv_blocks": info.num_kv_blocks,
            "api_servers": self._server.api_servers if self._has_peers else None,
            "duration_seconds": round(time.perf_counter() - self._began, 2),
            **{f"{phase}_seconds": round(seconds, 2) for phase, seconds in info.start_seconds.items()},
        }
        log.info("ready", extra=facts)

    def _interrupt(self) -> None:
        """SIGINT, from a person, drains without grace; a second SIGINT stops at once."""
        if self._service.lifecycle.is_draining:
            self._service.lifecycle.hurry()
            self._peers.hurry()
        self._service.drain(quickly_within=_INTERRUPT_SECONDS)
