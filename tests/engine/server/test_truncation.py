"""`truncate_prompt_tokens` over HTTP: what the engine is given, what is counted, and what is refused."""

from typing import Any

import httpx
import openai
import pytest

from fairlead_common.tokens.tokenizing import PromptTokenizer

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one two three four five"}]
LONG = "one two three " * 2000
"""More than the context."""


@pytest.mark.parametrize("side", [None, "left", "right"])
async def test_so_many_tokens_of_a_prompt_are_kept(start_app: Any, tokenizer: PromptTokenizer, side: Any) -> None:
    app = start_app()
    text = tokenizer.encode("one two three four five")
    chat = tokenizer.encode_chat(MESSAGES, add_generation_prompt=True)
    for sent, prompts in (
        (app.complete(prompt="one two three four five", truncate_prompt_tokens=3, truncation_side=side), [text]),
        (app.complete(prompt=[text, text[:2]], truncate_prompt_tokens=3, truncation_side=side), [text, text[:2]]),
        (app.chat(messages=MESSAGES, truncate_prompt_tokens=3, truncation_side=side), [chat]),
    ):
        app.engine.requests.clear()
        body = (await sent).json()
        kept = [prompt[:3] if side == "right" else prompt[-3:] for prompt in prompts]
        assert [request.prompt_token_ids for request in app.engine.requests] == kept
        assert body["usage"]["prompt_tokens"] == sum(map(len, kept))


async def test_what_is_longer_than_the_context_is_cut_to_what_fits(start_app: Any) -> None:
    app = start_app()
    context = app.service.model().info.max_model_len
    refused = await app.complete(prompt=LONG)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    for more, num_tokens in (({"max_tokens": 10}, context - 10), ({"max_tokens": None}, context - 1)):
        app.engine.requests.clear()
        reply = await app.complete(prompt=LONG, truncate_prompt_tokens=-1, **more)
        assert (reply.status_code, reply.json()["usage"]["prompt_tokens"]) == (200, num_tokens)
    assert (await app.complete(prompt=LONG, truncate_prompt_tokens=context, max_tokens=1)).status_code == 400


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1, or -1"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", ">= -1"),
        ({"truncate_prompt_tokens": "all"}, "truncate_prompt_tokens", "int"),
        ({"truncate_prompt_tokens": 4, "truncation_side": "middle"}, "truncation_side", "middle"),
        ({"truncate_prompt_tokens": 4, "prompt": "ab" * 2**19 + "c"}, "prompt", "1048576"),
    ],
)
async def test_what_cannot_be_cut_is_refused_by_name(start_app: Any, fields: Any, param: str, words: str) -> None:
    reply = await start_app().complete(**fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert words in reply.json()["error"]["message"]


def test_vectors_of_cut_texts_are_those_of_the_tokens_that_are_kept(served: Any, tokenizer: PromptTokenizer) -> None:
    ids = tokenizer.encode("The quick brown fox jumps over the lazy dog.")
    with openai.OpenAI(api_key="none", base_url=f"{served.url}/v1", max_retries=0) as client:

        def vector(given: Any, **more: Any) -> list[float]:
            return client.embeddings.create(model="tiny", input=given, extra_body=more).data[0].embedding

        text = "The quick brown fox jumps over the lazy dog."
        assert vector(text, truncate_prompt_tokens=4) == pytest.approx(vector(ids[-4:]), abs=1e-5)
        first = vector(text, truncate_prompt_tokens=4, truncation_side="right")
        assert first == pytest.approx(vector(ids[:4]), abs=1e-5)
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            vector(LONG)
        assert vector(LONG, truncate_prompt_tokens=-1)


def test_the_end_of_a_long_text_for_ollama_is_left_out(served: Any) -> None:
    for truncate, status in ((None, 200), (True, 200), (False, 400)):
        body = {"model": "tiny", "input": LONG, "truncate": truncate}
        assert httpx.post(f"{served.url}/api/embed", json=body, timeout=60).status_code == status
