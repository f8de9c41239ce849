"""A prompt is tokenised once, goes where its first token is expected soonest, and what came of it can be compared."""

import asyncio
import json
import logging

import pytest

from fairlead.routing.replica import Limits
from fairlead_common.wire.messages import StepCost
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.fake_engine.prompts import make_tokenizer

COST = StepCost(base=0.001, prefill_token=0.00002, decode_seq=0.0001)
LIMITS = Limits(max_num_seqs=16, max_num_queued_tokens=10_000, max_model_len=4096)
SHARED = "A long beginning that many prompts have in common, and that an engine need not read again. " * 4


def chat(text: str, **fields: object) -> dict:
    return {"model": "fake", "messages": [{"role": "user", "content": SHARED + text}], **fields}


def engines(num: int) -> list[FakeEngine]:
    return [FakeEngine(f"engine-{index}", step_cost=COST, limits=LIMITS) for index in range(num)]


async def test_the_engine_gets_the_prompts_ids_and_the_number_of_its_dispatch(start) -> None:
    setup = await start(engines=engines(1), follow=True)
    for text in ("one", "two"):
        assert (await setup.post(chat(text)))[0] == 200
    ids = make_tokenizer().encode_chat(chat("one")["messages"])
    first, second = setup.engines[0].requests
    assert first.json()["fairlead_prompt_tokens"] == {"digest": make_tokenizer().digest, "prompts": [ids]}
    assert first.json()["messages"] == chat("one")["messages"], "the body itself is as the client sent it"
    assert [request.headers["x-fairlead-dispatch"] for request in (first, second)] == [
        f"{setup.gateway.id}:1",
        f"{setup.gateway.id}:2",
    ]


async def test_a_prompt_goes_where_its_beginning_is_cached_and_the_answer_says_what_was_expected(start) -> None:
    setup = await start(engines=engines(3), follow=True)
    _, _, first = await setup.post(chat("one", stream=False))
    assert int(first["x-fairlead-predicted-cached-tokens"]) == int(first["x-fairlead-cached-tokens"]) == 0
    home = first["x-fairlead-replica"]
    engine = next(engine for engine in setup.engines if engine.name == home)
    await setup.until(lambda: setup.gateway.datastore.index.hashes(home) == engine.hashes)
    for text in ("two", "three", "four"):
        _, document, headers = await setup.post(chat(text))
        assert headers["x-fairlead-replica"] == home
        actual = document["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert int(headers["x-fairlead-predicted-cached-tokens"]) == int(headers["x-fairlead-cached-tokens"]) == actual
        assert actual > 300
        assert float(headers["x-fairlead-predicted-ttft-ms"]) > 0.0
        assert float(headers["x-fairlead-queue-ms"]) == 0.0


async def test_prompts_with_one_beginning_that_come_at_once_share_one_prefill(start) -> None:
    """Blocks whose prefill is not over count as cached on their replica. (Its 66 ms outweigh the others' ends.)"""
    setup = await start(engines=engines(2), follow=True)
    answers = await asyncio.gather(*(setup.post(chat(7 * SHARED + str(index))) for index in range(4)))
    assert len({headers["x-fairlead-replica"] for _, _, headers in answers}) == 1
    predicted = sorted(int(headers["x-fairlead-predicted-cached-tokens"]) for _, _, headers in answers)
    assert predicted[0] == 0 and predicted[1] > 2_000
    assert [int(headers["x-fairlead-cached-tokens"]) for _, _, headers in answers].count(0) == 1


async def test_what_is_not_known_is_not_said(start) -> None:
    setup = await start()
    _, _, headers = await setup.post(chat("one"))
    assert not [name for name in headers if name.lower().startswith("x-fairlead-predicted")]


async def test_predictions_of_the_engines_side_do_not_pass_as_ours(start) -> None:
    setup = await start()

    async def answer(request, responder) -> None:
        await responder.json(200, {"choices": []}, {"x-fairlead-predicted-ttft-ms": "1", "x-fairlead-replica": "x"})

    setup.engines[0]._respond = answer
    _, _, headers = await setup.post(chat("one"))
    assert headers["x-fairlead-replica"] == "engine-0"
    assert "x-fairlead-predicted-ttft-ms" not in headers


async def test_predicted_and_actual_are_metrics_and_in_the_log(start, caplog) -> None:
    caplog.set_level(logging.INFO, logger="fairlead.gateway.requests")
    setup = await start(engines=engines(1), follow=True)
    await setup.stream(**chat("one"))
    await setup.until(lambda: bool(setup.gateway.datastore.index.hashes("engine-0")))
    await setup.stream(**chat("two"))
    text = await setup.metrics()
    label = 'model="default/fake"'
    for line in (
        f"fairlead_gateway_predicted_time_to_first_token_seconds_count{{{label}}} 2.0",
        f"fairlead_gateway_ttft_prediction_error_ratio_count{{{label}}} 2.0",
        f'fairlead_gateway_cached_tokens_prediction_error_tokens_bucket{{le="0.0",{label}}} 2.0',
        f'fairlead_gateway_decisions_total{{{label},policy="PredictedTTFT"}} 2.0',
        f"fairlead_gateway_tokenizing_seconds_count{{{label}}} 2.0",
        f"fairlead_gateway_kv_index_replicas{{{label}}} 1.0",
        f"fairlead_gateway_stale_replicas{{{label}}} 0.0",
        f"fairlead_gateway_kv_index_blocks {len(setup.engines[0].hashes)}.0",
    ):
        assert line in text
    kinds = {kind: await setup.metric(f'fairlead_gateway_tokens_total{{kind="{kind}",{label}}}') for kind in
             ("prompt", "cached", "predicted_cached", "completion")}  # fmt: skip
    assert kinds["cached"] == kinds["predicted_cached"] > 300
    assert kinds["completion"] == 8
    sources = [await setup.metric(f'fairlead_gateway_tokenized_tokens_total{{{label},source="{source}"}}')
               for source in ("text_cache", "tokenizer")]  # fmt: skip
    assert sum(sources) == kinds["prompt"]
    record = [record for record in caplog.records if record.name == "fairlead.gateway.requests"][-1]
    assert record.num_predicted_cached_tokens == record.num_cached_tokens > 300
    assert record.predicted_ttft_seconds > 0.0 and record.replica_ttft_seconds > 0.0


async def test_time_to_first_token_is_counted_when_the_token_comes(start) -> None:
    setup = await start()
    response, may_go = await setup.begun()
    await response.content.readuntil(b"\n\n")
    assert 'time_to_first_token_seconds_count{model="default/fake"} 1.0' in await setup.metrics()
    may_go.set()
    await response.read()


async def test_a_completion_of_several_prompts_is_tokenised_too(start) -> None:
    setup = await start(engines=engines(1), follow=True)
    body = {"model": "fake", "prompt": ["one", "two"]}
    status, _, _ = await setup.post(body, "/v1/completions")
    assert status == 200
    encode = make_tokenizer().encode
    assert setup.engines[0].requests[0].json()["fairlead_prompt_tokens"]["prompts"] == [encode("one"), encode("two")]


@pytest.mark.parametrize("policy", ["PredictedTTFT", "LeastLoaded", "RoundRobin", "PrefixHash"])
async def test_every_policy_serves_and_is_counted(start, policy: str) -> None:
    setup = await start(engines=engines(2), follow=True, model={"policy": policy})
    answers = await asyncio.gather(*(setup.post(chat(str(index))) for index in range(6)))
    assert {status for status, _, _ in answers} == {200}
    assert f'decisions_total{{model="default/fake",policy="{policy}"}} 6.0' in await setup.metrics()


async def test_what_cannot_be_tokenised_is_the_engines_to_judge(start) -> None:
    setup = await start(engines=engines(1), follow=True)
    await setup.post({"model": "fake", "messages": [{"role": "user", "content": 5}]})
    assert "fairlead_prompt_tokens" not in json.dumps(list(setup.engines[0].requests[0].json()))
