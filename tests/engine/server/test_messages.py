"""`POST /v1/messages`: the official client of Anthropic at an engine alone and through a gateway. The same conversation
as a chat has the same answer, tokens and cache."""

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx
import pytest

from fairlead.routing.replica import Replica
from fairlead_testing.gateways import make_pool, running_gateway

QUESTION = "What is 7 plus 5?"
ASK: list[Any] = [{"role": "user", "content": QUESTION}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo"]}}, "required": ["city"]}
TOOLS: list[Any] = [{"name": "get_weather", "description": "How it is outside", "input_schema": SCHEMA}]
GREEDY: dict[str, Any] = {"extra_body": {"temperature": 0}}


@pytest.fixture(params=["engine", "gateway"])
async def client(dinghy: Any, request: pytest.FixtureRequest) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """At an engine, and at a gateway in front of it."""
    if request.param == "engine":
        async with anthropic.AsyncAnthropic(base_url=dinghy.url, api_key="none", max_retries=0) as made:
            yield made
        return
    replica = Replica("r", "r", "127.0.0.1", urlsplit(dinghy.url).port or 0)
    async with (
        running_gateway(make_pool([replica], name="dinghy")) as (_, _, url),
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as made,
    ):
        yield made


def as_chat(url: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "dinghy", "temperature": 0, **fields}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_models_are_told_as_anthropic_tells_them(client: anthropic.AsyncAnthropic) -> None:
    """Typed clients refuse a model without a name to show and the time that it is from."""
    [listed] = [each async for each in client.models.list(limit=1)]
    found = await client.models.retrieve("dinghy")
    assert listed == found
    assert (found.type, found.id, found.display_name) == ("model", "dinghy", "dinghy")
    assert found.created_at.tzinfo is not None and found.capabilities is None
    with pytest.raises(anthropic.NotFoundError) as refusal:
        await client.models.retrieve("nope")
    assert refusal.value.body["error"]["type"] == "not_found_error"  # type: ignore[index, call-overload]


async def test_a_message_is_what_the_chat_is(client: anthropic.AsyncAnthropic, dinghy: Any) -> None:
    message = await client.messages.create(model="dinghy", max_tokens=16, messages=ASK, system="Be brief.", **GREEDY)
    chat = as_chat(dinghy.url, messages=[{"role": "system", "content": "Be brief."}, *ASK], max_tokens=16)
    [block] = message.content
    assert block.type == "text" and block.text == chat["choices"][0]["message"]["content"]
    usage, told = message.usage, chat["usage"]
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == told["prompt_tokens"]
    assert (usage.output_tokens, message.stop_reason, message.model) == (
        told["completion_tokens"],
        "end_turn",
        "dinghy",
    )
    assert message._request_id


async def test_a_stream_is_the_same_message(client: anthropic.AsyncAnthropic) -> None:
    asked: dict[str, Any] = {"model": "dinghy", "max_tokens": 16, "messages": ASK, **GREEDY}
    whole = await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        events = [event.type async for event in stream]
        told = await stream.get_final_message()
    assert events[0] == "message_start" and events[-2:] == ["message_delta", "message_stop"]
    assert [block.to_dict() for block in told.content] == [block.to_dict() for block in whole.content]
    assert (told.stop_reason, told.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    sums = [each.input_tokens + (each.cache_read_input_tokens or 0) for each in (whole.usage, told.usage)]
    assert sums[0] == sums[1]


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_over_three_turns(client: anthropic.AsyncAnthropic, streamed: bool) -> None:
    """As agents do it: a call, its result, another call, an answer, with the blocks sent back as they came."""
    messages: list[Any] = [{"role": "user", "content": "Weather in Oslo?"}]
    for choice in ({"type": "tool", "name": "get_weather"}, {"type": "any"}):
        asked: Any = {"model": "dinghy", "max_tokens": 60, "messages": messages, "tools": TOOLS, "tool_choice": choice}
        if streamed:
            async with client.messages.stream(**asked, **GREEDY) as stream:
                message: Any = await stream.get_final_message()
        else:
            message = await client.messages.create(**asked, **GREEDY)
        assert message.stop_reason == "tool_use"
        uses = [block for block in message.content if block.type == "tool_use"]
        assert uses and all((use.name, use.input) == ("get_weather", {"city": "Oslo"}) for use in uses)
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": "rain"} for use in uses]
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    last = await client.messages.create(
        model="dinghy", max_tokens=20, messages=messages, tools=TOOLS, tool_choice={"type": "none"}, **GREEDY
    )
    assert {block.type for block in last.content} <= {"text"}
    assert (last.usage.cache_read_input_tokens or 0) > 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_runner_sends_whole_conversations(client: anthropic.AsyncAnthropic, streamed: bool) -> None:
    """It begins a thread unasked, which is refused so that it goes on without one: what it sends next in a thread is
    nothing but the newest messages."""
    asked: list[str] = []

    @anthropic.beta_async_tool
    async def get_weather(city: str) -> str:
        """How it is outside"""
        asked.append(city)
        return "rain"

    say: Any = {"model": "dinghy", "max_tokens": 60, "messages": [{"role": "user", "content": "Weather in Oslo?"}]}
    runner: Any = client.beta.messages.tool_runner(tools=[get_weather], stream=streamed, **say, **GREEDY)
    told = [await turn.get_final_message() if streamed else turn async for turn in runner]
    assert asked == ["Oslo"] and [each.stop_reason for each in told] == ["tool_use", "end_turn"]
    tokens = [each.usage.input_tokens + (each.usage.cache_read_input_tokens or 0) for each in told]
    assert tokens[1] > tokens[0] + told[0].usage.output_tokens
    with pytest.raises(anthropic.BadRequestError, match="thread: is not supported") as caught:
        await client.beta.messages.create(**say, thread={"type": "continue", "previous_message_id": "msg_1"})
    assert caught.value.body["error"]["details"]["error_code"] == "thread_unsupported_request"  # type: ignore[index]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_conversation_is_compacted_and_goes_on(client: anthropic.AsyncAnthropic, streamed: bool) -> None:
    asked: Any = {"model": "dinghy", "max_tokens": 60, "messages": ASK, "compaction": {"type": "summarize"}}
    if streamed:
        async with client.beta.messages.stream(**asked, **GREEDY) as stream:
            summary: Any = await stream.get_final_message()
    else:
        summary = await client.beta.messages.create(**asked, **GREEDY)
    [block] = summary.content
    assert (block.type, summary.stop_reason) == ("compaction", "compaction") and block.content
    turns: list[Any] = [{"role": "assistant", "content": summary.content}, {"role": "user", "content": "And now?"}]
    after = await client.beta.messages.create(model="dinghy", max_tokens=8, messages=turns, **GREEDY)
    assert (
        after.usage.input_tokens > (await client.messages.count_tokens(model="dinghy", messages=turns[1:])).input_tokens
    )


async def test_why_it_ended_is_told(client: anthropic.AsyncAnthropic) -> None:
    cut = await client.messages.create(model="dinghy", max_tokens=1, messages=ASK, **GREEDY)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 1)
    text = (await client.messages.create(model="dinghy", max_tokens=9, messages=ASK, **GREEDY)).content[0]
    assert text.type == "text"
    stop = text.text[-1]
    for answer in (
        await client.messages.create(model="dinghy", max_tokens=9, messages=ASK, stop_sequences=[stop], **GREEDY),
        await (await client.messages.stream(
            model="dinghy", max_tokens=9, messages=ASK, stop_sequences=[stop], **GREEDY
        ).__aenter__()).get_final_message(),
    ):  # fmt: skip
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)


async def test_more_tokens_than_the_context_has_are_asked_for(client: anthropic.AsyncAnthropic) -> None:
    """Agents ask for tens of thousands whatever the model; the context may end the answer."""
    asked: dict[str, Any] = {"model": "dinghy", "max_tokens": 32_000, "messages": ASK, **GREEDY}
    thinking: Any = {"type": "enabled", "budget_tokens": 31_999}
    async with client.messages.stream(**asked, thinking=thinking) as stream:
        assert (await stream.get_final_message()).stop_reason == "end_turn"
    long = {"type": "object", "properties": {"a": {"type": "string", "minLength": 5000}}, "required": ["a"]}
    kept_to: Any = {"format": {"type": "json_schema", "schema": long}}
    async with client.messages.stream(**asked, output_config=kept_to) as stream:
        assert (await stream.get_final_message()).stop_reason == "model_context_window_exceeded"


async def test_what_changes_with_each_request_of_claude_code_hinders_no_cache(client: anthropic.AsyncAnthropic) -> None:
    cached = []
    for mark in ("eb6c6", "4e20a"):
        line = f"x-anthropic-billing-header: cc_version=2.1.201.7b4; cc_entrypoint=cli; cch={mark};"
        system: Any = [{"type": "text", "text": each} for each in (line, "You mend the sails of many ships. " * 10)]
        message = await client.messages.create(model="dinghy", max_tokens=4, messages=ASK, system=system)
        cached.append(message.usage.cache_read_input_tokens or 0)
    assert cached[1] >= 32


async def test_a_chat_is_refused_tokens_that_the_context_has_not(dinghy: Any) -> None:
    body = {"model": "dinghy", "messages": ASK, "max_tokens": 32_000}
    async with httpx.AsyncClient(base_url=dinghy.url, timeout=60) as http:
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 400
        assert (await http.post("/v1/chat/completions", json={**body, "best_effort": True})).status_code == 200


async def test_a_last_message_of_the_assistant_is_continued(client: anthropic.AsyncAnthropic, dinghy: Any) -> None:
    begun: list[Any] = [*ASK, {"role": "assistant", "content": "1"}]
    message = await client.messages.create(model="dinghy", max_tokens=8, messages=begun, **GREEDY)
    chat = as_chat(
        dinghy.url, messages=begun, max_tokens=8, continue_final_message=True, add_generation_prompt=False
    )  # fmt: skip
    assert (
        "".join(block.text for block in message.content if block.type == "text")
        == (chat["choices"][0]["message"]["content"])
    )


async def test_refusals_are_anthropics(client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="'other'"):
        await client.messages.create(model="other", max_tokens=4, messages=ASK)
    with pytest.raises(anthropic.BadRequestError, match=r"tools\.0\.type"):
        await client.messages.create(
            model="dinghy", max_tokens=4, messages=ASK, tools=[{"type": "bash_20250124", "name": "bash"}]
        )
    with pytest.raises(anthropic.BadRequestError) as caught:
        await client.messages.create(
            model="dinghy", max_tokens=4, messages=ASK, extra_body={"stop_sequences": [""] * 3}
        )
    error: Any = caught.value.response.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    body = {
        "model": "dinghy",
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "ahoy " * 2000}],
        "stream": True,
    }
    response = await client._client.post("/v1/messages", content=json.dumps(body), headers={"x-api-key": "none"})
    assert response.status_code == 400 and "maximum context length is 512" in response.json()["error"]["message"]
