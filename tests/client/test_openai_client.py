"""Our small OpenAI client against an engine and against servers that misbehave."""

import asyncio

import pytest

from fairlead.client.openai import ApiError, Completion, OpenAIClient, Timeouts
from fairlead.testing.fake_engine import Death, FakeEngine, Refusal
from fairlead.testing.gateways import make_pool, running_gateway
from fairlead.testing.http import RecordedRequest, Responder, serve_http

MESSAGES = [{"role": "user", "content": "Say hello"}]


async def test_a_chat_comes_with_its_times_counts_and_replica() -> None:
    async with FakeEngine() as engine, running_gateway(make_pool([engine.replica()])) as (_, _, url):
        engine.num_cached_tokens = 1
        async with OpenAIClient(f"{url}/v1") as client:
            answer = await client.chat("fake", MESSAGES, max_tokens=3, temperature=0)
            assert await client.models() == ["fake"]
        assert (answer.text, answer.finish_reason, answer.replica) == ("Hello, world", "stop", "engine-0")
        assert (answer.num_prompt_tokens, answer.num_completion_tokens, answer.num_cached_tokens) == (2, 3, 1)
        assert answer.request_id
        assert answer.ttft_seconds is not None and 0 < answer.ttft_seconds <= answer.duration_seconds
        assert engine.requests[0].json()["temperature"] == 0


async def test_pieces_come_as_they_are_made() -> None:
    async with FakeEngine() as engine, OpenAIClient(f"{engine.url}/v1") as client:
        may_go = asyncio.Semaphore(1)
        engine.pace = lambda index: may_go.acquire()
        completion, pieces = Completion(), []
        async for piece in client.stream_chat("fake", MESSAGES, completion):
            pieces.append(piece)
            assert completion.text == "".join(pieces)
            may_go.release()
        assert pieces == ["Hello", ",", " world", "!"]


async def test_a_completion_of_a_text_prompt() -> None:
    async with FakeEngine() as engine, OpenAIClient(f"{engine.url}/v1") as client:
        assert (await client.complete("fake", "Say")).text == "Hello, world!"


async def test_a_refusal_is_an_error_with_what_the_server_said() -> None:
    async with FakeEngine() as engine, OpenAIClient(f"{engine.url}/v1") as client:
        engine.refusal = Refusal.FULL
        with pytest.raises(ApiError, match="queue is full") as caught:
            await client.chat("fake", MESSAGES)
        assert caught.value.status == 429


async def test_retry_after_and_code_are_kept() -> None:
    async with running_gateway() as (_, _, url), OpenAIClient(f"{url}/v1") as client:
        with pytest.raises(ApiError) as caught:
            await client.chat("nothing", MESSAGES)
        assert (caught.value.status, caught.value.code, caught.value.retry_after) == (404, "model_not_found", None)


async def test_a_stream_that_breaks_is_an_error_not_a_short_answer() -> None:
    async with FakeEngine() as engine, running_gateway(make_pool([engine.replica()])) as (_, _, url):
        engine.death = Death.AFTER_ONE_TOKEN
        async with OpenAIClient(f"{url}/v1") as client:
            with pytest.raises(ApiError, match="in the middle of its answer"):
                await client.chat("fake", MESSAGES)
        async with OpenAIClient(f"{engine.url}/v1") as client:
            with pytest.raises(ApiError):
                await client.chat("fake", MESSAGES)


async def test_a_stream_without_an_end_is_an_error() -> None:
    async def respond(request: RecordedRequest, responder: Responder) -> None:
        await responder.start(200, {"content-type": "text/event-stream"})
        await responder.chunk(b'data: {"choices":[{"delta":{"content":"half"}}]}\n\n')
        await responder.end()

    server = await serve_http(respond)
    async with OpenAIClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1") as client:
        with pytest.raises(ApiError, match="before the answer was complete"):
            await client.chat("fake", MESSAGES)
    server.close()


async def test_silence_and_absence_are_errors() -> None:
    async with FakeEngine() as engine:
        engine.gate.clear()
        async with OpenAIClient(f"{engine.url}/v1", timeouts=Timeouts(read=0.1)) as client:
            with pytest.raises(ApiError, match=r"no answer in time|[Tt]imeout"):
                await client.chat("fake", MESSAGES)
        url = engine.url
    async with OpenAIClient(f"{url}/v1") as client:
        with pytest.raises(ApiError):
            await client.chat("fake", MESSAGES)
