"""Tools in chats: what is offered and chosen, what is refused, what an answer is made of, and what grammars hold."""

import json
from typing import Any

import msgspec
import openai
import pytest

from fairlead_common.openai.instructed import instruction
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine.api.answers.answer_formats import AnswerFormats, choose_formats
from fairlead_engine.api.answers.reader import AnswerReader
from fairlead_engine.api.detokenizer import Detokenizer
from fairlead_engine.api.schemas import ChatRequest
from fairlead_engine.api.structured_output import wish_of
from fairlead_engine.api.token_text import Vocabulary
from fairlead_engine.api.tool_use import AnswerGrammars, tool_use
from fairlead_engine.types import FinishReason, SamplingParams, SequenceOutput
from fairlead_engine_testing import ScriptedEngine, answer
from fairlead_engine_testing.byte_level import byte_level, draw_allowed
from fairlead_engine_testing.scripted_engine import scripted_info
from fairlead_engine_testing.written_answers import Read, read_outputs

USER: Any = [{"role": "user", "content": "Weather in Oslo?"}]
CITY = {"type": "string", "maxLength": 5}
WEATHER = {"type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False}
TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "description": "It rains.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time"}},
]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


def error_of(response: Any) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    found: dict[str, Any] = response.json()["error"]
    return found


def official(app: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="none", base_url="http://engine/v1", http_client=app.http, max_retries=0)


@pytest.fixture
def start_says(start_app: Any, tokenizer: PromptTokenizer) -> Any:
    """Starts an engine that answers every request with a text, and writes calls as Hermes does."""

    def start(text: str, **settings: Any) -> Any:
        engine = ScriptedEngine(answer(tokenizer.encode(text)), info=scripted_info(max_model_len=4096))
        return start_app(engine, **{"tool_call_parser": "hermes", "reasoning_parser": "think", **settings})

    return start


# -- What is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param", "advice"),
    [
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tool_choice": named("f")}, "tool_choice", "needs tools"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "required"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice", "function"),
        ({"tools": TOOLS, "tool_choice": named("get_rain")}, "tool_choice", "get_rain"),
        ({"tools": TOOLS, "tool_choice": allowed("auto", "get_rain")}, "tool_choice", "get_rain"),
        ({"tools": TOOLS, "tool_choice": allowed("auto")}, "tool_choice", "allowed_tools must be"),
        ({"tools": TOOLS, "tool_choice": allowed("none", "get_time")}, "tool_choice", "allowed_tools must be"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "allowed_tools must be"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": 5}}},
            "tool_choice",
            "allowed_tools must be",
        ),
        ({"tool_choice": allowed("auto", "get_time")}, "tool_choice", "needs tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "function"),
        ({"tools": [TOOLS[0], {"type": "function"}]}, "tools[1]", "function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "1 to 128"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "1 to 128"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name", "two tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
            "schema",
        ),
        (
            {"tools": [TOOLS[0], {"function": {"name": "f", "strict": True, "parameters": {"not": {"const": 1}}}}]},
            "tools[1].function.parameters",
            "'not' is not supported",
        ),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"type": "objekt"}, "strict": True}}]},
            "tools[0].function.parameters",
            "objekt",
        ),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls", "bool"),
    ],
)
async def test_what_cannot_be_called_is_refused_by_its_place(
    start_says: Any, fields: dict[str, Any], param: str, advice: str
) -> None:
    app = start_says("x")
    error = error_of(await app.chat(**fields))
    assert error["param"] == param
    assert advice in error["message"]
    assert app.engine.requests == []


@pytest.mark.parametrize("name", ["github/create_issue", "files:read", "v1.2/a:b-c_d"])
async def test_names_as_servers_of_tools_have_them_are_called_in_every_dialect(start_says: Any, name: str) -> None:
    app = start_says(CALL.replace("get_weather", name))
    function = {"name": name, "parameters": WEATHER}
    for choice in ("auto", "required", named(name)):
        chat = await app.chat(tools=[{"type": "function", "function": function}], tool_choice=choice)
        [call] = chat.json()["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == name
    message = {"model": "tiny", "max_tokens": 99, "messages": [{"role": "user", "content": "a"}]}
    tool = {"name": name, "input_schema": WEATHER}
    told = (await app.http.post("/v1/messages", json={**message, "tools": [tool]})).json()
    assert [block["name"] for block in told["content"] if block["type"] == "tool_use"] == [name]
    response = {"model": "tiny", "input": "a", "store": False, "tools": [{"type": "function", **function}]}
    told = (await app.http.post("/v1/responses", json=response)).json()
    assert [item["name"] for item in told["output"] if item["type"] == "function_call"] == [name]


async def test_tools_are_refused_where_nobody_knows_how_the_model_calls_them(start_says: Any) -> None:
    app = start_says("x", tool_call_parser="auto")  # this template shows nothing
    error = error_of(await app.chat(tools=TOOLS))
    assert error["param"] == "tools"
    assert "tool-call-parser" in error["message"]
    assert (await app.chat(tools=TOOLS, tool_choice="required")).status_code == 200
    assert app.engine.requests[-1].sampling.grammar is not None
    off = error_of(await start_says("x", tool_call_parser="none").chat(tools=TOOLS, tool_choice="required"))
    assert "required" in error["message"] and "required" not in off["message"]
    assert (await app.chat(tools=TOOLS, tool_choice="none")).status_code == 200
    assert (await app.chat(tools=[])).status_code == 200


KNOWS_NO_TOOLS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"


async def test_a_template_without_a_place_for_tools_gets_a_message_that_tells_of_them(
    start_app: Any, tokenizer: PromptTokenizer
) -> None:
    own = PromptTokenizer(tokenizer.tokenizer_json, chat_template=KNOWS_NO_TOOLS)
    engine = ScriptedEngine(answer(own.encode(f"I look.\n{CALL}")), info=scripted_info(max_model_len=4096))
    app = start_app(engine, tokenizer=own, tool_call_parser="auto")
    reply = (await app.chat(messages=USER, tools=TOOLS)).json()["choices"][0]
    assert (reply["finish_reason"], reply["message"]["content"]) == ("tool_calls", "I look.")
    [call] = reply["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    asked = own.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert asked.startswith(f"<|system|>{instruction(TOOLS)}<|end|><|user|>Weather in Oslo?<|end|>")
    result = {"role": "tool", "tool_call_id": call["id"], "content": "It rains."}
    again = await app.chat(messages=[*USER, reply["message"], result], tools=TOOLS)
    assert again.status_code == 200
    told = own.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert told.endswith(
        f"<|assistant|>I look.\n{CALL}<|end|><|user|><tool_response>\nIt rains.\n</tool_response><|end|><|assistant|>"
    )
    strict = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}]
    for fields in ({"tool_choice": "required"}, {"tools": strict}):
        assert (await app.chat(messages=USER, **{"tools": TOOLS, **fields})).status_code == 200
        assert engine.requests[-1].sampling.grammar is not None
    assert (await app.http.get("/fairlead/v1/model")).json()["instructs_tools"] is True
    off = start_app(engine, tokenizer=own, tool_call_parser="none")
    assert "tool-call-parser" in error_of(await off.chat(tools=TOOLS))["message"]
    set_apart = start_app(engine, tokenizer=own, tool_call_parser="mistral")
    assert (await set_apart.chat(messages=USER, tools=TOOLS)).status_code == 200
    plain = own.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert plain == "<|user|>Weather in Oslo?<|end|><|assistant|>"


# -- What an answer is made of -----------------------------------------------------------------------------------------


async def test_a_call_has_openais_shape(start_says: Any) -> None:
    app = start_says(f"<think>\nRain?\n</think>\n\nI look.\n{CALL}")
    reply = await official(app).chat.completions.create(model="tiny", messages=USER, tools=TOOLS)
    [choice] = reply.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert choice.message.reasoning_content == "Rain?\n"  # type: ignore[attr-defined]
    [call] = choice.message.tool_calls
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == (
        "function", "get_weather", {"city": "Oslo"},
    )  # fmt: skip
    assert call.id.startswith("call_")


async def test_a_call_alone_has_no_content_and_no_reasoning(start_says: Any) -> None:
    message = (await start_says(CALL).chat(tools=TOOLS)).json()["choices"][0]["message"]
    assert message["content"] is None
    assert "reasoning_content" not in message


async def test_a_stream_tells_the_same_in_pieces(start_says: Any) -> None:
    app = start_says(f"<think>Rain?</think>I look.\n{CALL}\n{CALL}")
    stream = official(app).chat.completions.create(model="tiny", messages=USER, tools=TOOLS, stream=True, logprobs=True)
    text, reasoning, calls, ends = "", "", {}, []
    async for chunk in await stream:
        delta = chunk.choices[0].delta
        text += delta.content or ""
        reasoning += getattr(delta, "reasoning_content", None) or ""
        for call in delta.tool_calls or []:
            known = calls.setdefault(call.index, [call.id, call.function.name, ""])
            assert (call.id, call.type) == (known[0], "function") or call.id is None
            known[2] += call.function.arguments
        ends.append(chunk.choices[0].finish_reason)
    assert (text, reasoning) == ("I look.", "Rain?")
    assert [(index, name, json.loads(arguments)) for index, (_, name, arguments) in calls.items()] == [
        (0, "get_weather", {"city": "Oslo"}), (1, "get_weather", {"city": "Oslo"}),
    ]  # fmt: skip
    assert calls[0][0] != calls[1][0]
    assert [end for end in ends if end] == ["tool_calls"]


def streamed(response: Any) -> list[dict[str, Any]]:
    """The choices of a stream, put together."""
    choices: dict[int, dict[str, Any]] = {}
    for line in response.text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            found = choices.setdefault(choice["index"], {"content": "", "calls": [], "end": None})
            found["content"] += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", []):
                if "id" in call:
                    found["calls"].append([call["function"]["name"], ""])
                found["calls"][call["index"]][1] += call["function"]["arguments"]
            found["end"] = found["end"] or choice["finish_reason"]
    return [choices[index] for index in sorted(choices)]


def whole(response: Any) -> list[dict[str, Any]]:
    return [
        {
            "content": choice["message"]["content"] or "",
            "calls": [
                [call["function"]["name"], call["function"]["arguments"]]
                for call in choice["message"].get("tool_calls", [])
            ],
            "end": choice["finish_reason"],
        }
        for choice in response.json()["choices"]
    ]


@pytest.mark.matrix
@pytest.mark.parametrize("choice", ["auto", "required", named("get_weather"), None])
@pytest.mark.parametrize(
    ("stop", "calls", "end"),
    [
        ("<tool", [], "stop"),
        ('"name"', [], "stop"),
        ("eather", [], "stop"),
        (', "arg', [["get_weather", ""]], "stop"),
        ("slo", [["get_weather", '{"city": "O']], "stop"),
        ('"}}', [["get_weather", '{"city": "Oslo']], "stop"),
        ("}\n</tool", [["get_weather", '{"city": "Oslo"}']], "stop"),
        ("</tool", [["get_weather", '{"city": "Oslo"}']], "tool_calls"),
        ("call>", [], "stop"),
    ],
)
async def test_a_stop_string_in_a_call_ends_it_as_it_was_written(
    start_says: Any, choice: Any, stop: str, calls: list[list[str]], end: str
) -> None:
    app = start_says(f"I look.\n{CALL}")
    fields = {"tools": TOOLS, "stop": [stop], "n": 2} | ({} if choice is None else {"tool_choice": choice})
    expected = {"content": "I look.", "calls": calls, "end": end}
    found = whole(await app.chat(**fields))
    assert found == streamed(await app.chat(**fields, stream=True))
    for each in found:
        assert {**each, "content": each["content"].rstrip()} == expected


@pytest.mark.parametrize("choice", ["auto", "required", named("get_weather")])
async def test_an_answer_that_is_too_long_ends_in_no_markup_and_no_call_that_was_not_written(
    start_app: Any, tokenizer: PromptTokenizer, choice: Any
) -> None:
    ids = tokenizer.encode(f"I look.\n{CALL}\n{CALL}")
    app = start_app(ScriptedEngine(info=scripted_info(max_model_len=4096)), tool_call_parser="hermes")
    for size in range(1, len(ids) + 1):
        app.engine.script = answer(ids[:size], finish_reason=FinishReason.LENGTH)
        found = whole(await app.chat(tools=TOOLS, tool_choice=choice))
        assert found == streamed(await app.chat(tools=TOOLS, tool_choice=choice, stream=True))
        [each] = found
        assert each["end"] == "length"
        assert "I look.".startswith(each["content"].rstrip())
        for name, arguments in each["calls"]:
            assert name == "get_weather"
            assert '{"city": "Oslo"}'.startswith(arguments)


async def test_one_call_where_no_more_are_wanted(start_says: Any) -> None:
    for fields in ({"parallel_tool_calls": False}, {"tool_choice": named("get_weather")}):
        reply = (await start_says(f"{CALL}\n{CALL}").chat(tools=TOOLS, **fields)).json()
        assert len(reply["choices"][0]["message"]["tool_calls"]) == 1


async def test_without_tools_the_text_of_a_call_is_text(start_says: Any) -> None:
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        [choice] = (await start_says(CALL).chat(**fields)).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")
        assert "tool_calls" not in choice["message"]


async def test_no_call_begins_where_none_may_be_made(start_app: Any) -> None:
    backend = byte_level(["<|end|>", "<tool_call>", "</tool_call>"])
    marker = backend.token_to_id("<tool_call>")
    template = "{% for message in messages %}{{ message.content }}{% endfor %}{{ tools | tojson }}"
    own = PromptTokenizer(backend.to_str(), chat_template=template)
    info = scripted_info(max_model_len=4096, vocab_size=backend.get_vocab_size())
    app = start_app(ScriptedEngine(answer(own.encode("no")), info=info), tokenizer=own, tool_call_parser="hermes")
    functions = [tool["function"] for tool in TOOLS]
    for fields, is_ruled_out in (
        ({"tools": TOOLS, "tool_choice": "none"}, True),
        ({"functions": functions, "function_call": "none"}, True),
        ({"tools": TOOLS}, False),
        ({"tool_choice": "none"}, False),
    ):
        assert (await app.chat(bad_words=["x"], **fields)).status_code == 200
        words = app.engine.requests[-1].sampling.bad_words
        assert (words[0] != (marker,), (marker,) in words) == (True, is_ruled_out)


async def test_reasoning_that_the_prompt_begins_is_told_apart(start_app: Any, tokenizer: PromptTokenizer) -> None:
    assert tokenizer.chat_template is not None
    template = tokenizer.chat_template.source + "<think>\n"
    thinking = PromptTokenizer(tokenizer.tokenizer_json, chat_template=template)
    app = start_app(ScriptedEngine(answer(tokenizer.encode("Hm.</think>\nYes."))), tokenizer=thinking)
    message = (await app.chat()).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
    await app.chat(response_format={"type": "json_object"})
    assert "TEXT" in app.engine.requests[-1].sampling.grammar.text, "the reasoning is free"


async def test_only_what_must_hold_is_kept_to_by_a_grammar(start_says: Any) -> None:
    app = start_says(CALL)
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    for fields, is_kept_to in (
        ({"tools": TOOLS}, False),
        ({"tools": TOOLS, "tool_choice": "auto"}, False),
        ({"tools": TOOLS, "tool_choice": "none"}, False),
        ({"tools": TOOLS, "tool_choice": "required"}, True),
        ({"tools": TOOLS, "tool_choice": named("get_time")}, True),
        ({"tools": TOOLS, "tool_choice": allowed("required", "get_time", "get_weather")}, True),
        ({"tools": TOOLS, "tool_choice": allowed("auto", "get_time", "get_weather")}, False),
        ({"tools": TOOLS, "tool_choice": allowed("auto", "get_time")}, True),
        ({"tools": strict}, True),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, True),
    ):
        assert (await app.chat(**fields)).status_code == 200
        assert (app.engine.requests[-1].sampling.grammar is not None) == is_kept_to, fields


# -- What grammars hold ------------------------------------------------------------------------------------------------


VARIANTS = [
    ("hermes", None), ("llama3_json", None), ("mistral", None), ("mistral", "[ARGS]"), ("deepseek_v3", "```json"),
    ("deepseek_v3", ""), ("harmony", None), ("glm45", None), ("glm45", "</arg_key><arg_value>"), ("qwen3_coder", None),
    ("minimax_m2", None), ("seed_oss", None), ("kimi_k2", None), ("deepseek_v32", None), ("hunyuan_a13b", None),
    ("hy_v3", None), ("cohere_command3", None), ("granite", None), ("granite", "<tool_call>"), ("phi4_mini_json", None),
    ("phi4_mini_json", "functools["), ("nemotron", None), ("lfm2", None), ("olmo3", None), ("gemma4", None),
    ("gemma4", "<start_function_call>"), ("gigachat3", None), ("gigachat3", ""), ("solar_open", None),
    ("unknown", None), ("apertus", None), ("functionary", None), ("pythonic", None), ("pythonic", '"parameters": '),
    ("instructed", None),
]  # fmt: skip


@pytest.mark.matrix(2)
@pytest.mark.parametrize("markers", ["special", "added", "text"])
@pytest.mark.parametrize(("name", "template"), VARIANTS)
@pytest.mark.parametrize("choice", ["required", "auto", "named", "schema", "allowed"])
def test_whatever_a_grammar_allows_is_read_as_what_was_asked_for(
    name: str, template: str | None, choice: str, markers: str
) -> None:
    """Qwen's `<tool_call>` is a token, but no special one."""
    if name == "unknown" and choice in ("auto", "schema"):
        pytest.skip("it is refused")
    if name == "harmony" and markers != "special":
        pytest.skip("its markers are always special tokens")
    formats = choose_formats(template, name, "none")
    backend = byte_level(["</s>", *formats.markers] if markers == "special" else ["</s>"])
    if markers == "added":
        backend.add_tokens(list(formats.markers))
    vocabulary = Vocabulary(PromptTokenizer(backend.to_str()))
    strict = [{**tool, "function": {**tool["function"], "parameters": WEATHER, "strict": True}} for tool in TOOLS]
    fields: dict[str, Any] = {"tools": strict, "tool_choice": named("get_time") if choice == "named" else choice}
    if choice == "allowed":
        fields["tool_choice"] = allowed("required", "get_time")
    if choice == "schema":
        fields = {"tools": TOOLS, "response_format": {"type": "json_schema", "json_schema": {"schema": WEATHER}}}
    request = msgspec.convert({"model": "m", "messages": [], **fields}, ChatRequest)
    use, wish = tool_use(request, formats), wish_of(request)
    assert use is not None
    grammar = AnswerGrammars(formats, vocabulary.named_id).grammar(wish, use, False)
    assert grammar is not None
    num_calls = num_texts = 0
    for seed in range(3):
        if (ids := draw_allowed(grammar.text, backend.to_str(), seed, most=500)) is None:
            continue
        text, _, calls, _ = read(formats, vocabulary, ids, use.parameters)
        num_calls += len(calls)
        num_texts += not calls
        for called, arguments in calls:
            assert called in use.names
            assert choice == "schema" or json.loads(arguments).keys() == {"city"}
        if choice == "named":
            assert [called for called, _ in calls] == ["get_time"]
        if choice == "allowed":
            assert {called for called, _ in calls} == {"get_time"}
        if choice in ("named", "required", "allowed"):
            assert calls
            assert not text.strip()
        if choice == "schema" and not calls:
            assert json.loads(text).keys() == {"city"}
    assert num_calls or choice in ("auto", "schema")
    assert num_texts or choice in ("named", "required", "schema", "allowed")


def read(formats: AnswerFormats, vocabulary: Vocabulary, ids: list[int], names: Any) -> Read:
    shown = frozenset(token_id for marker in formats.markers if (token_id := vocabulary.special_id(marker)) is not None)
    reader = AnswerReader(Detokenizer(vocabulary, SamplingParams(), shown=shown), formats, names)
    outputs = [SequenceOutput(request_id="r", new_token_ids=[token_id]) for token_id in ids]
    if outputs:
        outputs[-1].finish_reason = FinishReason.STOP
    return read_outputs(reader, outputs)
