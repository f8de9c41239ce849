"""The garbage collector's longest pauses: what is there from the start is not looked at again while tokens pass."""

import argparse
import asyncio
import gc
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.gateway import gateway_command as command
from fairlead.gateway.access import OpenAccess
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead_engine.config import EngineConfig, ServerConfig
from fairlead_engine.demo import resolve_model
from fairlead_engine.host.workers import prompt_root
from fairlead_engine.server.server_process import ServerProcess
from fairlead_engine_testing import ScriptedEngine
from fairlead_engine_testing.scripted_engine import scripted_info
from fairlead_testing.harm import kinds_left_behind

NUM_IMPORTED = 50_000
"""Objects; the modules alone have more."""


@pytest.fixture
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is frozen inside is the test's. Each search through the modules of all tests takes two CPU seconds and more:
    there is none inside, and afterwards all objects are exempt, as `fairlead_testing.collection` has left them."""
    thresholds = gc.get_threshold()
    monkeypatch.setattr(gc, "collect", lambda: 0)
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)  # Python's own
    yield
    gc.freeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("thawed")
async def test_a_gateway_leaves_what_it_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = list[int]()

    class Gateway:
        def __init__(self, *_: Any) -> None:
            pass

        def install_signal_handlers(self) -> None:
            pass

        async def run(self) -> None:
            frozen.append(gc.get_freeze_count())

    class Client:
        @classmethod
        async def from_environment(cls, *_: Any) -> "Client":
            return cls()

        async def __aenter__(self) -> "Client":
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(command, "Gateway", Gateway)
    monkeypatch.setattr(command, "KubeClient", Client)
    arguments = argparse.Namespace(kubeconfig=None, context=None, namespace=[])
    usual = gc.get_threshold()
    await command._serve(arguments, GatewaySettings(), OpenAccess())
    assert frozen[0] > NUM_IMPORTED
    assert gc.get_threshold()[:2] == usual[:2] and gc.get_threshold()[2] > usual[2]


@pytest.mark.usefixtures("thawed")
async def test_an_engine_leaves_its_model_and_modules() -> None:
    async def start() -> Any:
        return scripted_info()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        starting: asyncio.Task[Any] = asyncio.create_task(start())
        engine, folder = EngineConfig(model="demo://dinghy"), resolve_model("demo://dinghy")
        root = prompt_root()
        process = ServerProcess(engine, ServerConfig(), folder, listener, ScriptedEngine(), starting, root, 0.0)
        await process._load()
        root.close()
    assert gc.get_freeze_count() > NUM_IMPORTED
    assert gc.get_threshold()[0] > 5_000, "what a step brings for a thousand streams is no growth"


async def test_a_connection_that_has_ended_leaves_no_circle(program: Any) -> None:
    body = b'{"model": "fake", "messages": [{"role": "user", "content": "ahoy"}], "max_tokens": 3, "stream": true}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"

    async def ask() -> None:
        async with program.connected() as (reader, writer):
            writer.write(head % len(body) + body)
            assert b"data: [DONE]\n\n" in await asyncio.wait_for(reader.read(), 20)
        await program.until(lambda: not program.connections())

    await ask()
    found = await kinds_left_behind(ask)
    assert not found & {"Protocol", "Inlet", "RequestResponseCycle", "Generation", "Exchange"}, found
