"""`POST /v1/messages/count_tokens`: as many tokens as the same conversation has as a chat, at an engine and through a
gateway, asked by the official client."""

from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx
import pytest

from fairlead.routing.replica import Replica
from fairlead_testing.gateways import make_pool, running_gateway

PATH = "/v1/messages/count_tokens"
ASK: list[Any] = [{"role": "user", "content": "ahoy"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CONVERSATION: dict[str, Any] = {
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "What is 7 plus 5?"},
        {"role": "assistant", "content": [{"type": "text", "text": "12"}]},
        {"role": "user", "content": [{"type": "text", "text": "Weather in "}, {"type": "text", "text": "Tromsø?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Tromsø", "days": [1, 2]}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "⚓ 5 m/s"},
                {"type": "text", "text": "So?"},
            ],
        },
    ],
    "tools": [{"name": "get_weather", "description": "How it is outside", "input_schema": SCHEMA}],
}
CALL = {"name": "get_weather", "arguments": '{"city": "Tromsø", "days": [1, 2]}'}
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 7 plus 5?"},
        {"role": "assistant", "content": "12"},
        {"role": "user", "content": "Weather in Tromsø?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "t1", "type": "function", "function": CALL}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "⚓ 5 m/s"},
        {"role": "user", "content": "So?"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "get_weather", "description": "How it is outside", "parameters": SCHEMA},
        }
    ],
    "max_tokens": 1,
}


def of_chat(url: str, **fields: Any) -> int:
    """`prompt_tokens` of a chat."""
    response = httpx.post(f"{url}/v1/chat/completions", json={"model": "dinghy", **CHAT, **fields}, timeout=60)
    assert response.status_code == 200, response.text
    return int(response.json()["usage"]["prompt_tokens"])


def test_an_engine_counts_what_it_would_read(dinghy: Any) -> None:
    with anthropic.Anthropic(base_url=dinghy.url, api_key="none", max_retries=0) as client:
        counted = client.messages.count_tokens(model="dinghy", **CONVERSATION).input_tokens
        assert counted == of_chat(dinghy.url) > 60
        begun: Any = [*CONVERSATION["messages"], {"role": "assistant", "content": "It is"}]
        counted = client.messages.count_tokens(model="dinghy", **{**CONVERSATION, "messages": begun}).input_tokens
        messages = [*CHAT["messages"], {"role": "assistant", "content": "It is"}]
        assert counted == of_chat(dinghy.url, messages=messages, continue_final_message=True)


async def test_a_gateway_counts_what_its_engine_would_read(dinghy: Any) -> None:
    replica = Replica("r", "r", "127.0.0.1", urlsplit(dinghy.url).port or 0)
    pool = make_pool([replica], name="dinghy")
    async with (
        running_gateway(pool) as (_, _, url),
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client,
    ):
        counted = await client.messages.count_tokens(model="dinghy", **CONVERSATION)
        assert counted.input_tokens == of_chat(dinghy.url)
        with pytest.raises(anthropic.BadRequestError) as caught:
            long: Any = [*ASK, {"role": "assistant", "content": "aye"}, {"role": "user", "content": "ahoy " * 2000}]
            await client.messages.count_tokens(model="dinghy", messages=long)
        assert "maximum context length is 512 tokens" in caught.value.message
        image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
        with pytest.raises(anthropic.BadRequestError) as caught:
            messages: Any = [*ASK, {"role": "user", "content": [image]}]
            await client.messages.count_tokens(model="dinghy", system="Be brief.", messages=messages)
        assert "'image' is not supported by this model" in caught.value.message


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        ({"messages": ASK, "model": "other"}, 404, "not_found_error", "other"),
        ({"messages": ASK, "max_tokens": 5}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": ASK * 5000}, 400, "invalid_request_error", "messages"),
        ([], 400, "invalid_request_error", "object"),
        ([[]] * 200_000, 400, "invalid_request_error", "lists and objects"),
    ],
)  # fmt: skip
async def test_an_engines_refusals_are_anthropics(
    start_app: Any, body: Any, status: int, kind: str, words: str
) -> None:
    response = await start_app(unknown_fields="refuse").http.post(PATH, json=body)
    error = response.json()
    assert (response.status_code, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert words in error["error"]["message"]
    assert error["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]


async def test_other_methods_and_an_engine_that_loads_are_told_in_the_same_shape(start_app: Any) -> None:
    assert (await start_app().http.get(PATH)).json()["error"]["type"] == "invalid_request_error"
    response = await start_app(ready=False).http.post(PATH, json={"messages": ASK})
    assert (response.status_code, response.json()["error"]["type"]) == (503, "overloaded_error")


async def test_the_model_may_be_left_out(start_app: Any) -> None:
    response = await start_app().http.post(PATH, json={"messages": ASK}, headers={"anthropic-version": "odd"})
    plain = await start_app().http.post("/tokenize", json={"messages": ASK})
    assert response.json() == {"input_tokens": plain.json()["count"]}
