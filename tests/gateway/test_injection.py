"""What is put into an answer reaches the replica that has it, through whichever gateway it comes."""

import asyncio
from typing import Any

from fairlead_common.wire.messages import HEADER_REPLICA
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.gateways import make_pool

RESULT = {"model": "fake", "tool_call_id": "call_1", "content": "9"}


async def test_the_replica_with_the_answer_gets_it(start) -> None:
    setup = await start(3, model={"policy": "RoundRobin"})
    for _ in range(3):
        status, _, headers = await setup.post({"model": "fake", "messages": [{"role": "user", "content": "a"}]})
        assert status == 200
        [engine] = [each for each in setup.engines if each.name == headers[HEADER_REPLICA]]
        answer_id = f"chatcmpl-{headers['x-request-id']}"
        for prefix, named in (("", {}), ("/default/fake", {}), ("", {HEADER_REPLICA: engine.name})):
            path = f"{prefix}/v1/chat/completions/{answer_id}/inject"
            status, body, headers = await setup.post(RESULT, path, headers=named)
            assert (status, body["id"], headers[HEADER_REPLICA]) == (200, answer_id, engine.name)
        assert engine.injected == [(answer_id, RESULT)] * 3
        engine.injected.clear()
    assert not any(engine.injected for engine in setup.engines)


async def test_who_has_none_says_so_and_a_silent_replica_hides_nothing(start) -> None:
    setup = await start(engines=[FakeEngine("one"), FakeEngine("two")])
    path = "/v1/chat/completions/chatcmpl-x/inject"
    status, body, _ = await setup.post(RESULT, path)
    assert (status, body["error"]["code"]) == (404, "answer_not_found")
    assert "No injectable answer 'chatcmpl-x'" in body["error"]["message"]
    status, body, _ = await setup.post({**RESULT, "model": "other"}, path)
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    status, body, _ = await setup.post({"tool_call_id": "call_1", "content": "9"}, path)
    assert (status, body["error"]["param"]) == (400, "model")
    async with setup.http.get(setup.url + path) as response:
        assert (response.status, response.headers["allow"]) == (405, "POST")
    setup.engines[0].kill()
    status, body, _ = await setup.post(RESULT, path)
    assert (status, body["error"]["code"]) == (502, "replica_failed"), "the answer may be there"
    metrics = await setup.metrics()
    for status, number in ((404, 2), (400, 1), (502, 1)):
        assert f'fairlead_gateway_injections_total{{status="{status}"}} {number}.0' in metrics


async def test_a_replica_that_is_too_busy_takes_no_result_from_another(start) -> None:
    """That of the answer says so when the result is in its place, which takes longer than to refuse."""
    has_refused = asyncio.Event()

    class Busy(FakeEngine):
        async def _inject(self, answer_id: str, body: dict[str, Any], responder: Any) -> None:
            await responder.json(429, {"error": {"message": "too much", "code": "engine_full"}})
            has_refused.set()

    class Patient(FakeEngine):
        async def _inject(self, answer_id: str, body: dict[str, Any], responder: Any) -> None:
            await has_refused.wait()
            await asyncio.sleep(0.05)
            if answer_id == "chatcmpl-here":
                await responder.json(200, {"id": answer_id})
            else:
                await responder.json(404, {"error": {"message": "not here", "code": "answer_not_found"}})

    setup = await start(engines=[Busy("busy"), Patient("patient")])
    status, body, headers = await setup.post(RESULT, "/v1/chat/completions/chatcmpl-here/inject")
    assert (status, body["id"], headers[HEADER_REPLICA]) == (200, "chatcmpl-here", "patient")
    status, body, headers = await setup.post(RESULT, "/v1/chat/completions/chatcmpl-there/inject")
    assert (status, body["error"]["code"], headers[HEADER_REPLICA]) == (429, "engine_full", "busy"), "it may be there"


async def test_a_replica_that_drains_gets_results_for_the_answers_that_it_finishes(start) -> None:
    going, staying = engines = [FakeEngine("going"), FakeEngine("staying")]
    setup = await start(engines=engines, pools=lambda _: [make_pool([going.replica()])])
    _, _, headers = await setup.post({"model": "fake", "messages": [{"role": "user", "content": "a"}]})
    setup.fleet.publish([make_pool([staying.replica()], departing=[going.replica()])])
    answer_id = f"chatcmpl-{headers['x-request-id']}"
    for named in ({}, {HEADER_REPLICA: "going"}):
        path = f"/v1/chat/completions/{answer_id}/inject"
        status, _, headers = await setup.post(RESULT, path, headers=named)
        assert (status, headers[HEADER_REPLICA]) == (200, "going")
    assert going.injected == [(answer_id, RESULT)] * 2
    await setup.post({"model": "fake", "messages": [{"role": "user", "content": "a"}]})
    assert (len(going.requests), len(staying.requests)) == (1, 1), "and no other request"


async def test_a_replica_that_has_just_been_started_again_has_no_answer(start) -> None:
    class Loading(FakeEngine):
        async def _inject(self, answer_id: str, body: dict[str, Any], responder: Any) -> None:
            headers = {"x-fairlead-reason": "loading"}
            await responder.json(503, {"error": {"message": "loading", "code": "loading"}}, headers)

    setup = await start(engines=[Loading("loading"), FakeEngine("there")])
    status, body, _ = await setup.post(RESULT, "/v1/chat/completions/chatcmpl-x/inject")
    assert (status, body["error"]["code"]) == (404, "answer_not_found")


async def test_a_replica_that_has_gone_has_no_answer_and_one_that_should_be_there_may(start) -> None:
    going, staying = engines = [FakeEngine("going"), FakeEngine("staying")]
    setup = await start(engines=engines, pools=lambda _: [make_pool([staying.replica()], departing=[going.replica()])])
    going.kill()
    status, body, _ = await setup.post(RESULT, "/v1/chat/completions/chatcmpl-x/inject")
    assert (status, body["error"]["code"]) == (404, "answer_not_found"), "who listens no more streams nothing"
    staying.kill()
    status, body, _ = await setup.post(RESULT, "/v1/chat/completions/chatcmpl-x/inject")
    assert (status, body["error"]["code"]) == (502, "replica_failed")


async def test_a_gateway_that_is_made_to_end_says_so_to_who_sends_a_result(start, caplog) -> None:
    class Silent(FakeEngine):
        async def _inject(self, answer_id: str, body: dict[str, Any], responder: Any) -> None:
            was_asked.set()
            await asyncio.sleep(3600)

    was_asked = asyncio.Event()
    setup = await start(engines=[Silent("silent")], drain_timeout=60.0)
    path = "/v1/chat/completions/chatcmpl-x/inject"
    sending = asyncio.create_task(setup.post(RESULT, path))
    await was_asked.wait()
    setup.gateway.drain()
    with caplog.at_level("INFO", "fairlead.gateway"):
        setup.gateway.interrupt()
        status, body, _ = await asyncio.wait_for(sending, 20)
    assert (status, body["error"]["code"]) == (503, "shutting_down")
    [line] = [each for each in caplog.records if each.message == "injection"]
    assert (line.status, line.path) == (503, path)
    assert b'injections_total{status="503"} 1.0' in setup.gateway.metrics.exposition()
