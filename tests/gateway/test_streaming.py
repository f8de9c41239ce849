"""Streams pass unbuffered; usage is counted and hidden; clients that leave or stall end the work upstream."""

import asyncio
import gc
import json

import pytest

from fairlead.gateway.openai.parse import InferenceRequest
from fairlead.gateway.prompts.reader import ReadPrompt
from fairlead_testing.fake_engine import Death
from fairlead_testing.fake_engine.prompts import read_prompt
from fairlead_testing.gateways import make_pool
from fairlead_testing.http import Responder

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": True}


def payloads(body: bytes) -> list[dict]:
    return [json.loads(event[6:]) for event in body.split(b"\n\n") if event and event != b"data: [DONE]"]


async def test_each_token_reaches_the_client_before_the_next_is_made(start) -> None:
    setup = await start()
    may_go = asyncio.Semaphore(0)
    setup.engines[0].pace = lambda index: may_go.acquire()
    may_go.release()
    async with setup.http.post(f"{setup.url}/v1/chat/completions", json=CHAT) as response:
        for token in ("Hello", ",", " world", "!"):
            event = await asyncio.wait_for(response.content.readuntil(b"\n\n"), 30)
            assert json.loads(event[6:])["choices"][0]["delta"]["content"] == token
            may_go.release()
        assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert response.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"other": 1}])
@pytest.mark.parametrize("null_usage", [False, True])
async def test_usage_is_asked_of_the_engine_and_hidden_from_a_client_that_did_not_ask(
    start, options, null_usage
) -> None:
    setup = await start()
    setup.engines[0].null_usage = null_usage
    body = await setup.stream(**({} if options is None else {"stream_options": options}))
    asked = setup.engines[0].requests[0].json()["stream_options"]
    assert asked == {**(options or {}), "include_usage": True}
    assert b"usage" not in body
    assert all(payload["choices"] for payload in payloads(body))
    assert body.endswith(b"data: [DONE]\n\n")
    metrics = await setup.metrics()
    assert 'fairlead_gateway_tokens_total{kind="completion",model="default/fake"} 4.0' in metrics
    num_tokens = len(read_prompt(setup.engines[0].requests[0].json()))
    assert f'fairlead_gateway_tokens_total{{kind="prompt",model="default/fake"}} {num_tokens}.0' in metrics


async def test_a_client_that_asks_for_usage_gets_it_as_the_engine_sent_it(start) -> None:
    setup = await start()
    setup.engines[0].num_cached_tokens = 1
    last = payloads(await setup.stream(stream_options={"include_usage": True}))[-1]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 1
    assert 'tokens_total{kind="cached",model="default/fake"} 1.0' in await setup.metrics()


async def test_usage_is_not_asked_for_where_nothing_is_streamed(start) -> None:
    setup = await start()
    await setup.post({**CHAT, "stream": False})
    assert "stream_options" not in setup.engines[0].requests[0].json()
    assert 'tokens_total{kind="completion",model="default/fake"} 4.0' in await setup.metrics()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_the_clients_stream_does_not_depend_on_how_the_engine_cuts_its_writes(start, size: int) -> None:
    setup = await start()
    whole = await setup.stream()
    setup.engines[0].write_size = size
    assert await setup.stream() == whole


async def test_a_client_that_leaves_in_the_middle_of_a_stream_cancels_the_engines_work(start) -> None:
    setup = await start()
    response, _ = await setup.begun()
    await response.content.readuntil(b"\n\n")
    assert setup.engines[0].num_running == 1
    response.close()
    await setup.until(lambda: setup.engines[0].num_cancelled == 1)
    await setup.until(lambda: setup.gateway.pools.find("fake", None).router.in_flight.total == 0)
    assert 'requests_total{model="default/fake",outcome="disconnected",status="200"} 1.0' in await setup.metrics()


async def test_a_client_that_leaves_when_it_has_everything_counts_as_answered(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = await start()
    monkeypatch.setattr(Responder, "end", lambda responder: asyncio.Event().wait())  # [DONE] came, the end does not
    response = await setup.http.post(f"{setup.url}/v1/chat/completions", json=CHAT)
    await response.content.readuntil(b"data: [DONE]\n\n")
    response.close()
    await setup.until(lambda: setup.gateway.pools.find("fake", None).counters.num_ended == 1)
    assert 'requests_total{model="default/fake",outcome="completed",status="200"} 1.0' in await setup.metrics()


async def test_a_replica_that_dies_when_it_has_said_everything_has_answered(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = await start()

    async def die(responder: Responder) -> None:
        responder._writer.close()  # once everything is written

    monkeypatch.setattr(Responder, "end", die)
    assert (await setup.stream()).endswith(b"data: [DONE]\n\n")
    assert 'requests_total{model="default/fake",outcome="completed",status="200"} 1.0' in await setup.metrics()


def prompts_in_memory() -> list[InferenceRequest | ReadPrompt]:
    objects = gc.get_objects()
    requests = [each for each in objects if type(each) is InferenceRequest and each.fields]
    return [*requests, *(each for each in objects if type(each) is ReadPrompt and each.by_digest)]


async def test_a_stream_that_has_begun_keeps_no_prompt_in_memory(start) -> None:
    setup = await start(follow=True)
    before = {id(each): each for each in prompts_in_memory()}  # other tests may have left some
    response, may_go = await setup.begun()
    await response.content.readuntil(b"\n\n")
    assert "fairlead_prompt_tokens" in setup.engines[0].requests[0].json()
    assert not [each for each in prompts_in_memory() if id(each) not in before]
    may_go.set()
    assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_tokens_of_a_stream_that_breaks_are_counted_as_they_passed(start) -> None:
    setup = await start(follow=True)
    setup.engines[0].death = Death.AFTER_ONE_TOKEN
    assert b'"error"' in await setup.stream()
    num_tokens = len(read_prompt(setup.engines[0].requests[0].json()))
    metrics = await setup.metrics()
    assert 'fairlead_gateway_tokens_total{kind="completion",model="default/fake"} 1.0' in metrics
    assert f'fairlead_gateway_tokens_total{{kind="prompt",model="default/fake"}} {num_tokens}.0' in metrics
    assert 'kind="cached"' not in metrics, "nobody said how many came from the cache"
    assert setup.gateway.pools.find("fake", None).counters.num_answered == 0, "its length says nothing of answers"


async def test_tokens_of_a_stream_whose_client_leaves_are_counted_as_they_passed(start) -> None:
    setup = await start()
    setup.engines[0].pace = lambda index: asyncio.sleep(0) if index < 3 else asyncio.Event().wait()
    async with setup.http.post(f"{setup.url}/v1/chat/completions", json={**CHAT, "stream": True}) as response:
        for _ in range(3):
            await response.content.readuntil(b"\n\n")
    await setup.until(lambda: setup.engines[0].num_cancelled == 1)
    assert 'fairlead_gateway_tokens_total{kind="completion",model="default/fake"} 3.0' in await setup.metrics()


async def test_a_client_that_leaves_before_the_first_byte_cancels_the_engines_work(start) -> None:
    setup = await start()
    setup.engines[0].gate.clear()
    asking = asyncio.create_task(setup.post({**CHAT, "stream": False}))
    await setup.until(lambda: setup.engines[0].num_running == 1)
    asking.cancel()
    await setup.until(lambda: setup.engines[0].num_cancelled == 1)
    await asyncio.gather(asking, return_exceptions=True)
    assert setup.gateway.pools.find("fake", None).router.in_flight.total == 0


async def test_a_client_that_leaves_while_it_waits_gives_up_its_place(start) -> None:
    setup = await start(pools=lambda engines: [make_pool([])])
    queue = setup.gateway.pools.find("fake", None).queue
    asking = asyncio.create_task(setup.post(CHAT))
    await setup.until(lambda: len(queue) == 1)
    asking.cancel()
    await setup.until(lambda: len(queue) == 0)
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_client_that_does_not_read_holds_the_engine_back_and_then_counts_as_gone(start) -> None:
    setup = await start(client_stall_timeout=0.3)
    engine = setup.engines[0]
    engine.tokens = ("x" * 100_000,) * 400
    body = json.dumps(CHAT).encode()
    async with setup.connected(limit=1024) as (reader, writer):
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await reader.readuntil(b"\r\n\r\n")
        await setup.until(lambda: engine.num_cancelled == 1)
        assert engine.num_finished == 0, "40 MB do not fit into the buffers on the way"
        writer.transport.abort()


async def test_a_stream_that_ends_without_saying_so_is_an_error_to_the_client(start) -> None:
    setup = await start()
    setup.engines[0]._events = lambda answer, include_usage: iter([b'data: {"choices":[{"text":"a"}]}\n\n'])
    body = await setup.stream()
    assert b"without saying that it is complete" in body
    assert b"[DONE]" not in body
