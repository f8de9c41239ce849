"""Tools and structured output as agents use them: through the gateway, with the clients that people have.

The dinghy has learnt to call tools; that its arguments keep to schemas is the engine's doing.
"""

import json
import os
import subprocess
import sys
from typing import Any

import openai
import pydantic
import pytest

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKED: Any = [{"role": "user", "content": "Weather in Oslo?"}]
CARRIES = "The Heron carries salt. Give ship and cargo as JSON."


class Cargo(pydantic.BaseModel):
    """Which ship carries what."""

    ship: str
    cargo: str


HERON = Cargo(ship="Heron", cargo="salt")


def test_a_question_becomes_a_call_and_its_result_an_answer(client: openai.OpenAI, dinghy: str) -> None:
    asked: list[Any] = [*ASKED]
    reply = client.chat.completions.create(model=dinghy, messages=asked, tools=[WEATHER], temperature=0)
    [choice] = reply.choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 12, "sky": "rain"}'}
    asked += [choice.message.model_dump(exclude_none=True), result]
    reply = client.chat.completions.create(model=dinghy, messages=asked, tools=[WEATHER], temperature=0)
    assert reply.choices[0].message.content == "12 degrees and rain"
    assert reply.choices[0].finish_reason == "stop"


def test_a_stream_carries_the_call_in_pieces(client: openai.OpenAI, dinghy: str) -> None:
    text, arguments, names, ends = "", "", [], []
    for chunk in client.chat.completions.create(
        model=dinghy, messages=ASKED, tools=[WEATHER], temperature=0, stream=True
    ):
        delta = chunk.choices[0].delta
        text += delta.content or ""
        for call in delta.tool_calls or []:
            names += [call.function.name] if call.function.name else []
            arguments += call.function.arguments or ""
        ends += [chunk.choices[0].finish_reason]
    assert (text, names, json.loads(arguments), ends[-1]) == ("", ["get_weather"], {"city": "Oslo"}, "tool_calls")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_comes_where_it_must(client: openai.OpenAI, dinghy: str, choice: Any) -> None:
    """Asked for something else, the dinghy would rather say it."""
    asked: Any = [{"role": "user", "content": "What is 2 + 3?"}]
    reply = client.chat.completions.create(
        model=dinghy, messages=asked, tools=[WEATHER], tool_choice=choice, temperature=0, max_tokens=500
    )
    for call in reply.choices[0].message.tool_calls:
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments).keys() >= {"city"}


def test_the_official_client_gets_what_it_can_parse(client: openai.OpenAI, dinghy: str) -> None:
    asked: Any = [{"role": "user", "content": CARRIES}]
    reply = client.chat.completions.parse(model=dinghy, messages=asked, response_format=Cargo, temperature=0)
    assert reply.choices[0].message.parsed == HERON
    with client.chat.completions.stream(model=dinghy, messages=asked, response_format=Cargo, temperature=0) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == HERON


@pytest.fixture
def chat(fleet, dinghy: str) -> Any:
    """langchain's client of the dinghy."""
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model=dinghy, base_url=f"{fleet.gateway}/v1", api_key=fleet.api_key or "none", temperature=0, max_retries=0
    )  # type: ignore[call-arg]


@pytest.mark.cluster_suffices
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # langchain's own
@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_langchain_gets_structured_output_by_a_schema_and_by_json(chat: Any, method: Any) -> None:
    assert chat.with_structured_output(Cargo, method=method).invoke(CARRIES) == HERON
    assert [*chat.with_structured_output(Cargo, method=method).stream(CARRIES)][-1] == HERON


@pytest.mark.cluster_suffices
def test_langchain_gets_structured_output_by_a_call(chat: Any) -> None:
    """The dinghy was never taught this function: what it fills in is its own, that it fits the engine's doing."""
    structured = chat.with_structured_output(Cargo, method="function_calling")
    assert isinstance(structured.invoke(CARRIES), Cargo)
    assert isinstance([*structured.stream(CARRIES)][-1], Cargo)


@pytest.mark.cluster_suffices
def test_langchain_calls_tools(chat: Any) -> None:
    [call] = chat.bind_tools([WEATHER]).invoke("Weather in Oslo?").tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Oslo"})


LITELLM = """
import json, sys
import litellm

order = json.load(sys.stdin)
[call] = litellm.completion(**order).choices[0].message.tool_calls
whole = litellm.stream_chunk_builder([*litellm.completion(**order, stream=True)], messages=order["messages"])
[streamed] = whole.choices[0].message.tool_calls
print(json.dumps([json.loads(each.function.arguments) for each in (call, streamed)]))
"""


@pytest.mark.cluster_suffices
def test_litellm_calls_tools(fleet, dinghy: str) -> None:
    """In a process of its own: it leaves an event loop behind."""
    order = {
        "model": f"openai/{dinghy}", "messages": ASKED, "tools": [WEATHER], "temperature": 0,
        "api_base": f"{fleet.gateway}/v1", "api_key": fleet.api_key or "none",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", LITELLM], env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        input=json.dumps(order), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"city": "Oslo"}, {"city": "Oslo"}]
