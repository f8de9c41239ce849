"""Limits over HTTP, from engines that answer, fail and keep silent."""

import asyncio
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fairlead.fleet.replica_tasks import MAX_INFO_BYTES, ModelInfoClient, ModelInfoError
from fairlead.routing.replica import Limits, Replica
from fairlead_common.wire.messages import ModelBrief, ModelInfo
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
        self.added: list[tuple[ModelBrief, bytes | None]] = []

    def get(self, digest: str) -> object | None:
        return next((info for info, _ in self.added if info.digest == digest), None)

    async def add(self, info: ModelBrief, told: bytes | None) -> None:
        self.added.append((info, told))


async def test_a_tokenizer_is_handed_over_once_and_every_engines_limits() -> None:
    book = FakeBook()
    made = ModelInfoClient(tokenizers=book)
    for block_size in (16, 32):
        limits = Limits(max_num_seqs=3, max_num_queued_tokens=500, block_size=block_size)
        async with FakeEngine(limits=limits) as engine:
            await made.fetch(engine.replica())
    (first, told), (second, nothing) = book.added
    assert told is not None and nothing is None
    assert msgspec.json.decode(told, type=ModelInfo).tokenizer_json == make_tokenizer().tokenizer_json
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


MANY = 2_000_000
HOSTILE = {
    "a tokenizer of lists": lambda info: info.replace(
        b'"tokenizer_json":', b'"tokenizer_json":[%b0],"x":' % (b"[]," * MANY)
    ),
    "special tokens": lambda info: info.replace(
        b'"special_tokens":{', b'"special_tokens":{' + b'"":"",' * MANY + b'"":""'
    ),
    "adapters": lambda info: info.replace(b'"adapters":[', b'"adapters":[' + b'"",' * MANY + b'""'),
    "names": lambda info: info.replace(b'"dtype":"', b'"dtype":"' + b"x" * MANY),
    "more than is read": lambda info: info.replace(b'"dtype":"', b'"dtype":"' + b"x" * MAX_INFO_BYTES),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_of_what_an_engine_says_of_itself_no_more_is_decoded_than_is_needed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hostile(request: RecordedRequest, responder: Responder) -> None:
        async with FakeEngine() as engine:
            await responder.whole(200, HOSTILE[name](msgspec.json.encode(engine._model_info())))

    decode, made = msgspec.json.decode, list[int]()

    def counting(*args: Any, **named: Any) -> Any:
        tracemalloc.start()
        try:
            return decode(*args, **named)
        finally:
            made.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    monkeypatch.setattr(msgspec.json, "decode", counting)
    with suppress(ModelInfoError):
        await fetch_from(ModelInfoClient(timeout=30.0, tokenizers=FakeBook()), hostile)
    assert max(made, default=0) < 2**24


async def test_a_reply_that_is_nested_without_end_is_an_error(client: ModelInfoClient) -> None:
    async def deep(request: RecordedRequest, responder: Responder) -> None:
        await responder.whole(200, b'{"more": ' + b"[" * 100_000)

    with pytest.raises(ModelInfoError):
        await fetch_from(client, deep)


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
