"""The official clients of OpenAI, Anthropic and Ollama before a vLLM: the same features as before our engine, also
where vLLM refuses what our engine would pass over."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest
from openai.lib.streaming._deltas import accumulate_delta

from fairlead.routing.replica import Replica
from fairlead_testing.fake_vllm import FakeVllm
from fairlead_testing.fronts import running_front, write_tokenizer
from fairlead_testing.gateways import make_pool, running_gateway

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "In a city.", "parameters": PARAMETERS}
TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
OTHER: Any = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
ALLOWED: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
CUSTOM: Any = {"type": "custom", "custom": {"name": "shell", "description": "Runs a command."}}
OSLO, TEXT = {"city": "Oslo"}, " 0 1 2"
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
LONG: list[Any] = [{"role": "user", "content": "a" * 5000}]
"""More than the context has."""
ROOMY = 32_000
"""Tokens that agents ask for, whatever a model's context is."""


@dataclass
class Fleet:
    """A gateway before a front before a vLLM, in a thread of its own."""

    vllm: FakeVllm
    openai: openai.OpenAI
    anthropic: anthropic.Anthropic
    ollama: ollama.Client

    @property
    def sent(self) -> dict[str, Any]:
        """The body that vLLM got last."""
        return self.vllm.requests[-1].json()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    started, end, made = threading.Event(), asyncio.Event(), list[Any]()

    async def serve() -> None:
        folder: Path = write_tokenizer(tmp_path_factory.mktemp("model"))
        stores = {"response_store": f"sqlite:///{folder}/store.db", "file_store": f"{folder}/files"}
        async with AsyncExitStack() as stack:
            vllm = await stack.enter_async_context(FakeVllm(tokens=(" 0", " 1", " 2")))
            front = await stack.enter_async_context(running_front(vllm, folder))
            pool = make_pool([Replica("one", "one", front.host, front.port)])
            running = running_gateway(pool, follow=True, **stores)
            gateway, _, url = await stack.enter_async_context(running)
            async with asyncio.timeout(30):
                while not all(each.prompts.digests for each in gateway.pools):
                    await asyncio.sleep(0.01)
            made.extend((asyncio.get_running_loop(), url, vllm))
            started.set()
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(60)
    loop, url, vllm = made
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as of_openai,
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as of_anthropic,
        ollama.Client(host=url) as of_ollama,
    ):
        yield Fleet(vllm, of_openai, of_anthropic, of_ollama)
    loop.call_soon_threadsafe(end.set)
    thread.join()


@pytest.fixture(params=[False, True], ids=["plain", "reasons"])
def fleet(served: Fleet, request: pytest.FixtureRequest) -> Fleet:
    served.vllm.reasons = request.param
    return served


@pytest.mark.parametrize("streamed", [False, True])
def test_custom_tools_and_older_functions_are_called_in_their_form(fleet: Fleet, streamed: bool) -> None:
    def asked(**fields: Any) -> tuple[dict[str, Any], str]:
        """The message, and the reason of its end."""
        answer = fleet.openai.chat.completions.create(model="fake", stream=streamed, **fields)
        if not streamed:
            return answer.choices[0].message.to_dict(), answer.choices[0].finish_reason
        choices, message = [each.choices[0] for each in answer if each.choices], dict[str, Any]()
        for choice in choices:
            message = accumulate_delta(message, choice.delta.to_dict())
        return message, choices[-1].finish_reason

    named: Any = {"type": "custom", "custom": {"name": "shell"}}
    [call] = asked(messages=HELLO, tools=[CUSTOM, OTHER], tool_choice=named)[0]["tool_calls"]
    assert call["type"] == "custom" and call["custom"] == {"name": "shell", "input": "Oslo"}
    assert fleet.sent["tool_choice"] == {"type": "function", "function": {"name": "shell"}}
    result: Any = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
    asked(messages=[*HELLO, {"role": "assistant", "tool_calls": [call]}, result], tools=[CUSTOM])
    assert fleet.sent["messages"][1]["tool_calls"][0]["function"] == {"name": "shell", "arguments": '{"input": "Oslo"}'}
    some: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    assert asked(messages=HELLO, tools=[OTHER, CUSTOM], tool_choice=some)[0]["tool_calls"][0]["type"] == "custom"

    message, reason = asked(messages=HELLO, functions=[FUNCTION])
    assert json.loads(message["function_call"]["arguments"]) == OSLO and reason == "function_call"
    assert "tool_calls" not in message and fleet.sent["tools"] == TOOLS and "functions" not in fleet.sent
    history = [{"role": "assistant", "content": None, "function_call": message["function_call"]}]
    result = {"role": "function", "name": "weather", "content": "rain"}
    text = asked(messages=[*HELLO, *history, result], functions=[FUNCTION], function_call="auto")[0]["content"]
    assert text == TEXT and [each["role"] for each in fleet.sent["messages"]] == ["user", "assistant", "tool"]


# -- one answer of each client, streamed or not: what it said, and the call it made --

Answer = tuple[str, str, Any]
"""Reasoning, text, and the arguments of its call."""


def _chat(fleet: Fleet, streamed: bool, **fields: Any) -> Answer:
    asked = {"model": "fake", "messages": HELLO, **fields}
    if streamed:
        with fleet.openai.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
            seen = list(stream)
            answer: Any = stream.get_final_completion()
        deltas = [each.chunk.choices[0].delta for each in seen if each.type == "chunk" and each.chunk.choices]
        reasoning = "".join(getattr(delta, "reasoning", None) or "" for delta in deltas)
    else:
        answer = fleet.openai.chat.completions.create(**asked)
        reasoning = answer.choices[0].message.reasoning or ""
        assert {"prompt_logprobs", "kv_transfer_params"} <= answer.model_extra.keys(), "fields of vLLM's own are kept"
    said = answer.choices[0].message
    assert answer.usage.completion_tokens == 3
    calls = [json.loads(call.function.arguments) for call in said.tool_calls or ()]
    return reasoning, said.content or "", calls[0] if calls else None


def _responses(fleet: Fleet, streamed: bool, **fields: Any) -> Answer:
    asked = {"model": "fake", "input": "hello", **fields}
    if streamed:
        with fleet.openai.responses.stream(**asked) as stream:
            assert [each.type for each in stream][-1] == "response.completed"
            answer: Any = stream.get_final_response()
    else:
        answer = fleet.openai.responses.create(**asked)
    assert answer.usage.output_tokens == 3
    items = {item.type: item for item in answer.output}
    call, thought = items.get("function_call"), items.get("reasoning")
    return thought.content[0].text if thought else "", answer.output_text, call and json.loads(call.arguments)


def _messages(fleet: Fleet, streamed: bool, **fields: Any) -> Answer:
    asked = {"model": "fake", "messages": HELLO, "max_tokens": ROOMY, **fields}
    if streamed:
        with fleet.anthropic.messages.stream(**asked) as stream:
            assert [each.type for each in stream][-1] == "message_stop"
            answer: Any = stream.get_final_message()
    else:
        answer = fleet.anthropic.messages.create(**asked, timeout=60)
    assert answer.usage.output_tokens == 3
    blocks = {block.type: block for block in answer.content}
    call, thought, text = (blocks.get(kind) for kind in ("tool_use", "thinking", "text"))
    assert answer.stop_reason == ("tool_use" if call else "end_turn")
    return thought.thinking if thought else "", text.text if text else "", call and call.input


def _ollama(fleet: Fleet, streamed: bool, **fields: Any) -> Answer:
    answer: Any = fleet.ollama.chat("fake", HELLO, stream=streamed, **fields)
    parts = list(answer) if streamed else [answer]
    assert parts[-1].done and parts[-1].eval_count == 3
    said = [part.message for part in parts]
    calls = [call.function.arguments for each in said for call in each.tool_calls or ()]
    text = "".join(each.content or "" for each in said)
    return "".join(each.thinking or "" for each in said), text, calls[0] if calls else None


RESPONSES_TOOLS = [{"type": "function", **FUNCTION}]
FLAT = {"tools": RESPONSES_TOOLS, "tool_choice": {"type": "function", "name": "weather"}}
MESSAGES_TOOLS = [{"name": "weather", "description": "In a city.", "input_schema": PARAMETERS}]
THINKING = {"type": "enabled", "budget_tokens": 1024}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("ask", "fields", "calls"),
    [
        pytest.param(_chat, {}, False, id="chat"),
        pytest.param(_chat, {"tools": TOOLS}, True, id="chat-tool"),
        pytest.param(_chat, {"tools": TOOLS, "tool_choice": NAMED}, True, id="chat-named-tool"),
        pytest.param(_chat, {"tools": [OTHER, *TOOLS], "tool_choice": ALLOWED}, True, id="chat-allowed-tools"),
        pytest.param(_chat, {"tools": [], "tool_choice": "auto"}, False, id="chat-no-tools"),
        pytest.param(_chat, {"tool_choice": "auto"}, False, id="chat-choice-of-nothing"),
        pytest.param(_chat, {"max_tokens": -1, "max_completion_tokens": -1}, False, id="chat-no-limit"),
        pytest.param(_chat, {"extra_body": FLAT}, True, id="chat-flat-tool"),
        pytest.param(_responses, {}, False, id="responses"),
        pytest.param(_responses, {"reasoning": {"effort": "xhigh"}}, False, id="responses-effort"),
        pytest.param(_responses, {"tools": RESPONSES_TOOLS}, True, id="responses-tool"),
        pytest.param(_messages, {}, False, id="messages"),
        pytest.param(_messages, {"thinking": THINKING}, False, id="messages-thinking"),
        pytest.param(_messages, {"tools": MESSAGES_TOOLS, "thinking": THINKING}, True, id="messages-tool"),
        pytest.param(
            _messages,
            {"tools": MESSAGES_TOOLS, "tool_choice": {"type": "tool", "name": "weather"}},
            True,
            id="messages-named-tool",
        ),
        pytest.param(_ollama, {}, False, id="ollama"),
        pytest.param(_ollama, {"think": "max"}, False, id="ollama-effort"),
        pytest.param(_ollama, {"tools": TOOLS}, True, id="ollama-tool"),
    ],
)
def test_a_feature_of_each_client(
    fleet: Fleet, ask: Callable[..., Answer], fields: dict[str, Any], calls: bool, streamed: bool
) -> None:
    reasoning = "Hm." if fleet.vllm.reasons else ""
    assert ask(fleet, streamed, **fields) == (reasoning, *(("", OSLO) if calls else (TEXT, None)))
    assert len(fleet.sent.get("tools", [])) == calls
    assert "best_effort" not in fleet.sent and ("thinking_token_budget" in fleet.sent) <= fleet.vllm.reasons


NO_PARAMETERS = {"type": "object", "properties": {}}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("ask", "tool"),
    [
        pytest.param(_chat, OTHER, id="chat"),
        pytest.param(_responses, {"type": "function", "name": "other", "parameters": NO_PARAMETERS}, id="responses"),
        pytest.param(_messages, {"name": "other", "input_schema": NO_PARAMETERS}, id="messages"),
        pytest.param(_ollama, OTHER, id="ollama"),
    ],
)
def test_the_arguments_of_a_tool_without_parameters_are_an_object(
    served: Fleet, ask: Callable[..., Answer], tool: dict[str, Any], streamed: bool
) -> None:
    served.vllm.reasons = False
    assert ask(served, streamed, tools=[tool]) == ("", "", {})


def test_three_turns_of_an_agent_on_messages_and_on_stored_responses(fleet: Fleet) -> None:
    asked: dict[str, Any] = {"model": "fake", "tools": RESPONSES_TOOLS}
    first = fleet.openai.responses.create(**asked, input="hello")
    [call] = [item for item in first.output if item.type == "function_call"]
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    second = fleet.openai.responses.create(**asked, input=result, previous_response_id=first.id)
    third = fleet.openai.responses.create(**asked, input="and now?", previous_response_id=second.id)
    assert second.output_text == TEXT and third.output[-1].type == "function_call"
    assert [each["role"] for each in fleet.sent["messages"]] == ["user", "assistant", "tool", "assistant", "user"]
    given: dict[str, Any] = {"model": "fake", "max_tokens": ROOMY, "tools": MESSAGES_TOOLS, "thinking": THINKING}
    said = fleet.anthropic.messages.create(**given, messages=HELLO, timeout=60)
    results = [{"type": "tool_result", "tool_use_id": said.content[-1].id, "content": "rain"}]  # type: ignore[union-attr]
    history: Any = [*HELLO, {"role": "assistant", "content": said.content}, {"role": "user", "content": results}]
    assert fleet.anthropic.messages.create(**given, messages=history, timeout=60).stop_reason == "end_turn"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_refusals_have_the_clients_types(served: Fleet, streamed: bool) -> None:
    served.vllm.reasons = False
    chats = served.openai.chat.completions
    with pytest.raises(openai.BadRequestError, match="context"):
        list(chats.create(model="fake", messages=LONG, stream=streamed))
    with pytest.raises(openai.BadRequestError, match="reasoning_config"):  # told in a stream that has begun
        list(chats.create(model="fake", messages=HELLO, stream=streamed, extra_body={"thinking_token_budget": 9}))
    with pytest.raises(openai.BadRequestError, match="context"):
        list(served.openai.responses.create(model="fake", input="a" * 5000, stream=streamed))
    with pytest.raises(anthropic.BadRequestError, match="context"):
        list(served.anthropic.messages.create(model="fake", messages=LONG, max_tokens=9, stream=streamed))
    with pytest.raises(ollama.ResponseError, match="context"):
        list(served.ollama.chat("fake", LONG, stream=streamed))
    with pytest.raises(openai.NotFoundError, match="has nothing at /v1/embeddings"):
        served.openai.embeddings.create(model="fake", input="hello")
    with pytest.raises(ollama.ResponseError, match="has nothing at /v1/embeddings"):
        served.ollama.embed("fake", "hello")


def test_a_list_of_one_prompt_is_that_prompt_and_what_cannot_be_read_is_refused(served: Fleet) -> None:
    texts = [
        served.openai.completions.create(model="fake", prompt=prompt, max_tokens=2).choices[0].text
        for prompt in ("hello", ["hello"], [5, 6], [[5, 6]])
    ]
    assert texts == [" 0 1"] * 4
    wrong: list[Any] = [{"prompt": ["hello", 5]}, {"prompt": None}]
    for fields in wrong:
        with pytest.raises(openai.BadRequestError):
            served.openai.completions.create(model="fake", **fields)
    assert served.openai.models.retrieve("fake").to_dict()["state"] == "ready", "and the server lives"


def test_models_and_tokens_are_told(served: Fleet) -> None:
    assert [each.id for each in served.openai.models.list()] == ["fake"]
    assert [(each.id, each.display_name) for each in served.anthropic.models.list()] == [("fake", "fake")]
    assert [each.model for each in served.ollama.list().models] == ["fake"]
    count = served.anthropic.messages.count_tokens(model="fake", messages=HELLO, tools=MESSAGES_TOOLS)  # type: ignore[arg-type]
    assert (
        count.input_tokens
        == served.openai.responses.input_tokens.count(
            model="fake",
            input="hello",
            tools=RESPONSES_TOOLS,  # type: ignore[arg-type]
        ).input_tokens
    )
