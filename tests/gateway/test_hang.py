"""One replica that hangs slows nobody but the requests it has, and those end."""

import asyncio
import logging

from fairlead.routing.replica import Limits, Replica
from fairlead_common.wire.messages import StepCost
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.gateways import make_pool

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


async def test_a_hung_replica_takes_few_requests_and_the_others_complete(start) -> None:
    setup = await start(2)
    hung, well = setup.engines
    hung.gate.clear()
    tasks = [asyncio.create_task(setup.post(CHAT)) for _ in range(20)]
    await setup.until(lambda: sum(task.done() for task in tasks) == 20 - hung.num_running and hung.num_running > 0)
    assert hung.num_running <= 10
    assert well.num_finished == 20 - hung.num_running
    for _ in range(5):
        assert (await asyncio.wait_for(setup.post(CHAT), 30))[2]["x-fairlead-replica"] == "engine-1"
    hung.gate.set()
    assert {status for status, _, _ in await asyncio.gather(*tasks)} == {200}


async def test_a_replica_silent_before_its_first_byte_is_504_and_then_left_alone(start) -> None:
    setup = await start(2, first_byte_timeout=0.5)
    hung, well = setup.engines
    hung.gate.clear()
    status, document, _ = await setup.post({**CHAT, "stream": True})
    assert status == 504
    assert document["error"]["code"] == "replica_timeout"
    assert well.num_finished == 0, "silence is not retried"
    await setup.until(lambda: hung.num_cancelled == 1)
    for _ in range(4):
        assert (await setup.stream()).endswith(b"[DONE]\n\n")
    assert len(hung.requests) == 1


async def test_an_answer_that_is_not_streamed_has_its_own_longer_limit(start) -> None:
    setup = await start(first_byte_timeout=0.05, response_timeout=30.0)
    tasks = asyncio.create_task(setup.post(CHAT))
    setup.engines[0].gate.clear()
    await setup.until(lambda: setup.engines[0].num_running == 1)
    await asyncio.sleep(0.15)
    setup.engines[0].gate.set()
    assert (await tasks)[0] == 200


async def test_silence_in_the_middle_of_a_stream_ends_it_with_an_error_event(start) -> None:
    setup = await start(idle_timeout=0.5)
    never = asyncio.Event()

    async def stop_at_two(index: int) -> None:
        if index == 2:
            await never.wait()

    setup.engines[0].pace = stop_at_two
    body = await setup.stream()
    assert body.count(b"\n\n") == 3
    assert b'"replica_timeout"' in body.split(b"\n\n")[2]
    await setup.until(lambda: setup.engines[0].num_cancelled == 1)


async def test_connecting_to_an_address_that_does_not_answer_is_given_up(start) -> None:
    """TEST-NET-1 (RFC 5737) is routed nowhere: connecting either fails or hangs, and must not hold the request."""
    lost = Replica(uid="a", name="lost", host="192.0.2.1", port=8000, digest="?")
    engine = FakeEngine("engine-0")
    setup = await start(
        engines=[engine], pools=lambda engines: [make_pool([lost, engines[0].replica()])], connect_timeout=0.5
    )
    answers = [await setup.post(CHAT) for _ in range(3)]
    assert [status for status, _, _ in answers] == [200] * 3


async def test_an_engine_whose_core_hangs_is_left_alone_though_it_answers_and_tells_its_load(
    start, monkeypatch, caplog
) -> None:
    caplog.set_level(logging.INFO, "fairlead.gateway.dispatch.replica_watch")
    monkeypatch.setattr("fairlead.routing.replica_state.HUNG_SECONDS", 0.3)
    cost, limits = StepCost(base=0.001), Limits(max_num_seqs=8, max_num_queued_tokens=10_000, max_model_len=4096)
    engines = [FakeEngine(f"engine-{index}", step_cost=cost, limits=limits) for index in range(2)]
    setup = await start(engines=engines, follow=True)
    for engine in engines:
        engine.gate.clear()
    first = asyncio.create_task(setup.post(CHAT))
    await setup.until(lambda: sum(engine.num_running for engine in engines) == 1)
    hung, well = sorted(engines, key=lambda engine: -engine.num_running)
    well.gate.set()
    loop, datastore = asyncio.get_running_loop(), setup.gateway.datastore
    await setup.until(lambda: (load := datastore.load(hung.name, loop.time())) and load.step_age_seconds > 0.3)
    answers = await asyncio.gather(*(setup.post(CHAT) for _ in range(20)))
    assert {headers["x-fairlead-replica"] for _, _, headers in answers} == {well.name}
    told = setup.gateway.signals.line().models["default/fake"].replicas
    assert {name: replica.hangs for name, replica in told.items()} == {hung.name: True, well.name: False}
    assert told[hung.name].step_age_seconds > 0.3
    [begin] = caplog.records
    assert (begin.levelname, begin.replica, begin.model) == ("WARNING", hung.name, "default/fake")
    hung.gate.set()
    assert (await first)[0] == 200
    await setup.until(lambda: (load := datastore.load(hung.name, loop.time())) and load.step_age_seconds == 0.0)
    [_, end] = caplog.records
    assert (end.levelname, end.replica, end.step_seconds > 0.2) == ("INFO", hung.name, True)
    assert end.message.endswith("it went on")
    assert 'fairlead_gateway_hanging_replicas{model="default/fake"} 0.0' in await setup.metrics()
    answers = await asyncio.gather(*(setup.post(CHAT) for _ in range(16)))
    assert {headers["x-fairlead-replica"] for _, _, headers in answers} == {hung.name, well.name}
