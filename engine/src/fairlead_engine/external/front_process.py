"""The front's process: wires HTTP, lifecycle, signals and the foreign server together.

Before readiness the front sends a few short requests of its own: the timing is the first knowledge of the server's
steps, without which a gateway could predict nothing for the first replica's first requests.
"""

import asyncio
import itertools
import logging
import signal
import socket
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from fairlead_common.http.addresses import authority
from fairlead_common.http.client import HttpClient, TimeLimits
from fairlead_common.http.client_connection import TransportError, cause_of
from fairlead_common.http.connections import allow_descriptors
from fairlead_common.logs import configure_logging
from fairlead_engine.errors import EngineError
from fairlead_engine.external.foreign_engine import ForeignEngine, ForeignModel
from fairlead_engine.external.front_app import build_front_app
from fairlead_engine.external.front_config import FrontConfig
from fairlead_engine.external.front_proxy import FrontProxy
from fairlead_engine.external.front_service import FrontService
from fairlead_engine.external.llama_server import LlamaServer
from fairlead_engine.external.zmq_servers import SglangServer, VllmServer
from fairlead_engine.host import termination
from fairlead_engine.host.http_server import make_http_server, settle_garbage
from fairlead_engine.host.lifecycle import first_of

_PROMPTS = (16, 64, 256, 1024)
_NUM_TOKENS = 18
"""Tokens of each answer: a sample between tokens, and the first and the last."""
_AT_ONCE = 8
"""Shortest requests sent together, which show the cost of another sequence in a step."""
_ROUNDS = 3
"""The first round is not counted: compilers and caches warm up."""
_LIMITS = TimeLimits(connect=5.0, first_byte=120.0, silence=30.0, whole=180.0)
_FIRST_ID = 100
"""Below are special tokens, mostly."""


async def warm_up(service: FrontService, model: ForeignModel) -> None:
    """Sends the requests, and learns from the timing. A server that refuses, or does not generate text, stays
    unknown."""
    keeps = service.client.engine.keeps_connections
    http, serial = HttpClient(max_idle=_AT_ONCE if keeps else 0), itertools.count()
    try:
        for turn in range(_ROUNDS):
            for length in _PROMPTS:
                if length + _NUM_TOKENS < model.max_model_len:
                    await _ask(service, http, length, next(serial), is_counted=turn > 0)
            together = (_ask(service, http, _PROMPTS[0], next(serial), is_counted=turn > 0) for _ in range(_AT_ONCE))
            await asyncio.gather(*together)
        service.client.requests.cost.solve()
    except (TransportError, TimeoutError, _Refused) as error:
        log.warning("nothing is known yet of what the server's steps take", extra={"error": cause_of(error)})
    finally:
        http.close()


class _Refused(Exception):
    pass


async def _ask(service: FrontService, http: HttpClient, length: int, serial: int, *, is_counted: bool) -> None:
    """Sends a prompt with a new, uncached beginning."""
    ids = [_FIRST_ID + serial, *(_FIRST_ID + (serial + index) % 100 for index in range(1, length))]
    body = msgspec.json.encode(
        {"model": service.config.name, "prompt": ids, "max_tokens": _NUM_TOKENS, "ignore_eos": True, "stream": True,
         "temperature": 0}
    )  # fmt: skip
    book, now = service.client.requests, asyncio.get_running_loop().time
    request = book.begin(length, length, is_streamed=is_counted, now=now())
    headers = {"content-type": "application/json"}
    try:
        async with http.request(
            service.config.origin, "POST", "/v1/completions", _LIMITS, headers=headers, body=body
        ) as response:
            if response.status != 200:
                raise _Refused(f"HTTP {response.status}")
            while chunk := await response.chunk():
                book.came(request, chunk.count(b"data:"), now())
    finally:
        book.end(request)


KINDS: Mapping[str, Callable[[FrontConfig], ForeignEngine]] = {
    "vllm": VllmServer,
    "llama-cpp": LlamaServer,
    "sglang": SglangServer,
}


log = logging.getLogger(__name__)


def run(config: FrontConfig) -> int:
    """Serves until drained; returns the process's exit status."""
    configure_logging(config.log_level, config.log_format)
    allow_descriptors(config.max_connections, per_connection=2)  # to the gateway, and to the server
    try:
        termination.serve_at(config.host, config.port, partial(_serve, config))
    except EngineError as error:
        termination.report(error)
        return 1
    return 0


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
        """Waits for the server, serves, drains. Raises errors of starting and serving."""
        service = self.service
        await asyncio.to_thread(service.read_files)
        proxy = FrontProxy(service)
        http = make_http_server(build_front_app(service, proxy), service.metrics, self._config.max_connections)
        serving = asyncio.create_task(http.serve(sockets=[self._listener]))
        try:
            await first_of(asyncio.shield(serving), self._live(), service.lifecycle.stopped.wait())
        finally:
            service.stream.end()
            http.stop()
            await serving
            proxy.close()
            log.info("stopped")

    async def _live(self) -> None:
        """Becomes ready, and watches the server; never returns."""
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
