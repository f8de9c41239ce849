"""Limits over HTTP, from engines that answer, fail and keep silent."""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from fairlead.fleet.replica_tasks import ModelInfoClient, ModelInfoError
from fairlead.routing.replica import Limits, Replica
from fairlead_protocol.messages import ModelInfo
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.fake_engine.prompts import make_tokenizer
from fairlead_testing.http import RecordedRequest, Responder, serve_http


@pytest.fixture
async def client() -> ModelInfoClient:
    return ModelInfoClient(timeout=1.0)


async def test_an_engine_tells_its_limits_and_its_name(client: ModelInfoClient) -> None:
    limits = Limits(max_num_seqs=3, max_num_queued_tokens=500, block_size=8, max_model_len=99)
    async with FakeEngine(limits=limits, served_name="small") as engine:
        replica = engine.replica(with_limits=False)
        known = replace(
            replica, limits=replace(limits, num_kv_blocks=1024), served_name="small", digest=make_tokenizer().digest
        )
        assert await client.fetch(replica) == known


class FakeBook:
    """Knows the digests of what it was given."""

    def __init__(self) -> None:
        self.added: list[ModelInfo] = []

    def get(self, digest: str) -> object | None:
        return next((info for info in self.added if info.digest == digest), None)

    async def add(self, info: ModelInfo) -> None:
        self.added.append(info)


async def test_a_tokenizer_is_handed_over_once_and_every_engines_limits() -> None:
    book = FakeBook()
    made = ModelInfoClient(tokenizers=book)
    for block_size in (16, 32):
        limits = Limits(max_num_seqs=3, max_num_queued_tokens=500, block_size=block_size)
        async with FakeEngine(limits=limits) as engine:
            await made.fetch(engine.replica())
    first, second = book.added
    assert isinstance(first, ModelInfo)
    assert first.tokenizer_json == make_tokenizer().tokenizer_json
    assert not isinstance(second, ModelInfo)
    assert (second.digest, second.block_size) == (first.digest, 32)


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
        async with FakeEngine() as engine:
            info = msgspec.to_builtins(engine._model_info())
        await responder.json(200, info | {"max_num_seqs": "many"})

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
