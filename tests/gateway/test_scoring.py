"""Requests that compare texts go through a gateway as embeddings do: tokenised as by engines, routed, retried."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.gateway.openai.parse import parse
from fairlead.gateway.prompts.reader import PromptReader, Tokenizers
from fairlead_common.lanes import Pacer
from fairlead_common.messages import ModelInfo, PromptTokens, StepCost
from fairlead_engine.server.prompts import given_prompts
from fairlead_engine.server.request_body import decode
from fairlead_engine.server.schemas import ClassifyRequest, RerankRequest, ScoreRequest
from fairlead_engine.server.served_model import ModelFiles, ServedModel
from fairlead_engine.types import ModelTask
from fairlead_engine_testing.encoder_checkpoints import write_word_pieces
from fairlead_engine_testing.prompts_here import prompts_here
from fairlead_engine_testing.scripted_engine import scripted_info
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.fake_engine.engine import Refusal
from fairlead_testing.fake_engine.prompts import make_tokenizer, told

PATH = "/v1/rerank"
BODY = {
    "model": "fake",
    "query": "The same long beginning of every query. " * 4,
    "documents": ["a ship", {"text": "a line"}],
}
ENDPOINTS = {
    "/v1/rerank": RerankRequest,
    "/v1/score": ScoreRequest,
    "/v1/classify": ClassifyRequest,
}
COST = StepCost(base=0.001, prefill_token=1e-3)
BODIES = [
    ("/v1/rerank", {"query": "the ship", "documents": ["a line", {"text": "ship 42!"}, "", "x" * 300]}),
    ("/v1/rerank", {"query": "the ship", "documents": ["a line"], "add_special_tokens": False}),
    ("/v1/score", {"text_1": ["the ship", "a line"], "text_2": ["a", "b"]}),
    ("/v1/score", {"queries": "the ship", "items": ["a", "b"]}),
    ("/v1/classify", {"input": ["the ship", "a line"]}),
]


@pytest.mark.parametrize("joins_pairs", [False, True])
async def test_gateway_and_engine_make_the_same_prompts(tmp_path: Path, joins_pairs: bool) -> None:
    write_word_pieces(tmp_path)
    task = ModelTask(generates=False, labels=("LABEL_0",) if joins_pairs else ())
    model = ServedModel("m", ModelFiles.read(tmp_path), scripted_info(task=task, max_model_len=512))
    tokenizers = Tokenizers()
    await tokenizers.add(*told(msgspec.json.decode(model.protocol_json, type=ModelInfo)))
    reader = PromptReader(tokenizers, Pacer())
    digest = model.tokenizer.digest
    for path, fields in BODIES:
        raw = msgspec.json.encode({"model": "m", **fields})
        schema = ENDPOINTS[path]
        expected = prompts_here(decode(raw, schema), model, lambda request: request.prompt_fields)
        read = await reader.read(parse(path, raw, [], request_id="r"), [digest])
        sent = msgspec.json.decode(read.tokens_field(digest) or b"null", type=PromptTokens)
        assert sent.prompts == [list(prompt.token_ids) for prompt in expected]
        starts = [prompt.second_start for prompt in expected]
        assert sent.second_starts == (starts if joins_pairs and path != "/v1/classify" else [])
        again = decode(msgspec.json.encode({"model": "m", **fields, "fairlead_prompt_tokens": sent}), schema)
        assert given_prompts(again.prompt_fields, again, model) is not None, "and the engine takes them"
        assert prompts_here(again, model, lambda request: request.prompt_fields) == expected
    wrong: list[dict[str, Any]] = [{"query": "a", "documents": [5]}, {"query": "a", "documents": ["a " * 600]}]
    for fields in wrong:
        read = await reader.read(
            parse(PATH, msgspec.json.encode({"model": "m", **fields}), [], request_id="r"), [digest]
        )
        assert read.by_digest == {}
        assert (digest in read.too_long) == isinstance(fields["documents"][0], str)
    tokenizers.close()


def test_one_tokenizer_has_two_digests(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.joining_pairs().digest != tokenizer.digest


async def test_it_is_tokenised_routed_to_its_prefix_and_counted(start: Any) -> None:
    engines = [FakeEngine(f"e{index}", step_cost=COST) for index in range(3)]
    setup = await start(engines=engines, follow=True)
    status, body, _ = await setup.post(BODY, PATH)
    assert (status, [each["index"] for each in body["results"]]) == (200, [0, 1])
    served = next(engine for engine in engines if engine.requests)
    sent = served.requests[0].json()["fairlead_prompt_tokens"]
    assert sent["prompts"] == [make_tokenizer().encode(text) for text in (BODY["query"], "a ship", "a line")]
    await setup.until(lambda: len(setup.gateway.datastore.index) == len(served.hashes) > 0)
    for _ in range(4):
        assert (await setup.post(BODY, PATH))[0] == 200
    assert len(served.requests) == 5
    assert setup.gateway.pools.find("fake", None).counters.num_ended == 5
    assert "fairlead_gateway_time_to_first_token_seconds_count" in await setup.metrics()


async def test_who_is_full_is_made_good_by_another_and_what_fits_nowhere_is_refused_by_its_place(start: Any) -> None:
    full, other = engines = [FakeEngine("full"), FakeEngine("other")]
    full.refusal = Refusal.FULL
    setup = await start(engines=engines, follow=True)
    answers = await asyncio.gather(*(setup.post(BODY, PATH) for _ in range(6)))
    assert {status for status, _, _ in answers} == {200}
    assert other.num_finished == 6
    status, body, _ = await setup.post({**BODY, "documents": ["a", "x" * 4096]}, PATH)
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, "context_length_exceeded", "documents[1]")
