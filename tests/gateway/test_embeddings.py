"""Embeddings go the way of all requests: queued, routed by cached prefixes, retried, metered."""

import asyncio

from fairlead_common.messages import HEADER_CACHED_TOKENS, HEADER_PREDICTED_CACHED_TOKENS, StepCost
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.fake_engine.engine import Refusal
from fairlead_testing.fake_engine.prompts import make_tokenizer

PATH = "/v1/embeddings"
COST = StepCost(base=0.001, prefill_token=1e-4)
BODY = {"model": "fake", "input": "The same long beginning of every question. " * 4}


async def test_it_is_tokenised_routed_to_its_prefix_and_counted(start) -> None:
    engines = [FakeEngine(f"e{index}", step_cost=COST) for index in range(3)]
    setup = await start(engines=engines, follow=True)
    status, body, headers = await setup.post(BODY, PATH)
    assert (status, body["data"][0]["embedding"]) == (200, [0.6, 0.8])
    served = next(engine for engine in engines if engine.requests)
    assert served.requests[0].path == PATH
    sent = served.requests[0].json()["fairlead_prompt_tokens"]
    assert sent["prompts"] == [make_tokenizer().encode(BODY["input"])]
    await setup.until(lambda: len(setup.gateway.datastore.index) == len(served.hashes) > 0)
    for _ in range(4):
        _, _, headers = await setup.post(BODY, PATH)
        assert int(headers[HEADER_PREDICTED_CACHED_TOKENS]) == int(headers[HEADER_CACHED_TOKENS]) > 100
    assert len(served.requests) == 5
    counters = setup.gateway.pools.find("fake", None).counters
    assert counters.num_ended == 5
    metrics = await setup.metrics()
    assert 'outcome="completed"' in metrics
    assert "fairlead_gateway_time_to_first_token_seconds_count" in metrics


async def test_who_is_full_or_fails_is_made_good_by_another(start) -> None:
    full, other = engines = [FakeEngine("full"), FakeEngine("other")]
    full.refusal = Refusal.FULL
    setup = await start(engines=engines)
    answers = await asyncio.gather(*(setup.post(BODY, PATH) for _ in range(6)))
    assert {status for status, _, _ in answers} == {200}
    assert other.num_finished == 6


async def test_what_fits_no_context_is_refused_by_its_field(start) -> None:
    setup = await start(follow=True)
    for huge in ([7] * 4096, [[7] * 4096], ["short", "x" * 4096]):
        status, body, _ = await setup.post({"model": "fake", "input": huge}, PATH)
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
        assert body["error"]["param"].startswith("input")
    assert not setup.engines[0].requests


async def test_a_client_that_leaves_frees_its_slot(start) -> None:
    setup = await start()
    engine = setup.engines[0]
    engine.gate.clear()
    asking = asyncio.create_task(setup.post(BODY, PATH))
    await setup.until(lambda: engine.num_running == 1)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await setup.until(lambda: engine.num_cancelled == 1)
    assert setup.gateway.pools.find("fake", None).router.in_flight.total == 0
