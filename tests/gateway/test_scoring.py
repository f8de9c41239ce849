"""Prompts of requests that compare texts, and of texts that become vectors, are the same at a gateway and at an
engine."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.gateway.openai.parse import parse
from fairlead.gateway.prompts.reader import PromptReader, Tokenizers
from fairlead_common.http.lanes import Pacer
from fairlead_common.openai.unknown_fields import UnknownFields
from fairlead_common.tokens.embedding_prompts import EmbeddingPrompts
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_common.wire.messages import ModelInfo, PromptTokens
from fairlead_engine.api.prompts import given_prompts
from fairlead_engine.api.request_body import decode
from fairlead_engine.api.schemas import ClassifyRequest, EmbeddingRequest, RerankRequest, ScoreRequest
from fairlead_engine.api.served_model import ModelFiles, ServedModel
from fairlead_engine.types import ModelTask
from fairlead_engine_testing.encoder_checkpoints import write_embedding_prompts, write_word_pieces
from fairlead_engine_testing.prompts_here import prompts_here
from fairlead_engine_testing.scripted_engine import scripted_info
from fairlead_testing.fake_engine.prompts import make_tokenizer, told

PATH = "/v1/rerank"
ENDPOINTS = {
    "/v1/rerank": RerankRequest,
    "/v1/score": ScoreRequest,
    "/v1/classify": ClassifyRequest,
    "/v1/embeddings": EmbeddingRequest,
}
BODIES = [
    ("/v1/rerank", {"query": "the ship", "documents": ["a line", {"text": "ship 42!"}, "", "x" * 300]}),
    ("/v1/rerank", {"query": "the ship", "documents": ["a line"], "add_special_tokens": False}),
    ("/v1/score", {"text_1": ["the ship", "a line"], "text_2": ["a", "b"]}),
    ("/v1/score", {"queries": "the ship", "items": ["a", "b"]}),
    ("/v1/classify", {"input": ["the ship", "a line"]}),
    ("/v1/embeddings", {"input": ["the ship", "a line"]}),
    ("/v1/embeddings", {"input": "the ship", "prompt_name": "query", "truncate_prompt_tokens": 6}),
    ("/v1/embeddings", {"input": "the ship", "prompt_name": ""}),
    ("/v1/embeddings", {"input": [5, 6]}),
]


@pytest.mark.parametrize("joins_pairs", [False, True])
async def test_gateway_and_engine_make_the_same_prompts(tmp_path: Path, joins_pairs: bool) -> None:
    write_word_pieces(tmp_path)
    write_embedding_prompts(tmp_path, "document", query="line of ", document="ship: ")
    task = ModelTask(generates=False, labels=("LABEL_0",) if joins_pairs else ())
    model = ServedModel("m", ModelFiles.read(tmp_path), scripted_info(task=task, max_model_len=512))
    tokenizers = Tokenizers()
    await tokenizers.add(*told(msgspec.json.decode(model.protocol_json, type=ModelInfo)))
    reader = PromptReader(tokenizers, Pacer())
    digest = model.tokenizer.digest
    for path, fields in BODIES:
        raw = msgspec.json.encode({"model": "m", **fields})
        schema = ENDPOINTS[path]
        expected = prompts_here(
            decode(raw, schema, UnknownFields("refuse")), model, lambda request: request.prompt_fields
        )
        read = await reader.read(parse(path, raw, [], request_id="r"), [digest])
        sent = msgspec.json.decode(read.tokens_field(digest) or b"null", type=PromptTokens)
        assert sent.prompts == [list(prompt.token_ids) for prompt in expected]
        starts = [prompt.second_start for prompt in expected]
        is_of_pairs = joins_pairs and path not in ("/v1/classify", "/v1/embeddings")
        assert sent.second_starts == (starts if is_of_pairs else [])
        if path == "/v1/embeddings" and "prompt_name" not in fields and isinstance(fields["input"][0], str):
            assert sent.prompts == [model.tokenizer.encode(f"ship: {text}") for text in fields["input"]]
        again = decode(
            msgspec.json.encode({"model": "m", **fields, "fairlead_prompt_tokens": sent}),
            schema,
            UnknownFields("refuse"),
        )
        assert given_prompts(again.prompt_fields, again, model) is not None, "and the engine takes them"
        assert prompts_here(again, model, lambda request: request.prompt_fields) == expected
    wrong: list[dict[str, Any]] = [{"query": "a", "documents": [5]}, {"query": "a", "documents": ["a " * 600]}]
    for fields in wrong:
        read = await reader.read(
            parse(PATH, msgspec.json.encode({"model": "m", **fields}), [], request_id="r"), [digest]
        )
        assert read.by_digest == {}
        assert (digest in read.too_long) == isinstance(fields["documents"][0], str)
    unknown = msgspec.json.encode({"model": "m", "input": "a", "prompt_name": "passage"})
    read = await reader.read(parse("/v1/embeddings", unknown, [], request_id="r"), [digest])
    assert read.by_digest == {}, "its engine says what is wrong"
    tokenizers.close()


@pytest.mark.parametrize("before", ["", "/default/fake"])
@pytest.mark.parametrize("path", ["/rerank", "/v2/rerank", "/score"])
async def test_the_names_of_other_servers_lead_to_the_same_place(start: Any, path: str, before: str) -> None:
    setup = await start()
    fields = {"text_1": "a", "text_2": "b"} if path == "/score" else {"query": "a", "documents": ["b"]}
    asked = {"model": "fake", **fields}, f"/v1/{path.rpartition('/')[2]}"
    assert (await setup.post(asked[0], f"{before}{path}"))[:2] == (await setup.post(*asked))[:2]


def test_one_tokenizer_has_a_digest_for_each_way_of_making_prompts(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.joining_pairs().digest != tokenizer.digest
    prompts = EmbeddingPrompts({"query": "q: "}), EmbeddingPrompts({"query": "q: "}, "query")
    with_prompts = [PromptTokenizer(tokenizer.tokenizer_json, embedding_prompts=each) for each in prompts]
    assert len({PromptTokenizer(tokenizer.tokenizer_json).digest, *(each.digest for each in with_prompts)}) == 3
