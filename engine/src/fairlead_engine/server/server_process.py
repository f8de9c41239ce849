"""One serving process: HTTP, lifecycle, signals and the core's fate are wired together here, once."""

import asyncio
import gc
import logging
import signal
import socket
import time
from pathlib import Path

from fairlead_engine.config import EngineConfig, ServerConfig
from fairlead_engine.core.client import EngineClient
from fairlead_engine.errors import EngineDead
from fairlead_engine.server.app import build_app
from fairlead_engine.server.faults import engine_limits, engine_protocol
from fairlead_engine.server.served_model import ModelFiles
from fairlead_engine.server.service import Service
from fairlead_engine.types import EngineInfo
from fairlead_protocol.http.connections import CutConnections
from fairlead_protocol.http.server import HttpServer

log = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS = 75
"""Idle connections stay open this long: gateways reuse them, and the side that connects should be the one to close."""
_BACKLOG = 128
"""Connections that the system takes for us: so many at most are set up between two tokens."""
_SHUTDOWN_SECONDS = 5
"""Answers already written get this long to leave when the server stops."""
_INTERRUPT_SECONDS = 5.0
"""Running requests get this long after Ctrl-C, when a person waits."""
_DEAD_LINGER_SECONDS = 3.0
"""After the core's death the process still answers this long, so that clients and probes learn the reason."""
_WATCH_SECONDS = 0.2
_GC_THRESHOLDS = 10_000, 10, 5
"""More new objects than a step brings for a thousand streams, which are gone before the next step. With Python's own
thresholds each step is searched for garbage, outlives the search, and has all that streams keep searched soon: a tenth
of a second, every few seconds, in which no token leaves. At most half a million objects of garbage wait for that."""


class ServerProcess:
    """Serves `client`, whose core `starting` is about to report, on `listener`."""

    def __init__(
        self,
        engine: EngineConfig,
        server: ServerConfig,
        folder: Path,
        listener: socket.socket,
        client: EngineClient,
        starting: "asyncio.Task[EngineInfo]",
        began: float,
    ) -> None:
        """`began`: when this program did, in seconds of `time.perf_counter`."""
        self._engine = engine
        self._folder = folder
        self._listener = listener
        self._client = client
        self._starting = starting
        self._began = began
        self._service = Service(engine.name, client, server)
        metrics = self._service.metrics
        limits = engine_limits(server.max_connections)
        self._http = HttpServer(
            build_app(self._service),
            engine_protocol(limits, metrics.answered, CutConnections(metrics.cut).cut),
            backlog=_BACKLOG,
            keep_alive_seconds=_KEEP_ALIVE_SECONDS,
            grace_seconds=_SHUTDOWN_SECONDS,
        )
        metrics.watch_connections(self._http.server_state.connections)

    async def serve(self) -> None:
        """Loads, serves, drains; then stops the core. Raises what keeps it from starting or going on."""
        loop = asyncio.get_running_loop()
        # However often it comes: supervisors repeat it, and nothing may be cut before the drain's time is over.
        loop.add_signal_handler(signal.SIGTERM, self._service.drain)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        http = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        life = asyncio.create_task(self._live())
        stopped = asyncio.create_task(self._service.lifecycle.stopped.wait())
        try:
            done, _ = await asyncio.wait({http, life, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (life, stopped):
                task.cancel()
            await asyncio.gather(life, stopped, return_exceptions=True)
            self._service.stream.end()  # or the server would wait for streams that end with it
            self._http.stop()
            await http
            self._service.lanes.close()
            await self._client.close()
            log.info("stopped")

    async def _live(self) -> None:
        """Becomes ready, then watches the core; ends only with an error."""
        await self._load()
        while self._client.alive:
            await asyncio.sleep(_WATCH_SECONDS)
        await asyncio.sleep(_DEAD_LINGER_SECONDS)
        raise EngineDead("the engine core has died; its last words are in the log above")

    async def _load(self) -> None:
        host, port = self._listener.getsockname()[:2]
        log.info("loading", extra={"folder": str(self._folder), "url": f"http://{host}:{port}"})
        info, files = await asyncio.gather(self._starting, asyncio.to_thread(ModelFiles.read, self._folder))
        gc.collect()
        gc.freeze()  # what is here from the start need not be looked at again, which would hold up tokens
        gc.set_threshold(*_GC_THRESHOLDS)
        self._service.ready(files, info)
        facts = {
            "model": self._engine.name,
            "url": f"http://{host}:{port}",
            "architecture": info.architecture,
            "dtype": info.dtype,
            "device": info.device,
            "attention_backend": info.attention_backend,
            "kv_cache_dtype": info.kv_cache_dtype,
            "max_model_len": info.max_model_len,
            "num_kv_blocks": info.num_kv_blocks,
            "duration_seconds": round(time.perf_counter() - self._began, 2),
            **{f"{phase}_seconds": round(seconds, 2) for phase, seconds in info.start_seconds.items()},
        }
        log.info("ready", extra=facts)

    def _interrupt(self) -> None:
        """SIGINT, a person's, drains without grace; while draining, it stops now."""
        if self._service.lifecycle.is_draining:
            self._service.lifecycle.hurry()
        self._service.drain(quickly_within=_INTERRUPT_SECONDS)
