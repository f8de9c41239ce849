"""A model without replicas: requests wait for the first one, are tokenised when it comes, and all are served."""

import asyncio

import pytest

from fairlead.fleet.directory import Outlook
from fairlead.gateway.dispatch import replica_watch
from fairlead.routing.replica import Limits
from fairlead_common.wire.messages import StepCost
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.fake_engine.prompts import make_tokenizer
from fairlead_testing.gateways import make_pool

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def small_engine() -> FakeEngine:
    limits = Limits(max_num_seqs=1, max_num_queued_tokens=64, max_model_len=4096)
    return FakeEngine(step_cost=StepCost(base=0.001), limits=limits)


async def test_ten_requests_at_zero_are_all_served_and_tokenised_when_the_first_replica_comes(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_watch, "WARM_UP_SECONDS", 60.0)  # its tokenizer is loaded at the machine's pace
    engine = small_engine()
    setup = await start(engines=[engine], pools=lambda engines: [make_pool([])], follow=True)
    pool = setup.gateway.pools.find("fake", None)
    asking = []
    for index in range(10):
        asking.append(asyncio.create_task(setup.post({**CHAT, "user": str(index)})))
        await setup.until(lambda count=index + 1: len(pool.queue) == count)
    setup.fleet.publish([make_pool([engine.replica(with_limits=False)])])
    answers = await asyncio.gather(*asking)
    assert [status for status, _, _ in answers] == [200] * 10
    served = {request.json()["user"]: request.json() for request in engine.requests}
    ids = make_tokenizer().encode_chat(CHAT["messages"])
    assert all(body["fairlead_prompt_tokens"]["prompts"] == [ids] for body in served.values())
    assert list(served) == [str(index) for index in range(10)], "in the order they came"


async def test_clients_that_leave_while_they_wait_for_the_first_replica_are_not_served(start) -> None:
    engine = small_engine()
    setup = await start(engines=[engine], pools=lambda engines: [make_pool([])], follow=True)
    pool = setup.gateway.pools.find("fake", None)
    leaver = asyncio.create_task(setup.post(CHAT))
    await setup.until(lambda: len(pool.queue) == 1)
    stayer = asyncio.create_task(setup.post({**CHAT, "user": "stays"}))
    await setup.until(lambda: len(pool.queue) == 2)
    leaver.cancel()
    await setup.until(lambda: len(pool.queue) == 1)
    setup.fleet.publish([make_pool([engine.replica(with_limits=False)])])
    assert (await stayer)[0] == 200
    assert [request.json().get("user") for request in engine.requests] == ["stays"]
    await asyncio.gather(leaver, return_exceptions=True)


async def test_the_queue_at_zero_is_bounded_too(start) -> None:
    setup = await start(pools=lambda engines: [make_pool([])], max_queue=3)
    pool = setup.gateway.pools.find("fake", None)
    waiting = [asyncio.create_task(setup.post(CHAT)) for _ in range(3)]
    await setup.until(lambda: len(pool.queue) == 3)
    status, document, headers = await setup.post(CHAT)
    assert (status, document["error"]["code"]) == (429, "queue_full")
    assert "retry-after" in headers
    setup.fleet.publish([make_pool([engine.replica() for engine in setup.engines])])
    assert {status for status, _, _ in await asyncio.gather(*waiting)} == {200}


async def test_a_model_that_does_not_start_is_503_with_its_sentence_when_the_time_is_over(start) -> None:
    outlook = Outlook(True, "The engine ended at start: no such file /models/x.")
    pool = make_pool([], outlook=outlook, cold_start_timeout=0.2)
    setup = await start(pools=lambda engines: [pool])
    began = asyncio.get_running_loop().time()
    status, document, headers = await setup.post(CHAT)
    assert asyncio.get_running_loop().time() - began >= 0.2
    assert (status, document["error"]["code"]) == (503, "cold_start_timeout")
    assert document["error"]["message"].endswith("no such file /models/x.")
    assert headers["retry-after"] == "10"
