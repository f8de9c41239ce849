"""`POST /v1/messages`: what a request asks of a chat, and what becomes of the chat's answer, whole and as events."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import anthropic.types
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_common.openai.prompts import PromptError
from fairlead_common.openai.translate import Translation, translation_of
from fairlead_common.openai.translate.summaries import ASKS_FOR_SUMMARY
from fairlead_common.openai.unknown_fields import UnknownFields

ASK: list[dict[str, Any]] = [{"role": "user", "content": "ahoy"}]
TOOL = {"name": "f", "input_schema": {"type": "object"}}
USAGE = {"prompt_tokens": 40, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 32}}
EVENTS: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(anthropic.types.MessageStreamEvent)


def new(path: str = "/v1/messages") -> Translation:
    translation = translation_of(path)
    assert translation is not None
    return translation


def chat(translation: Translation | None = None, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "max_tokens": 9, "messages": ASK, **fields}
    path, sent = (translation or new("/a/b/v1/messages")).request(json.dumps(body).encode(), UnknownFields("refuse"))
    assert path == "/v1/chat/completions"
    return dict(json.loads(sent))


def refused(**fields: Any) -> PromptError:
    with pytest.raises(PromptError) as caught:
        chat(**fields)
    assert caught.value.message.startswith(caught.value.field)
    return caught.value


def answered(message: dict[str, Any], max_tokens: int = 9, **choice: Any) -> anthropic.types.Message:
    """A whole answer, as the official client reads it."""
    return anthropic.types.Message.model_validate(whole(message, max_tokens=max_tokens, **choice))


def whole(message: dict[str, Any], max_tokens: int = 9, *, asked: Any = None, **choice: Any) -> dict[str, Any]:
    """`asked`: more fields of the request."""
    translation = new()
    chat(translation, max_tokens=max_tokens, **(asked or {}))
    body = {"id": "chatcmpl-1", "model": "m", "choices": [{"message": message, **choice}], "usage": USAGE}
    status, told = translation.answer(200, json.dumps(body).encode(), "r")
    assert status == 200
    return dict(json.loads(told))


def streamed(
    deltas: Sequence[dict[str, Any]], max_tokens: int = 9, *, asked: Any = None, **ending: Any
) -> list[dict[str, Any]]:
    """Events of a stream whose chunks have these deltas. `asked`: more fields of the request."""
    translation = new()
    chat(translation, max_tokens=max_tokens, stream=True, **(asked or {}))
    return list(_told(translation, [{"delta": each} for each in deltas] + [{"delta": {}, **ending}]))


def _told(translation: Translation, choices: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    payloads = [json.dumps({"id": "chatcmpl-1", "model": "m", "choices": [each], "usage": USAGE}) for each in choices]
    payloads.append(json.dumps({"id": "chatcmpl-1", "model": "m", "choices": [], "usage": USAGE}))
    for payload in [*payloads, "[DONE]"]:
        for event in filter(None, translation.events(f"data: {payload}\n\n".encode()).split(b"\n\n")):
            name, data = event.decode().split("\n")
            found = json.loads(data.removeprefix("data: "))
            assert name == f"event: {found['type']}"
            yield found


# -- Requests ---------------------------------------------------------------------------------------------------------


def test_a_message_is_a_chat_that_may_end_with_the_context() -> None:
    assert chat() == {
        "model": "m", "max_tokens": 9, "messages": ASK, "add_generation_prompt": True, "best_effort": True,
    }  # fmt: skip
    found = chat(stop_sequences=["."], temperature=0.5, top_p=0.9, top_k=5, stream=True)
    assert (found["stop"], found["temperature"], found["top_p"], found["top_k"]) == (["."], 0.5, 0.9, 5)
    assert found["stream"] is True and found["stream_options"]["include_usage"] is True


@pytest.mark.parametrize(
    ("choice", "asked"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
)
def test_tool_choice_is_kept(choice: Any, asked: dict[str, Any]) -> None:
    found = chat(tools=[TOOL], tool_choice=choice)
    assert {name: found[name] for name in ("tool_choice", "parallel_tool_calls") if name in found} == asked


def test_a_budget_bounds_the_reasoning_and_leaves_room_for_the_answer() -> None:
    found = chat(max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024})
    assert found["thinking_token_budget"] == 1024 and found["chat_template_kwargs"]["enable_thinking"] is True
    for kind in ("adaptive", "between_tools", "disabled"):
        assert "thinking_token_budget" not in chat(thinking={"type": kind})
    assert refused(thinking={"type": "enabled", "budget_tokens": 9}).field == "thinking.budget_tokens"
    assert refused(tools=[TOOL], thinking={"type": "enabled", "budget_tokens": -1}).field == "thinking.budget_tokens"


def test_a_budget_of_several_answers_between_calls_may_be_more_than_one_may_have() -> None:
    found = chat(tools=[TOOL], thinking={"type": "enabled", "budget_tokens": 9})
    assert "thinking_token_budget" not in found and found["chat_template_kwargs"]["enable_thinking"] is True


SUMMARY: dict[str, Any] = {"compaction": {"type": "summarize"}}
TURNS = [*ASK, {"role": "assistant", "content": "yes"}]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (TURNS, [*TURNS, {"role": "user", "content": ASKS_FOR_SUMMARY}]),
        (
            ASK,
            [{"role": "user", "content": [{"type": "text", "text": "ahoy"}, {"type": "text", "text": "\n\nOf what?"}]}],
        ),
    ],
)
def test_a_compaction_asks_for_a_summary_of_the_conversation(messages: Any, said: Any) -> None:
    compaction = SUMMARY["compaction"] | ({} if messages is TURNS else {"instructions": "Of what?"})
    found = chat(messages=messages, compaction=compaction, tools=[TOOL], tool_choice={"type": "any"})
    assert (found["messages"], found["tool_choice"]) == (said, "none")
    assert found["add_generation_prompt"] and "continue_final_message" not in found
    for name, sent in (("stop_sequences", ["."]), ("context_management", {"edits": []})):
        assert refused(**SUMMARY, **{name: sent}).field == name
    shape = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    assert refused(**SUMMARY, output_config=shape).field == "output_config.format"


@pytest.mark.parametrize(
    ("text", "reason", "content", "told"),
    [
        ("of rain", "stop", "of rain", "compaction"),
        (" \n", "stop", None, "end_turn"),
        ("of ra", "length", None, "model_context_window_exceeded"),
    ],
)
def test_a_summary_is_the_only_block_and_none_where_it_is_cut(text: str, reason: str, content: Any, told: str) -> None:
    found = whole({"content": text, "reasoning": "hm"}, asked=SUMMARY, finish_reason=reason)
    assert (found["content"], found["stop_reason"]) == ([{"type": "compaction", "content": content}], told)
    events = streamed([{"reasoning": "hm"}, *({"content": each} for each in text)], asked=SUMMARY, finish_reason=reason)
    kinds = ["message_start", "content_block_start", "content_block_delta", "content_block_stop"]
    assert [each["type"] for each in events] == [*kinds, "message_delta", "message_stop"]
    assert events[2]["delta"] == {"type": "compaction_delta", "content": content}
    assert events[4]["delta"]["stop_reason"] == told


def test_an_output_format_is_kept_to() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    kept_to = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    wish = {"type": "json_schema", "schema": schema}
    assert chat(output_config={"effort": "high", "format": wish})["response_format"] == kept_to
    assert chat(output_format=wish)["response_format"] == kept_to


def test_what_changes_nothing_is_taken_and_the_rest_refused_by_name() -> None:
    bare = chat()
    without: dict[str, Any] = {
        "metadata": {"user_name": "u"}, "service_tier": "auto", "speed": "fast",
        "diagnostics": {"previous_message_id": None}, "container": None, "mcp_servers": [],
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }  # fmt: skip
    assert chat(**without) == bare
    assert chat(metadata={"user_id": "u"}) == bare | {"user": "u"}, "which names a session"
    assert chat(cache_control={"type": "ephemeral"}) == bare | {"prompt_cache_options": {"ttl": "5m"}}
    assert chat(metadata={"user_id": "u" * 513}) == chat(metadata={"user_id": 5}) == chat(metadata="u") == bare
    for field, value in {
        "container": "c",
        "mcp_servers": [{}],
        "thread": {"type": "create"},
        "fallbacks": [],
        "max_tokens": 0,
    }.items():
        assert refused(**{field: value}).field == field
    assert "clear_tool_uses" in refused(context_management={"edits": [{"type": "clear_everything"}]}).message
    later = {"edits": [{"type": "clear_images_20290131", "keep": 3}]}
    assert chat(context_management=later) == bare, "a later version of it has no effect either"


# -- Whole answers ----------------------------------------------------------------------------------------------------


def test_reasoning_text_and_calls_are_blocks_in_this_order() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    said = {"role": "assistant", "content": "So.", "reasoning_content": "Hm.", "tool_calls": [call]}
    message = answered(said, finish_reason="tool_calls")
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[2].input == {"a": 1}  # type: ignore[union-attr]
    assert message.content[2].caller.type == "direct"  # type: ignore[union-attr]
    assert (message.id, message.role, message.stop_reason) == ("msg_1", "assistant", "tool_use")
    assert answered(said, finish_reason="stop").stop_reason == "tool_use"  # as of a tool that was named
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (8, 32, 7)
    assert answered({"content": "", "reasoning": "Hm."}).content[0].type == "thinking"


@pytest.mark.parametrize(
    ("choice", "max_tokens", "reason"),
    [
        ({"finish_reason": "stop"}, 9, "end_turn"),
        ({"finish_reason": "stop", "stop_reason": 7}, 9, "end_turn"),
        ({"finish_reason": "stop", "stop_reason": "."}, 9, "stop_sequence"),
        ({"finish_reason": "length"}, 7, "max_tokens"),
        ({"finish_reason": "length"}, 8, "model_context_window_exceeded"),
        ({"finish_reason": "content_filter"}, 9, "refusal"),
    ],
)
def test_why_an_answer_ended(choice: dict[str, Any], max_tokens: int, reason: str) -> None:
    whole = answered({"content": "a"}, max_tokens, **choice)
    assert whole.stop_reason == reason
    [ending] = [each for each in streamed([{"content": "a"}], max_tokens, **choice) if each["type"] == "message_delta"]
    assert ending["delta"] == {"stop_reason": reason, "stop_sequence": whole.stop_sequence}


def test_a_call_that_was_cut_is_not_told_as_a_call() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": '{"path": "/etc'}}
    message = answered({"content": None, "tool_calls": [call]}, finish_reason="length")
    assert message.content == [] and message.stop_reason == "model_context_window_exceeded"


@pytest.mark.parametrize("body", [b"", b"[]", b'{"choices": 1}', b"\xff", b'{"count": 1}'])
def test_what_is_no_answer_is_told_as_an_error(body: bytes) -> None:
    status, told = new().answer(200, body, "r")
    assert (status, json.loads(told)["error"]["type"]) == (502, "api_error")


# -- Streams ----------------------------------------------------------------------------------------------------------


def test_events_come_in_the_documented_order() -> None:
    begun = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"a": 1}'}}
    second = {"index": 1, "id": "d", "function": {"name": "g", "arguments": "{}"}}
    deltas = [
        {"role": "assistant", "content": ""}, {"reasoning_content": "Hm."}, {"content": "So"}, {"content": "."},
        {"tool_calls": [begun]}, {"tool_calls": [more]}, {"tool_calls": [second]},
    ]  # fmt: skip
    told = streamed(deltas, finish_reason="tool_calls")
    shown = [
        (each["type"], each.get("index"), (each.get("content_block") or each.get("delta") or {}).get("type"))
        for each in told
    ]
    begin, add, end = "content_block_start", "content_block_delta", "content_block_stop"
    assert shown == [
        ("message_start", None, None),
        (begin, 0, "thinking"), (add, 0, "thinking_delta"), (end, 0, None),
        (begin, 1, "text"), (add, 1, "text_delta"), (add, 1, "text_delta"), (end, 1, None),
        (begin, 2, "tool_use"), (add, 2, "input_json_delta"), (end, 2, None),
        (begin, 3, "tool_use"), (add, 3, "input_json_delta"), (end, 3, None),
        ("message_delta", None, None), ("message_stop", None, None),
    ]  # fmt: skip
    uses = [each["content_block"] for each in told if each["type"] == begin and each["index"] > 1]
    assert [use["caller"] for use in uses] == 2 * [{"type": "direct"}]
    assert told[0]["message"]["usage"]["cache_read_input_tokens"] == 32 == told[-2]["usage"]["cache_read_input_tokens"]


CALLS = st.builds(
    lambda index, text: {"tool_calls": [{"index": index, "id": "c", "function": {"name": "f", "arguments": text}}]},
    st.integers(0, 2),
    st.text(max_size=2),
)
DELTAS = st.lists(
    st.fixed_dictionaries({}, optional={"content": st.text(max_size=2), "reasoning_content": st.text(max_size=2)})
    | CALLS,
    max_size=8,
)


@given(DELTAS, st.sampled_from(["stop", "length", "tool_calls", None]))
def test_any_stream_keeps_to_the_grammar(deltas: list[dict[str, Any]], reason: str | None) -> None:
    told = streamed(deltas, finish_reason=reason)
    for each in told:
        EVENTS.validate_python(each)
    kinds = [each["type"] for each in told]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    is_open, num_blocks, texts = False, 0, {"text_delta": "", "thinking_delta": ""}
    for each in told[1:-2]:
        assert each["index"] == num_blocks
        assert (each["type"] == "content_block_start") is not is_open
        is_open = each["type"] != "content_block_stop"
        num_blocks += not is_open
        if each["type"] == "content_block_delta" and (kind := each["delta"]["type"]) in texts:
            texts[kind] += each["delta"][kind.removesuffix("_delta")]
    assert not is_open
    assert texts["text_delta"] == "".join(each.get("content", "") for each in deltas)
    assert texts["thinking_delta"] == "".join(each.get("reasoning_content", "") for each in deltas)


def test_an_error_in_a_stream_is_an_event_of_its_own() -> None:
    error = {"error": {"message": "messages[0] is wrong", "type": "x", "param": None, "code": "engine_dead"}}
    told = new().events(f"data: {json.dumps(error)}\n\n".encode())
    assert told.startswith(b"event: error\ndata: ")
    assert json.loads(told.split(b"data: ")[1]) == {
        "type": "error",
        "error": {"type": "api_error", "message": "messages[0] is wrong"},
    }


@given(st.binary(max_size=60))
def test_any_bytes_are_passed_over_or_told(data: bytes) -> None:
    new().events(b"data: " + data + b"\n\n")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/api/chat"])
def test_nothing_comes_behind_an_error(path: str) -> None:
    """vLLM ends a stream that failed as any other."""
    conversation = {"input": ASK} if path == "/v1/responses" else {"messages": ASK}
    limit = {"max_tokens": 9} if path == "/v1/messages" else {}
    translation = new(path)
    body = {"model": "m", "stream": True, **conversation, **limit}
    translation.request(json.dumps(body).encode(), UnknownFields("refuse"))
    said = {"id": "chatcmpl-1", "model": "m", "choices": [{"delta": {"content": "So"}}]}
    error = {"error": {"message": "It died.", "type": "x", "param": None, "code": None}}
    told = [translation.events(f"data: {payload}\n\n".encode()) for payload in map(json.dumps, (said, error))]
    assert b"So" in told[0] and b"It died." in told[1]
    for payload in (json.dumps(said), json.dumps(error), "[DONE]"):
        assert translation.events(f"data: {payload}\n\n".encode()) == b""
