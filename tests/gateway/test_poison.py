"""A request that kills replicas gets few of them, and the log leads from dead engines to the request."""

import asyncio
import logging

import pytest

from fairlead_testing.fake_engine import Death, FakeEngine, Refusal
from fairlead_testing.http import RecordedRequest, Responder

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def attempts(setup) -> list[int]:
    return sorted(len(engine.requests) for engine in setup.engines)


def failures(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    records = [record for record in caplog.records if record.getMessage() == "attempt failed"]
    return [(record.request_id, record.failure, record.again) for record in records]


@pytest.mark.parametrize(
    ("death", "stream"), [(Death.BEFORE_HEADERS, False), (Death.BEFORE_HEADERS, True), (Death.AFTER_HEADERS, True)]
)
async def test_a_request_that_kills_gets_two_replicas_and_no_more(
    start, caplog: pytest.LogCaptureFixture, death: Death, stream: bool
) -> None:
    setup = await start(4)
    for engine in setup.engines:
        engine.death = death
    status, document, headers = await setup.post({**CHAT, "stream": stream}, headers={"x-request-id": "poison"})
    assert (status, document["error"]["code"]) == (502, "replica_failed")
    assert "Replicas broke down 2 times on this request" in document["error"]["message"]
    assert "retry-after" not in headers and headers["x-should-retry"] == "false"
    assert attempts(setup) == [0, 0, 1, 1]
    assert failures(caplog) == [("poison", "died", "true"), ("poison", "died", "false")]
    named = {record.replica for record in caplog.records if record.getMessage() == "attempt failed"}
    assert named == {engine.name for engine in setup.engines if engine.requests}
    text = await setup.metrics()
    assert 'fairlead_gateway_failed_attempts_total{failure="died",model="default/fake"} 2.0' in text


async def test_replicas_that_never_got_the_request_do_not_count_as_killed_by_it(start, caplog) -> None:
    setup = await start(3)
    setup.engines[0].stop()
    setup.engines[1].death = Death.BEFORE_HEADERS
    assert [(await setup.post(CHAT))[0] for _ in range(3)] == [200] * 3
    assert {failure for _, failure, _ in failures(caplog)} == {"unreachable", "died"}


async def test_a_replica_that_dies_on_a_kept_connection_has_died_of_the_request(start, caplog) -> None:
    """Its port is closed at once, so that asking again is refused: that is no proof that it never got the request."""

    engines = [FakeEngine(f"engine-{index}") for index in range(3)]
    setup = await start(engines=engines)
    for _ in range(6):
        assert (await setup.post(CHAT))[0] == 200
    num_before = sum(attempts(setup))
    for engine in engines:

        async def respond(request: RecordedRequest, responder: Responder, engine: FakeEngine = engine) -> None:
            engine.requests.append(request)
            engine.stop()
            raise ConnectionResetError

        engine._respond = respond
    status, _, _ = await setup.post(CHAT)
    assert status == 502
    assert sum(attempts(setup)) == num_before + 2
    assert [failure for _, failure, _ in failures(caplog)] == ["died", "died"]


async def test_a_core_that_was_dead_when_a_request_came_did_not_die_of_it(start, caplog) -> None:
    """An engine whose core has died goes on answering for some seconds, and may be the only one with room."""
    dying, full = (setup := await start(2)).engines
    full.refusal = Refusal.FULL
    usual, refusals = dying._respond, [Refusal.DEAD, Refusal.GONE]

    async def respond(request: RecordedRequest, responder: Responder) -> None:
        dying.refusal = refusals.pop(0)
        await usual(request, responder)
        full.refusal = None if dying.refusal is Refusal.GONE else Refusal.FULL

    dying._respond = respond
    status, _, headers = await setup.post(CHAT)
    assert (status, headers["x-fairlead-replica"]) == (200, full.name)
    assert [(failure, again) for _, failure, again in failures(caplog)] == [("died", "true"), ("dead", "true")]


async def test_an_engine_that_says_it_died_in_the_middle_of_a_stream_is_logged_and_gets_no_more(start, caplog) -> None:
    caplog.set_level(logging.WARNING, logger="fairlead.gateway.requests")
    setup = await start(2)
    death = b'data: {"error":{"message":"the core died","type":"server_error","code":"engine_dead"}}\n\n'
    setup.engines[0]._events = lambda answer, include_usage: iter([b'data: {"choices":[{"text":"a"}]}\n\n', death])
    assert (await setup.stream()).endswith(death)
    await asyncio.sleep(0)
    assert [(failure, again) for _, failure, again in failures(caplog)] == [("died", "false")]
    for _ in range(4):
        assert (await setup.post(CHAT))[2]["x-fairlead-replica"] == "engine-1"


async def test_requests_beside_the_one_that_kills_are_replayed_and_answered(start) -> None:
    """Whoever was on a dead replica may have killed it. They are kept apart, so that the next death tells who."""
    engines = [FakeEngine(f"engine-{index}") for index in range(3)]
    setup = await start(engines=engines)
    for engine in engines:

        async def respond(
            request: RecordedRequest, responder: Responder, engine: FakeEngine = engine, usual=engine._respond
        ) -> None:
            await asyncio.sleep(0.1)
            if b"poison" in request.body:
                engine.kill()
                raise ConnectionResetError
            await asyncio.sleep(0.1)
            await usual(request, responder)

        engine._respond = respond
    posts = [asyncio.create_task(setup.post(CHAT)) for _ in range(9)]
    await asyncio.sleep(0.02)
    status, _, headers = await setup.post({**CHAT, "user": "poison"})
    assert (status, headers["x-should-retry"]) == (502, "false")
    assert [(await post)[0] for post in posts] == [200] * 9
