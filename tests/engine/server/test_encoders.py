"""An encoder behind HTTP, by itself and behind a gateway: the official client's embeddings, and what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
import transformers

from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine_testing.encoder_checkpoints import write_embedding_prompts, write_encoder, write_word_pieces
from fairlead_testing.gateways import gateway_before

PROMPTS = {"query": "ship of ", "document": "the line: "}
TEXTS = ["The fairlead guides a line.", "ship 42!", "the the the"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_encoder(tmp_path_factory.mktemp("models") / "bert", "bert")
    write_word_pieces(folder)
    write_embedding_prompts(folder, "document", **PROMPTS)
    return folder


@pytest.fixture(scope="module")
def encoder(folder: Path, serve_folder: Any) -> Any:
    return serve_folder(folder)


def check_client(client: openai.OpenAI, folder: Path) -> None:
    tokenizer = PromptTokenizer.from_folder(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    default = PROMPTS["document"]
    for more, before in (
        ({}, default), ({"pooling": "mean"}, default), ({"prompt_name": "query"}, PROMPTS["query"]),
        ({"prompt_name": ""}, ""),
    ):  # fmt: skip
        reply = client.embeddings.create(model="tiny", input=TEXTS, extra_body=more)
        for text, each in zip(TEXTS, reply.data, strict=True):
            with torch.inference_mode():
                states = model(input_ids=torch.tensor([tokenizer.encode(before + text)])).last_hidden_state[0]
            wanted = torch.nn.functional.normalize(states.mean(0) if "pooling" in more else states[0], dim=0)
            assert (torch.tensor(each.embedding) - wanted).abs().max() < 1e-4
        assert reply.usage.prompt_tokens == sum(len(tokenizer.encode(before + text)) for text in TEXTS)
    for given, name, sentence in (
        (TEXTS, "passage", "no prompt 'passage'; its prompts are query, document"),
        ([5, 6], "query", "is for texts"), ([5, 6], "passage", "no prompt 'passage'"),
    ):  # fmt: skip
        with pytest.raises(openai.BadRequestError, match=sentence) as refused:
            client.embeddings.create(model="tiny", input=given, extra_body={"prompt_name": name})
        assert refused.value.param == "prompt_name"
    [plain] = client.embeddings.create(model="tiny", input=default + TEXTS[0], extra_body={"prompt_name": ""}).data
    embed = str(client.base_url.join("/api/embed"))
    by_default = httpx.post(embed, json={"model": "tiny", "input": TEXTS[0]}).json()["embeddings"][0]
    assert by_default == pytest.approx(plain.embedding, abs=1e-5)
    with pytest.raises(openai.BadRequestError, match="does not generate text") as refused:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "ahoy"}])
    assert "/v1/embeddings" in refused.value.message
    assert refused.value.code == "unsupported_operation"
    with pytest.raises(openai.BadRequestError, match="at most 96 tokens") as refused:
        client.embeddings.create(model="tiny", input=[5] * 97)
    assert len(client.embeddings.create(model="tiny", input=[5] * 96).data) == 1


async def test_the_official_client_gets_the_references_vectors_directly_and_through_a_gateway(
    encoder: Any, folder: Path
) -> None:
    async with gateway_before(encoder.url) as (gateway, url):

        def ask(base_url: str) -> None:
            with openai.OpenAI(api_key="none", base_url=f"{base_url}/v1", max_retries=0) as client:
                check_client(client, folder)

        await asyncio.to_thread(ask, encoder.url)
        await asyncio.to_thread(ask, url)
        [pool] = gateway.pools
        assert pool.router.in_flight.total == 0
    model = (await asyncio.to_thread(httpx.get, f"{encoder.url}/fairlead/v1/model")).json()
    assert (model["architecture"], model["shares_prefixes"], model["max_model_len"]) == ("BertModel", False, 97)
    assert model["embedding_prompts"] == {"texts": PROMPTS, "default": "document"}
