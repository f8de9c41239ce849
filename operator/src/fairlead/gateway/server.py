"""Wires a gateway and runs it: two uvicorn servers in one loop, the fleet's follower, and the drain.

`Gateway.__init__` makes all of a gateway's parts.
"""

import asyncio
import logging
import math
import os
import secrets
import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop

from fairlead.gateway.access import Access
from fairlead.gateway.app import ControlApp, GatewayApp
from fairlead.gateway.batches.batch_run import ServedAnswer
from fairlead.gateway.director import Director
from fairlead.gateway.dispatch.admission import Shared
from fairlead.gateway.dispatch.injector import Injector
from fairlead.gateway.dispatch.pools import MakeFleet, Pools
from fairlead.gateway.dispatch.proxy import Proxy
from fairlead.gateway.gateway_metrics import GatewayMetrics
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.observation import Refusals
from fairlead.gateway.openai.errors import OpenAIError, http_refusal
from fairlead.gateway.prompts.reader import PromptReader, Tokenizers
from fairlead.gateway.signals_stream import SignalsStream
from fairlead.gateway.storage import make_storage
from fairlead.routing.datastore import Datastore
from fairlead_common.http.client import HttpClient
from fairlead_common.http.connections import CutConnections, listening_socket
from fairlead_common.http.cross_origin import App, CrossOrigin, origins_of
from fairlead_common.http.framing import Fault
from fairlead_common.http.lanes import Pacer
from fairlead_common.http.limited import LINGER_SECONDS, HttpLimits, LimitedProtocol, OnCut, WholeAnswer, make_protocol
from fairlead_common.http.root_path import RootPath, below
from fairlead_common.http.server import HttpServer
from fairlead_common.openai.translate import translation_of

if TYPE_CHECKING:
    from fairlead.gateway.open_inference.server import GrpcServer

logger = logging.getLogger(__name__)

BACKLOG = 2048
CONTROL_GRACE_SECONDS = 5
"""How long the control port's connections may take to end, once everything else has."""
INTERRUPT_SECONDS = 5.0
"""Longest time that running requests may take after Ctrl-C."""


class PreciseLoop(uvloop.Loop):
    """uvloop whose `time()` is `time.monotonic()`; timers count from the same clock.

    uvloop's own clock has whole milliseconds and stands still during a round of callbacks. A first token may take ten
    milliseconds, and routing learns from its time.
    """

    def time(self) -> float:
        return time.monotonic()


class Gateway:
    """One gateway: `await run()` serves until `drain` or `stop` was called and everything is answered."""

    def __init__(self, settings: GatewaySettings, make_fleet: MakeFleet, access: Access) -> None:
        """Binds its ports. Raises OSError where one is taken, and StoreError."""
        self.settings = settings
        self.access = access
        self.id = secrets.token_hex(8)
        """Names this run of the gateway to engines and operator."""
        self.datastore = Datastore(settings.max_kv_blocks)
        self.tokenizers = Tokenizers()
        self.upstream = HttpClient(max_idle=settings.max_idle_connections, idle_seconds=math.inf)
        pacer = Pacer()
        self.reader = PromptReader(self.tokenizers, pacer)
        shared = Shared(settings, self.id, self.datastore, self.tokenizers, self.reader)
        self.pools = Pools(make_fleet, shared, self.upstream)
        self.fleet = self.pools.fleet
        self.signals = SignalsStream(self.pools, self.id)
        self.pools.on_urgent = self.signals.wake
        self.metrics = GatewayMetrics(self.pools, self.datastore, self.reader)
        self.metrics.gauges["api_keys_current"].set_function(lambda: float(access.is_current))
        proxy = Proxy(self.upstream, settings, self.id)
        director = Director(self.pools, proxy, max_attempts=settings.max_attempts)
        refusals = Refusals(self.metrics)
        injector = Injector(self.pools, self.upstream, settings)
        self.storage = None
        if settings.response_store is not None:
            self.storage = make_storage(settings, settings.response_store, self.id, self._serve_line, self.metrics)
        self.keeper = None if self.storage is None else self.storage.responses
        self.app = GatewayApp(
            self.pools, director, self.metrics, refusals, pacer, settings, access, injector, self.storage
        )
        self.signals.on_beat = self.app.histories.beat
        if self.storage is not None and self.storage.batches is not None:
            runner, files = self.storage.batches, self.storage.batches.files
            self.metrics.gauges["batches_running"].set_function(lambda: runner.num_running)
            self.metrics.gauges["stored_files"].set_function(lambda: files.totals[0])
            self.metrics.gauges["stored_file_bytes"].set_function(lambda: files.totals[1])
        self.metrics.gauges["ready"].set_function(lambda: self.app.ready)
        control_host = settings.host if settings.control_host is None else settings.control_host
        self._socket = listening_socket(settings.host, settings.port, backlog=BACKLOG)
        self._control_socket = listening_socket(control_host, settings.control_port, backlog=BACKLOG)
        self.port: int = self._socket.getsockname()[1]
        """For clients, also where the settings said any."""
        self.control_port: int = self._control_socket.getsockname()[1]
        cuts = CutConnections(self.metrics.cut)
        self._protocols = tuple(client_protocol(settings, refusals.refused, cuts.cut) for _ in range(2))
        """Of clients and of the control port, with separate turns: a flood on one port does not delay the other."""
        origins = origins_of(settings.allowed_origins)
        served: App = CrossOrigin(self.app, origins) if origins else self.app
        served = RootPath(served, settings.root_path) if settings.root_path else served
        self._server = self._serving(served, 0, grace_seconds=int(settings.drain_timeout))
        control = ControlApp(self.app, self.metrics, self.signals)
        self._control = self._serving(control, 1, grace_seconds=CONTROL_GRACE_SECONDS)
        connections = self.metrics.gauges["open_connections"]
        for port, server in (("clients", self._server), ("control", self._control)):
            connections.labels(port).set_function(partial(len, server.server_state.connections))
        self._grpc = None if settings.grpc_port is None else _grpc_server(self.app, settings, settings.grpc_port)
        self.grpc_port: int | None = None if self._grpc is None else self._grpc.port
        """As `port`; None = there is none."""
        self._drain_timer: asyncio.TimerHandle | None = None
        self._cut_at = math.inf
        """Monotonic time until which responses in the background may take."""

    def _serve_line(self, *line: Any, **more: Any) -> Coroutine[Any, Any, ServedAnswer]:
        return self.app.serve_line(*line, **more)

    def _serving(self, app: App, number: int, *, grace_seconds: int) -> HttpServer:
        return HttpServer(
            app,
            self._protocols[number],
            backlog=BACKLOG,
            keep_alive_seconds=self.settings.keep_alive_timeout,
            grace_seconds=grace_seconds,
        )

    async def run(self) -> None:
        """Serves. Returns when drained, or when following the fleet or the API keys has broken down: replicas that are
        gone and revoked keys must not be used for ever. Raises if a server breaks down."""
        following = asyncio.create_task(self.fleet.run(), name="following the fleet")
        controlling = asyncio.create_task(self._control.serve([self._control_socket]))
        serving = [asyncio.create_task(self._server.serve([self._socket]), name="serving HTTP")]
        if self._grpc is not None:
            serving.append(asyncio.create_task(self._grpc.serve(), name="serving gRPC"))
        signalling = asyncio.create_task(self.signals.run())
        admitting = asyncio.create_task(self.access.run(), name="following the API keys")
        followers = [following, admitting]
        if self.storage is not None:
            followers += [asyncio.create_task(work, name=name) for name, work in self.storage.works()]
        for follower in (*followers, *serving):
            follower.add_done_callback(self._follower_ended)
        logger.info("serving on port %d; metrics, signals and probes on port %d", self.port, self.control_port)
        try:
            for error in await asyncio.gather(*serving, return_exceptions=True):
                if error is not None:
                    raise error
            if self.storage is not None:
                await self.storage.close(max(0.0, self._cut_at - time.monotonic()))
        finally:
            self.signals.close()
            self._control.stop()
            await controlling
            for follower in followers:
                follower.cancel()
            await asyncio.gather(signalling, *followers, return_exceptions=True)
            if self.storage is not None:
                self.storage.database.close()
            self.upstream.close()
            self.tokenizers.close()

    def drain(self) -> None:
        """Not ready from now on; takes requests for `drain_delay` more seconds, then finishes running ones, and ends.

        A gateway that was never ready has no clients and does not wait. Further calls change nothing: a repeated signal
        of a container runtime must not cut streams.
        """

        def stop() -> None:
            if not self._server.should_exit:
                self._stop_serving()

        if self._drain_timer is None:
            delay = self.settings.drain_delay if self.fleet.synced else 0.0
            self._announce()
            for protocol in self._protocols:
                protocol.linger_seconds = LINGER_SECONDS
            logger.info("draining: not ready, requests are taken for %g more seconds", delay)
            self._drain_timer = asyncio.get_running_loop().call_later(delay, stop)

    def stop(self) -> None:
        """Takes nothing new from now on; a second call cuts what still runs."""
        self._announce()
        self._stop_serving()

    def interrupt(self) -> None:
        """Takes no new requests, and cuts running ones after `INTERRUPT_SECONDS`; while draining, at once."""
        self._cut_at = time.monotonic() + (0.0 if self.app.draining else INTERRUPT_SECONDS)
        if self.app.draining:
            self._cut_serving()
        else:
            self.stop()
            asyncio.get_running_loop().call_later(INTERRUPT_SECONDS, self._cut_serving)

    def install_signal_handlers(self) -> None:
        """SIGTERM drains, however often it comes; SIGINT, a person's, interrupts."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.drain)
        loop.add_signal_handler(signal.SIGINT, self.interrupt)

    def _stop_serving(self) -> None:
        for server in (self._server, self._grpc):
            if server is not None:
                server.stop()

    def _cut_serving(self) -> None:
        for server in (self._server, self._grpc):
            if server is not None:
                server.cut()

    def _announce(self) -> None:
        self._cut_at = min(self._cut_at, time.monotonic() + self.settings.drain_delay + self.settings.drain_timeout)
        self.app.draining = True
        self.signals.drain()
        if self.storage is not None:
            self.storage.drain()

    def _follower_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s broke down", task.get_name(), exc_info=error)
            self.stop()


def _grpc_server(app: GatewayApp, settings: GatewaySettings, port: int) -> "GrpcServer":
    """Imported where it is wanted: gRPC and protobuf take some 11 MiB. Raises OSError where the port is taken."""
    # Else gRPC's core writes lines of its own for what clients do wrong.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from fairlead.gateway.open_inference.server import GrpcServer

    return GrpcServer(app, settings, port)


def client_protocol(
    settings: GatewaySettings, on_refused: Callable[[OpenAIError, str], object], on_cut: OnCut
) -> type[LimitedProtocol]:
    """The connections of one server. `on_refused`: called with the error and the request's target, as far as it was
    read."""

    def refuse(fault: Fault, sentence: str, target: str) -> WholeAnswer:
        error, target = http_refusal(fault, sentence, settings), below(settings.root_path, target)
        on_refused(error, target)
        status, body = error.status, error.body()
        if (translation := translation_of(target)) is not None:
            status, body = translation.answer(status, body, "")
        return WholeAnswer(status, error.headers, body)

    limits = HttpLimits(
        max_connections=settings.max_connections,
        max_header_bytes=settings.max_header_bytes,
        max_headers=settings.max_headers,
        header_timeout=settings.header_timeout,
        max_skipped_bytes=settings.max_body_bytes,
        skip_timeout=settings.body_timeout,
        unread_timeout=settings.client_stall_timeout,
    )
    return make_protocol(limits, refuse, on_cut)
