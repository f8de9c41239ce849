"""`POST /v1/responses`: items → a chat, and the chat's answer → items, whole and as numbered events."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import openai.types.responses
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_common.openai.prompts import PromptError
from fairlead_common.openai.translate import Translation, translation_of
from fairlead_common.openai.translate.responses import behind_summary
from fairlead_common.openai.translate.responses_answers import replayed
from fairlead_common.openai.unknown_fields import UnknownFields

USAGE = {"prompt_tokens": 40, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 32}}
EVENTS: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(openai.types.responses.ResponseStreamEvent)
PATCH = {"type": "custom", "name": "patch", "description": "Patches.", "format": {"type": "text"}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def new() -> Translation:
    translation = translation_of("/v1/responses")
    assert translation is not None
    return translation


def chat(input: Any = "ahoy", translation: Translation | None = None, **fields: Any) -> dict[str, Any]:
    body = json.dumps({"model": "m", "input": input, **fields}).encode()
    path, sent = (translation or new()).request(body, UnknownFields("refuse"))
    assert path == "/v1/chat/completions"
    return dict(json.loads(sent))


def messages(*items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return list(chat(list(items), **fields)["messages"])


def refused(input: Any = "ahoy", **fields: Any) -> PromptError:
    with pytest.raises(PromptError) as caught:
        chat(input, **fields)
    assert caught.value.message.startswith(caught.value.field)
    return caught.value


def answered(message: dict[str, Any], fields: dict[str, Any] | None = None, **choice: Any) -> Any:
    translation = new()
    chat(translation=translation, **(fields or {}))
    body = {"id": "chatcmpl-1", "model": "m", "choices": [{"message": message, **choice}], "usage": USAGE}
    status, told = translation.answer(200, json.dumps(body).encode(), "r")
    assert status == 200
    return openai.types.responses.Response.model_validate_json(told)


def streamed(
    deltas: Sequence[dict[str, Any]], fields: dict[str, Any] | None = None, **ending: Any
) -> list[dict[str, Any]]:
    translation = new()
    chat(translation=translation, stream=True, **(fields or {}))
    return list(_told(translation, [{"delta": each} for each in deltas] + [{"delta": {}, **ending}]))


def _told(translation: Translation, choices: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    head = {"id": "chatcmpl-1", "model": "m"}
    payloads = [json.dumps({**head, "choices": [each]}) for each in choices]
    for payload in [*payloads, json.dumps({**head, "choices": [], "usage": USAGE}), "[DONE]"]:
        for event in filter(None, translation.events(f"data: {payload}\n\n".encode()).split(b"\n\n")):
            name, data = event.decode().split("\n")
            found = json.loads(data.removeprefix("data: "))
            assert name == f"event: {found['type']}"
            yield found


# -- Requests ---------------------------------------------------------------------------------------------------------


def test_a_text_is_a_chat() -> None:
    assert chat() == {"model": "m", "messages": [{"role": "user", "content": "ahoy"}], "best_effort": True}
    found = chat(max_output_tokens=9, temperature=0.5, top_p=0.9, stream=True)
    assert (found["max_tokens"], found["temperature"], found["top_p"], found["stream"]) == (9, 0.5, 0.9, True)
    assert found["stream_options"] == {"include_usage": True}


def test_instructions_at_the_beginning_are_one_message_of_the_system() -> None:
    """Agents send instructions and messages of the developer; chat templates know one message of the system."""
    parts = [{"type": "input_text", "text": "Use tools."}]
    found = messages(
        {"role": "developer", "content": parts}, {"role": "user", "content": "a"}, instructions="Be brief."
    )
    texts = [{"type": "text", "text": each} for each in ("Be brief.", "\n\n", "Use tools.")]
    assert found == [{"role": "system", "content": texts}, {"role": "user", "content": "a"}]
    assert messages({"role": "system", "content": "a"}, {"role": "user", "content": "b"})[0]["content"] == "a"
    assert messages({"type": None, "role": "user", "content": "b"}) == [{"role": "user", "content": "b"}]


def test_a_history_becomes_turns() -> None:
    assert messages(
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": 'a"b'},
        {"type": "function_call_output", "call_id": "c", "output": "rain"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "done"}]},
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "So."}]},
        {"type": "function_call", "call_id": "e", "name": "f", "arguments": "{}"},
    ) == [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "I look."}],
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "d", "type": "function", "function": {"name": "patch", "arguments": '{"input":"a\\"b"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
        {"role": "tool", "tool_call_id": "d", "content": [{"type": "text", "text": "done"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "So.",
            "tool_calls": [{"id": "e", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
    ]  # fmt: skip


def test_images_are_urls() -> None:
    part = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    [message] = messages({"role": "user", "content": [part]})
    assert message["content"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]


def test_tools_are_functions_and_custom_tools_functions_of_one_text() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
    tool = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    found = chat(tools=[tool, {**PATCH, "format": grammar}, {"type": "web_search"}], tool_choice="auto")
    first, second = (each["function"] for each in found["tools"])
    assert first == {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    assert second["parameters"]["required"] == ["input"] and 'start: "a"' in second["description"]
    named = {"type": "function", "function": {"name": "patch"}}
    assert chat(tools=[PATCH], tool_choice={"type": "custom", "name": "patch"})["tool_choice"] == named
    some = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
    chosen = chat(tools=[tool], tool_choice=some)["tool_choice"]
    assert chosen["allowed_tools"] == {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert "tools" not in chat(tools=[{"type": "web_search"}], tool_choice="auto", parallel_tool_calls=True)


def test_tools_of_a_namespace_are_functions_with_both_names() -> None:
    """Codex groups its own tools and those of MCP servers so, and runs what it finds by both names."""
    inner = [{"type": "function", "name": "search", "description": "d"}, PATCH]
    tools = [{"type": "namespace", "name": "mcp__docs__", "description": "n", "tools": inner}]
    tools += [{"type": "image_generation"}, {"type": "tool_search"}, {"type": "web_search"}]
    call = {"type": "function_call", "call_id": "c", "name": "search", "namespace": "mcp__docs__", "arguments": "{}"}
    found = chat([{"role": "user", "content": "a"}, call], tools=tools, tool_choice="auto")
    names = [each["function"]["name"] for each in found["tools"]]
    assert names == ["mcp__docs__search", "mcp__docs__patch"]
    assert found["messages"][1]["tool_calls"][0]["function"]["name"] == names[0]
    calls = [
        {"index": index, "id": f"c{index}", "function": {"name": name, "arguments": '{"input": "a"}'}}
        for index, name in enumerate(names)
    ]
    asked = {"tools": tools}
    made = answered({"tool_calls": calls}, asked, finish_reason="tool_calls").output
    assert [(each.type, each.name, each.namespace) for each in made] == [
        ("function_call", "search", "mcp__docs__"), ("custom_tool_call", "patch", "mcp__docs__"),
    ]  # fmt: skip
    assert refused(tools=[{"type": "namespace", "name": "n"}]).field == "tools[0].tools"
    inside = {"type": "namespace", "name": "n", "tools": [{"type": "mcp", "name": "m"}]}
    assert refused(tools=[inside]).field == "tools[0].tools[0].type"
    assert refused(tools=[{"type": "web_search"}], tool_choice="required").field == "tool_choice"


def test_tools_and_choices_in_the_form_of_a_chat_are_taken() -> None:
    """LlamaIndex sends such choices to /v1/responses, too."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    choice = {"type": "function", "function": {"name": "f"}}
    found = chat(tools=[tool], tool_choice=choice)
    assert (found["tools"], found["tool_choice"]) == ([tool], choice)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "image_generation_call", "id": "i", "status": "completed", "result": "AA=="},
        {"type": "mcp_call", "id": "m", "server_label": "s", "name": "f", "arguments": "{}", "output": "o"},
        {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {"query": "q"}},
        {"type": "mcp_approval_request", "id": "m", "server_label": "s", "name": "f", "arguments": "{}"},
        {"type": "mcp_approval_response", "approval_request_id": "m", "approve": True},
        {"type": "program", "id": "p", "call_id": "c", "code": "1", "fingerprint": "f"},
        {"type": "program_output", "id": "o", "call_id": "c", "result": "1", "status": "completed"},
        {"type": "agent_message", "author": "/root", "content": [{"type": "x", "encrypted_content": "gAAA"}]},
        {"type": "compaction", "id": "c", "encrypted_content": "gAAA"},
        {"type": "context_compaction", "encrypted_content": "gAAA"},
    ],
    ids=lambda item: item["type"],
)
def test_what_only_another_server_ran_or_reads_is_passed_over(item: dict[str, Any]) -> None:
    assert messages(item, {"role": "user", "content": "a"}) == [{"role": "user", "content": "a"}]


def test_items_bring_tools() -> None:
    """Codex sends its own tools so, and what a search has found."""
    own = {"type": "custom", "name": "exec", "description": "Runs."}
    spaced = {"type": "namespace", "name": "functions", "tools": [own]}
    brought = {"type": "additional_tools", "role": "developer", "tools": [spaced]}
    plain = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    found = {"type": "tool_search_output", "call_id": "t", "status": "completed", "tools": [plain]}
    user = {"role": "user", "content": "a"}
    fields = {"tools": [plain], "tool_choice": "required"}
    sent = chat([brought, found, found, user], **fields)
    assert sent["messages"] == [user] and sent["tool_choice"] == "required"
    assert [each["function"]["name"] for each in sent["tools"]] == ["f", "functions__exec"]
    translation = new()
    chat([brought, user], translation)
    call = {"id": "c", "function": {"name": "functions__exec", "arguments": '{"input": "1"}'}}
    body = {"id": "chatcmpl-1", "model": "m", "choices": [{"message": {"tool_calls": [call]}}], "usage": USAGE}
    [item] = json.loads(translation.answer(200, json.dumps(body).encode(), "r")[1])["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("custom_tool_call", "functions", "exec")
    assert refused([{**found, "tools": {}}]).field == "input[0].tools"
    assert refused([user, {**found, "tools": [{"type": "mcp"}]}]).field == "input[1].tools[0].type"


def test_what_a_client_ran_for_another_server_is_a_call() -> None:
    shell = {"type": "local_shell_call", "id": "l", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}}
    patch = {"type": "apply_patch_call", "call_id": "d", "operation": {"type": "delete_file", "path": "a"}}
    asked, first, second = messages(
        shell,
        patch,
        {"type": "local_shell_call_output", "id": "c", "output": "a b"},
        {"type": "apply_patch_call_output", "call_id": "d", "status": "completed"},
    )
    calls = [(each["id"], each["function"]["name"], each["function"]["arguments"]) for each in asked["tool_calls"]]
    assert calls == [
        ("c", "local_shell", '{"type":"exec","command":["ls"]}'),
        ("d", "apply_patch", '{"type":"delete_file","path":"a"}'),
    ]
    assert (first["tool_call_id"], first["content"]) == ("c", "a b")
    assert (second["tool_call_id"], second["content"]) == ("d", "")
    [told] = messages({"type": "shell_call_output", "call_id": "e", "output": [{"stdout": "a"}]})
    assert told["content"] == '[{"stdout":"a"}]'


SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}


def test_a_search_for_tools_that_the_client_runs_is_a_function() -> None:
    """As Codex has it: the model searches, and the next request brings what was found."""
    query = {"query": "docs"}
    calls = [{"index": 0, "id": "t", "function": {"name": "tool_search", "arguments": json.dumps(query)}}]
    [call] = answered({"tool_calls": calls}, {"tools": [SEARCH]}, finish_reason="tool_calls").output
    assert (call.type, call.call_id, call.execution, call.arguments) == ("tool_search_call", "t", "client", query)
    whole = json.loads(call.to_json())
    events = streamed([{"tool_calls": calls}], {"tools": [SEARCH]}, finish_reason="tool_calls")
    added, done = (event for event in events if "output_item" in event["type"])
    replay = [event for event in replayed(events[-1]["response"]) if "output_item" in event["type"]]
    assert [each["item"] for each in replay] == [added["item"], done["item"]]
    assert added["item"]["arguments"] == {} and done["item"] == whole | {"id": done["item"]["id"]}
    found = {"type": "namespace", "name": "docs", "tools": [{"type": "function", "name": "read"}]}
    told = {"type": "tool_search_output", "call_id": "t", "execution": "client", "tools": [found]}
    sent = chat([{"role": "user", "content": "a"}, whole, told], tools=[SEARCH])
    assert [each["function"]["name"] for each in sent["tools"]] == ["tool_search", "docs__read"]
    assert sent["tools"][0]["function"]["parameters"] == SEARCH["parameters"]
    _, asked, result = sent["messages"]
    assert asked["tool_calls"][0]["function"] == {"name": "tool_search", "arguments": '{"query":"docs"}'}
    assert result == {"role": "tool", "tool_call_id": "t", "content": "Tools found: docs__read"}
    assert messages({**told, "tools": []})[0]["content"] == "Tools found: none"


def test_messages_in_the_form_of_a_chat_are_taken() -> None:
    function = {"name": "f", "arguments": "{}"}
    call = {"id": "c", "type": "function", "function": function}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    user = {"role": "user", "content": [image]}
    result = {"role": "tool", "tool_call_id": "c", "content": "rain"}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert messages(user, asked, result) == [user, asked, result]
    assert messages(user, {**asked, "content": "Hm."}, result)[1] == {**asked, "content": "Hm."}
    assert messages(user, {"role": "assistant", "content": "Hm.", "tool_calls": None})[1]["content"] == "Hm."
    assert refused([{**asked, "tool_calls": [{"id": "c"}]}]).field == "input[0].tool_calls[0].function"
    assert refused([{**asked, "tool_calls": [{"function": function}]}]).field == "input[0].tool_calls[0].id"


def test_what_another_agent_says_is_said_by_a_user() -> None:
    parts = [{"type": "input_text", "text": "Done."}, {"type": "encrypted_content", "encrypted_content": "gAAA"}]
    [told] = messages({"type": "agent_message", "author": "/root/a", "recipient": "/root", "content": parts})
    assert told == {"role": "user", "content": [{"type": "text", "text": "Done."}]}
    assert refused([{"type": "agent_message"}]).field == "input[0].content"


def test_items_change_the_configuration() -> None:
    def changed(**fields: Any) -> dict[str, Any]:
        return {"type": "configuration_update", **fields}

    user, form = {"role": "user", "content": "a"}, {"format": {"type": "json_object"}}
    sent = chat([changed(reasoning={"effort": "high"}), user, changed(text=form)], reasoning={"effort": "low"})
    assert (sent["reasoning_effort"], sent["response_format"]) == ("high", {"type": "json_object"})
    updates = [changed(reasoning={"effort": effort}) for effort in ("high", "low")]
    assert chat([*updates, user])["reasoning_effort"] == "low"
    assert refused([changed(reasoning="high"), user]).field == "input[0].reasoning"


def test_what_is_said_behind_calls_stands_in_their_message() -> None:
    """Templates refuse a result that does not follow its call."""
    asked, result = messages(
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"role": "assistant", "content": "I look."},
        {"type": "function_call_output", "call_id": "c", "output": "rain"},
    )
    assert (asked["content"], len(asked["tool_calls"]), result["role"]) == ("I look.", 1, "tool")


def test_formats_effort_and_log_probabilities() -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "name": "a", "schema": schema, "strict": True}
    kept_to = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    assert chat(text={"format": form, "verbosity": "low"})["response_format"] == kept_to
    assert chat(reasoning={"effort": "low", "summary": "auto"})["reasoning_effort"] == "low"
    assert chat(reasoning={"effort": "none"})["reasoning_effort"] == "none"
    assert chat(include=["message.output_text.logprobs"])["logprobs"] is True
    assert chat(top_logprobs=3)["top_logprobs"] == 3


def test_sampling_beyond_openais_reaches_the_chat() -> None:
    """vLLM's parameters of /v1/responses; left out, they would change answers in silence."""
    more = {
        "seed": 7, "stop": ["."], "top_k": 3, "min_p": 0.1, "frequency_penalty": 0.5, "repetition_penalty": 1.1,
        "cache_salt": "blue", "structured_outputs": {"choice": ["a"]}, "chat_template_kwargs": {"x": 1},
    }  # fmt: skip
    assert chat(**more) == chat() | more
    with pytest.raises(PromptError, match="response_format"):
        body = {"model": "m", "input": "a", "response_format": {"type": "json_object"}}
        new().request(json.dumps(body).encode(), UnknownFields("ignore"))


def test_tokens_of_the_input_are_counted_as_those_of_the_chat() -> None:
    count = translation_of("/a/b/v1/responses/input_tokens")
    assert count is not None
    asked = {"model": "m", "input": "ahoy", "tools": [PATCH], "reasoning": {"effort": "low"}, "temperature": 0}
    path, body = count.request(json.dumps(asked).encode(), UnknownFields("refuse"))
    same = chat(**{name: value for name, value in asked.items() if name not in ("model", "temperature")})
    assert path == "/tokenize" and json.loads(body) == {n: v for n, v in same.items() if n != "best_effort"}
    told = json.loads(count.answer(200, b'{"count": 7}', "r")[1])
    assert told == {"object": "response.input_tokens", "input_tokens": 7}
    assert count.answer(200, b"{}", "r")[0] == 502


# -- Compactions ------------------------------------------------------------------------------------------------------

TRIGGER = {"type": "compaction_trigger"}
HISTORY = [
    {"role": "developer", "content": "Use tools."},
    {"role": "user", "content": "Weather?"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "rain"},
]


def compacted(
    body: dict[str, Any], summary: str | None = "They spoke of rain.", finish_reason: str = "stop"
) -> tuple[dict[str, Any], int, Any]:
    """The chat for it, and status and answer."""
    translation = translation_of("/v1/responses/compact")
    assert translation is not None
    path, sent = translation.request(json.dumps({"model": "m", **body}).encode(), UnknownFields("refuse"))
    assert path == "/v1/chat/completions"
    choice = {"message": {"content": summary, "reasoning_content": "Hm."}, "finish_reason": finish_reason}
    answer = {"id": "chatcmpl-1", "model": "m", "choices": [choice], "usage": USAGE}
    status, told = translation.answer(200, json.dumps(answer).encode(), "r")
    return json.loads(sent), status, json.loads(told)


def test_a_compaction_is_the_users_messages_and_a_summary() -> None:
    _, status, told = compacted({"input": HISTORY})
    [user, compaction] = told.pop("output")
    told.pop("created_at")
    usage = told.pop("usage")
    assert status == 200 and told == {"id": "resp_1", "object": "response.compaction"}
    assert (user["role"], user["content"]) == ("user", [{"type": "input_text", "text": "Weather?"}])
    assert (compaction["type"], compaction["id"]) == ("compaction", "cmp_1")
    assert openai.types.responses.ResponseUsage.model_validate(usage).input_tokens == 40
    summary = {"type": "text", "text": "Summary of the conversation until here:\n\nThey spoke of rain."}
    texts = [{"type": "text", "text": "Weather?"}, {"type": "text", "text": "\n\n"}, summary]
    assert messages(user, compaction) == [{"role": "user", "content": texts}]


def test_a_summary_that_was_cut_says_so() -> None:
    told = compacted({"input": HISTORY, "max_output_tokens": 4}, finish_reason="length")[2]
    assert (told["status"], told["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert told["output"][-1]["type"] == "compaction"


def test_a_result_whose_call_a_summary_stands_for_is_said_by_a_user() -> None:
    """Templates want its call before it, and its text must not be lost."""
    compaction = compacted({"input": HISTORY})[2]["output"][-1]
    late = {"type": "function_call_output", "call_id": "c", "output": "rain"}
    [told] = messages(compaction, late)
    assert [each["text"] for each in told["content"]][1:] == ["\n\n", "rain"]
    call = {"type": "function_call", "call_id": "d", "name": "f", "arguments": "{}"}
    assert [each["role"] for each in messages(compaction, call, {**late, "call_id": "d"})] == [
        "user",
        "assistant",
        "tool",
    ]


def test_of_a_compacted_conversation_only_what_is_read_is_kept() -> None:
    compaction = compacted({"input": HISTORY})[2]["output"][-1]
    foreign = {"type": "compaction", "encrypted_content": "gAAA"}
    tools = {"type": "additional_tools", "tools": []}
    assert behind_summary([*HISTORY, tools, compaction, foreign, HISTORY[2]]) == [
        *HISTORY[:2],
        tools,
        compaction,
        foreign,
        HISTORY[2],
    ]
    assert behind_summary([*HISTORY, foreign]) == [*HISTORY, foreign] and not behind_summary([])


def test_the_question_for_a_summary_is_behind_the_same_prompt() -> None:
    """So an engine has the conversation in its cache, and templates get turns that alternate."""
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    fields = {"tools": [tool], "instructions": "Be brief.", "reasoning": {"effort": "low"}}
    plain = chat(HISTORY, **fields)
    form = {"text": {"format": {"type": "json_object"}}, "top_logprobs": 1, "tool_choice": "required", "stop": "."}
    for found in (compacted({"input": HISTORY, **fields, **form})[0], chat([*HISTORY, TRIGGER], **fields, **form)):
        *before, question = found.pop("messages")
        assert before == plain["messages"] and question["role"] == "user"
        assert found == {name: plain[name] for name in plain if name != "messages"} | {"tool_choice": "none"}
    [asked] = compacted({"input": "Weather?"})[0]["messages"]
    assert [each["text"] for each in asked["content"]] == ["Weather?", "\n\n", question["content"]]


def test_the_last_summary_stands_for_all_before_it() -> None:
    """Also where a client, or a store, sends again what was before, with earlier summaries."""
    first = compacted({"input": HISTORY}, "One.")[2]["output"][-1]
    asked, _, told = compacted({"input": [*HISTORY, first, {"role": "user", "content": "And now?"}]}, "Two.")
    assert "One." in json.dumps(asked["messages"])
    [*users, second] = told["output"]
    assert [each["content"][0]["text"] for each in users] == ["Weather?", "And now?"]
    found = messages(*HISTORY, first, {"role": "user", "content": "And now?"}, second)
    [system, user] = found
    assert system["role"] == "system" and "".join(each["text"] for each in user["content"]) == (
        "Weather?\n\nAnd now?\n\nSummary of the conversation until here:\n\nTwo."
    )
    assert messages(second, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"})[1:] == [
        {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"},
    ]  # fmt: skip


def test_a_trigger_is_answered_by_one_compaction() -> None:
    fields = {"input": [*HISTORY, TRIGGER]}
    whole = answered({"content": "Rain.", "reasoning_content": "Hm."}, fields, finish_reason="stop")
    [item] = whole.output
    events = streamed(
        [{"reasoning_content": "Hm."}, {"content": "Ra"}, {"content": "in."}], fields, finish_reason="stop"
    )
    for event in events:
        EVENTS.validate_python(event)
    kinds = ["created", "in_progress", "output_item.added", "compaction.compacting", "output_item.done", "completed"]
    assert [event["type"].removeprefix("response.") for event in events] == kinds
    assert events[-1]["response"]["output"] == [events[-2]["item"]] == [item.to_dict() | {"id": "cmp_1_0"}]
    assert [each["type"] for each in replayed(events[-1]["response"])] == [each["type"] for each in events]


def test_without_a_summary_a_compaction_has_failed() -> None:
    fields = {"input": [*HISTORY, TRIGGER]}
    for blank in ("", " \n\n"):
        _, status, told = compacted({"input": HISTORY}, blank)
        assert status == 502 and "wrote no summary" in told["error"]["message"]
        assert answered({"content": blank, "reasoning_content": "Hm."}, fields).error.code == "server_error"
        *_, last = streamed([{"reasoning_content": "Hm."}, {"content": blank}], fields, finish_reason="length")
        assert last["type"] == "response.failed" and "wrote no summary" in last["response"]["error"]["message"]


def test_without_a_conversation_there_is_nothing_to_compact() -> None:
    foreign = {"type": "compaction", "encrypted_content": "gAAA"}
    for items in ([TRIGGER], [foreign, TRIGGER]):
        error = refused(items)
        assert error.field == "input" and "no conversation" in error.message
        with pytest.raises(PromptError, match="no conversation"):
            compacted({"input": items})


def test_the_last_of_many_summaries_stands_behind_what_was_said_before_it() -> None:
    sealed = [compacted({"input": "a"}, f"Summary {number}.")[2]["output"][-1] for number in range(3)]
    said = [{"role": "assistant", "content": "x"}, {"role": "developer", "content": "Mind."}]
    items: list[dict[str, Any]] = [{"role": "user", "content": "0"}]
    for number, each in enumerate(sealed, 1):
        items += [*said, each, *said, {"role": "user", "content": str(number)}]
    found = messages(*items)
    roles = ["user", *["system", "system", "user"] * 2, "system", "user", "assistant", "system", "user"]
    assert [each["role"] for each in found] == roles
    texts = [each["content"] for each in found if each["role"] == "user"]
    assert texts[:3] == ["0", "1", "2"]
    assert "Summary 2." in texts[3] and texts[4] == "3"


def test_items_that_are_no_compactions_of_ours() -> None:
    sealed = compacted({"input": "a"})[2]["output"][-1]["encrypted_content"]
    head = sealed[: sealed.rindex(".") + 1]
    for broken in (head, f"{head}*", f"{head}/w==", f"{sealed[:-1]}", f"{sealed}A"):
        for kind in ("compaction", "compaction_summary", "context_compaction"):
            error = refused([{"role": "user", "content": "a"}, {"type": kind, "encrypted_content": broken}])
            assert error.field == "input[1].encrypted_content" and "as it came" in error.message
    for foreign in ("gAAA", "", None, 5, head[:-1], f" {sealed}"):
        assert messages({"role": "user", "content": "a"}, {"type": "compaction", "encrypted_content": foreign}) == [
            {"role": "user", "content": "a"}
        ]
    assert refused([TRIGGER, {"role": "user", "content": "a"}]).field == "input[0].type"
    for body, field in (({"stream": True, "input": "a"}, "stream"), ({}, "input"), ({"input": None}, "input")):
        with pytest.raises(PromptError) as caught:
            compacted(body)
        assert caught.value.field == field


def test_what_changes_nothing_is_taken() -> None:
    without = {
        "store": True, "include": ["reasoning.encrypted_content"], "metadata": {"a": "b"},
        "context_management": [{"type": "compaction"}],
        "truncation": "auto", "service_tier": "auto", "previous_response_id": None, "background": False,
    }  # fmt: skip
    assert chat(**without) == chat()


def test_what_names_a_session_is_kept_where_a_chat_takes_it() -> None:
    names = {"prompt_cache_key": "k", "user": "u"}
    assert chat(**names) == chat() | names
    assert chat(prompt_cache_key="k" * 513, user="") == chat() | {"user": ""}


@pytest.mark.parametrize(
    ("input", "fields", "field", "words"),
    [
        ("a", {"previous_response_id": "resp_1"}, "previous_response_id", "not kept here"),
        ("a", {"background": True}, "background", "not kept here"),
        ("a", {"tone": 1}, "tone", "leave it out"),
        (5, {}, "input", "str"),
        ([], {}, "input", "length"),
        ([{"type": "item_reference", "id": "x"}], {}, "input[0].type", "not kept here"),
        ([{"type": "computer_call"}], {}, "input[0].type", "is not supported"),
        ([{"content": "a"}], {}, "input[0].type", "is missing"),
        ([{"role": "critic", "content": "a"}], {}, "input[0].role", "must be user"),
        ([{"role": "user", "content": 5}], {}, "input[0].content", "a text or a list"),
        ([{"role": "user", "content": [{"type": "input_file"}]}], {}, "input[0].content[0].type", "is not supported"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], {}, "input[0].content[0].text", "must be a text"),
        ([{"type": "function_call", "name": "f", "arguments": "{}"}], {}, "input[0].call_id", "must be a text"),
        ("a", {"tools": [{"type": "code_interpreter"}]}, "tools[0].type", "nothing runs tools here"),
        ("a", {"tools": [PATCH], "tool_choice": {"type": "mcp"}}, "tool_choice.type", "is not supported"),
        ("a", {"tool_choice": "required"}, "tool_choice", "no tools to choose from"),
        ("a", {"tools": [], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "no tools"),
        ("a", {"text": {"format": 5}}, "text.format", "an object"),
    ],
)  # fmt: skip
def test_what_no_chat_can_say_is_refused_by_its_name(input: Any, fields: Any, field: str, words: str) -> None:
    error = refused(input, **fields)
    assert error.field == field and words in error.message


KINDS = ["message", "reasoning", "function_call", "custom_tool_call", "function_call_output"]
KINDS += ["additional_tools", "tool_search_output", "shell_call", "shell_call_output"]
KINDS += ["tool_search_call", "agent_message", "configuration_update"]
PARTS = st.fixed_dictionaries({"type": st.just("input_text")}, optional={"text": JSON})
ITEMS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(KINDS),
            "role": st.sampled_from(["user", "assistant", "system", "developer", "tool"]),
            "content": st.text(max_size=3) | JSON | st.lists(PARTS, max_size=2),
            "summary": JSON, "output": JSON, "call_id": JSON, "name": JSON, "arguments": JSON, "input": JSON,
            "tools": JSON | st.lists(st.fixed_dictionaries({"type": st.just("function")}, optional={"name": JSON})),
            "action": JSON, "execution": st.sampled_from(["client", "server"]), "reasoning": JSON, "tool_calls": JSON,
        },
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


@given(ITEMS | JSON, JSON, JSON, JSON)
def test_any_json_is_translated_or_refused_with_a_sentence(input: Any, tools: Any, text: Any, choice: Any) -> None:
    for fields in ({}, {"tools": tools}, {"text": text, "reasoning": text}, {"tools": [PATCH], "tool_choice": choice}):
        try:
            chat(input, **fields)
        except PromptError as error:
            assert error.message.startswith((error.field, "the request body")), error.message


# -- Answers ----------------------------------------------------------------------------------------------------------


def test_an_answer_is_items_in_this_order() -> None:
    calls = [
        {"id": "c", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "d", "function": {"name": "patch", "arguments": '{"input": "x\\ny"}'}},
    ]
    said = {"content": "So.", "reasoning_content": "Hm.", "tool_calls": calls}
    response = answered(said, {"tools": [PATCH]}, finish_reason="tool_calls")
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "custom_tool_call"]
    assert (response.status, response.output_text, response.output[3].input) == ("completed", "So.", "x\ny")
    usage = response.usage
    assert (usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens) == (40, 32, 7)
    assert response.store is False and response.id == "resp_1"


def test_an_answer_that_was_cut_says_why() -> None:
    response = answered({"content": "So"}, finish_reason="length")
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[0].status == "incomplete"
    last = streamed([{"content": "So"}], finish_reason="length")[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")


def test_refusals_name_the_places_of_the_request_that_was_sent() -> None:
    translation = new()
    chat([{"role": "user", "content": "a"}], translation, instructions="Be brief.")
    error = {"error": {"message": "messages[1].content is wrong", "param": "messages[1]", "type": "x", "code": None}}
    status, told = translation.answer(400, json.dumps(error).encode(), "r")
    found = json.loads(told)["error"]
    assert (status, found["message"], found["param"]) == (400, "input[0] is wrong", "input[0]")
    chat("a", translation, tools=[{"type": "web_search"}, {"type": "function", "name": "f"}])
    for told_of_a_chat, field in (
        ("messages", "input"),
        ("tools[0].function.parameters.a", "tools[1].parameters.a"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("reasoning_effort", "reasoning.effort"),
    ):
        error = {"error": {"message": "It is wrong.", "type": "x", "param": told_of_a_chat, "code": None}}
        _, told = translation.answer(400, json.dumps(error, separators=(",", ":")).encode(), "r")
        assert json.loads(told)["error"]["param"] == field
    assert translation.answer(502, b"\xffoh", "r") == (502, b"\xffoh")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"choices": 1}', b"\xff"])
def test_what_is_no_answer_is_told_as_an_error(body: bytes) -> None:
    status, told = new().answer(200, body, "r")
    assert (status, json.loads(told)["error"]["type"]) == (502, "server_error")


# -- Streams ----------------------------------------------------------------------------------------------------------


def test_events_come_in_the_documented_order() -> None:
    deltas = [
        {"role": "assistant", "content": ""}, {"reasoning_content": "Hm."}, {"content": "So"}, {"content": "."},
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {"tool_calls": [{"index": 1, "id": "d", "function": {"name": "patch", "arguments": '{"input": "x"}'}}]},
    ]  # fmt: skip
    told = streamed(deltas, {"tools": [PATCH]}, finish_reason="tool_calls")
    assert [each["type"].removeprefix("response.") for each in told] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert told[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] == 32


CALLS = st.builds(
    lambda index, text: {"tool_calls": [{"index": index, "id": "c", "function": {"name": "patch", "arguments": text}}]},
    st.integers(0, 2),
    st.text(max_size=2),
)
DELTAS = st.lists(
    st.fixed_dictionaries({}, optional={"content": st.text(max_size=2), "reasoning_content": st.text(max_size=2)})
    | CALLS,
    max_size=8,
)


@given(DELTAS, st.sampled_from(["stop", "length", "tool_calls", None]), st.booleans())
def test_any_stream_keeps_to_the_grammar(deltas: list[dict[str, Any]], reason: str | None, is_custom: bool) -> None:
    told = streamed(deltas, {"tools": [PATCH]} if is_custom else {}, finish_reason=reason)
    for number, each in enumerate(told):
        EVENTS.validate_python(each)
        assert each["sequence_number"] == number
    done = [each["item"] for each in told if each["type"] == "response.output_item.done"]
    assert told[-1]["response"]["output"] == done
    added = [each["item"]["id"] for each in told if each["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in done]
    places = [each["output_index"] for each in told[2:-1]]
    assert places == sorted(places)
    text = "".join(each["delta"] for each in told if each["type"] == "response.output_text.delta")
    assert text == "".join(each.get("content", "") for each in deltas)


def test_a_stream_that_breaks_ends_as_failed() -> None:
    translation = new()
    chat(translation=translation, stream=True)
    error = {"error": {"message": "It died.", "type": "x", "param": None, "code": "engine_dead"}}
    [event] = filter(None, translation.events(f"data: {json.dumps(error)}\n\n".encode()).split(b"\n\n"))
    told = json.loads(event.split(b"data: ")[1])
    assert EVENTS.validate_python(told).response.error.message == "It died."


@given(st.binary(max_size=60))
def test_any_bytes_are_passed_over_or_told(data: bytes) -> None:
    new().events(b"data: " + data + b"\n\n")
