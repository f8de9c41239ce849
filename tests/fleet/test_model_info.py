"""Limits over HTTP, from engines that answer, fail and keep silent."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from fairlead.fleet.model_info import ModelInfoClient, ModelInfoError
from fairlead.routing.replica import Limits, Replica
from fairlead.testing.fake_engine import FakeEngine
from fairlead.testing.http import RecordedRequest, Responder, serve_http


@pytest.fixture
async def client() -> AsyncIterator[ModelInfoClient]:
    made = ModelInfoClient(timeout=0.3)
    yield made
    await made.close()


async def test_an_engine_tells_its_limits_and_its_name(client: ModelInfoClient) -> None:
    limits = Limits(max_num_seqs=3, max_num_waiting=5, max_model_len=99)
    async with FakeEngine(limits=limits, served_name="small") as engine:
        replica = engine.replica(with_limits=False)
        assert await client.fetch(replica) == replace(replica, limits=limits, served_name="small")


async def fetch_from(client: ModelInfoClient, handler) -> Replica:
    server = await serve_http(handler)
    try:
        port = server.sockets[0].getsockname()[1]
        return await client.fetch(Replica(uid="u", name="p", host="127.0.0.1", port=port))
    finally:
        server.close()


async def test_an_error_status_is_an_error(client: ModelInfoClient) -> None:
    async def fail(request: RecordedRequest, responder: Responder) -> None:
        await responder.json(500, {})

    with pytest.raises(ModelInfoError, match="500"):
        await fetch_from(client, fail)


async def test_a_reply_without_limits_is_an_error(client: ModelInfoClient) -> None:
    async def fail(request: RecordedRequest, responder: Responder) -> None:
        await responder.json(200, {"served_name": "m", "max_num_seqs": "many"})

    with pytest.raises(ModelInfoError, match="max_num_seqs"):
        await fetch_from(client, fail)


async def test_a_silent_engine_is_given_up(client: ModelInfoClient) -> None:
    async def silent(request: RecordedRequest, responder: Responder) -> None:
        await responder.start(200, {"content-type": "application/json"})
        await asyncio.Event().wait()

    with pytest.raises(ModelInfoError):
        await fetch_from(client, silent)


async def test_nobody_there_is_an_error(client: ModelInfoClient) -> None:
    async with FakeEngine() as engine:
        replica = engine.replica()
    with pytest.raises(ModelInfoError):
        await client.fetch(replica)
