"""The front's one process: HTTP, lifecycle, signals and the server behind it are wired together here, once."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Mapping

import uvloop

from fairlead_engine.errors import AddressUnavailable, EngineError
from fairlead_engine.front.first_requests import warm_up
from fairlead_engine.front.foreign_engine import ForeignEngine
from fairlead_engine.front.front_app import build_front_app
from fairlead_engine.front.front_config import FrontConfig
from fairlead_engine.front.front_proxy import FrontProxy
from fairlead_engine.front.front_service import FrontService
from fairlead_engine.front.llama_server import LlamaServer
from fairlead_engine.front.sglang_server import SglangServer
from fairlead_engine.front.vllm_server import VllmServer
from fairlead_engine.server import termination
from fairlead_engine.server.http_server import make_http_server, settle_garbage
from fairlead_protocol.http.addresses import authority
from fairlead_protocol.http.connections import allow_descriptors, listening_socket
from fairlead_protocol.logs import configure_logging

KINDS: Mapping[str, Callable[[FrontConfig], ForeignEngine]] = {
    "vllm": VllmServer,
    "llama-cpp": LlamaServer,
    "sglang": SglangServer,
}


log = logging.getLogger(__name__)

_DESCRIPTORS_PER_CONNECTION = 2
"""One to the gateway, one to the server."""


def run(config: FrontConfig) -> int:
    """Serves until drained; returns the process's exit status."""
    configure_logging(config.log_level, config.log_format)
    allow_descriptors(config.max_connections, per_connection=_DESCRIPTORS_PER_CONNECTION)
    try:
        with _listening(config) as listener:
            uvloop.run(_serve(config, listener))
            for number in (signal.SIGINT, signal.SIGTERM):  # a repeated one must not change the exit status
                signal.signal(number, signal.SIG_IGN)
    except EngineError as error:
        termination.report(error)
        return 1
    return 0


def _listening(config: FrontConfig) -> socket.socket:
    try:
        return listening_socket(config.host, config.port)
    except OSError as error:
        remedy = "stop what holds the address, or choose another --port or --host"
        raise AddressUnavailable(f"{error.strerror}; {remedy}") from error


async def _serve(config: FrontConfig, listener: socket.socket) -> None:
    front, loop = FrontProcess(config, listener), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, front.service.drain)
    await front.serve()


class FrontProcess:
    """Serves on `listener`. Needs a running loop."""

    def __init__(self, config: FrontConfig, listener: socket.socket) -> None:
        self._config = config
        self._listener = listener
        engine = KINDS[config.engine](config)
        self.service = FrontService(config, engine, asyncio.get_running_loop())

    async def serve(self) -> None:
        """Waits for the server, serves, drains. Raises what keeps it from starting or going on."""
        service = self.service
        await asyncio.to_thread(service.read_files)
        proxy = FrontProxy(service)
        http = make_http_server(build_front_app(service, proxy), service.metrics, self._config.max_connections)
        serving = asyncio.create_task(http.serve(sockets=[self._listener]))
        life = asyncio.create_task(self._live())
        stopped = asyncio.create_task(service.lifecycle.stopped.wait())
        try:
            done, _ = await asyncio.wait({serving, life, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (life, stopped):
                task.cancel()
            await asyncio.gather(life, stopped, return_exceptions=True)
            service.stream.end()
            http.stop()
            await serving
            proxy.close()
            log.info("stopped")

    async def _live(self) -> None:
        """Becomes ready, and looks after the server; does not end by itself."""
        service, url = self.service, f"http://{authority(*self._listener.getsockname()[:2])}"
        log.info("waiting for the server", extra={"engine": service.client.engine.name, "url": url})
        model = await service.client.serving()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.client.follow_blocks())
            if self._config.warm_up:
                await warm_up(service, model)
            service.ready(model)
            settle_garbage()
            facts = {
                "model": self._config.name,
                "version": model.version,
                "max_model_len": model.max_model_len,
                "num_kv_blocks": model.num_kv_blocks,
            }
            log.info("ready", extra={"url": url, **facts})
            tasks.create_task(service.client.watch())
