"""`POST /v1/responses`: the official client of OpenAI, and LangChain's, at an engine alone and through a gateway."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import openai
import pydantic
import pytest
from langchain_openai import ChatOpenAI

from fairlead.routing.replica import Replica
from fairlead_testing.gateways import make_pool, running_gateway

QUESTION = "What is 7 plus 5?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo"]}}, "required": ["city"]}
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "How it is",
    "parameters": SCHEMA,
    "strict": True,
}
NOTE: Any = {"type": "custom", "name": "note", "description": "Writes it down."}


@pytest.fixture(params=["engine", "gateway"])
async def url(dinghy: Any, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Of an engine, and of a gateway in front of it."""
    if request.param == "engine":
        yield f"{dinghy.url}/v1"
        return
    replica = Replica("r", "r", "127.0.0.1", urlsplit(dinghy.url).port or 0)
    async with running_gateway(make_pool([replica], name="dinghy")) as (_, _, found):
        yield f"{found}/v1"


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as made:
        yield made


async def test_a_response_is_what_the_chat_is(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(model="dinghy", instructions="Be brief.", input=QUESTION, temperature=0)
    chat = await client.chat.completions.create(
        model="dinghy",
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}],
        temperature=0,
    )
    assert response.output_text == chat.choices[0].message.content and response.status == "completed"
    assert response.usage is not None and chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    async with client.responses.stream(
        model="dinghy", instructions="Be brief.", input=QUESTION, temperature=0
    ) as stream:
        numbers = [event.sequence_number async for event in stream]
        told = await stream.get_final_response()
    assert numbers == [*range(len(numbers))]
    counted = await client.responses.input_tokens.count(model="dinghy", instructions="Be brief.", input=QUESTION)
    assert counted.input_tokens == response.usage.input_tokens
    assert told.output_text == response.output_text


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_over_three_turns(client: openai.AsyncOpenAI, streamed: bool) -> None:
    """As agents do it: a call, its result, another call, an answer, with the items sent back as they came."""
    items: list[Any] = [{"role": "developer", "content": "Use tools."}, {"role": "user", "content": "Weather in Oslo?"}]
    for choice in ({"type": "function", "name": "get_weather"}, "required"):
        asked: dict[str, Any] = {
            "model": "dinghy", "instructions": "Be brief.", "input": items, "tools": [WEATHER, {"type": "web_search"}],
            "tool_choice": choice, "max_output_tokens": 60, "temperature": 0, "store": False,
            "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low"}, "parallel_tool_calls": False,
        }  # fmt: skip
        if streamed:
            async with client.responses.stream(**asked) as stream:
                response: Any = await stream.get_final_response()
        else:
            response = await client.responses.create(**asked)
        [call] = [item for item in response.output if item.type == "function_call"]
        assert (call.name, call.arguments) == ("get_weather", '{"city": "Oslo"}')
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
    last = await client.responses.create(**asked | {"input": items, "tool_choice": "none"})
    assert {item.type for item in last.output} <= {"message"}
    assert last.usage is not None and last.usage.input_tokens_details.cached_tokens > 0


async def test_a_custom_tool_is_called_with_a_text(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "dinghy", "tools": [NOTE], "tool_choice": {"type": "custom", "name": "note"}, "max_output_tokens": 60,
        "temperature": 0,
    }  # fmt: skip
    whole = await client.responses.create(input="Note it.", **asked)
    streamed = [event async for event in await client.responses.create(input="Note it.", stream=True, **asked)]
    last = streamed[-1]
    assert last.type in ("response.completed", "response.incomplete")  # the text may be as long as the answer may be
    for response in (whole, last.response):
        [call] = response.output
        assert call.type == "custom_tool_call" and call.name == "note"
    if whole.status == "completed":
        history: list[Any] = [
            {"role": "user", "content": "Note it."},
            whole.output[0].model_dump(exclude_none=True),
            {"type": "custom_tool_call_output", "call_id": whole.output[0].call_id, "output": "done"},  # type: ignore[union-attr]
        ]
        assert (await client.responses.create(**asked | {"input": history, "tool_choice": "none"})).output_text


async def test_an_answer_is_parsed(client: openai.AsyncOpenAI) -> None:
    class Weather(pydantic.BaseModel):
        celsius: int

    parsed = await client.responses.parse(model="dinghy", input="Weather?", text_format=Weather, max_output_tokens=99)
    assert isinstance(parsed.output_parsed, Weather)


async def test_log_probabilities_are_told(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(
        model="dinghy", input=QUESTION, include=["message.output_text.logprobs"], top_logprobs=2, temperature=0
    )
    [message] = response.output
    assert message.type == "message" and message.content[0].type == "output_text"
    assert len((message.content[0].logprobs or [])[0].top_logprobs) == 2


async def test_langchain_uses_it(url: str) -> None:
    model = ChatOpenAI(model="dinghy", base_url=url, api_key="none", use_responses_api=True, temperature=0)  # type: ignore[arg-type]
    whole = await model.ainvoke(QUESTION)
    assert "12" in whole.text
    assert "12" in "".join([chunk.text async for chunk in model.astream(QUESTION)])


async def test_a_conversation_is_compacted_and_goes_on(client: openai.AsyncOpenAI) -> None:
    """Twice, as agents do it whose conversations are long: the user's messages stay, and one summary."""
    items: list[Any] = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "12, I think. " * 20}]
    for number in (1, 2):
        compacted: Any = await client.responses.compact(
            model="dinghy", instructions="Be brief.", input=items, extra_body={"max_output_tokens": 30}
        )
        *users, compaction = compacted.output
        assert (compacted.object, compaction.type) == ("response.compaction", "compaction")
        assert [each.content[0].text for each in users] == [QUESTION, "And 8?"][:number]
        assert compacted.usage.total_tokens == compacted.usage.input_tokens + compacted.usage.output_tokens > 0
        items = [*(each.to_dict(warnings=False) for each in compacted.output), {"role": "user", "content": "And 8?"}]
        response = await client.responses.create(model="dinghy", input=items, temperature=0)
        assert response.output_text and response.usage is not None
        assert number == 2 or response.usage.input_tokens < compacted.usage.input_tokens
        items += response.output


async def test_a_trigger_compacts_in_a_stream(client: openai.AsyncOpenAI) -> None:
    """As Codex does it: each item that is done counts, and only one may be a compaction."""
    items: list[Any] = [{"role": "user", "content": QUESTION}, {"type": "compaction_trigger"}]
    asked: dict[str, Any] = {
        "model": "dinghy", "instructions": "Be brief.", "tools": [WEATHER], "tool_choice": "auto", "temperature": 0,
        "max_output_tokens": 200,
    }  # fmt: skip
    events = [event async for event in await client.responses.create(input=items, stream=True, **asked)]
    [done] = [event.item for event in events if event.type == "response.output_item.done"]
    assert "response.compaction.compacting" in [event.type for event in events]
    last: Any = events[-1]
    assert last.type == "response.completed" and last.response.output == [done] and done.type == "compaction"
    whole: Any = await client.responses.create(input=items, **asked)
    assert whole.output[0].encrypted_content == done.encrypted_content
    after = await client.responses.create(model="dinghy", input=[items[0], done.to_dict()])
    assert after.output_text


async def test_a_broken_compaction_is_refused_by_its_place(client: openai.AsyncOpenAI) -> None:
    compacted: Any = await client.responses.compact(model="dinghy", input=QUESTION)
    broken: Any = compacted.output[-1].to_dict()
    broken["encrypted_content"] += "*"
    with pytest.raises(openai.BadRequestError, match="send the item of the compaction as it came") as caught:
        await client.responses.create(model="dinghy", input=[{"role": "user", "content": "a"}, broken])
    assert caught.value.param == "input[1].encrypted_content"
    with pytest.raises(openai.BadRequestError, match="input: is missing"):
        await client.responses.compact(model="dinghy")
    with pytest.raises(openai.BadRequestError, match="not kept here"):
        await client.responses.compact(model="dinghy", previous_response_id="resp_1")


async def test_refusals_are_openais_and_name_the_item(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'other'"):
        await client.responses.create(model="other", input=QUESTION)
    with pytest.raises(openai.BadRequestError, match="not kept here"):
        await client.responses.create(model="dinghy", input=QUESTION, previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError) as caught:
        image: Any = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
        await client.responses.create(model="dinghy", instructions="a", input=[{"role": "user", "content": [image]}])
    assert "is not supported by this model" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_1")
