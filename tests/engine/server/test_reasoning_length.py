"""`thinking_token_budget` and `reasoning_effort`, as far as the engine's core and the prompt, and the count of tokens
of reasoning in `usage`."""

from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest
import tokenizers

from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine.types import EngineRequest, SequenceOutput, ThinkingBudget
from fairlead_engine_testing import Script, ScriptedEngine, answer


def thinking_tokenizer(tokenizer: PromptTokenizer, *, tail: str = "") -> PromptTokenizer:
    """With markers of their own, which are not special, and a template that knows of an effort."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.tokenizer_json)
    backend.add_tokens([tokenizers.AddedToken(text, special=False) for text in ("<think>", "</think>")])
    assert tokenizer.chat_template is not None
    template = tokenizer.chat_template.source + "{# <think> #}{{ reasoning_effort }}" + tail
    return PromptTokenizer(backend.to_str(), chat_template=template, special_tokens={"eos_token": "<|end|>"})


async def test_a_budget_names_the_markers_and_whether_reasoning_has_begun(
    start_app: Any, tokenizer: PromptTokenizer
) -> None:
    for tail, has_begun in (("", False), ("<think>\n", True)):
        made = thinking_tokenizer(tokenizer, tail=tail)
        app = start_app(ScriptedEngine(), tokenizer=made)
        assert (await app.chat(max_tokens=2, thinking_token_budget=7, n=2)).status_code == 200
        expected = ThinkingBudget(7, (made.token_id("<think>"),), (made.token_id("</think>"),), has_begun)  # type: ignore[arg-type]
        assert [request.sampling.thinking for request in app.engine.requests] == [expected] * 2
        assert (await app.chat(max_tokens=2)).status_code == 200
        assert app.engine.requests[-1].sampling.thinking is None


async def test_a_budget_needs_reasoning_that_is_told_apart(start_app: Any) -> None:
    for settings in ({}, {"reasoning_parser": "think"}):  # whose marker is text like any other here
        reply = await start_app(**settings).chat(thinking_token_budget=7)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "thinking_token_budget"


async def test_an_effort_reaches_the_template_that_knows_it(start_app: Any, tokenizer: PromptTokenizer) -> None:
    app = start_app(ScriptedEngine(), tokenizer=thinking_tokenizer(tokenizer))
    prompts = []
    for more in ({"reasoning_effort": "high"}, {"chat_template_kwargs": {"reasoning_effort": "high"}}, {}):
        assert (await app.chat(max_tokens=2, **more)).status_code == 200
        prompts.append(app.engine.requests[-1].prompt_token_ids)
    assert prompts[0] == prompts[1] != prompts[2]


THOUGHT, ANSWER = "It is high at half past four, so ahoy.", "Ahoy."


def in_steps(ids: list[int], size: int) -> Script:
    """A script that answers with `size` tokens per output, as speculation does."""

    def script(request: EngineRequest) -> Iterator[SequenceOutput]:
        for place, output in enumerate(answer(ids[::size])(request)):
            yield msgspec.structs.replace(output, new_token_ids=ids[place * size : (place + 1) * size])

    return script


def start(start_app: Any, tokenizer: PromptTokenizer, text: str, *, tail: str = "", size: int = 1) -> tuple[Any, int]:
    """An engine that says `text`, `size` tokens per output, and the number of tokens of `THOUGHT` in it."""
    made = thinking_tokenizer(tokenizer, tail=tail)
    ids = made.encode(text, add_special_tokens=False)
    end = made.token_id("</think>")
    begin = made.token_id("<think>")
    first = ids.index(begin) + 1 if begin in ids else 0
    num_reasoning = (ids.index(end) if end in ids else len(ids)) - first
    return start_app(ScriptedEngine(in_steps(ids, size)), tokenizer=made), num_reasoning


async def usages(app: Any, **fields: Any) -> list[Any]:
    """Of the whole answer, the stream's last event, and /v1/responses, as the official client reads them."""
    client = openai.AsyncOpenAI(base_url="http://engine/v1", api_key="none", http_client=app.http)
    chat: Any = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 60, **fields}
    whole = await client.chat.completions.create(**chat)
    told = [whole.usage.completion_tokens_details.reasoning_tokens]
    stream = await client.chat.completions.create(
        **chat, stream=True, extra_body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    )
    counts = [chunk.usage async for chunk in stream if chunk.usage is not None]
    told.append(counts[-1].completion_tokens_details.reasoning_tokens)
    so_far = [count.completion_tokens_details.reasoning_tokens for count in counts]
    assert so_far == sorted(so_far) and all(
        count.completion_tokens_details.reasoning_tokens <= count.completion_tokens for count in counts
    )
    if not fields:
        response = await client.responses.create(model="tiny", input="a", max_output_tokens=60)
        assert response.usage is not None
        told.append(response.usage.output_tokens_details.reasoning_tokens)
    return told


@pytest.mark.parametrize(
    ("text", "tail"),
    [
        (f"<think>{THOUGHT}</think>{ANSWER}", ""),
        (f"{THOUGHT}</think>{ANSWER}", "<think>"),
        (f"<think>{THOUGHT}", ""),
        (ANSWER, ""),
    ],
    ids=["both markers", "begun by the prompt", "never ended", "none"],
)
@pytest.mark.parametrize("size", [1, 3, 99])
async def test_they_are_the_tokens_between_the_markers(
    start_app: Any, tokenizer: PromptTokenizer, text: str, tail: str, size: int
) -> None:
    app, expected = start(start_app, tokenizer, text, tail=tail, size=size)
    expected = expected if THOUGHT in text else 0
    assert (expected > 5) == (THOUGHT in text)
    assert await usages(app) == [expected] * 3
    assert await usages(app, n=2) == [2 * expected] * 2


async def test_models_without_reasoning_have_none(start_app: Any) -> None:
    assert await usages(start_app()) == [0] * 3
