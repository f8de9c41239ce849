"""`/v1/rerank`, `/v1/score` and `/v1/classify` over HTTP: what transformers says of the same pairs, and refusals by
place."""

import asyncio
import struct
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from fairlead_engine.errors import RequestError
from fairlead_engine.llm import LLM
from fairlead_engine.types import EngineRequest, FinishReason, ModelTask, Pooling, Reading, SequenceOutput
from fairlead_engine_testing import ScriptedEngine
from fairlead_engine_testing.encoder_checkpoints import write_encoder, write_word_pieces
from fairlead_engine_testing.scripted_engine import scripted_info
from fairlead_testing.gateways import gateway_before

QUERY = "the ship"
DOCUMENTS = ["The fairlead guides a line.", "ship 42!", "the the the", "ship"]
CROSS_ENCODER = ModelTask(generates=False, labels=("LABEL_0",))
CLASSIFIER = ModelTask(generates=False, labels=("no", "yes"))
EMBEDDER = ModelTask(generates=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_encoder(tmp_path_factory.mktemp("models") / "bert", "bert", classifies=True, num_labels=1)
    write_word_pieces(folder)
    return folder


@pytest.fixture(scope="module")
def cross_encoder(folder: Path, serve_folder: Any) -> Any:
    return serve_folder(folder)


def logits(folder: Path, *texts: Any) -> torch.Tensor:
    """What transformers says, given a text, or two that it joins itself."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    names = ("input_ids", "token_type_ids", "attention_mask")
    encoded = tokenizer(*texts, return_tensors="pt", return_token_type_ids=True)
    assert bool(encoded["token_type_ids"].any()) == (len(texts) == 2), "the reference tells the two apart"
    with torch.inference_mode():
        return model(**{name: encoded[name] for name in names}).logits[0]


def check(url: str, folder: Path) -> None:
    wanted = [float(logits(folder, QUERY, document).sigmoid()) for document in DOCUMENTS]
    assert max(wanted) - min(wanted) > 0.01
    with httpx.Client(base_url=url) as http:
        body = {"model": "tiny", "query": QUERY, "documents": [DOCUMENTS[0], {"text": DOCUMENTS[1]}, *DOCUMENTS[2:]]}
        reply = http.post("/v1/rerank", json=body).raise_for_status().json()
        order = sorted(range(4), key=wanted.__getitem__, reverse=True)
        assert [each["index"] for each in reply["results"]] == order
        assert [each["document"]["text"] for each in reply["results"]] == [DOCUMENTS[index] for index in order]
        for each in reply["results"]:
            assert each["relevance_score"] == pytest.approx(wanted[each["index"]], abs=1e-4)
        best = http.post("/v1/rerank", json={**body, "top_n": 2, "return_documents": False}).json()
        assert best["results"] == [
            {name: each[name] for name in ("index", "relevance_score")} for each in reply["results"][:2]
        ]
        assert best["usage"] == reply["usage"]
        for names in (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
            sides = zip(names, (QUERY, DOCUMENTS), strict=True)
            reply = http.post("/v1/score", json={"model": "tiny", **dict(sides)}).raise_for_status().json()
            assert [each["index"] for each in reply["data"]] == [0, 1, 2, 3]
            assert [each["score"] for each in reply["data"]] == pytest.approx(wanted, abs=1e-4)
        several = {"model": "tiny", "text_1": [QUERY, DOCUMENTS[3]], "text_2": DOCUMENTS[:2]}
        found = [each["score"] for each in http.post("/v1/score", json=several).json()["data"]]
        assert found == pytest.approx(
            [wanted[0], float(logits(folder, DOCUMENTS[3], DOCUMENTS[1]).sigmoid())], abs=1e-4
        )
        one = http.post("/v1/score", json={"model": "tiny", "text_1": QUERY, "text_2": DOCUMENTS[2]}).json()
        assert [each["score"] for each in one["data"]] == pytest.approx(wanted[2:3], abs=1e-4)
        [told] = http.post("/v1/classify", json={"model": "tiny", "input": QUERY}).raise_for_status().json()["data"]
        assert (told["index"], told["label"], told["num_classes"]) == (0, "LABEL_0", 1)
        assert told["probs"] == pytest.approx([float(logits(folder, QUERY).sigmoid())], abs=1e-4)
        huge = http.post("/v1/rerank", json={**body, "documents": ["ship", "a" * 99, "line"]})
        assert (huge.status_code, huge.json()["error"]["param"]) == (400, "documents[1]")
        assert huge.json()["error"]["code"] == "context_length_exceeded"
        vectors = http.post("/v1/embeddings", json={"model": "tiny", "input": QUERY})
        assert vectors.status_code == 400
        assert "compare texts (/v1/rerank, /v1/score)" in vectors.json()["error"]["message"]


@pytest.mark.slow
async def test_a_cross_encoder_scores_as_the_reference_directly_and_through_a_gateway(
    cross_encoder: Any, folder: Path
) -> None:
    async with gateway_before(cross_encoder.url) as (gateway, url):
        await asyncio.to_thread(check, cross_encoder.url, folder)
        await asyncio.to_thread(check, url, folder)
        [pool] = gateway.pools
        assert pool.router.in_flight.total == 0
    model = (await asyncio.to_thread(httpx.get, f"{cross_encoder.url}/fairlead/v1/model")).json()
    assert (model["architecture"], model["joins_pairs"]) == ("BertForSequenceClassification", True)


def test_the_same_in_python(folder: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"dtype": "float32", "device": "cpu", "num_threads": 1}
    wanted = [float(logits(folder, QUERY, document).sigmoid()) for document in DOCUMENTS]
    llm = LLM(str(folder), **settings)
    assert llm.score(QUERY, DOCUMENTS) == pytest.approx(wanted, abs=1e-4)
    with pytest.raises(RequestError, match="text_1 has 2 texts and text_2 4"):
        llm.score(DOCUMENTS[:2], DOCUMENTS)
    write_encoder(tmp_path, "bert")
    write_word_pieces(tmp_path)
    llm = LLM(str(tmp_path), **settings)
    query, *documents = (torch.tensor(vector) for vector in llm.embed([QUERY, *DOCUMENTS]))
    cosines = [float(torch.cosine_similarity(query, document, dim=0)) for document in documents]
    assert llm.score([QUERY] * 4, DOCUMENTS) == pytest.approx(cosines, abs=1e-5)


def answering(task: ModelTask, *vectors: tuple[float, ...]) -> ScriptedEngine:
    """An engine of a model that was made for `task`, which gives these vectors in turn."""
    coming = iter(vectors)

    def script(request: EngineRequest) -> list[SequenceOutput]:
        vector = next(coming)
        return [
            SequenceOutput(
                request_id=request.request_id, new_token_ids=[], finish_reason=FinishReason.STOP,
                embedding=struct.pack(f"<{len(vector)}f", *vector),
            )
        ]  # fmt: skip

    return ScriptedEngine(script, info=scripted_info(task=task))


async def test_vectors_are_compared_by_their_cosine_and_each_text_is_read_once(start_app: Any) -> None:
    app = start_app(answering(EMBEDDER, (1.0, 0.0), (0.6, 0.8), (0.0, -1.0), (1.0, 0.0)))
    body = {"model": "tiny", "query": "a", "documents": ["b", "c", "d"]}
    reply = (await app.http.post("/v1/rerank", json=body)).json()
    assert [(each["index"], round(each["relevance_score"], 6)) for each in reply["results"]] == [
        (2, 1.0), (0, 0.6), (1, 0.0),
    ]  # fmt: skip
    assert [len(each.prompt_token_ids) for each in app.engine.requests] == [1] * 4
    assert {(each.pooling, each.reading) for each in app.engine.requests} == {(Pooling.LAST, Reading.UNIT)}
    app = start_app(answering(EMBEDDER, (1.0, 0.0), (0.0, 1.0), (0.6, 0.8), (0.6, 0.8)))
    body = {"model": "tiny", "text_1": ["a", "b"], "text_2": ["c", "d"]}
    reply = (await app.http.post("/v1/score", json=body)).json()
    assert [round(each["score"], 6) for each in reply["data"]] == [0.6, 0.8]


async def test_the_likeliest_label_is_named_and_pairs_are_one_prompt(start_app: Any, tokenizer: Any) -> None:
    app = start_app(answering(CLASSIFIER, (0.25, 0.75), (0.5, 0.5)))
    reply = await app.http.post("/v1/classify", json={"model": "tiny", "input": ["a", "b"]})
    assert reply.json()["data"] == [
        {"index": 0, "label": "yes", "probs": [0.25, 0.75], "num_classes": 2},
        {"index": 1, "label": "no", "probs": [0.5, 0.5], "num_classes": 2},
    ]
    assert reply.json()["usage"]["prompt_tokens"] == 2
    app = start_app(answering(CROSS_ENCODER, (0.5,)))
    body = {"model": "tiny", "text_1": "ahoy", "text_2": "line", "priority": 3, "cache_salt": "s"}
    assert (await app.http.post("/v1/score", json=body)).json()["data"][0]["score"] == 0.5
    [asked] = app.engine.requests
    assert asked.prompt_token_ids == [*tokenizer.encode("ahoy"), *tokenizer.encode("line")]
    assert (asked.reading, asked.priority, asked.cache_salt) == (Reading.LABELS, 3, "s")


@pytest.mark.parametrize(
    ("path", "fields", "param", "sentence"),
    [
        ("rerank", {"query": "a", "documents": []}, "documents", "documents is empty; send at least one text"),
        ("rerank", {"query": "a"}, "documents", "missing"),
        ("rerank", {"query": ["a"], "documents": ["b"]}, "query", "str"),
        ("rerank", {"query": "a", "documents": ["b", 5]}, "documents[1]", "must be a text, or an object"),
        ("rerank", {"query": "a", "documents": ["b", {"title": "c"}]}, "documents[1]", "must be a text, or an object"),
        ("rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n", "top_n must be in [1, 100000], not 0"),
        ("rerank", {"query": "a", "documents": ["b"] * 129}, "documents", "129"),
        ("rerank", {"query": "a", "documents": ["b", "c " * 300]}, "documents[1]", "context"),
        ("rerank", {"query": "c " * 300, "documents": ["b"]}, "query", "context"),
        ("rerank", {"query": "a", "documents": ["b"], "max_tokens": 5}, "max_tokens", "unknown field"),
        ("score", {}, "text_1", "send text_1 and text_2, or queries and documents"),
        ("score", {"text_1": "a"}, "text_2", "text_1 came"),
        ("score", {"queries": "a", "text_2": "b"}, "text_1", "text_2 and queries came"),
        ("score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2", "text_1 has 2 texts and text_2 3"),
        ("score", {"text_1": "a", "text_2": ["a", None]}, "text_2[1]", "must be a text"),
        ("score", {"text_1": [], "text_2": ["a"]}, "text_1", "is empty"),
        ("score", {"text_1": "a", "text_2": 5}, "text_2", "str"),
        ("classify", {"input": "a"}, "model", "does not classify texts"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_refused_by_its_place(
    start_app: Any, path: str, fields: dict[str, Any], param: str, sentence: str
) -> None:
    app = start_app(ScriptedEngine(info=scripted_info(task=EMBEDDER)), unknown_fields="refuse")
    reply = await app.http.post(f"/v1/{path}", json={"model": "tiny", **fields})
    assert reply.status_code == 400
    assert (reply.json()["error"]["param"], sentence in reply.json()["error"]["message"]) == (param, True), reply.text
    assert app.engine.requests == []


async def test_what_a_model_was_not_made_for_is_refused_with_what_it_does(start_app: Any) -> None:
    bodies = {
        "rerank": {"query": "a", "documents": ["b"]},
        "score": {"text_1": "a", "text_2": "b"},
        "classify": {"input": "a"},
    }
    for path, body in bodies.items():
        reply = await start_app().http.post(f"/v1/{path}", json={"model": "tiny", **body})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "unsupported_operation")
        assert "what it does is to generate text (/v1/chat/completions" in reply.json()["error"]["message"]
    several = start_app(ScriptedEngine(info=scripted_info(task=CLASSIFIER)))
    reply = await several.http.post("/v1/rerank", json={"model": "tiny", **bodies["rerank"]})
    assert "what it does is to classify texts (/v1/classify)" in reply.json()["error"]["message"]


async def test_a_full_engine_and_ids_that_do_not_fit_are_refused(start_app: Any) -> None:
    app = start_app(ScriptedEngine(info=scripted_info(task=CROSS_ENCODER)))
    body = {"model": "tiny", "query": "a", "documents": ["b", "c"]}
    digest = app.service.model().tokenizer.digest
    for sent, sentence in (
        ({"prompts": [[1], [2], [3]]}, "has 3 prompts, the request 2"),
        ({"prompts": [[1], [2]], "second_starts": [1]}, "2 prompts and 1 second_starts"),
        ({"prompts": [[1], [2]], "second_starts": [None, 9]}, "begins outside its prompt"),
    ):
        reply = await app.http.post("/v1/rerank", json={**body, "fairlead_prompt_tokens": {"digest": digest, **sent}})
        assert (reply.status_code, sentence in reply.json()["error"]["message"]) == (400, True), reply.text
    app.engine.full = True
    full = await app.http.post("/v1/rerank", json=body)
    assert (full.status_code, full.headers["x-fairlead-reason"]) == (429, "engine-full")
