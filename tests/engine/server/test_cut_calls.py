"""Answers with calls of tools that end before they are whole: at every place, in every format, by each way to end."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from fairlead_engine.api.answers.answer_formats import TOOL_FORMATS, AnswerFormats
from fairlead_engine.types import FinishReason
from fairlead_engine_testing.written_answers import ANSWERS, read_pieces

pytestmark = pytest.mark.matrix


def read(name: str, pieces: Sequence[str], *end: Any, **options: Any) -> Any:
    """Content, calls and finish reason."""
    found = read_pieces(AnswerFormats(TOOL_FORMATS[name]()), pieces, *end, **options)
    return found.text, found.calls, found.end


def test_every_format_has_an_answer_that_is_cut() -> None:
    assert {answer.format for answer in ANSWERS.values()} == set(TOOL_FORMATS)


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize(
    ("end", "stop_reason"), [(FinishReason.LENGTH, None), (FinishReason.STOP, "END"), (FinishReason.STOP, None)]
)
def test_a_call_that_is_cut_off_never_looks_finished(name: str, end: FinishReason, stop_reason: str | None) -> None:
    answer = ANSWERS[name]
    for size in range(len(answer.text) + 1):
        text = answer.text[:size]
        content, calls, reason = read(answer.format, [text], end, stop_reason)
        pieces = [text[:-12], *text[-12:], ""]  # `test_answers` has all sorts of pieces
        assert read(answer.format, pieces, end, stop_reason) == (content, calls, reason), text
        if answer.format == "harmony" and end is FinishReason.STOP and stop_reason is None and text[-1:] not in "}":
            continue  # its models end calls by the end of the sequence, and each of its markers is a token
        for (called, arguments), (whole_name, whole_arguments) in zip(calls, answer.calls, strict=False):
            assert called == whole_name, text
            assert whole_arguments.startswith(arguments), text
        assert len(calls) <= len(answer.calls)
        assert answer.content.startswith(content.rstrip()) or (stop_reason is None and end is FinishReason.STOP), text
        are_whole = bool(calls) and all(call in answer.calls for call in calls)
        assert reason == end or (reason == "tool_calls" and end is FinishReason.STOP and are_whole), text
        if reason == "tool_calls":
            for _, arguments in calls:
                assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_whole_calls_all_that_it_names(name: str) -> None:
    answer = ANSWERS[name]
    end = "tool_calls" if answer.calls else "stop"
    assert read(answer.format, [answer.text], FinishReason.STOP) == (answer.content, [*answer.calls], end)
    assert read(answer.format, [answer.text], FinishReason.LENGTH) == (answer.content, [*answer.calls], "length")


BEGUN: Sequence[tuple[str, str, Sequence[tuple[str, str]]]] = [
    ("hermes", '<tool_call>{"name": "get_time"', [("get_time", "")]),
    ("hermes", '<tool_call>{"name": "get_time", "argu', [("get_time", "")]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": ', [("get_time", "")]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": nul', [("get_time", "")]),
    ("hermes", '<tool_call>{"name": "get_ti', []),
    ("hermes", '<tool_call>{"arguments": {}, "name": "get_ti', []),
    ("hermes", "<tool_call>", []),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": {}}</tool_call><tool_call>{"na', [("get_time", "{}")]),
    ("llama3_json", '{"name": "get_ti', []),
    ("llama3_json", '{"na', []),
    ("llama3_json", '<|python_tag|>{"name": "get_time", "param', [("get_time", "")]),
    ("mistral", '[TOOL_CALLS] [{"name": "get_ti', []),
    ("mistral", "[TOOL_CALLS]get_ti", []),
    ("mistral", "[TOOL_CALLS]get_time[ARGS]", [("get_time", "")]),
    ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_ti", []),
    ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁beg", []),
    ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{", [("get_time", "{")]),
    ("harmony", "<|channel|>commentary to=functions.get_ti", []),
    ("harmony", " t", []),
    ("harmony", " to=functions.get_ti", []),
    ("glm45", "<tool_call>get_ti", []),
    ("glm45", "<tool_call>get_weather\n<arg_ke", []),
    ("glm45", "<tool_call>get_weather\n<arg_key>ci", [("get_weather", "")]),
    ("glm45", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Os", [("get_weather", '{"city": "Os')]),
    ("qwen3_coder", "<tool_call>\n<function=get_ti", []),
    ("qwen3_coder", "<tool_call>\n<funct", []),
    ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<para", [("get_weather", "")]),
    ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=days>\n[1, ", [("get_weather", '{"days": ')]),
    ("seed_oss", "<seed:tool_call>\n<function=get_ti", []),
    ("seed_oss", "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Os", [("get_weather", '{"city": "Os')]),
    ("minimax_m2", '<minimax:tool_call>\n<invoke name="get_ti', []),
    (
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo</para',
        [("get_weather", '{"city": "Oslo')],
    ),
    ("harmony", "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>", [("get_time", "")]),
]


@pytest.mark.parametrize(("name", "text", "calls"), BEGUN)
def test_a_cut_call_has_what_was_written_of_it_and_no_more(
    name: str, text: str, calls: Sequence[tuple[str, str]]
) -> None:
    for end, stop_reason in ((FinishReason.LENGTH, None), (FinishReason.STOP, "END")):
        assert read(name, [text], end, stop_reason) == ("", [*calls], end)
        assert read(name, [*text, ""], end, stop_reason) == ("", [*calls], end)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "get_time"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "get_time", "arguments": ""}</tool_call>'),
        ("hermes", '<tool_call>{"name": "get_time", "arguments": null}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": "", "name": "get_time"}</tool_call>'),
        ("llama3_json", '{"name": "get_time"}'),
        ("llama3_json", '{"name": "get_time", "parameters": null}'),
        ("mistral", '[TOOL_CALLS] [{"name": "get_time"}]'),
        ("harmony", "<|channel|>commentary to=functions.get_time<|message|><|call|>"),
        ("harmony", "<|channel|>commentary to=functions.get_time<|message|>"),  # <|call|> is its end of sequence
        ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜><｜tool▁call▁end｜>"),
    ],
)
def test_a_finished_call_without_arguments_has_an_empty_object(name: str, text: str) -> None:
    for pieces in ([text], [*text]):
        assert read(name, pieces, FinishReason.STOP) == ("", [("get_time", "{}")], "tool_calls")


def test_a_call_that_goes_on_as_no_call_does_is_not_said_to_be_finished() -> None:
    answer = '<tool_call>{"name": "get_time", no</tool_call>'
    assert read("hermes", [answer], FinishReason.STOP)[1:] == ([("get_time", "")], "stop")
    answer = "<|channel|>commentary to=functions.get_time<|message|>{no<|call|>"
    assert read("harmony", [answer], FinishReason.STOP)[1:] == ([("get_time", "{no")], "stop")


def test_json_that_is_no_call_stays_text_wherever_it_is_cut() -> None:
    cuts = '{"city": "Oslo', '{"name": "Ad', '{"name": "Ada"', '{"name": "get_weather_report', '{"name": 1', "{ x", "{"
    for text in cuts:
        is_text = text != "{"  # which may become one
        for end, stop_reason in ((FinishReason.LENGTH, None), (FinishReason.STOP, None)):
            for pieces in ([text], [*text, ""]):
                content, calls, _ = read("llama3_json", pieces, end, stop_reason)
                assert not calls
                assert content == (text if is_text or end is FinishReason.STOP else "")


def test_calls_beyond_the_most_do_not_say_how_an_answer_ends() -> None:
    text = '<tool_call>{"name": "get_time"}</tool_call><tool_call>{"name": "get_weather", "arg'
    assert read("hermes", [text], FinishReason.STOP, "END")[2] == "stop"
    assert read("hermes", [text], FinishReason.STOP, "END", most_calls=1)[1:] == ([("get_time", "{}")], "tool_calls")
