"""Embeddings and comparisons of texts go the way of all requests: routed by cached prefixes, retried, metered."""

import asyncio
from typing import Any

import pytest

from fairlead_common.wire.messages import HEADER_CACHED_TOKENS, HEADER_PREDICTED_CACHED_TOKENS, StepCost
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.fake_engine.engine import Refusal
from fairlead_testing.fake_engine.prompts import make_tokenizer

COST = StepCost(base=0.001, prefill_token=1e-3)
TEXT = "The same long beginning of every question. " * 4
EMBED = ("/v1/embeddings", {"model": "fake", "input": TEXT})
RERANK = ("/v1/rerank", {"model": "fake", "query": TEXT, "documents": ["a ship", {"text": "a line"}]})
BOTH = pytest.mark.parametrize(("path", "body"), [EMBED, RERANK], ids=["embeddings", "rerank"])


@BOTH
async def test_it_is_tokenised_routed_to_its_prefix_and_counted(start, path: str, body: dict[str, Any]) -> None:
    engines = [FakeEngine(f"e{index}", step_cost=COST) for index in range(3)]
    setup = await start(engines=engines, follow=True)
    status, answer, headers = await setup.post(body, path)
    assert status == 200
    if "data" in answer:
        assert answer["data"][0]["embedding"] == [0.6, 0.8]
    else:
        assert [each["index"] for each in answer["results"]] == [0, 1]
    served = next(engine for engine in engines if engine.requests)
    assert served.requests[0].path == path
    texts = [TEXT] if "input" in body else [TEXT, "a ship", "a line"]
    sent = served.requests[0].json()["fairlead_prompt_tokens"]
    assert sent["prompts"] == [make_tokenizer().encode(text) for text in texts]
    await setup.until(lambda: len(setup.gateway.datastore.index) == len(served.hashes) > 0)
    for _ in range(4):
        status, _, headers = await setup.post(body, path)
        assert status == 200
        if "input" in body:
            assert int(headers[HEADER_PREDICTED_CACHED_TOKENS]) == int(headers[HEADER_CACHED_TOKENS]) > 100
    assert len(served.requests) == 5
    assert setup.gateway.pools.find("fake", None).counters.num_ended == 5
    metrics = await setup.metrics()
    assert 'outcome="completed"' in metrics
    assert "fairlead_gateway_time_to_first_token_seconds_count" in metrics


@BOTH
async def test_who_is_full_is_made_good_by_another(start, path: str, body: dict[str, Any]) -> None:
    full, other = engines = [FakeEngine("full"), FakeEngine("other")]
    full.refusal = Refusal.FULL
    setup = await start(engines=engines, follow=True)
    answers = await asyncio.gather(*(setup.post(body, path) for _ in range(6)))
    assert {status for status, _, _ in answers} == {200}
    assert other.num_finished == 6


@pytest.mark.parametrize(
    ("path", "fields", "place"),
    [
        ("/v1/embeddings", {"input": [7] * 4096}, "input"),
        ("/v1/embeddings", {"input": [[7] * 4096]}, "input"),
        ("/v1/embeddings", {"input": ["short", "x" * 4096]}, "input"),
        ("/v1/rerank", {"query": TEXT, "documents": ["a", "x" * 4096]}, "documents[1]"),
    ],
    ids=["token ids", "lists of token ids", "one of several texts", "a document"],
)
async def test_what_fits_no_context_is_refused_by_its_place(
    start, path: str, fields: dict[str, Any], place: str
) -> None:
    setup = await start(follow=True)
    status, body, _ = await setup.post({"model": "fake", **fields}, path)
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert body["error"]["param"].startswith(place)
    assert not setup.engines[0].requests
