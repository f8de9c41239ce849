"""`POST /v1/completions`, `/v1/models`, `/tokenize` and `/detokenize` on a scripted engine."""

from typing import Any

import msgspec
import openai
import pytest
from openai.types import Completion

from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_common.wire.messages import ModelInfo
from fairlead_engine_testing import ScriptedEngine, answer


@pytest.mark.parametrize("as_ids", [False, True])
async def test_a_prompt_may_be_text_or_token_ids(start_app: Any, tokenizer: PromptTokenizer, as_ids: bool) -> None:
    app = start_app(ScriptedEngine(answer(tokenizer.encode(" fox"))))
    prompt = tokenizer.encode("the quick") if as_ids else "the quick"
    reply = Completion.model_validate((await app.complete(prompt=prompt)).json())
    assert (reply.object, reply.choices[0].text, reply.choices[0].finish_reason) == ("text_completion", " fox", "stop")
    assert app.engine.requests[0].prompt_token_ids == tokenizer.encode("the quick")
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(tokenizer.encode("the quick"))


@pytest.mark.parametrize("as_ids", [False, True])
async def test_several_prompts_give_choices_in_order(start_app: Any, tokenizer: PromptTokenizer, as_ids: bool) -> None:
    app = start_app()
    prompts = ["one", "two two"]
    sent = [tokenizer.encode(prompt) for prompt in prompts] if as_ids else prompts
    body = (await app.complete(prompt=sent, n=2, max_tokens=50)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in body["choices"]] == ["one", "one", "two two", "two two"]
    assert body["usage"]["prompt_tokens"] == sum(len(tokenizer.encode(prompt)) for prompt in prompts)
    await app.complete(prompt="alone")
    parts = [request.part_of for request in app.engine.requests]
    assert len(set(parts[:4])) == 1, "the engine knows that they belong together"
    assert parts[4] not in {parts[0], None}


async def test_sixteen_tokens_are_the_default_limit(start_app: Any) -> None:
    app = start_app()
    await app.complete()
    assert app.engine.requests[0].sampling.max_tokens == 16


async def test_models_lists_the_served_name(start_app: Any) -> None:
    app = start_app()
    client = openai.AsyncOpenAI(api_key="none", base_url="http://engine/v1", http_client=app.http, max_retries=0)
    assert [model.id async for model in client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).owned_by == "fairlead"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("org/other")
    assert caught.value.code == "model_not_found"


async def test_tokenize_and_detokenize_are_inverse(start_app: Any, tokenizer: PromptTokenizer) -> None:
    app = start_app()
    body = (await app.http.post("/tokenize", json={"prompt": "one 🚢", "return_token_strs": True})).json()
    assert body["tokens"] == tokenizer.encode("one 🚢")
    assert (body["count"], body["max_model_len"]) == (len(body["tokens"]), app.engine.info.max_model_len)
    assert len(body["token_strs"]) == body["count"]
    back = await app.http.post("/detokenize", json={"tokens": body["tokens"]})
    assert back.json() == {"prompt": "one 🚢"}


async def test_tokenize_renders_a_chat(start_app: Any, tokenizer: PromptTokenizer) -> None:
    messages = [{"role": "user", "content": "ahoy"}]
    body = (await start_app().http.post("/tokenize", json={"model": "tiny", "messages": messages})).json()
    assert body["tokens"] == tokenizer.encode_chat(messages)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/tokenize", {"prompt": "a", "sep": 1}, "sep"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens"),
        ("/detokenize", {"tokens": [10**30]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
async def test_wrong_tokenizer_requests_are_refused_by_name(
    start_app: Any, path: str, body: dict[str, Any], param: str
) -> None:
    response = await start_app(unknown_fields="refuse").http.post(path, json=body)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param


async def test_the_gateway_learns_how_to_prepare_prompts(start_app: Any, tokenizer: PromptTokenizer) -> None:
    app = start_app()
    info = msgspec.json.decode((await app.http.get("/fairlead/v1/model")).content, type=ModelInfo)
    again = PromptTokenizer(info.tokenizer_json, chat_template=info.chat_template, special_tokens=info.special_tokens)
    assert again.digest == info.digest == tokenizer.digest
    assert (info.served_name, info.block_size, info.max_model_len) == ("tiny", 16, 256)
