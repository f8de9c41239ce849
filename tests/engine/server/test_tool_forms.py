"""Custom tools, and the functions of before `tools`, as the official client sends and reads them."""

import inspect
import json
from typing import Any

import openai
import pytest
from openai.resources import AsyncCompletions, AsyncEmbeddings
from openai.resources.chat import AsyncCompletions as AsyncChats

from fairlead_common.openai.prompts import ChatPrompt
from fairlead_common.openai.tool_forms import CustomInput
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine.api import schemas
from fairlead_engine_testing import ScriptedEngine, answer, scripted_info

INPUT = 'print("ahoy")\n# é 😀 \\ done'
FUNCTION = {"name": "tide", "description": "At a place", "parameters": {"type": "object", "properties": {}}}
RUN: Any = {"type": "custom", "custom": {"name": "run", "description": "Runs code"}}
ASK: Any = [{"role": "user", "content": "a"}]


def called(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def client_of(start_app: Any, tokenizer: PromptTokenizer, text: str) -> openai.AsyncOpenAI:
    """Of an engine that says `text`."""
    script = answer(tokenizer.encode(text, add_special_tokens=False))
    app = start_app(ScriptedEngine(script, info=scripted_info(max_model_len=4096)), tool_call_parser="hermes")
    return openai.AsyncOpenAI(base_url="http://engine/v1", api_key="none", http_client=app.http)


async def test_a_function_is_called_in_its_own_form(start_app: Any, tokenizer: PromptTokenizer) -> None:
    client = client_of(start_app, tokenizer, called("tide", '{"place": "Oslo"}'))
    chat: Any = {"model": "tiny", "messages": ASK, "functions": [FUNCTION]}
    for choice in ("auto", {"name": "tide"}):
        whole = (await client.chat.completions.create(**chat, function_call=choice)).choices[0]
        assert (whole.finish_reason, whole.message.tool_calls) == ("function_call", None)
        assert whole.message.function_call is not None
        assert whole.message.function_call.name == "tide"
        assert json.loads(whole.message.function_call.arguments) == {"place": "Oslo"}
        chunks = [chunk async for chunk in await client.chat.completions.create(**chat, stream=True)]
        told = [each.choices[0].delta.function_call for each in chunks if each.choices[0].delta.function_call]
        assert [each.name for each in told if each.name] == ["tide"]
        assert json.loads("".join(each.arguments or "" for each in told)) == {"place": "Oslo"}
        assert chunks[-1].choices[0].finish_reason == "function_call"
    text = (await client.chat.completions.create(**chat, function_call="none")).choices[0]
    assert (text.finish_reason, text.message.function_call) == ("stop", None)


@pytest.mark.parametrize("choice", [None, {"type": "custom", "name": "run"}])
async def test_tools_and_choices_in_the_form_of_responses_are_those_of_chats(
    start_app: Any, tokenizer: PromptTokenizer, choice: Any
) -> None:
    """As Cursor sends them, beside tools in the form of chats."""
    text = called("run", '{"input": "x"}') + ("" if choice else called("tide", "{}"))
    client = client_of(start_app, tokenizer, text)
    nested: Any = [{"type": "function", "function": FUNCTION}, RUN]
    tools: Any = [{"type": each["type"], **each[each["type"]]} for each in nested]
    chosen: Any = {} if choice is None else {"tool_choice": choice}
    for given in (tools, [tools[0], RUN], [nested[0], tools[1]]):
        whole = await client.chat.completions.create(model="tiny", messages=ASK, tools=given, **chosen)
        kinds = [call.type for call in whole.choices[0].message.tool_calls or ()]
        assert kinds == (["custom"] if choice else ["custom", "function"])
        shown = ChatPrompt(messages=ASK, tools=given).shown_tools
        assert shown == ChatPrompt(messages=ASK, tools=nested).shown_tools


@pytest.mark.parametrize("escaped", [True, False])
async def test_a_custom_tool_is_called_with_a_text(start_app: Any, tokenizer: PromptTokenizer, escaped: bool) -> None:
    arguments = json.dumps({"input": INPUT}, ensure_ascii=escaped)
    client = client_of(start_app, tokenizer, called("run", arguments) + "\n" + called("tide", "{}"))
    tools: Any = [RUN, {"type": "function", "function": FUNCTION}]
    whole = (await client.chat.completions.create(model="tiny", messages=ASK, tools=tools)).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.tool_calls is not None
    run, tide = whole.message.tool_calls
    assert run.type == "custom" and (run.custom.name, run.custom.input) == ("run", INPUT)
    assert tide.type == "function" and tide.function.name == "tide"
    text, kinds = "", []
    async for chunk in await client.chat.completions.create(model="tiny", messages=ASK, tools=tools, stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            told = call.model_dump()
            kinds += [told["type"]] if told.get("type") else []
            text += (told.get("custom") or {}).get("input", "")
    assert (text, kinds) == (INPUT, ["custom", "function"])


def test_a_text_comes_as_it_is_written_in_pieces_of_any_size() -> None:
    for written in (json.dumps({"input": INPUT}), json.dumps({"input": INPUT}, ensure_ascii=False)):
        for size in (1, 2, 5, 99):
            reader = CustomInput()
            pieces = [reader.push(written[place : place + size]) for place in range(0, len(written), size)]
            assert "".join(pieces) == INPUT
    assert CustomInput().push('{"input": "cut \\u00') == "cut " and CustomInput().push('{"other": "x"}') == ""


def test_every_form_makes_the_prompt_of_functions(tokenizer: PromptTokenizer) -> None:
    made = PromptTokenizer(
        tokenizer.tokenizer_json,
        chat_template="{{ tools | tojson }}{% for each in messages %}{{ each | tojson }}{% endfor %}",
    )

    def rendered(**fields: Any) -> Any:
        return ChatPrompt(**fields).parts(made)[0].content

    history: list[Any] = [
        {"role": "assistant", "content": None, "function_call": {"name": "tide", "arguments": '{"a": 1}'}},
        {"role": "function", "name": "tide", "content": "high"},
    ]
    call = {"id": "call00000", "type": "function", "function": {"name": "tide", "arguments": '{"a": 1}'}}
    newer: list[Any] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "tide", "content": "high", "tool_call_id": "call00000"},
    ]
    tool = {"type": "function", "function": FUNCTION}
    assert rendered(messages=history, functions=[FUNCTION]) == rendered(messages=newer, tools=[tool])
    custom = {"id": "c", "type": "custom", "custom": {"name": "run", "input": INPUT}}
    function = {"name": "run", "arguments": json.dumps({"input": INPUT})}
    calls: list[list[Any]] = [
        [{"role": "assistant", "tool_calls": [each]}]
        for each in (custom, {**custom, "type": "function", "function": function})
    ]
    del calls[1][0]["tool_calls"][0]["custom"]
    assert rendered(messages=calls[0]) == rendered(messages=calls[1])
    refusal = [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}]
    assert rendered(messages=refusal) == rendered(messages=[{"role": "assistant", "content": "No."}])
    none = ChatPrompt(messages=ASK, reasoning_effort="none").variables
    assert none == {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}


async def test_an_effort_has_no_effect_on_a_model_that_knows_none(start_app: Any) -> None:
    app = start_app()
    for effort in ("high", "none", None):
        assert (await app.chat(reasoning_effort=effort)).status_code == 200
    assert len({tuple(request.prompt_token_ids) for request in app.engine.requests}) == 1


@pytest.mark.parametrize(
    ("create", "schema"),
    [
        (AsyncChats.create, schemas.ChatRequest),
        (AsyncCompletions.create, schemas.CompletionRequest),
        (AsyncEmbeddings.create, schemas.EmbeddingRequest),
    ],
)
def test_every_parameter_of_the_official_client_is_known(create: Any, schema: Any) -> None:
    """Accepted, without effect or refused, each as the reference says: a newer client's must be decided on."""
    own = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    parameters = set(inspect.signature(create).parameters) - own
    assert len(parameters) > 4 and parameters <= set(schema.__struct_fields__)
