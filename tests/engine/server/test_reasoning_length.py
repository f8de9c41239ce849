"""`thinking_token_budget` and `reasoning_effort`, as far as the engine's core and the prompt."""

from typing import Any

import tokenizers

from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine.types import ThinkingBudget
from fairlead_engine_testing import ScriptedEngine


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
