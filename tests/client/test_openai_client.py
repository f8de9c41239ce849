"""Our small OpenAI client against an engine and against servers that misbehave."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from fairlead.client.openai import ChatAnswer, OpenAIClient, RequestFailed
from fairlead_testing.fake_engine import Death, FakeEngine, Refusal
from fairlead_testing.gateways import make_pool, running_gateway
from fairlead_testing.http import Handler, RecordedRequest, Responder, serve_http

MESSAGES = [{"role": "user", "content": "Say hello"}]


async def test_a_chat_comes_with_its_times_counts_and_replica() -> None:
    async with FakeEngine() as engine, running_gateway(make_pool([engine.replica()])) as (_, _, url):
        engine.num_cached_tokens = 1
        async with OpenAIClient(f"{url}/v1") as client:
            answer = await client.chat("fake", MESSAGES, max_tokens=3, temperature=0)
            assert list(await client.models()) == ["fake"]
        assert (answer.text, answer.finish_reason, answer.replica) == ("Hello, world", "stop", "engine-0")
        assert (answer.num_completion_tokens, answer.num_cached_tokens) == (3, 1)
        assert answer.num_prompt_tokens > 0
        assert answer.request_id
        assert answer.ttft_seconds is not None and 0 < answer.ttft_seconds <= answer.duration_seconds
        assert engine.requests[0].json()["temperature"] == 0


async def test_pieces_come_as_they_are_made() -> None:
    async with FakeEngine() as engine, OpenAIClient(f"{engine.url}/v1") as client:
        may_go = asyncio.Semaphore(1)
        engine.pace = lambda index: may_go.acquire()
        completion, pieces = ChatAnswer(), []
        async for piece in client.stream_chat("fake", MESSAGES, completion):
            pieces.append(piece)
            assert completion.text == "".join(pieces)
            may_go.release()
        assert pieces == ["Hello", ",", " world", "!"]


async def test_a_refusal_is_an_error_with_what_the_server_said() -> None:
    async with FakeEngine() as engine, OpenAIClient(f"{engine.url}/v1") as client:
        engine.refusal = Refusal.FULL
        with pytest.raises(RequestFailed, match="queue is full") as caught:
            await client.chat("fake", MESSAGES)
        assert caught.value.status == 429


async def test_retry_after_and_code_are_kept() -> None:
    async with running_gateway() as (_, _, url), OpenAIClient(f"{url}/v1") as client:
        with pytest.raises(RequestFailed) as caught:
            await client.chat("nothing", MESSAGES)
        assert (caught.value.status, caught.value.code, caught.value.retry_after) == (404, "model_not_found", None)


async def test_a_stream_that_breaks_is_an_error_not_a_short_answer() -> None:
    async with FakeEngine() as engine, running_gateway(make_pool([engine.replica()])) as (_, _, url):
        engine.death = Death.AFTER_ONE_TOKEN
        async with OpenAIClient(f"{url}/v1") as client:
            with pytest.raises(RequestFailed, match="in the middle of its answer"):
                await client.chat("fake", MESSAGES)
        async with OpenAIClient(f"{engine.url}/v1") as client:
            with pytest.raises(RequestFailed):
                await client.chat("fake", MESSAGES)


@contextlib.asynccontextmanager
async def serving(respond: Handler) -> AsyncIterator[str]:
    server = await serve_http(respond)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    server.close()


@contextlib.asynccontextmanager
async def serving_stream(headers: dict[str, str], *events: bytes) -> AsyncIterator[tuple[str, list[RecordedRequest]]]:
    """A server that answers everything with these events; its base URL, and what it was asked."""
    asked = []

    async def respond(request: RecordedRequest, responder: Responder) -> None:
        asked.append(request)
        await responder.start(200, {"content-type": "text/event-stream", **headers})
        for event in events:
            await responder.chunk(b"data: " + event + b"\n\n")
        await responder.end()

    async with serving(respond) as url:
        yield url, asked


async def test_what_the_gateway_foresaw_is_kept_beside_what_came() -> None:
    headers = {
        "x-fairlead-replica": "a",
        "x-fairlead-cached-tokens": "32",
        "x-fairlead-predicted-cached-tokens": "48",
        "x-fairlead-predicted-ttft-ms": "12.5",
    }
    details = b'"prompt_tokens_details":{"cached_tokens":40}'
    usage = b'{"choices":[],"usage":{"prompt_tokens":60,"completion_tokens":1,%b}}' % details
    async with serving_stream(headers, usage, b"[DONE]") as (url, _), OpenAIClient(url) as client:
        answer = await client.chat("fake", MESSAGES)
    assert (answer.replica, answer.predicted_cached_tokens, answer.predicted_ttft_seconds) == ("a", 48, 0.0125)
    assert answer.num_cached_tokens == 40, "the usage is the last word"


@pytest.mark.parametrize("headers", [{}, {"x-fairlead-predicted-ttft-ms": "soon", "x-fairlead-cached-tokens": "?"}])
async def test_other_servers_foresee_nothing(headers: dict[str, str]) -> None:
    async with serving_stream(headers, b"[DONE]") as (url, _), OpenAIClient(url) as client:
        answer = await client.chat("fake", MESSAGES)
    assert (answer.predicted_cached_tokens, answer.predicted_ttft_seconds, answer.num_cached_tokens) == (None, None, 0)
    assert answer.tpot_seconds is None


async def test_an_event_or_a_list_of_the_wrong_shape_is_an_error_of_that_server() -> None:
    async with serving_stream({}, b"<html>") as (url, _), OpenAIClient(url) as client:
        with pytest.raises(RequestFailed, match="not what OpenAI's API says"):
            await client.chat("fake", MESSAGES)
        with pytest.raises(RequestFailed, match="/models is not what OpenAI's API says"):
            await client.models()


async def test_a_key_is_sent_where_there_is_one() -> None:
    async with serving_stream({}, b"[DONE]") as (url, asked):
        with_user = url.replace("//", "//me:p%40ss@")
        for address, key in ((url, "secret"), (url, None), (with_user, None), (with_user, "secret")):
            async with OpenAIClient(address, api_key=key) as client:
                await client.chat("fake", MESSAGES)
    expected = ["Bearer secret", None, "Basic bWU6cEBzcw==", "Bearer secret"]
    assert [request.headers.get("authorization") for request in asked] == expected


@pytest.mark.parametrize("address", ["http://me:secret@127.0.0.1:1/v1", "http://me:secret@a..b/v1", "http://a/ü/v1"])
async def test_an_address_where_nobody_can_be_asked_is_told_without_its_password(address: str) -> None:
    async with OpenAIClient(address) as client:
        with pytest.raises(RequestFailed) as failed:
            await client.models()
    assert "secret" not in failed.value.message and "cannot " in failed.value.message


async def test_a_stream_without_an_end_is_an_error() -> None:
    half = b'{"choices":[{"delta":{"content":"half"}}]}'
    async with serving_stream({}, half) as (url, _), OpenAIClient(url) as client:
        with pytest.raises(RequestFailed, match="before the answer was complete"):
            await client.chat("fake", MESSAGES)


async def test_silence_and_absence_are_errors() -> None:
    async with FakeEngine() as engine:
        engine.gate.clear()
        async with OpenAIClient(f"{engine.url}/v1", silence_seconds=0.1) as client:
            with pytest.raises(RequestFailed, match=r"no answer in time|[Tt]imeout"):
                await client.chat("fake", MESSAGES)
        url = engine.url
    async with OpenAIClient(f"{url}/v1") as client:
        with pytest.raises(RequestFailed):
            await client.chat("fake", MESSAGES)


async def test_a_redirection_is_an_error() -> None:
    async def redirect(request: RecordedRequest, responder: Responder) -> None:
        await responder.whole(301, b"moved", {"location": "/elsewhere"})

    async with serving(redirect) as url, OpenAIClient(url) as client:
        with pytest.raises(RequestFailed, match="moved") as refused:
            await client.chat("fake", MESSAGES)
    assert refused.value.status == 301
