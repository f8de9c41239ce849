"""What the operator is told: counters, what waits, replicas' loads; a line a second, and at once when one is needed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from fairlead.api.signals_message import SECONDS_BOUNDS, TOKENS_BOUNDS, ModelSignals, SignalsLine
from fairlead.gateway.dispatch import admission
from fairlead.gateway.observation import ModelCounters, Observation
from fairlead.gateway.openai.sse import PromptTokensDetails, Usage
from fairlead.gateway.prompts.reader import ReadPrompt
from fairlead.routing.queue import Ticket
from fairlead.routing.replica import Decision, Limits, Load, Replica
from fairlead_common.wire.messages import StepCost
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.gateways import SCALED_TO_ZERO, make_pool
from fairlead_testing.harm import flood, measured_harm

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
REPLICA = Replica(uid="a", name="a", host="h", port=1)


def seen_by(counters: ModelCounters, *, stream: bool = True) -> Observation:
    seen = Observation("id", "/v1/completions", arrived=asyncio.get_running_loop().time(), stream=stream)
    seen.found(make_pool().model)
    seen.demands(counters, Ticket(1, 0))
    return seen


def decision(uncached: int | None = 30, ttft: float | None = 0.2) -> Decision:
    return Decision(REPLICA, "because", cached_tokens=70, uncached_tokens=uncached, predicted_ttft_seconds=ttft)


def bucket(counts: list[int], bounds: tuple[float, ...]) -> list[float]:
    """The upper bounds of the buckets in which something was counted, once per count."""
    return [bound for bound, count in zip((*bounds, float("inf")), counts, strict=True) for _ in range(count)]


async def test_a_request_is_counted_where_it_passes() -> None:
    counters = ModelCounters()
    seen = seen_by(counters)
    assert (counters.num_arrivals, counters.num_ended) == (1, 0)
    prompt = ReadPrompt(num_tokens=100)
    seen.routed(decision(), prompt)
    assert (counters.prompt_tokens, counters.uncached_prompt_tokens) == (100, 30)
    assert bucket(counters.uncached_per_request, TOKENS_BOUNDS) == [32.0]
    assert sum(counters.ttft) == 0
    seen.first_token()
    seen.first_token()
    assert sum(counters.ttft) == 1, "counted when it comes, and once"
    seen.usage, seen.num_generated, seen.outcome = Usage(100, 7, PromptTokensDetails(64)), 7, "completed"
    assert counters.output_tokens == 0
    seen.ended(200)
    assert (counters.num_ended, counters.num_answered, counters.output_tokens, sum(counters.tpot)) == (1, 1, 7, 1)
    assert seen.cached_tokens_error == 6


async def test_further_attempts_bring_no_further_demand() -> None:
    counters = ModelCounters()
    seen = seen_by(counters)
    for _ in range(3):
        seen.routed(decision(), ReadPrompt(num_tokens=100))
    assert (counters.prompt_tokens, counters.uncached_prompt_tokens) == (100, 30)
    assert sum(counters.uncached_per_request) == 1


def test_what_was_foreseen_is_counted_in_its_bucket() -> None:
    counters = ModelCounters()
    counters.foreseen(0.2)
    (predicted,) = bucket(counters.predicted_ttft, SECONDS_BOUNDS)
    assert 0.2 <= predicted < 0.2 * 1.25 * 1.25


async def test_what_is_not_known_is_not_made_up() -> None:
    counters = ModelCounters()
    seen = seen_by(counters)
    seen.routed(decision(uncached=None, ttft=None), ReadPrompt(num_tokens=100))
    assert counters.uncached_prompt_tokens == 100, "no tokenizer: all of it may have to be computed"
    seen.ended(0)
    assert (counters.num_ended, counters.num_answered) == (1, 0)


async def test_time_to_first_token_is_of_streams_only() -> None:
    counters = ModelCounters()
    seen = seen_by(counters, stream=False)
    seen.routed(decision(), ReadPrompt(num_tokens=100))
    seen.first_token()
    assert sum(counters.ttft) == 0


@asynccontextmanager
async def following(setup) -> AsyncIterator[Any]:
    """`await next()`: the next line of the gateway's signals."""
    url = f"http://127.0.0.1:{setup.gateway.control_port}/fairlead/v1/signals"
    async with setup.http.get(url) as response:
        assert (response.status, response.headers["content-type"]) == (200, "application/x-ndjson")

        async def line() -> SignalsLine | None:
            raw = await asyncio.wait_for(response.content.readline(), 30)
            return msgspec.json.decode(raw, type=SignalsLine) if raw else None

        yield line


async def test_lines_come_by_themselves_and_count_on(start) -> None:
    setup = await start()
    async with following(setup) as line:
        first = await line()
        assert first.gateway == setup.gateway.id
        assert first.models == {"default/fake": ModelSignals(num_ready=1)}
        assert not first.wake and not first.draining
        await setup.stream()
        await setup.post(CHAT)
        second = await line()
        while second.models["default/fake"].num_ended < 2:
            second = await line()
        model = second.models["default/fake"]
        assert (model.num_arrivals, model.num_answered, model.output_tokens) == (2, 2, 8)
        assert model.prompt_tokens > 0
        assert (model.waiting, model.running, sum(model.ttft), sum(model.tpot)) == (0, 0, 1, 1)
        assert second.uptime_seconds > first.uptime_seconds


async def test_a_request_for_a_model_without_replicas_is_told_at_once(start) -> None:
    setup = await start(pools=lambda engines: [make_pool([])])
    async with following(setup) as line:
        await line()
        asking = [asyncio.create_task(setup.post(CHAT)) for _ in range(10)]
        woken = await line()
        while not woken.wake:
            woken = await line()
        model = woken.models["default/fake"]
        assert model.num_ready == 0
        assert model.num_arrivals == model.waiting >= 1
        assert model.waiting_uncached_tokens > 0, "an estimate, as no tokenizer has been seen"
        setup.fleet.publish([make_pool([engine.replica() for engine in setup.engines])])
        assert {status for status, _, _ in await asyncio.gather(*asking)} == {200}


async def test_a_request_that_nobody_is_going_to_serve_is_told_too(start) -> None:
    setup = await start(pools=lambda engines: [make_pool([], outlook=SCALED_TO_ZERO)])
    async with following(setup) as line:
        await line()
        assert (await setup.post(CHAT))[0] == 503
        while not (woken := await line()).wake:
            pass
        assert woken.models["default/fake"].num_arrivals == 1


async def test_a_line_that_begins_is_told_at_once_but_not_again_before_a_lull(start, monkeypatch) -> None:
    monkeypatch.setattr(admission, "LULL_SECONDS", 60.0)
    engine = FakeEngine(limits=Limits(max_num_seqs=1, max_num_queued_tokens=0))
    setup = await start(engines=[engine])
    pool = setup.gateway.pools.find("fake", None)
    engine.gate.clear()
    asking = [asyncio.create_task(setup.post(CHAT))]
    await setup.until(lambda: len(engine.requests) == 1)
    async with following(setup) as line:
        await line()
        asking += [asyncio.create_task(setup.post(CHAT)) for _ in range(2)]
        while not (woken := await line()).wake:
            assert not woken.models["default/fake"].waiting, "a line in its turn was the first to tell of them"
        assert woken.models["default/fake"].waiting >= 1
        asking[1].cancel()
        asking[2].cancel()
        await setup.until(lambda: not len(pool.queue))
        asking.append(asyncio.create_task(setup.post(CHAT)))
        await setup.until(lambda: len(pool.queue) == 1)
        assert not (await line()).wake, "the line was empty for a moment only"
    engine.gate.set()
    await asyncio.gather(*asking, return_exceptions=True)
    monkeypatch.setattr(admission, "LULL_SECONDS", 0.0)
    engine.gate.clear()
    async with following(setup) as line:
        await line()
        asking = [asyncio.create_task(setup.post(CHAT)) for _ in range(2)]
        while not (await line()).wake:
            pass
    engine.gate.set()
    await asyncio.gather(*asking)


async def test_replicas_loads_are_passed_on(start) -> None:
    setup = await start()
    cost = StepCost(base=0.01, decode_seq=0.002)
    now = asyncio.get_running_loop().time()
    load = Load(time=now, running=3, waiting=2, queued_prefill_tokens=100, kv_blocks_free=5, kv_blocks_total=9,
                kv_tokens=77, token_budget=64, max_num_seqs=8, step_cost=cost)  # fmt: skip
    setup.gateway.datastore.loaded("engine-0", load)
    model = setup.gateway.signals.line().models["default/fake"]
    told = model.replicas["engine-0"]
    assert (told.name, told.running, told.waiting, told.queued_prefill_tokens) == ("engine-0", 3, 2, 100)
    assert (told.kv_blocks_free, told.kv_blocks_total, told.kv_tokens) == (5, 9, 77)
    assert (told.token_budget, told.max_num_seqs, told.draining) == (64, 8, False)
    assert 0.0 <= told.age_seconds < 3.0
    assert told.step_cost == cost
    assert told.figures == load.figures


async def test_a_replica_that_hangs_is_told_as_such_and_one_with_long_steps_is_not(start) -> None:
    setup = await start(2)
    now = asyncio.get_running_loop().time()
    for name, cost in (("engine-0", StepCost(base=0.1)), ("engine-1", StepCost(base=0.4))):
        load = Load(time=now, running=1, waiting=0, queued_prefill_tokens=0, kv_blocks_free=5, kv_blocks_total=9,
                    kv_tokens=77, token_budget=64, max_num_seqs=8, step_cost=cost, step_age_seconds=6.0)  # fmt: skip
        setup.gateway.datastore.loaded(name, load)
    told = setup.gateway.signals.line().models["default/fake"].replicas
    assert [(each.step_age_seconds, each.hangs) for each in told.values()] == [(6.0, True), (6.0, False)]
    assert 'fairlead_gateway_hanging_replicas{model="default/fake"} 1.0' in await setup.metrics()


async def test_what_waits_is_weighed_from_a_sample_where_much_waits(start) -> None:
    setup = await start(pools=lambda engines: [make_pool([])])
    pool = setup.gateway.pools.find("fake", None)
    asking = [asyncio.create_task(setup.post(CHAT)) for _ in range(150)]
    await setup.until(lambda: len(pool.queue) == 150)
    asked = 0

    def expected_uncached(prompt: ReadPrompt) -> int:
        nonlocal asked
        asked += 1
        return prompt.num_tokens

    pool.router.expected_uncached = expected_uncached
    model = setup.gateway.signals.line().models["default/fake"]
    assert asked <= 64
    assert model.waiting_uncached_tokens == sum(ticket.prompt.num_tokens for ticket in pool.queue)
    assert model.oldest_wait_seconds > 0.0
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


async def test_draining_is_told_at_once_and_the_stream_ends_with_the_gateway(start) -> None:
    setup = await start(drain_delay=0.2)
    async with following(setup) as line:
        await line()
        setup.gateway.drain()
        while not (told := await line()).draining:
            pass
        assert told.models["default/fake"].num_ready == 1
        while await line() is not None:
            pass


async def test_followers_that_leave_or_do_not_read_are_let_go(start, monkeypatch) -> None:
    monkeypatch.setattr("fairlead.gateway.signals_stream.SLOW_FOLLOWER_SECONDS", 0.2)
    setup = await start()
    signals = setup.gateway.signals
    large = b" " * 16_000_000 + b'{"gateway":"large","uptime_seconds":1}\n'
    _, sleeper = await asyncio.open_connection("127.0.0.1", setup.gateway.control_port, limit=1024)
    sleeper.write(b"GET /fairlead/v1/signals HTTP/1.1\r\nhost: x\r\n\r\n")
    url = f"http://127.0.0.1:{setup.gateway.control_port}/fairlead/v1/signals"
    async with setup.http.get(url) as response:
        await setup.until(lambda: signals.num_followers == 2)
        monkeypatch.setattr(signals, "_encoded", lambda wake: large)
        signals.wake()
        while signals.num_followers == 2:  # the one that reads goes on
            assert await asyncio.wait_for(response.content.readany(), 30)
        assert signals.num_followers == 1
    await setup.until(lambda: signals.num_followers == 0)
    sleeper.transport.abort()


async def test_no_more_follow_than_cost_nothing(start, monkeypatch) -> None:
    monkeypatch.setattr("fairlead.gateway.signals_stream.MAX_FOLLOWERS", 2)
    setup = await start()
    url = f"http://127.0.0.1:{setup.gateway.control_port}/fairlead/v1/signals"
    async with setup.http.get(url) as first, setup.http.get(url) as second:
        assert (first.status, second.status) == (200, 200)
        async with setup.http.get(url) as third:
            assert (third.status, (await third.json())["error"]["code"]) == (503, "too_many_followers")
    await setup.until(lambda: setup.gateway.signals.num_followers == 0)
    async with setup.http.get(url) as response:
        assert response.status == 200


@pytest.mark.parametrize("method", ["post", "head"])
async def test_signals_are_only_to_be_got(start, method: str) -> None:
    setup = await start()
    url = f"http://127.0.0.1:{setup.gateway.control_port}/fairlead/v1/signals"
    async with setup.http.request(method, url) as response:
        assert response.status == 405


async def test_signals_are_not_for_clients_of_models(start) -> None:
    setup = await start()
    async with setup.http.get(f"{setup.url}/fairlead/v1/signals") as response:
        assert response.status == 404
        assert json.loads(await response.read())["error"]["code"] == "unknown_url"


async def test_what_is_sent_behind_requests_for_signals_holds_nobody_up(start) -> None:
    setup = await start()
    behind = b"POST / HTTP/1.1\r\nhost: gateway\r\ncontent-length: 2000\r\n\r\n" + b"x" * 2000
    sent = b"GET /fairlead/v1/signals HTTP/1.1\r\nhost: gateway\r\n\r\n" + behind * 99
    async with measured_harm() as harm:
        await flood(setup.gateway.control_port, sent, num_connections=300, seconds=3.0)
    assert harm.stalled_seconds < 0.25
    assert harm.grown_bytes < 100 * 2**20


async def test_a_line_is_no_longer_for_the_adapters_that_an_engine_tells_of(start) -> None:
    """Else a few engines with thousands would make it longer than an operator takes."""
    engine = FakeEngine("many", adapters=[f"{number:0500}" for number in range(1500)])
    setup = await start(engines=[engine], follow=True)
    line = setup.gateway.signals.line()
    assert "many" in line.models["default/fake"].replicas
    assert len(msgspec.json.encode(line)) < 10_000
