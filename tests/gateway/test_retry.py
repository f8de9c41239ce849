"""A second replica is asked only before the client's first byte; after it, a broken stream ends in an error event."""

import asyncio
import itertools
import json
from dataclasses import replace

import openai
import pytest

from fairlead.routing.replica import Limits
from fairlead_testing.fake_engine import Death, FakeEngine, Refusal
from fairlead_testing.gateways import make_pool
from fairlead_testing.http import RecordedRequest, Responder

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def attempts(setup) -> list[int]:
    return [len(engine.requests) for engine in setup.engines]


@pytest.mark.parametrize(
    ("fault", "stream"),
    [*itertools.product([*Refusal, Death.BEFORE_HEADERS], [False, True]), (Death.AFTER_HEADERS, True)],
)
async def test_a_refusal_or_a_death_before_the_first_byte_is_made_good_by_another_replica(
    start, fault: Refusal | Death, stream: bool
) -> None:
    setup = await start(2)
    setattr(setup.engines[0], "refusal" if isinstance(fault, Refusal) else "death", fault)
    async with setup.http.post(f"{setup.url}/v1/chat/completions", json={**CHAT, "stream": stream}) as response:
        assert response.status == 200
        assert response.headers["x-fairlead-replica"] == "engine-1"
        assert "[DONE]" in await response.text() or not stream
    assert attempts(setup) == [1, 1]


async def test_a_replica_nobody_can_connect_to_is_left_alone(start) -> None:
    setup = await start(2)
    setup.engines[0].stop()
    statuses = [(await setup.post(CHAT))[0] for _ in range(6)]
    assert statuses == [200] * 6
    assert len(setup.engines[1].requests) == 6


async def test_an_engines_other_errors_are_the_clients_to_see(start) -> None:
    async def fail(request: RecordedRequest, responder: Responder) -> None:
        engine.requests.append(request)
        error = {"message": "it broke", "type": "server_error", "param": None, "code": None}
        await responder.json(500, {"error": error})

    engine = FakeEngine()
    engine._respond = fail
    setup = await start(engines=[engine, FakeEngine("engine-1")])
    status, document, _ = await setup.post(CHAT)
    assert (status, document["error"]["message"]) == (500, "it broke")
    assert attempts(setup) == [1, 0]


async def test_an_error_page_that_is_not_json_becomes_an_error_in_openai_shape(start) -> None:
    async def fail(request: RecordedRequest, responder: Responder) -> None:
        await responder.start(500, {"content-type": "text/plain"})
        await responder.chunk(b"Internal Server Error")
        await responder.end()

    engine = FakeEngine()
    engine._respond = fail
    setup = await start(engines=[engine])
    status, document, headers = await setup.post(CHAT)
    assert (status, document["error"]["code"]) == (500, "replica_failed")
    assert headers["x-fairlead-replica"] == "engine-0"


async def test_a_stream_that_breaks_after_its_first_byte_ends_in_an_error_event_and_is_not_retried(start) -> None:
    setup = await start(2)
    for engine in setup.engines:
        engine.death = Death.AFTER_ONE_TOKEN
    body = await setup.stream()
    *events, last, rest = body.split(b"\n\n")
    assert rest == b""
    assert [json.loads(event[6:])["choices"][0]["delta"]["content"] for event in events] == ["Hello"]
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert (error["code"], error["type"]) == ("replica_failed", "server_error")
    assert b"[DONE]" not in body
    assert sorted(attempts(setup)) == [0, 1]


async def test_the_official_client_raises_for_a_stream_that_breaks(start) -> None:
    setup = await start()
    setup.engines[0].death = Death.AFTER_ONE_TOKEN
    stream = await setup.openai.chat.completions.create(**CHAT, stream=True)
    with pytest.raises(openai.APIError, match="in the middle of its answer"):
        async for _ in stream:
            pass


async def test_a_full_engine_sends_requests_back_to_their_old_place(start) -> None:
    """The gateway does not know this engine's limits, so it learns them from refusals; nobody is lost or overtaken."""
    engine = FakeEngine(limits=Limits(max_num_seqs=1, max_num_queued_tokens=0))
    setup = await start(
        engines=[engine], pools=lambda engines: [make_pool([replace(engines[0].replica(), limits=None)])]
    )
    engine.pace = lambda index: asyncio.sleep(0.005)
    answers = await asyncio.gather(*(setup.post({**CHAT, "user": str(index)}) for index in range(8)))
    assert [status for status, _, _ in answers] == [200] * 8
    assert engine.num_finished == 8
    assert len(engine.requests) > 8, "some were refused and came again"


async def test_requests_reach_a_busy_engine_in_the_order_they_came(start) -> None:
    setup = await start(engines=[FakeEngine(limits=Limits(max_num_seqs=1, max_num_queued_tokens=0))])
    pool = setup.gateway.pools.find("fake", None)
    tasks = []
    setup.engines[0].gate.clear()
    for index in range(5):
        tasks.append(asyncio.create_task(setup.post({**CHAT, "user": str(index)})))
        await setup.until(lambda count=index: len(pool.queue) + pool.router.in_flight.total == count + 1)
    setup.engines[0].gate.set()
    await asyncio.gather(*tasks)
    assert [request.json()["user"] for request in setup.engines[0].requests] == ["0", "1", "2", "3", "4"]


async def test_a_kept_connection_that_the_replica_closed_is_replaced_without_anybody_noticing(start) -> None:
    setup = await start()
    for _ in range(3):
        assert (await setup.post(CHAT))[0] == 200
        for connections in setup.gateway.upstream._idle.values():
            for connection in connections:
                connection._transport.abort()  # the close is in flight while the next request is sent
    assert len(setup.engines[0].requests) >= 3
