"""The budget of a request in the gateway: what would cost too much is refused by name, and holds nobody up."""

import io
import json
from typing import Any

import pytest

from fairlead.gateway.openai import sse
from fairlead_common.http.lanes import LARGE_BYTES, Pacer
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.harm import measured_harm
from fairlead_testing.hostile_bodies import Hostile, hostile_bodies

SIZE = 8 * 2**20
GENEROUS_STALL_SECONDS = 0.5
GENEROUS_GROWTH_BYTES = 100 * 2**20
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("hostile", list(hostile_bodies("fake", SIZE))[1::4], ids=str)
async def test_what_costs_too_much_is_refused_and_holds_nobody_up(start: Any, hostile: Hostile) -> None:
    setup = await start(follow=True)
    sent = setup.http.post(setup.url + hostile.path, data=io.BytesIO(hostile.body))
    async with measured_harm() as harm, sent as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"], error["code"]) == (400, hostile.param, "request_too_complex")
    assert hostile.says in error["message"].replace(",", "")
    assert harm.stalled_seconds < GENEROUS_STALL_SECONDS
    assert harm.grown_bytes < GENEROUS_GROWTH_BYTES
    assert setup.engines[0].requests == []


async def test_large_bodies_are_decoded_in_turn(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, pace = list[int](), Pacer.pace

    async def noted(self: Pacer, num_bytes: int) -> None:
        seen.append(num_bytes)
        await pace(self, num_bytes)

    monkeypatch.setattr(Pacer, "pace", noted)
    setup = await start(follow=True)
    body = json.dumps({**CHAT, "user": "x" * LARGE_BYTES}).encode()
    await setup.post(body)
    assert seen == [len(body)] * 2, "once counted, once taken apart; the model's own process reads it"


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_salt": "é" * 256},
        {"cache_salt": None},
        {"messages": CHAT["messages"] * 4096},
        {"tools": [{"type": "function"}] * 1024},
        {"tools": None},
        {"user": '"[{,' * 100_000},
        {"seed": [[]] * 90_000},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_what_is_just_within_it_goes_on_to_the_engine(start: Any, fields: dict[str, Any]) -> None:
    setup = await start()
    await setup.post(json.dumps({**CHAT, **fields}).encode())
    (taken,) = setup.engines[0].requests
    assert {name: taken.json()[name] for name in fields} == fields


@pytest.mark.parametrize("fields", [{"cache_salt": list(range(300))}, {"tools": {"x": "y" * 2000}}])
async def test_what_is_of_another_type_is_the_engines_to_refuse(start: Any, fields: dict[str, Any]) -> None:
    setup = await start()
    await setup.post({**CHAT, **fields})
    assert len(setup.engines[0].requests) == 1


async def test_a_refusal_that_quotes_the_request_is_short(start: Any) -> None:
    setup = await start()
    async with setup.http.post(f"{setup.url}/{'x' * 20_000}") as response:
        body = await response.read()
    assert response.status == 404
    assert len(body) < 1200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_too_large_is_not_held_against_its_replica(
    start: Any, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole answers are bounded together, streams by the event, such as the echo of a long prompt."""
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 50_000)
    engines = [FakeEngine(f"engine-{index}", tokens=("x" * 300_000,)) for index in range(2)]
    setup = await start(engines=engines, max_reply_bytes=100_000)
    for _ in range(6):
        status, document, headers = await setup.post({**CHAT, "stream": stream})
        error = document["error"]
        assert (status, error["code"], error["type"]) == (400, "answer_too_large", "invalid_request_error")
        assert "max_tokens" in error["message"]
        assert "retry-after" not in headers
    assert sum(len(engine.requests) for engine in engines) == 6, "nothing is sent again"
    assert all(engine.requests for engine in engines), "neither is avoided"
    assert "fairlead_gateway_failed_attempts_total{" not in await setup.metrics()
    for engine in engines:
        engine.tokens = ("short",)
    assert (await setup.post(CHAT))[0] == 200
