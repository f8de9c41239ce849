"""Anthropic's Messages API → chats and back: what each field becomes, what is refused by which name."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairlead_engine.demo
from fairlead_common.openai.budget import OverBudget
from fairlead_common.openai.prompts import ChatPrompt, PromptError
from fairlead_common.openai.translate import Translation, translation_of
from fairlead_common.openai.translate.messages import COUNT_TOKENS_PATH, InputTokens
from fairlead_common.openai.unknown_fields import UnknownFields
from fairlead_common.tokens.tokenizing import PromptTokenizer

ASK: list[dict[str, Any]] = [{"role": "user", "content": "ahoy"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "get_weather", "description": "It rains.", "input_schema": SCHEMA}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="}}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def new() -> Translation:
    translation = translation_of(COUNT_TOKENS_PATH)
    assert translation is not None
    return translation


def chat(messages: Any = ASK, **fields: Any) -> dict[str, Any]:
    path, body = new().request(json.dumps({"messages": messages, **fields}).encode(), UnknownFields("refuse"))
    assert path == "/tokenize"
    return dict(json.loads(body))


def chat_messages(*messages: tuple[str, Any], **fields: Any) -> list[dict[str, Any]]:
    found = chat([{"role": role, "content": content} for role, content in messages], **fields)["messages"]
    return list(found)


def refused(messages: Any = ASK, **fields: Any) -> PromptError:
    with pytest.raises(PromptError) as caught:
        chat(messages, **fields)
    return caught.value


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def answered(status: int, body: Any) -> tuple[int, Any]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, answer = new().answer(status, raw, "r-1")
    return status, json.loads(answer)


# -- What becomes of a request ----------------------------------------------------------------------------------------


def test_the_line_for_anthropic_that_changes_with_each_request_is_no_part_of_the_prompt() -> None:
    line = "x-anthropic-billing-header: cc_version=2.1.201.7b4; cc_entrypoint=cli; cch=eb6c6;"
    [system, _] = chat_messages(("user", "ahoy"), system=[text(line), text("Be brief.")])
    assert system == {"role": "system", "content": [text("Be brief.")]}
    [system, _] = chat_messages(("user", "ahoy"), system=f"{line}\nBe brief.\n\n{line}")
    assert system["content"] == f"Be brief.\n\n{line}", "only where it begins"
    assert chat_messages(("user", "ahoy"), system=[text(line)]) == chat_messages(("user", "ahoy"))
    assert chat_messages(("user", line), ("system", line)) == chat_messages(("user", line))
    assert chat_messages(("system", ""))[0]["content"] == ""


def test_only_the_dialects_own_paths_are_translated() -> None:
    assert translation_of(f"/default/fake{COUNT_TOKENS_PATH}") is not None
    assert translation_of("/tokenize") is None
    assert translation_of("/v1/message") is None


def test_a_text_is_a_chat_that_ends_where_its_answer_begins() -> None:
    assert chat(model="m") == {"model": "m", "messages": ASK, "add_generation_prompt": True}
    assert "model" not in chat()


def test_system_comes_first_as_text_or_blocks() -> None:
    assert chat(system="Be brief.")["messages"] == [{"role": "system", "content": "Be brief."}, *ASK]
    blocks = [{**text("Be"), **CACHED}, text(" brief.")]
    assert chat(system=blocks)["messages"][0] == {"role": "system", "content": [text("Be"), text(" brief.")]}
    assert chat(system="")["messages"] == ASK
    assert chat_messages(("user", "a"), ("system", [text("b")]))[1] == {"role": "system", "content": [text("b")]}


def test_images_become_urls() -> None:
    sources = (
        {"type": "base64", "media_type": "image/png", "data": "AA=="},
        {"type": "url", "url": "https://example.org/cat.png"},
    )
    [message] = chat_messages(("user", [*({"type": "image", "source": each} for each in sources), text("which?")]))
    urls = [part["image_url"]["url"] for part in message["content"][:2]]
    assert urls == ["data:image/png;base64,AA==", "https://example.org/cat.png"]
    assert message["content"][2] == text("which?")


def test_a_document_that_a_tool_gave_and_nobody_can_read_ends_no_conversation() -> None:
    """Claude Code's Read of a PDF, inside the result and behind it."""
    use = {"type": "tool_use", "id": "a", "name": "Read", "input": {}}
    for inside, behind in (([text("read"), PDF], []), ("read", [PDF])):
        result = {"type": "tool_result", "tool_use_id": "a", "content": inside}
        told = chat_messages(("user", "read it"), ("assistant", [use]), ("user", [result, *behind, text("well?")]))
        assert str(told[2:]).count("(a document, which this model cannot read)") == 1 and "well?" in str(told[3])
    own = [{"role": "user", "content": [PDF, text("well?")]}]
    assert refused(own).field == "messages.0.content.0.source.type", "of what the user shows it"


def test_changes_of_the_tools_and_instructions_until_the_next_message() -> None:
    change = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "get_weather"}}
    asked = chat_messages(("user", [change, text("ahoy")]), ("system", [{**change, "type": "tool_removal"}]))
    assert asked == [{"role": "user", "content": [text("ahoy")]}]
    inline = {**change, "tool": {"type": "tool_definition", "definition": TOOL}}
    assert refused([{"role": "user", "content": [inline]}]).field == "messages.0.content.0.tool.type"
    said = [{"role": "system", "content": "Hurry.", "clear_at": "next_user_message"}, *ASK]
    assert [each["role"] for each in chat([*ASK, *said])["messages"]] == ["user", "user"]
    assert [each["role"] for each in chat([*ASK, *said[:1]])["messages"]] == ["user", "system"]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": [{"type": "tool_removal", "tool": {"type": "tool_reference"}}]}],
        [{"role": "system", "content": [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "a"}}]}]
        * 2,
    ],
)
def test_messages_that_say_nothing_to_the_model_are_refused(messages: list[dict[str, Any]]) -> None:
    assert refused(messages).field == "messages"


def test_documents_are_read_as_text() -> None:
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "12 knots"}}
    blocks = {"type": "document", "source": {"type": "content", "content": [text("a"), text("b")]}}
    [message] = chat_messages(("user", [{**plain, "title": "Log", "context": "Of 1851"}, blocks]))
    assert message["content"] == [text("Log\n\n"), text("Of 1851\n\n"), text("12 knots"), text("a"), text("b")]
    [message] = chat_messages(("user", [{**plain, "citations": {"enabled": False}}]))
    assert message["content"] == [text("12 knots")]
    found = {"type": "search_result", "source": "log.txt", "title": "Log", "content": [text("12 knots")]}
    [message] = chat_messages(("user", [found]))
    assert message["content"] == [text("Log\nlog.txt\n\n"), text("12 knots")]


def test_calls_and_results_are_messages_of_their_own_in_order() -> None:
    use = {
        "type": "tool_use",
        "id": "t1",
        "name": "get_weather",
        "input": {"city": "Oslo"},
        "caller": {"type": "code_execution_20250825", "tool_id": "s"},
    }
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [text("rain")], **CACHED}
    failed = {"type": "tool_result", "tool_use_id": "t2", "content": "no net", "is_error": True}
    listed = {**failed, "content": [text("no net")]}
    empty = {"type": "tool_result", "tool_use_id": "t3"}
    assert chat_messages(
        ("user", "Weather?"),
        ("assistant", [thought, hidden, text("Let me "), text("see."), use]),
        ("user", [result, failed, listed, empty, text("Well?")]),
    ) == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": [text("rain")]},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no net"},
        {"role": "tool", "tool_call_id": "t2", "content": [text("Error: "), text("no net")]},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {"role": "user", "content": [text("Well?")]},
    ]
    assert chat_messages(("user", "a"), ("assistant", [use]), ("user", "b"))[1]["content"] is None
    assert [each["role"] for each in chat_messages(("user", [text("a"), result]))] == ["user", "tool"]


def test_a_last_message_of_the_assistant_is_continued() -> None:
    found = chat([*ASK, {"role": "assistant", "content": [text("The best")]}])
    assert (found["add_generation_prompt"], found["continue_final_message"]) == (False, True)
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    assert chat([*ASK, {"role": "assistant", "content": [text("a"), use]}])["add_generation_prompt"] is True


def test_tools_are_functions() -> None:
    [tool, bare] = chat(
        tools=[{**TOOL, **CACHED, "strict": True, "type": "custom"}, {"name": "f", "input_schema": {}}]
    )["tools"]
    function = {"name": "get_weather", "description": "It rains.", "parameters": SCHEMA, "strict": True}
    assert tool == {"type": "function", "function": function}
    assert bare == {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert "tools" not in chat(tools=[])


def test_tools_that_are_searched_for_are_shown_at_once() -> None:
    """Claude Code defers tools, finds them by a tool of its own, and refers to what it found."""
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    found = chat(tools=[search, {**TOOL, "defer_loading": True}], tool_choice={"type": "any"})
    assert found == chat(tools=[TOOL])
    assert refused(tools=[search], tool_choice={"type": "any"}).field == "tool_choice"
    references = [{"type": "tool_reference", "tool_name": each} for each in ("f", "g")]
    [message] = chat_messages(("user", [{"type": "tool_result", "tool_use_id": "t", "content": references}]))
    assert message["content"] == [text("f\n"), text("g\n")]


def test_a_history_of_a_server_with_tools_is_read_without_them() -> None:
    asked = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
    results = [{"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "x", "page_age": None}]
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": results}
    others = [{"type": "fallback", "to": {"model": "m"}}, {"type": "mcp_tool_listing", "tools": []}]
    cited = {**text("It rains."), "citations": [{"type": "web_search_result_location", "url": "u", "cited_text": "t"}]}
    assert chat_messages(("user", "a"), ("assistant", [*others, asked, found, cited]), ("user", "b"))[1] == {
        "role": "assistant",
        "content": "It rains.",
    }


def test_a_summary_stands_for_what_was_before() -> None:
    """As a message of the user, since many templates begin with one."""
    summary = {"type": "compaction", "content": "They spoke of rain."}
    turns = chat_messages(("user", "a"), ("assistant", [text("b"), summary, text("c")]), ("user", "d"), system="s")
    assert [(each["role"], each["content"]) for each in turns] == [
        ("system", "s"), ("user", "They spoke of rain."), ("assistant", "c"), ("user", "d"),
    ]  # fmt: skip
    assert len(chat_messages(("user", "a"), ("assistant", [{**summary, "content": None}]), ("user", "d"))) == 3


def test_thinking_is_a_switch_of_the_template() -> None:
    def variables(**thinking: Any) -> Any:
        return chat(thinking=thinking).get("chat_template_kwargs")

    assert variables(type="enabled", budget_tokens=2048) == {"enable_thinking": True, "thinking": True}
    assert variables(type="disabled") == {"enable_thinking": False, "thinking": False}
    assert variables(type="adaptive", display="omitted") is None


def test_what_changes_no_prompt_is_taken() -> None:
    choices = ({"type": "auto", "disable_parallel_tool_use": True}, {"type": "any"}, {"type": "none"})
    for choice in (*choices, {"type": "tool", "name": "get_weather"}):
        assert chat(tools=[TOOL], tool_choice=choice) == chat(tools=[TOOL])
    assert chat(metadata={"user_id": "u"}, **CACHED) == chat()
    later = {"display": "updates", "type": "adaptive"}, {"effort": "a later one"}
    assert chat(thinking=later[0], output_config=later[1], speed="a later one") == chat(), "values of later clients"
    assert chat(system=None, tools=None, tool_choice=None, thinking=None, model=None) == chat()


def test_a_breakpoint_is_for_the_messages_up_to_it() -> None:
    """The longer time of those at the end is for the whole prompt."""

    def options(messages: Any = (("user", "a"), ("assistant", "b"), ("user", "c")), **fields: Any) -> Any:
        told = [{"role": role, "content": content} for role, content in messages]
        body = {"model": "m", "max_tokens": 9, "messages": told, **fields}
        asked = translation_of("/v1/messages")
        assert asked is not None
        _, sent = asked.request(json.dumps(body).encode(), UnknownFields("refuse"))
        return json.loads(sent).get("prompt_cache_options")

    short, said = {"cache_control": {"type": "ephemeral"}}, ("user", [{**text("a"), **CACHED}])
    system = [{**text("s"), **CACHED}]
    assert options() is None
    assert options(system=system) == {"prefixes": {"1h": 1}}
    assert options(system=system, **short) == {"ttl": "5m", "prefixes": {"1h": 1}}
    assert options(tools=[{**TOOL, **short}], system=system) == {"prefixes": {"5m": 1, "1h": 1}}
    assert options([said, ("assistant", "b"), ("user", "c")], system="s") == {"prefixes": {"1h": 2}}
    first = ("user", [{**text("a"), **short}])
    assert options([first, ("assistant", "b"), said]) == {"ttl": "1h", "prefixes": {"5m": 1}}
    results = [{"type": "tool_result", "tool_use_id": each, "content": "r"} for each in "tu"]
    use = [{"type": "tool_use", "id": each, "name": "f", "input": {}} for each in "tu"]
    turns = [("user", "a"), ("assistant", use), ("user", [results[0], {**results[1], **CACHED}]), ("user", "b")]
    assert options(turns) == {"prefixes": {"1h": 4}}
    summary = {"type": "compaction", "content": "They spoke of rain."}
    assert options([said, ("assistant", [summary]), ("user", "c")]) is None


# -- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "fields", "field", "words"),
    [
        ([], {}, "messages", "array"),
        ([{"role": "bot", "content": "a"}], {}, "messages.0.role", "send user, assistant or system"),
        ([{"role": "user"}], {}, "messages.0.content", "missing"),
        ([{"role": "user", "content": 5}], {}, "messages.0.content", "str"),
        ([*ASK, {"role": "user", "content": [{"type": "text", "text": 5}]}], {}, "messages.1.content.0.text", "str"),
        ([{"role": "user", "content": [PDF]}], {}, "messages.0.content.0.source.type", "of type text and content"),
        ([{"role": "user", "content": [{"type": "tool_reference"}]}], {}, "messages.0.content.0.type", "tool_result"),
        ([{"role": "assistant", "content": [PDF]}], {}, "messages.0.content.0.type", "thinking"),
        ([{"role": "user", "content": [{**text("a"), "tone": 1}]}], {}, "messages.0.content.0.tone", "leave it out"),
        (ASK, {"max_tokens": 5}, "max_tokens", "leave it out"),
        (ASK, {"x" * 100_000: 5}, "x" * 200, "leave it out"),
        (ASK, {"output_config": {"task_budget": {}}}, "output_config.task_budget", "leave it out"),
        (ASK, {"system": [PDF]}, "system.0.type", "send another"),
        (ASK, {"tools": [{"name": "bash", "type": "bash_20250124"}]}, "tools.0.type", "type custom"),
        (ASK, {"tools": [{"name": "f"}]}, "tools.0.input_schema", "missing"),
        (ASK, {"tools": [{"name": "memory", "type": "memory_20250818"}]}, "tools.0.type", "type custom"),
        (ASK, {"tool_choice": {"type": "any"}}, "tool_choice", "send tools"),
        (ASK, {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.name", "'f' is none"),
        (ASK, {"thinking": {"type": "always"}}, "thinking.type", "adaptive"),
        (ASK, {"model": 5}, "model", "str"),
    ],
)
def test_what_no_chat_can_say_is_refused_by_its_name(messages: Any, fields: Any, field: str, words: str) -> None:
    error = refused(messages, **fields)
    assert error.field == field
    assert error.message.startswith(f"{field}: ") and words in error.message


def test_citations_are_refused_where_they_are_wanted() -> None:
    document = {"type": "document", "source": {"type": "text", "data": "a"}, "citations": {"enabled": True}}
    assert refused([{"role": "user", "content": [document]}]).field == "messages.0.content.0.citations"
    assert chat_messages(("user", [{**text("a"), "citations": None}]))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"system": "\xff"}', b"null", b"5", b"[" * 200_000])
def test_what_is_no_object_is_refused_as_a_whole(body: bytes) -> None:
    with pytest.raises((PromptError, OverBudget)) as caught:
        new().request(body, UnknownFields("refuse"))
    assert "the request body" in str(caught.value)


def test_a_body_of_too_many_parts_is_not_decoded() -> None:
    with pytest.raises(OverBudget):
        new().request(b'{"messages": [' + b"{}," * 200_000 + b"{}]}", UnknownFields("refuse"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
WORDS = st.sampled_from(
    [
        "text",
        "image",
        "document",
        "tool_use",
        "server_tool_use",
        "compaction",
        "tool_reference",
        "tool_name",
        "tool_result",
        "thinking",
        "url",
        "base64",
        "content",
        "user",
        "custom",
    ]
    + ["assistant", "system", "source", "data", "input", "name", "id", "role", "type", "input_schema", "is_error"]
)
LIKELY = st.recursive(
    WORDS | st.text(max_size=3) | st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=20,
)
BLOCKS = st.lists(st.fixed_dictionaries({"type": WORDS}, optional={"text": JSON, "source": LIKELY, "content": LIKELY}))
MESSAGES = st.lists(st.fixed_dictionaries({"role": WORDS, "content": JSON | LIKELY | BLOCKS}), max_size=3)


@given(messages=JSON | LIKELY | MESSAGES, system=JSON | LIKELY, tools=JSON | LIKELY, more=LIKELY)
def test_any_json_is_translated_or_refused_with_a_sentence(messages: Any, system: Any, tools: Any, more: Any) -> None:
    for fields in (
        {"messages": messages, "system": system, "tools": tools, "thinking": more, "tool_choice": more},
        {"messages": messages},
        {"messages": ASK, "system": system},
        {"messages": ASK, "tools": tools},
    ):
        try:
            _, body = new().request(json.dumps(fields).encode(), UnknownFields("refuse"))
        except PromptError as error:
            assert error.message.startswith(("the request body", f"{error.field}: ")), error.message
            continue
        found = json.loads(body)
        assert msgspec.convert({**found}, ChatPrompt).places() == ["messages"]


# -- Answers ----------------------------------------------------------------------------------------------------------


def test_a_count_is_told_by_its_name() -> None:
    assert answered(200, {"count": 7, "max_model_len": 10, "tokens": [1] * 7}) == (200, {"input_tokens": 7})


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"count": "7"}', b'{"tokens": [1]}', b"\xff"])
def test_an_answer_without_a_count_is_no_answer(body: bytes) -> None:
    status, answer = answered(200, body)
    assert (status, answer["error"]["type"]) == (502, "api_error")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (503, "overloaded_error"),
        (500, "api_error"),
        (504, "api_error"),
    ],
)
def test_refusals_are_in_anthropics_shape(status: int, kind: str) -> None:
    error = {"message": "Too much.", "type": "whatever", "param": None, "code": None}
    shown = {"type": "error", "error": {"type": kind, "message": "Too much."}, "request_id": "r-1"}
    assert answered(status, {"error": error}) == (status, shown)
    assert answered(status, {"object": "error", **error}) == (status, shown), "an older vLLM's"


def test_refusals_name_the_places_of_the_request_that_was_sent() -> None:
    translation = new()
    results = [{"type": "tool_result", "tool_use_id": each, "content": "a"} for each in "ab"]
    body = {"system": "Be brief.", "messages": [*ASK, {"role": "user", "content": results}]}
    translation.request(json.dumps(body).encode(), UnknownFields("refuse"))

    def shown(message: str, param: str | None = None) -> str:
        answer = translation.answer(400, json.dumps({"error": {"message": message, "param": param}}).encode(), "r")
        return str(json.loads(answer[1])["error"]["message"])

    assert shown("messages[0].content is wrong") == "system is wrong"
    assert shown("messages[3].content[0].image_url has no url.") == "messages.1 has no url."
    assert shown("look at messages[1].") == "look at messages.0."
    assert shown("messages[99] is wrong") == "messages[99] is wrong"
    assert shown("cannot be rendered", "messages") == "messages: cannot be rendered"


def test_refusals_name_fields_as_anthropic_does() -> None:
    translation = new()
    search = {"type": "tool_search_tool_bm25", "name": "tool_search_tool_bm25"}
    body = {"messages": ASK, "tools": [search, TOOL]}
    translation.request(json.dumps(body).encode(), UnknownFields("refuse"))

    def shown(message: str) -> str:
        answer = translation.answer(400, json.dumps({"error": {"message": message, "param": None}}).encode(), "r")
        return str(json.loads(answer[1])["error"]["message"])

    assert shown("tools[0].function.name is bad") == "tools.1.name is bad"
    assert shown("tools[0].function.parameters.properties.a is bad") == "tools.1.input_schema.properties.a is bad"
    advice = "leave it out, or send strict = false, with which it is relaxed"
    assert shown(f"response_format.json_schema.schema.a is bad; {advice}") == (
        "output_config.format.schema.a is bad; leave it out"
    )
    assert shown("stop must not be so") == "stop_sequences must not be so"


@given(st.integers(200, 599), st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_answer_is_translated(status: int, body: bytes) -> None:
    given_status, answer = new().answer(status, body, "r")
    if given_status < 400:
        msgspec.json.decode(answer, type=InputTokens)
    else:
        error = json.loads(answer)["error"]
        assert error["message"] and error["type"].endswith("_error")


# -- The truth --------------------------------------------------------------------------------------------------------


def test_a_conversation_is_rendered_as_the_same_chat_is() -> None:
    tokenizer = PromptTokenizer.from_folder(Path(fairlead_engine.demo.__file__).parent / "dinghy")
    use = {"type": "tool_use", "id": "t", "name": "get_weather", "input": {"city": "Oslo", "days": 2.0}}
    found = chat(
        [
            {"role": "user", "content": [text("Weather?")]},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "rain"}, text("And?")]},
        ],
        system="Be brief.",
        tools=[TOOL],
    )
    [part] = msgspec.convert(found, ChatPrompt).parts(tokenizer)
    assert part.content == (
        "<|bos|><|system|>Be brief.\n\nTools:\nget_weather(city: string): It rains.<|end|><|user|>Weather?<|end|>"
        '<|assistant|><tool_call>{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2.0}}</tool_call><|end|>'
        "<|tool|>rain<|end|><|user|>And?<|end|><|assistant|>"
    )
