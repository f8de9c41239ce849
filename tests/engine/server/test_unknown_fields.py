"""Fields that no schema has: left out with a line in the log for each name, or refused, as `unknown_fields` says."""

import logging
from typing import Any

import pytest

from fairlead_common.openai.unknown_fields import UnknownFields
from fairlead_engine.api.schemas import ChatRequest

# Sent by clients and UIs, each taken from a report of what other servers take (OpenAI's newest, LiteLLM, llama.cpp's).
REPORTED: dict[str, Any] = {
    "extra_body": {}, "enable_thinking": True, "thinking": {"type": "disabled"}, "reasoning": {}, "cache_prompt": True,
    "id_slot": -1, "repeat_penalty": 1.1, "options": {}, "keep_alive": 5, "separate_reasoning": True,
    "mm_processor_kwargs": None, "documents": [], "request_id": "r",
}  # fmt: skip


def names(records: list[logging.LogRecord]) -> list[str]:
    return [getattr(each, "field", "") for each in records if each.name.endswith("unknown_fields")]


@pytest.mark.parametrize("name", REPORTED)
async def test_what_other_servers_take_is_left_out_by_default_and_can_be_refused(start_app: Any, name: str) -> None:
    field = {name: REPORTED[name]}
    assert (await start_app().chat(**field)).status_code == 200
    refused = await start_app(unknown_fields="refuse").chat(**field)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


async def test_what_would_change_the_answer_is_refused_by_any_setting(start_app: Any) -> None:
    app = start_app()
    for name, value in {"lora_path": "x", "regex": "a+", "documents": [{"text": "a"}], "prompt_name": "query"}.items():
        reply = await app.chat(shade=1, **{name: value})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)
        assert (await app.chat(**{name: None})).status_code == 200


WITHOUT_EFFECT: dict[str, Any] = {
    "verbosity": "low", "top_logprobs": 0, "length_penalty": 1.0, "early_stopping": False,
    "messages": [
        {"role": "user", "content": "ahoy"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ]},
        {"role": "tool", "tool_call_id": "c", "content": None},
    ],
    "tools": [{"type": "function", "function": {"name": "m" * 128}}],
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
async def test_values_that_clients_send_unasked_are_taken(start_app: Any, name: str) -> None:
    """Defaults of the Agents SDK, LiteLLM and vLLM; a tool without a result; the longest name that Anthropic takes."""
    more = {"tool_choice": "none"} if name == "tools" else {}
    reply = await start_app(unknown_fields="refuse").chat(**{name: WITHOUT_EFFECT[name]}, **more)
    assert reply.status_code == 200, reply.text


async def test_each_name_is_told_once_with_its_place(start_app: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = start_app()
    nested = {"stream": True, "stream_options": {"include_usage": True, "colour": 1}}
    for _ in range(2):
        reply = await app.chat(shade=1, **nested)
        assert reply.status_code == 200 and '"usage":{' in reply.text
    message = {"role": "user", "content": [{"type": "text", "text": "a", "hue": 1}]}
    body = {"model": "tiny", "max_tokens": 3, "messages": [message], "shade": 1, "tint": 1}
    assert (await app.http.post("/v1/messages", json=body)).status_code == 200
    assert (await app.http.post("/v1/responses", json={"model": "tiny", "input": "a", "tone": 1})).status_code == 200
    assert sorted(names(caplog.records)) == ["messages.content.hue", "shade", "stream_options.colour", "tint", "tone"]


WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3.0, "n": 1.0}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3.0, "top_k": 2e1}),
    "responses": ("/v1/responses", {"input": "a", "max_output_tokens": 3.0, "top_logprobs": 0.0}),
    "embeddings": ("/v1/embeddings", {"input": "a", "dimensions": 2.0}),
}


@pytest.mark.parametrize("policy", ["ignore", "refuse"])
@pytest.mark.parametrize("name", WHOLE)
async def test_whole_numbers_may_be_written_as_floats(start_app: Any, name: str, policy: str) -> None:
    """As languages with one kind of number write them (Lua, PHP, workflow tools)."""
    path, fields = WHOLE[name]
    http = start_app(unknown_fields=policy).http
    reply = await http.post(path, json={"model": "tiny", **fields})
    assert reply.status_code == 200, reply.text
    number = next(field for field in fields if isinstance(fields[field], float))
    reply = await http.post(path, json={"model": "tiny", **fields, number: 2.5})
    assert reply.status_code == 400 and f"{number}: expected `int" in reply.text
    reply = await http.post(path, json={"model": "tiny", **fields, "shade": 1})
    assert reply.status_code == (400 if policy == "refuse" else 200)


async def test_other_mistakes_are_refused_as_ever(start_app: Any) -> None:
    for field in ({"top_p": "hot"}, {"top_p": 9}):
        reply = await start_app().chat(shade=1, **field)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "top_p")


def test_the_log_is_not_filled_by_names(caplog: pytest.LogCaptureFixture) -> None:
    unknown = UnknownFields("ignore")
    for number in range(300):
        body = f'{{"model": "m", "messages": [], "{"x" * 500}{number}": 1, "y{number}": 1}}'.encode()
        assert unknown.decode(body, ChatRequest).model == "m"
    told = names(caplog.records)
    assert len(told) == 101 and max(map(len, told)) == 128 and told[-1] == ""
