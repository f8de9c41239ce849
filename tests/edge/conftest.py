"""Both programs that clients and gateways reach by HTTP, in this process, on real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn
import uvloop

from fairlead_common.http.connections import CutConnections
from fairlead_engine.api.served_model import ModelFiles
from fairlead_engine.api.service import Service
from fairlead_engine.config import ServerConfig
from fairlead_engine.demo import resolve_model
from fairlead_engine.host.http_server import engine_limits, engine_protocol
from fairlead_engine.server.app import build_app
from fairlead_engine_testing import ScriptedEngine
from fairlead_engine_testing.prompts_here import PromptsHere
from fairlead_engine_testing.scripted_engine import scripted_info
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.gateways import make_pool, running_gateway

MAX_CONNECTIONS = 300


@dataclass
class Program:
    """A gateway or an engine that serves the model `fake`."""

    name: str
    port: int
    connections: Callable[[], int]
    """How many are open."""
    num_running: Callable[[], int]
    """Requests that an engine computes."""
    hold: Callable[[], None]
    """From now on answers do not come, until `release`."""
    release: Callable[[], None]
    metrics: Callable[[], str]

    def total(self, name: str, label: str = "") -> float:
        """The sum over the metrics that begin with this name and have this label."""
        lines = (line for line in self.metrics().splitlines() if line.startswith(name) and label in line)
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits until something observable has happened."""
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.005)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection, for bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that both run on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def engine_port() -> AsyncIterator[int]:
    async with serving_engine() as (port, *_):
        yield port


@pytest.fixture(params=["gateway", "engine"])
async def program(request: pytest.FixtureRequest) -> AsyncIterator[Program]:
    async with (_gateway if request.param == "gateway" else _engine)() as made:
        yield made


@asynccontextmanager
async def _gateway() -> AsyncIterator[Program]:
    async with FakeEngine("engine") as engine, _running(engine) as (gateway, _, _):
        yield Program(
            "gateway",
            gateway.port,
            lambda: len(gateway._server.server_state.connections),
            lambda: engine.num_running,
            engine.gate.clear,
            engine.gate.set,
            lambda: gateway.metrics.exposition().decode(),
        )


def _running(engine: FakeEngine) -> Any:
    return running_gateway(make_pool([engine.replica()]), max_connections=MAX_CONNECTIONS)


@asynccontextmanager
async def _engine() -> AsyncIterator[Program]:
    async with serving_engine() as (port, server, engine, service):
        yield Program(
            "engine",
            port,
            lambda: len(server.server_state.connections),
            lambda: len(engine.running),
            engine.hang,
            engine.resume,
            lambda: service.metrics.render().decode(),
        )


@asynccontextmanager
async def serving_engine() -> AsyncIterator[tuple[int, uvicorn.Server, ScriptedEngine, Service]]:
    """An engine's HTTP on a port, in front of a scripted core."""
    engine = ScriptedEngine(info=scripted_info(vocab_size=100_000))
    engine.alive = True
    service = Service("fake", engine, ServerConfig(), make_asked=PromptsHere)
    service.ready(ModelFiles.read(resolve_model("demo://dinghy")), engine.info)
    options: Any = {"lifespan": "off", "log_config": None, "access_log": False, "server_header": False}
    limits = engine_limits(MAX_CONNECTIONS)
    protocol = engine_protocol(limits, service.metrics.answered, CutConnections(service.metrics.cut).cut)
    server = uvicorn.Server(uvicorn.Config(build_app(service), http=protocol, ws="none", port=0, **options))
    service.metrics.watch_connections(server.server_state.connections)
    server.install_signal_handlers = lambda: None
    serving = asyncio.create_task(server._serve())
    async with asyncio.timeout(30):
        while not server.started:
            await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1], server, engine, service
    server.should_exit = True
    await serving
