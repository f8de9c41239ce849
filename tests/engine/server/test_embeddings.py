"""`/v1/embeddings` over HTTP: the official client, inputs, refusals, metrics; by itself and behind a gateway."""

import asyncio
import base64
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

from fairlead_common.tokens.embedding_prompts import EmbeddingPrompts
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine.types import EngineRequest, ModelTask, SequenceOutput
from fairlead_engine_testing import ScriptedEngine
from fairlead_engine_testing.scripted_engine import echo, scripted_info
from fairlead_testing.gateways import gateway_before

TEXTS = ["The quick brown fox jumps over the lazy dog.", "one two three", "A fairlead guides each line."]


def wanted(reference: Any, checkpoint: Path, token_ids: list[int], pooling: str = "last") -> torch.Tensor:
    with torch.inference_mode():
        hidden = reference.model(checkpoint).model(torch.tensor([token_ids])).last_hidden_state[0]
    return torch.nn.functional.normalize(hidden[-1] if pooling == "last" else hidden.mean(0), dim=0)


def check_client(
    client: openai.OpenAI, reference: Any, checkpoint: Path, tokenizer: PromptTokenizer, model: str = "tiny"
) -> None:
    """What a client of the official library gets, in every form."""
    ids = [tokenizer.encode(text) for text in TEXTS]
    for given, prompts in ((TEXTS[0], ids[:1]), (TEXTS, ids), (ids[1], ids[1:2]), (ids, ids)):
        for more in ({}, {"encoding_format": "float"}, {"extra_body": {"pooling": "mean"}}):
            reply = client.embeddings.create(model=model, input=given, **more)  # base64 unless it says otherwise
            assert [each.index for each in reply.data] == list(range(len(prompts)))
            pooling = "mean" if "extra_body" in more else "last"
            for each, prompt in zip(reply.data, prompts, strict=True):
                difference = torch.tensor(each.embedding) - wanted(reference, checkpoint, prompt, pooling)
                assert difference.abs().max() < 1e-3
            assert reply.usage.prompt_tokens == reply.usage.total_tokens == sum(map(len, prompts))
    assert reply.object == "list"
    assert reply.model == model


def test_as_many_inputs_as_loaders_of_documents_send_are_taken(served: Any) -> None:
    with openai.OpenAI(api_key="none", base_url=f"{served.url}/v1", max_retries=0) as client:
        reply = client.embeddings.create(model="tiny", input=["x"] * 2048)
        assert [each.index for each in reply.data] == list(range(2048))
        with pytest.raises(openai.BadRequestError, match=r"2049 inputs .* max-embedding-inputs") as refused:
            client.embeddings.create(model="tiny", input=["x"] * 2049)
        assert refused.value.param == "input"


def test_the_official_client_gets_the_references_vectors(
    served: Any, checkpoint: Path, reference: Any, tokenizer: PromptTokenizer
) -> None:
    with openai.OpenAI(api_key="none", base_url=f"{served.url}/v1", max_retries=0) as client:
        check_client(client, reference, checkpoint, tokenizer)
        whole, cut = (
            client.embeddings.create(model="tiny", input="x", **more).data[0] for more in ({}, {"dimensions": 8})
        )
        expected = torch.nn.functional.normalize(torch.tensor(whole.embedding[:8]), dim=0)
        assert len(cut.embedding) == 8 and (torch.tensor(cut.embedding) - expected).abs().max() < 1e-6
        with pytest.raises(openai.BadRequestError, match="maximum context length") as refused:
            client.embeddings.create(model="tiny", input=[5] * 4096)
        assert refused.value.param == "input"


async def test_the_same_through_a_gateway_which_routes_and_meters_it(
    served: Any, checkpoint: Path, reference: Any, tokenizer: PromptTokenizer
) -> None:
    async with gateway_before(served.url) as (gateway, url):

        def ask() -> None:
            with openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0) as client:
                check_client(client, reference, checkpoint, tokenizer)
                for pooling, is_cached in (("last", True), ("mean", False)):
                    body = {"pooling": pooling, "cache_salt": "here"}
                    for _ in range(2):
                        raw = client.embeddings.with_raw_response.create(model="tiny", input=[7] * 100, extra_body=body)
                        predicted = raw.headers["x-fairlead-predicted-cached-tokens"]
                    assert int(raw.headers["x-fairlead-cached-tokens"]) == (96 if is_cached else 0)
                    assert int(predicted) == (96 if is_cached else 0), "the gateway knows what a cache can spare"

        await asyncio.to_thread(ask)
        [pool] = gateway.pools
        assert pool.counters.num_ended == 16
        assert pool.router.in_flight.total == 0


async def test_each_text_is_a_sequence_of_one_request(start_app: Any) -> None:
    app = start_app()
    for form, vector in (("float", [0.6, 0.8]), ("base64", base64.b64encode(struct.pack("<2f", 0.6, 0.8)).decode())):
        reply = await app.http.post(
            "/v1/embeddings",
            json={"model": "tiny", "input": ["a", "b"], "encoding_format": form, "priority": 3, "cache_salt": "s"},
        )
        assert reply.status_code == 200
        data = reply.json()["data"]
        assert [each["index"] for each in data] == [0, 1]
        assert [each["embedding"] for each in data] == [pytest.approx(vector) if form == "float" else vector] * 2
    first, second, *_ = app.engine.requests
    assert first.part_of == second.part_of is not None
    assert (first.num_parts_before, second.num_parts_before) == (0, 1)
    assert {(each.pooling, each.sampling.max_tokens, each.priority, each.cache_salt) for each in (first, second)} == {
        ("last", 0, 3, "s")
    }


async def test_a_prompt_of_the_models_makers_stands_before_each_text(
    start_app: Any, tokenizer: PromptTokenizer
) -> None:
    prompts = EmbeddingPrompts({"query": "query: ", "document": "", "passage": "passage: "}, "passage")
    app = start_app(tokenizer=PromptTokenizer(tokenizer.tokenizer_json, embedding_prompts=prompts))
    texts = ["one", "two"]
    for more, before in (
        ({}, "passage: "), ({"prompt_name": None}, "passage: "), ({"prompt_name": "query"}, "query: "),
        ({"prompt_name": "document"}, ""), ({"prompt_name": ""}, ""),
    ):  # fmt: skip
        app.engine.requests.clear()
        reply = await app.http.post("/v1/embeddings", json={"model": "tiny", "input": texts, **more})
        assert reply.status_code == 200, reply.text
        ids = [tokenizer.encode(before + text) for text in texts]
        assert [request.prompt_token_ids for request in app.engine.requests] == ids
        assert reply.json()["usage"]["prompt_tokens"] == sum(map(len, ids))
    app.engine.requests.clear()
    for path, given in (("/v1/embeddings", [7, 8]), ("/api/embed", "one"), ("/v1/completions", "one")):
        body = {"model": "tiny", "prompt" if "completions" in path else "input": given}
        assert (await app.http.post(path, json=body)).status_code == 200
    ids = [[7, 8], tokenizer.encode("passage: one"), tokenizer.encode("one")]
    assert [request.prompt_token_ids for request in app.engine.requests] == ids
    for given, name, sentence in (
        ("one", "q", "no prompt 'q'; its prompts are query, document, passage"),
        ([7, 8], "query", "is for texts"), ([7, 8], "q", "no prompt 'q'"),
    ):  # fmt: skip
        reply = await app.http.post("/v1/embeddings", json={"model": "tiny", "input": given, "prompt_name": name})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt_name")
        assert sentence in reply.json()["error"]["message"]
    reply = await start_app().http.post("/v1/embeddings", json={"model": "tiny", "input": "a", "prompt_name": "query"})
    assert reply.json()["error"]["message"] == "prompt_name: this model has no prompt 'query'; it has none"


@pytest.mark.parametrize(
    ("texts", "default", "query", "document"),
    [
        ({"query": "query: ", "document": "doc: ", "passage": "p: "}, None, "query: ", "doc: "),
        ({"passage": "p: ", "query": "query: "}, "query", "query: ", "p: "),
        ({"query": "query: ", "document": "", "corpus": "c: "}, "query", "query: ", ""),
        ({"query": "query: "}, "query", "query: ", ""),
        ({"corpus": "c: "}, "corpus", "", "c: "),
        ({"STS": "same: "}, "STS", "same: ", "same: "),
        ({"STS": "same: "}, None, "", ""),
    ],
)
async def test_ranking_by_vectors_puts_the_prompts_of_a_search_before_query_and_documents(
    start_app: Any, tokenizer: PromptTokenizer, texts: dict[str, str], default: str | None, query: str, document: str
) -> None:
    prompts = EmbeddingPrompts(texts, default)
    engine = ScriptedEngine(info=scripted_info(task=ModelTask(generates=False)))
    app = start_app(engine, tokenizer=PromptTokenizer(tokenizer.tokenizer_json, embedding_prompts=prompts))
    body = {"model": "tiny", "query": "one", "documents": ["two", {"text": "ship"}]}
    assert (await app.http.post("/v1/rerank", json=body)).status_code == 200
    ids = [tokenizer.encode(text) for text in (f"{query}one", f"{document}two", f"{document}ship")]
    assert [request.prompt_token_ids for request in app.engine.requests] == ids
    app.engine.requests.clear()
    assert (
        await app.http.post("/v1/score", json={"model": "tiny", "text_1": "one", "text_2": "two"})
    ).status_code == 200
    ids = [tokenizer.encode(prompts.text(None) + text) for text in ("one", "two")]
    assert [request.prompt_token_ids for request in app.engine.requests] == ids


async def test_the_core_has_a_bounded_number_of_the_texts_at_a_time(start_app: Any) -> None:
    """Ten clients with two thousand texts each kept others waiting for seconds: each step counted all that waited."""
    app = start_app()
    at_once: list[int] = []

    def script(request: EngineRequest) -> Iterable[SequenceOutput]:
        at_once.append(len(app.engine.running))
        return echo(request)

    app.engine.script = script
    reply = await app.http.post("/v1/embeddings", json={"model": "tiny", "input": ["a"] * 500})
    assert [each["index"] for each in reply.json()["data"]] == list(range(500))
    assert [each.num_parts_before for each in app.engine.requests] == list(range(500))
    assert len(at_once) == 500 and max(at_once) <= 2 * app.engine.info.max_num_seqs


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"input": []}, "input", "input is empty"), ({"input": ""}, "input", "input is empty"),
        ({"input": [1, "a"]}, "input", "must be a text"), ({"input": ["a", ""]}, "input[1]", "is empty"),
        ({"input": [[1], [512]]}, "input[1]", "512"), ({"input": [1] * 256}, "input", "context"),
        ({"input": ["a"] * 2049}, "input", "2049"), ({}, "input", "missing"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "must be one of float, base64, not 'hex'"),
        ({"input": "a", "pooling": "first"}, "pooling", "must be one of last, mean, max, cls"),
        ({"input": "a", "pooling": "cls"}, "pooling", "sees none of the others"),
        ({"input": "a", "dimensions": 0}, "dimensions", "must be in [1, "),
        ({"input": "a", "dimensions": 4096}, "dimensions", "must be in [1, "),
        ({"input": "a", "temperature": 1}, "temperature", "unknown field"),
        ({"input": "a", "stream": True}, "stream", "unknown field"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_refused_by_name(
    start_app: Any, fields: dict[str, Any], param: str, sentence: str
) -> None:
    app = start_app(unknown_fields="refuse")
    reply = await app.http.post("/v1/embeddings", json={"model": "tiny", **fields})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert sentence in reply.json()["error"]["message"]
    assert app.engine.requests == []


async def test_it_is_refused_and_counted_as_other_requests_are(start_app: Any) -> None:
    app = start_app()
    body = {"model": "tiny", "input": ["a", "b"]}
    assert (await app.http.post("/v1/embeddings", json=body)).status_code == 200
    text = app.service.metrics.render().decode()
    for name in ("time_to_first_token_seconds", "request_queue_time_seconds", "e2e_request_latency_seconds"):
        assert f'fairlead_engine_{name}_count{{model_name="tiny"}} 2.0' in text
    assert 'fairlead_engine_request_success_total{finished_reason="stop",model_name="tiny"} 2.0' in text
    app.engine.full = True
    full = await app.http.post("/v1/embeddings", json=body)
    assert (full.status_code, full.headers["x-fairlead-reason"]) == (429, "engine-full")
    app.engine.full = False
    app.service.drain()
    assert (await app.http.post("/v1/embeddings", json={**body, "model": "other"})).status_code == 404


def test_metrics_and_load_of_a_real_engine_count_its_tokens(served: Any) -> None:
    before = served.metric("fairlead_engine_prompt_tokens_total")
    reply = httpx.post(f"{served.url}/v1/embeddings", json={"model": "tiny", "input": [[9] * 40, [8] * 30]})
    assert reply.json()["usage"]["prompt_tokens"] == 70
    assert served.metric("fairlead_engine_prompt_tokens_total") == before + 70


async def test_many_inputs_are_sent_to_the_core_in_turn_with_others_work(start_app: Any) -> None:
    """Sending each of 40 takes a millisecond here; a client that leaves meanwhile leaves nothing behind."""
    engine, turns, num_turns = ScriptedEngine(), list[int](), 0
    add = engine.add

    def add_slowly(*args: Any) -> int:
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass
        turns.append(num_turns)
        return add(*args)

    engine.add = add_slowly
    asking = asyncio.create_task(
        start_app(engine).http.post("/v1/embeddings", json={"model": "tiny", "input": ["x"] * 40})
    )
    while len(turns) < 20:
        num_turns += 1
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert len(set(turns)) > 5 and not engine.running
