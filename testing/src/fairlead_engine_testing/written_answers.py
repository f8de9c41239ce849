"""Answers with calls as models write them, in every format, and how a client puts together what is read of one."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fairlead_engine.api.answers.answer_formats import AnswerFormats
from fairlead_engine.api.answers.reader import AnswerReader
from fairlead_engine.api.detokenizer import TextDelta
from fairlead_engine.types import FinishReason, SequenceOutput

OSLO = '{"city": "Oslo", "note": "a \\" } ] </tool_cal {", "days": [1, {"a": "}"}]}'
TAGGED = (("get_weather", '{"city": "Oslo", "days": [1, {"a": "}"}]}'), ("get_time", "{}"))
"""Calls in the formats whose arguments stand in tags."""
SPACED = '{"city": "Oslo", "note": "a \\" } ] )\\nö", "days": [1, {"a": null}], "wet": true}'
CODE = "city='Oslo', note=\"a \\\" } ] )\\nö\", days=[1, {'a': None}], wet=True"
"""The same arguments in JSON and in Python."""
NO_CALL = "a < b and <tool_cal or { x }\n"
FUNCTIONS = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}},
    "get_time": {},
}


class Written(NamedTuple):
    """An answer as the model's makers have it written."""

    format: str
    text: str
    content: str = ""
    calls: Sequence[tuple[str, str]] = (("get_weather", OSLO), ("get_time", "{}"))
    reasoning: str = ""


ANSWERS = {
    "hermes": Written(
        "hermes",
        f'Let me see.\n<tool_call>\n{{"name": "get_weather", "arguments": {OSLO}}}\n</tool_call>\n<tool_call>\n'
        '{"name": "get_time", "arguments": {}}\n</tool_call>\n',
        "Let me see.",
    ),
    "hermes-without-arguments": Written(
        "hermes", '<tool_call>\n{"name": "get_time"}\n</tool_call>', calls=[("get_time", "{}")]
    ),
    "hermes-ends-forgotten": Written(
        "hermes",
        f'Let me see.\n<tool_call>\n{{"name": "get_weather", "arguments": {OSLO}}}\n<tool_call>\n'
        '{"name": "get_time", "arguments": {}}',
        "Let me see.",
    ),
    "hermes-name-last": Written(
        "hermes",
        f'<tool_call>\n{{"arguments": {OSLO}, "name": "get_weather"}}\n</tool_call>',
        calls=[("get_weather", OSLO)],
    ),
    "hermes-text-arguments": Written(
        "hermes",
        '<tool_call>\n{"name": "get_time", "arguments": "{\\"a\\": 1}"}\n</tool_call>',
        calls=[("get_time", '{"a": 1}')],
    ),
    "hermes-none": Written("hermes", NO_CALL, NO_CALL, calls=[]),
    "hermes-broken": Written("hermes", "<tool_call>\nhm</tool_call>", "<tool_call>\nhm</tool_call>", calls=[]),
    "llama3-text": Written("llama3_json", " Hello {you}", " Hello {you}", calls=[]),
    "llama3": Written(
        "llama3_json",
        f'{{"name": "get_weather", "parameters": {OSLO}}}; {{"name": "get_time", "parameters": {{}}}}',
    ),
    "llama3-tag": Written(
        "llama3_json",
        f'<|python_tag|>{{"type": "function", "name": "get_weather", "parameters": {OSLO}}}; '
        '{"name": "get_time", "parameters": {}}',
    ),
    "mistral-list": Written(
        "mistral",
        f'Well.[TOOL_CALLS] [{{"name": "get_weather", "arguments": {OSLO}}}, '
        '{"name": "get_time", "arguments": {}}]',
        "Well.",
    ),
    "mistral-named": Written(
        "mistral",
        f"Well.[TOOL_CALLS]get_weather[ARGS]{OSLO}[TOOL_CALLS]get_time[CALL_ID]123456789[ARGS]{{}}",
        "Well.",
    ),
    "mistral-bare": Written("mistral", f"[TOOL_CALLS]get_weather{OSLO}[TOOL_CALLS]get_time{{}}"),
    "deepseek-fenced": Written(
        "deepseek_v3",
        f"Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{OSLO}\n```"
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        "Yes.",
    ),
    "deepseek-bare": Written(
        "deepseek_v3",
        f"Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{OSLO}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Yes.",
    ),
    "deepseek-begin-forgotten": Written(
        "deepseek_v3",
        f"Yes.<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{OSLO}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Yes.",
    ),
    "harmony": Written(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        f"<|constrain|>json<|message|>{OSLO}<|call|>",
        calls=[("get_weather", OSLO)],
        reasoning="Hm.",
    ),
    "harmony-final": Written(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi!",
        "Hi!",
        calls=[],
        reasoning="Hm.",
    ),
    "harmony-two": Written(
        "harmony",
        f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{OSLO}<|call|><|start|>assistant"
        "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}<|call|>",
    ),
    "harmony-recipient-first": Written(
        "harmony",
        f" to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{OSLO}<|call|><|start|>assistant"
        " to=functions.get_time<|channel|>commentary json<|message|>{}<|call|>",
    ),
    "glm": Written(
        "glm45",
        "Yes.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n"
        '<arg_value>[1, {"a": "}"}]</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>',
        "Yes.",
        calls=TAGGED,
    ),
    "glm-in-one-line": Written(
        "glm45",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key>"
        '<arg_value>[1, {"a": "}"}]</arg_value></tool_call><tool_call>get_time</tool_call>',
        calls=TAGGED,
    ),
    "glm-value-end-forgotten": Written(
        "glm45",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo\n<arg_key>days</arg_key>\n"
        '<arg_value>[1, {"a": "}"}]</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>',
        calls=TAGGED,
    ),
    "qwen3-coder": Written(
        "qwen3_coder",
        "Yes.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n"
        '[1, {"a": "}"}]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n'
        "</tool_call>",
        "Yes.",
        calls=TAGGED,
    ),
    "qwen3-coder-value-end-forgotten": Written(
        "qwen3_coder",
        '<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n<parameter=days>\n[1, {"a": "}"}]\n</parameter>\n'
        "</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
        calls=TAGGED,
    ),
    "minimax": Written(
        "minimax_m2",
        'Yes.\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n'
        '<parameter name="days">[1, {"a": "}"}]</parameter>\n</invoke>\n<invoke name="get_time">\n</invoke>\n'
        "</minimax:tool_call>",
        "Yes.",
        calls=TAGGED,
    ),
    "seed-oss": Written(
        "seed_oss",
        "Yes.\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n<parameter=days>"
        '[1, {"a": "}"}]</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=get_time>\n'
        "</function>\n</seed:tool_call>",
        "Yes.",
        calls=TAGGED,
    ),
    "deepseek-tags": Written(
        "deepseek_v32",
        'Yes.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" '
        'string="true">Oslo'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">[1, {"a": "}"}]</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        "Yes.",
        calls=TAGGED,
    ),
    "hunyuan-3": Written(
        "hy_v3",
        "Yes.<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n<arg_key:opensource>city"
        "</arg_key:opensource>\n<arg_value:opensource>Oslo</arg_value:opensource>\n<arg_key:opensource>days"
        '</arg_key:opensource>\n<arg_value:opensource>[1, {"a": "}"}]</arg_value:opensource>\n</tool_call:opensource>\n'
        "<tool_call:opensource>get_time<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
        "Yes.",
        calls=TAGGED,
    ),
    "kimi": Written(
        "kimi_k2",
        "Yes.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        f"{OSLO}<|tool_call_end|><|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        "Yes.",
    ),
    "kimi-begin-forgotten": Written(
        "kimi_k2",
        f"Yes.<|tool_call_begin|>get_weather<|tool_call_argument_begin|>{OSLO}<|tool_call_end|>"
        "<|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|><|tool_call_end|>",
        "Yes.",
    ),
    "solar": Written(
        "solar_open",
        f"Yes.<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>get_weather<|tool_call:args|>{OSLO}<|tool_call:end|>"
        "<|tool_call:begin|>b2<|tool_call:name|>get_time<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        "Yes.",
    ),
    "apertus": Written(
        "apertus", f'Yes.<|tools_prefix|>[{{"get_weather": {OSLO}}}, {{"get_time": {{}}}}]<|tools_suffix|>', "Yes."
    ),
    "functionary": Written(
        "functionary", f"Yes.<function=get_weather>{OSLO}</function><function=get_time>{{}}</function>", "Yes."
    ),
    "hunyuan": Written(
        "hunyuan_a13b",
        f'Yes.<tool_calls>[{{"name": "get_weather", "arguments": {OSLO}}}, {{"name": "get_time", "arguments": {{}}}}]'
        "</tool_calls>",
        "Yes.",
    ),
    "minimax-m1": Written(
        "hunyuan_a13b",
        f'Yes.\n<tool_calls>\n{{"name": "get_weather", "arguments": {OSLO}}}\n{{"name": "get_time", "arguments": {{}}}}'
        "\n</tool_calls>",
        "Yes.",
    ),
    "nemotron": Written(
        "nemotron",
        f'Yes.<TOOLCALL>[{{"name": "get_weather", "arguments": {OSLO}}}, {{"name": "get_time", "arguments": {{}}}}]'
        "</TOOLCALL>",
        "Yes.",
    ),
    "phi4": Written(
        "phi4_mini_json",
        f'Yes.<|tool_call|>[{{"name": "get_weather", "arguments": {OSLO}}}, {{"name": "get_time", "arguments": {{}}}}]'
        "<|/tool_call|>",
        "Yes.",
    ),
    "phi4-functools": Written(
        "phi4_mini_json",
        f'Yes. functools[{{"name": "get_weather", "arguments": {OSLO}}}, {{"name": "get_time", "arguments": {{}}}}]',
        "Yes.",
    ),
    "phi4-none": Written(
        "phi4_mini_json", "See functools[0] of functools.", "See functools[0] of functools.", calls=[]
    ),
    "granite": Written(
        "granite",
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {OSLO}}}, {{"name": "get_time", "arguments": {{}}}}]',
    ),
    "gigachat": Written(
        "gigachat3",
        f'Yes.<|function_call|>{{"name": "get_weather", "arguments": {OSLO}}}',
        "Yes.",
        calls=[("get_weather", OSLO)],
    ),
    "gigachat-header": Written(
        "gigachat3",
        'Yes.\n\nfunction call<|role_sep|>\n{"name": "get_time", "arguments": {}}',
        "Yes.",
        calls=[("get_time", "{}")],
    ),
    "command": Written(
        "cohere_command3",
        f'Yes.<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {OSLO}}},\n'
        '    {"tool_call_id": "1", "tool_name": "get_time", "parameters": {}}\n]<|END_ACTION|>',
        "Yes.",
    ),
    "lfm2": Written(
        "lfm2",
        f"Yes.<|tool_call_start|>[get_weather({CODE}), get_time()]<|tool_call_end|>",
        "Yes.",
        calls=(("get_weather", SPACED), ("get_time", "{}")),
    ),
    "lfm2-escapes-forgotten": Written(
        "lfm2",
        "<|tool_call_start|>[get_weather(city='It's Oslo', note=Rain)]<|tool_call_end|>",
        calls=[("get_weather", '{"city": "It\'s Oslo", "note": "Rain"}')],
    ),
    "lfm2-none": Written(
        "lfm2", "<|tool_call_start|>[1 + 1]<|tool_call_end|>", "<|tool_call_start|>[1 + 1]<|tool_call_end|>", calls=[]
    ),
    "olmo3": Written(
        "olmo3",
        f"Yes.<function_calls>get_weather({CODE})\nget_time()</function_calls>",
        "Yes.",
        calls=(("get_weather", SPACED), ("get_time", "{}")),
    ),
    "gemma4": Written(
        "gemma4",
        'Yes.<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,note:<|"|>a " } ] )\nö<|"|>,days:[1,{a:null}],wet:true}'
        "<tool_call|><|tool_call>call:get_time{}<tool_call|>",
        "Yes.",
        calls=(("get_weather", SPACED), ("get_time", "{}")),
    ),
    "pythonic": Written(
        "pythonic", f"[get_weather({CODE}), get_time()]", calls=(("get_weather", SPACED), ("get_time", "{}"))
    ),
    "pythonic-markers": Written(
        "pythonic",
        f"<|python_start|>Yes, see [1].<|python_end|>[get_weather({CODE}), get_time()]",
        "Yes, see [1].",
        calls=(("get_weather", SPACED), ("get_time", "{}")),
    ),
    "pythonic-objects": Written(
        "pythonic",
        f'<|python_start|><|python_end|>{{"name": "get_weather", "parameters": {OSLO}}}'
        '{"name": "get_time", "parameters": {}}',
    ),
    "pythonic-none": Written("pythonic", "[1, f(2)] and [get]", "[1, f(2)] and [get]", calls=[]),
}
"""At least one of each format."""


class Read(NamedTuple):
    """What a client has of an answer."""

    text: str
    reasoning: str
    calls: list[tuple[str, str]]
    """Name and arguments of each."""
    end: str | None


class Pieces:
    """Stands for a detokenizer: hands out a text in pieces, and how it ended."""

    num_tokens = 0

    def __init__(self, pieces: Sequence[str], stop_reason: str | None = None) -> None:
        self._pieces = [*pieces]
        self._stop_reason = stop_reason

    def push(self, output: SequenceOutput) -> TextDelta:
        """The next piece."""
        text = self._pieces.pop(0)
        if self._pieces:
            return TextDelta(text, [1])
        return TextDelta(text, [1], finish_reason=output.finish_reason, stop_reason=self._stop_reason)

    def take_begun(self, place: int) -> int:
        """Tokens are not counted."""
        return 0


def read_pieces(
    formats: AnswerFormats,
    pieces: Sequence[str],
    end: FinishReason = FinishReason.STOP,
    stop_reason: str | None = None,
    functions: Any = FUNCTIONS,
    **options: Any,
) -> Read:
    """Of an answer that comes in these pieces."""
    reader = AnswerReader(Pieces(pieces, stop_reason), formats, functions, **options)  # type: ignore[arg-type]
    return read_outputs(reader, [SequenceOutput(request_id="r", new_token_ids=[1], finish_reason=end) for _ in pieces])


def read_outputs(reader: AnswerReader, outputs: Sequence[SequenceOutput]) -> Read:
    """Of an answer that comes in these outputs."""
    text, reasoning, calls, end = "", "", list[tuple[str, str]](), None
    for output in outputs:
        delta = reader.push(output)
        text += delta.text
        reasoning += delta.reasoning
        for call in delta.calls:
            if call.index == len(calls):
                assert call.id and call.name
                calls.append((call.name, ""))
            else:
                assert (call.id, call.name) == (None, None)
            name, arguments = calls[call.index]
            calls[call.index] = (name, arguments + call.arguments)
        end = delta.finish_reason
    return Read(text, reasoning, calls, end)
