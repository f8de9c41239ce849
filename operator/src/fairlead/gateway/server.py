"""Wires a gateway and runs it: two uvicorn servers in one loop, the fleet's follower, and the drain.

Everything a gateway consists of is made in `Gateway.__init__`, and nowhere else.
"""

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from fairlead.fleet.fleet import Fleet
from fairlead.fleet.listener import EngineListener
from fairlead.fleet.tokenizers import Tokenizers
from fairlead.gateway.access.check import Access
from fairlead.gateway.app import ControlApp, GatewayApp
from fairlead.gateway.director import Director
from fairlead.gateway.dispatch.admission import Shared
from fairlead.gateway.dispatch.engines import EngineNews
from fairlead.gateway.dispatch.pools import Pools
from fairlead.gateway.dispatch.proxy import Proxy
from fairlead.gateway.downstream.protocol import LINGER_SECONDS, make_protocol
from fairlead.gateway.observation import Refusals
from fairlead.gateway.prompts.reader import PromptReader
from fairlead.gateway.settings import GatewaySettings
from fairlead.gateway.telemetry.metrics import Metrics
from fairlead.gateway.telemetry.signals_stream import SignalsStream
from fairlead.gateway.upstream.upstream import Upstream
from fairlead.routing.knowledge import Knowledge
from fairlead_protocol.connections import CutConnections
from fairlead_protocol.lanes import Pacer

logger = logging.getLogger(__name__)

BACKLOG = 2048
CONTROL_GRACE_SECONDS = 5
"""How long the control port's connections may take to end, once everything else has."""
INTERRUPT_SECONDS = 5.0
"""How long what runs may take after Ctrl-C, when a person waits."""

MakeFleet = Callable[[EngineListener, Tokenizers], Fleet]
"""Makes the fleet to follow. It tells the listener what engines stream, and adds their tokenizers."""


class Gateway:
    """One gateway: `await run()` serves until `drain` or `stop` was called and everything is answered."""

    def __init__(self, settings: GatewaySettings, make_fleet: MakeFleet, access: Access) -> None:
        """Binds its ports. Raises OSError where one is taken."""
        self.settings = settings
        self.access = access
        self.id = secrets.token_hex(8)
        """Names this run of the gateway to engines and to the operator."""
        self.knowledge = Knowledge()
        tokenizers, news = Tokenizers(), EngineNews(self.knowledge)
        self.fleet = make_fleet(news, tokenizers)
        self.upstream = Upstream(settings)
        pacer = Pacer()
        self.reader = PromptReader(tokenizers, pacer)
        shared = Shared(settings, self.id, self.knowledge, tokenizers, self.reader)
        self.pools = Pools(self.fleet, shared, self.upstream)
        self.signals = SignalsStream(self.pools, self.id)
        news.on_load = self.pools.load_changed
        self.pools.on_urgent = self.signals.wake
        self.metrics = Metrics(self.pools, self.knowledge, self.reader)
        self.metrics.watch_access(access)
        proxy = Proxy(self.upstream, settings, self.id)
        director = Director(self.pools, proxy, max_attempts=settings.max_attempts)
        refusals = Refusals(self.metrics)
        self.app = GatewayApp(self.pools, director, self.metrics, refusals, pacer, settings, access)
        self.metrics.watch_readiness(lambda: self.app.ready)
        control_host = settings.host if settings.control_host is None else settings.control_host
        self._socket = _listen(settings.host, settings.port)
        self._control_socket = _listen(control_host, settings.control_port)
        self.port: int = self._socket.getsockname()[1]
        """For clients, also where the settings said any."""
        self.control_port: int = self._control_socket.getsockname()[1]
        cuts = CutConnections(self.metrics.cut)
        self._protocols = tuple(make_protocol(settings, refusals.refused, cuts.cut) for _ in range(2))
        """Of clients and of the control port, each with turns of its own: a flood on one delays nobody on the other."""
        self._server = _Server(self.app, self._protocols[0], settings, grace_seconds=int(settings.drain_timeout))
        control = ControlApp(self.app, self.metrics, self.signals)
        self._control = _Server(control, self._protocols[1], settings, grace_seconds=CONTROL_GRACE_SECONDS)
        self.metrics.watch_connections("clients", self._server.server_state.connections)
        self.metrics.watch_connections("control", self._control.server_state.connections)
        self._drain_task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serves. Returns when drained, or when what follows the fleet or the API keys has broken down: replicas that
        are gone, or keys that were taken back, must not be used for ever. Raises if a server breaks down."""
        following = asyncio.create_task(self.fleet.run(), name="following the fleet")
        controlling = asyncio.create_task(self._control.serve([self._control_socket]))
        serving = asyncio.create_task(self._server.serve([self._socket]))
        signalling = asyncio.create_task(self.signals.run())
        admitting = asyncio.create_task(self.access.run(), name="following the API keys")
        for follower in (following, admitting):
            follower.add_done_callback(self._follower_ended)
        logger.info("serving on port %d; metrics, signals and probes on port %d", self.port, self.control_port)
        try:
            await serving
        finally:
            self.signals.close()
            self._control.stop()
            await controlling
            following.cancel()
            admitting.cancel()
            await asyncio.gather(signalling, following, admitting, return_exceptions=True)
            self.upstream.close()
            self.reader.close()

    def drain(self) -> None:
        """Not ready from now on; takes requests for `drain_delay` more seconds, then finishes what runs, and ends.

        A gateway that was never ready does not wait, since nobody was sent to it. Further calls change nothing: a
        container runtime may repeat its signal, and streams must not be cut for it.
        """
        if self._drain_task is None:
            delay = self.settings.drain_delay if self.app.was_ready else 0.0
            self._announce()
            for protocol in self._protocols:
                protocol.linger_seconds = LINGER_SECONDS
            logger.info("draining: not ready, requests are taken for %g more seconds", delay)
            self._drain_task = asyncio.create_task(self._stop_after(delay))

    def stop(self) -> None:
        """Takes nothing new from now on; a second call cuts what still runs."""
        self._announce()
        self._server.stop()

    def interrupt(self) -> None:
        """Takes nothing new from now on, and cuts what runs after `INTERRUPT_SECONDS`; while draining, at once."""
        if self.app.draining:
            self._server.cut()
        else:
            self.stop()
            asyncio.get_running_loop().call_later(INTERRUPT_SECONDS, self._server.cut)

    def install_signal_handlers(self) -> None:
        """SIGTERM drains, however often it comes; SIGINT, a person's, interrupts."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.drain)
        loop.add_signal_handler(signal.SIGINT, self.interrupt)

    def _announce(self) -> None:
        self.app.draining = True
        self.signals.drain()

    async def _stop_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if not self._server.should_exit:
            self._server.stop()

    def _follower_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s broke down", task.get_name(), exc_info=error)
            self.stop()


class _Server(uvicorn.Server):
    """uvicorn's server, but stopped by a call instead of by signals, and without waking up ten times a second."""

    def __init__(
        self,
        app: GatewayApp | ControlApp,
        protocol: type[asyncio.Protocol],
        settings: GatewaySettings,
        *,
        grace_seconds: int,
    ) -> None:
        """`grace_seconds`: how long what runs may take after `stop`."""
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
                backlog=BACKLOG,
                timeout_keep_alive=int(settings.keep_alive_timeout),
                timeout_graceful_shutdown=grace_seconds,
            )
        )

        self._stopping = asyncio.Event()
        self._cut = asyncio.Event()

    def stop(self) -> None:
        """Takes nothing new and finishes what runs; a second call cuts what still runs."""
        if self.should_exit:
            self._cut.set()
        self.should_exit = True
        self._stopping.set()

    def cut(self) -> None:
        """Takes nothing new and ends what runs, as when its time is over: each client gets an error."""
        self._cut.set()
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # renews the Date header
            try:
                await asyncio.wait_for(self._stopping.wait(), 1.0)
            except TimeoutError:
                pass

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's, which waits for what runs for as long as it may take; over at once when that is to be cut."""
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


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
