"""Answers as models write them, taken apart: every format, whole and in pieces of any size."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_common.models.choices import ReasoningParser, ToolCallParser
from fairlead_engine.api.answers.answer_formats import TOOL_FORMATS, AnswerFormats, choose_formats
from fairlead_engine.api.answers.reader import AnswerReader
from fairlead_engine.api.answers.reasoning_formats import REASONING_FORMATS
from fairlead_engine.types import FinishReason, SequenceOutput
from fairlead_engine_testing.written_answers import ANSWERS, FUNCTIONS, OSLO, Pieces
from fairlead_engine_testing.written_answers import read_pieces as read


def tools(name: str, template: str | None = None, reasoning: str | None = None) -> AnswerFormats:
    return AnswerFormats(TOOL_FORMATS[name](template), REASONING_FORMATS[reasoning] if reasoning else None)


ONE = [("get_weather", OSLO)]
HERMES = f'<tool_call>\n{{"name": "get_weather", "arguments": {OSLO}}}\n</tool_call>'


def check(case: str, pieces: Sequence[str]) -> None:
    answer = ANSWERS[case]
    found = read(tools(answer.format), pieces)
    assert found == (answer.content, answer.reasoning, [*answer.calls], "tool_calls" if answer.calls else "stop")


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_is_taken_apart_whole_and_by_characters(case: str) -> None:
    text = ANSWERS[case].text
    for pieces in ([text], [*text], [*text, ""]):
        check(case, pieces)


@pytest.mark.parametrize("case", ANSWERS)
@given(data=st.data())
def test_an_answer_is_taken_apart_the_same_in_any_pieces(case: str, data: st.DataObject) -> None:
    text = ANSWERS[case].text
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    check(case, [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)])


@given(st.text(alphabet='<>|{}[]",:;nametool_call/ \n\\A｜▁', max_size=60), st.sampled_from(sorted(TOOL_FORMATS)))
def test_whatever_a_model_writes_is_read_to_its_end(text: str, name: str) -> None:
    found = read(tools(name, reasoning="think"), [*text, ""])
    assert found.end in ("stop", "tool_calls")
    assert found == read(tools(name, reasoning="think"), [text])


CITY, TIME = ("get_weather", '{"city": "Oslo"}'), ("get_time", "{}")
NAMED = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
TIMED = '{"name": "get_time", "arguments": {}}'
LLAMA, LLAMA_TIME = NAMED.replace("arguments", "parameters"), TIMED.replace("arguments", "parameters")
SEP, CALL, CALL_END = (
    "<｜tool▁sep｜>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
)
ODD: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("hermes", "<tool_call>{'name': 'get_weather', 'arguments': {'city': 'Oslo'}}</tool_call>", "", [CITY]),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": {\'city\': \'Oslo\'}}</tool_call>', "", [CITY]),
    (
        "hermes",
        "<tool_call>{'name': 'get_time', 'arguments': {'a': 'it\\'s }', 'b': [True, None, 1.5]}}</tool_call>",
        "",
        [("get_time", '{"a": "it\'s }", "b": [true, null, 1.5]}')],
    ),
    ("hermes", "<tool_call>{'name': 'get_time', 'arguments': None}</tool_call>", "", [TIME]),
    ("hermes", f"<tool_call>[{NAMED}, {TIMED}]</tool_call>", "", [CITY, TIME]),
    ("hermes", f"<tool_call>\n{NAMED}\n{TIMED}\n</tool_call>", "", [CITY, TIME]),
    ("hermes", f"<tool_call>{NAMED}, {TIMED}</tool_call>", "", [CITY, TIME]),
    ("hermes", f"<tool_call>{NAMED}}}</tool_call>", "", [CITY]),
    ("hermes", f"<tool_call>{NAMED[:-1]}</tool_call>", "", [CITY]),
    ("hermes", f'<tool_call>{{"type": "function", "function": {NAMED}}}</tool_call>', "", [CITY]),
    (
        "hermes",
        f'<tool_call>{{"function": {NAMED}, "id": "1"}}</tool_call>\n<tool_call>{TIMED}</tool_call>',
        "",
        [CITY, TIME],
    ),
    (
        "hermes",
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        [],
    ),
    ("hermes", '<tool_call>{"name": "a b"}</tool_call>', '<tool_call>{"name": "a b"}</tool_call>', []),
    *(
        ("llama3_json", f"{before}{LLAMA}{between}{LLAMA_TIME}", "", [CITY, TIME])
        for before in ("", "<|python_tag|>")
        for between in (
            "; ",
            ";\n",
            "\n",
            ", ",
            ",\n",
            "",
            " ",
            "<|python_tag|>",
            "\n<|python_tag|>",
            ";<|python_tag|>",
        )
    ),
    ("llama3_json", f"{LLAMA}\nIt rains.", "It rains.", [CITY]),
    ("llama3_json", '{"name": "Ada", "parameters": 3}', '{"name": "Ada", "parameters": 3}', []),
    ("mistral", f"[TOOL_CALLS] {NAMED}", "", [CITY]),
    ("mistral", f"[TOOL_CALLS]{NAMED}, {TIMED}", "", [CITY, TIME]),
    ("mistral", f"[TOOL_CALLS]{NAMED}[TOOL_CALLS]{TIMED}", "", [CITY, TIME]),
    ("mistral", '[TOOL_CALLS][ARGS]{"city": "Oslo"}', '[TOOL_CALLS][ARGS]{"city": "Oslo"}', []),
    *(
        ("deepseek_v3", f'{CALL}{before}{fence}{{"city": "Oslo"}}{end}{CALL_END}', "", [CITY])
        for before in (
            f"function{SEP}get_weather\n",
            f"function{SEP}get_weather",
            f"get_weather{SEP}",
            f"get_weather{SEP}\n",
        )
        for fence, end in (("```json\n", "\n```"), ("```\n", "\n```"), ("```", "```"), ("", ""), ("```json\n", ""))
    ),
    ("deepseek_v3", f"{CALL}function{SEP}get_time{CALL_END}", "", [TIME]),
    ("deepseek_v3", f"{CALL}get_time{SEP}{CALL_END}", "", [TIME]),
    *(
        ("harmony", f'{before}commentary to={to}{behind}<|message|>{{"city": "Oslo"}}{end}', "", [CITY])
        for before in ("<|channel|>", "<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>")
        for to in ("functions.get_weather", "get_weather")
        for behind in ("", " <|constrain|>json", " json", "<|constrain|>json")
        for end in ("<|call|>", "", "<|end|>")
    ),
    ("harmony", "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Hi!", "Hi!", []),
    ("harmony", "<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>Hi!", "Hi!", []),
    ("harmony", "<|channel|>commentary to=browser.search<|message|>{}<|call|>", "{}", []),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), ODD, ids=range(len(ODD)))
def test_what_can_only_be_a_call_is_one_and_what_names_nothing_is_none(
    name: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    for pieces in ([text], [*text], [*text, ""], *([text[:cut], text[cut:]] for cut in range(1, len(text)))):
        found = read(tools(name), pieces)
        assert (found.text, found.calls, found.end) == (content, calls, "tool_calls" if calls else "stop")


WORDS = (
    *{marker: None for kind in TOOL_FORMATS.values() for marker in kind().markers},
    "<think>", "</think>", "<function=", "<parameter=", "</parameter>", "</function>", '<invoke name="', '">', ">",
    '<parameter name="', "</invoke>", "{", "}", "[", "]", '"', "'", ":", ",", " ", "\n", "```", "json", "function", "5",
    "get_time", "functions.", "to=", "analysis", '{"name": "get_time"', '"arguments": ', "None", "\\", "<", "x",
)  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=25), st.sampled_from(sorted(TOOL_FORMATS)), st.booleans(), st.data())
def test_markers_in_any_order_are_read_the_same_in_any_pieces(
    words: list[str], name: str, has_begun: bool, data: st.DataObject
) -> None:
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    formats, end = tools(name, reasoning="think"), data.draw(st.sampled_from((FinishReason.STOP, FinishReason.LENGTH)))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(formats, [text], end, has_begun_reasoning=has_begun)
    assert read(formats, pieces, end, has_begun_reasoning=has_begun) == whole
    assert read(formats, [*text, ""], end, has_begun_reasoning=has_begun) == whole
    assert all(called and " " not in called for called, _ in whole.calls)


@pytest.mark.parametrize("length", [1022, 1023, 1024, 1025, 3000])
def test_what_is_too_long_for_a_name_is_text(length: int) -> None:
    for name, begin, end in (
        ("mistral", "[TOOL_CALLS]", "[ARGS]{}"), ("deepseek_v3", CALL, SEP + "{}"),
        ("glm45", "<tool_call>", "</tool_call>"),
        ("qwen3_coder", "<tool_call><function=", "></function>"),
    ):  # fmt: skip
        text = begin + "a" * length + end
        found = read(tools(name), [text])
        assert (found.calls, found.end) == ([], "stop")
        assert read(tools(name), [*text]) == found


def test_arguments_come_while_they_are_written() -> None:
    formats, text = tools("hermes"), HERMES
    reader = AnswerReader(Pieces([*text]), formats, FUNCTIONS)  # type: ignore[arg-type]
    deltas = [reader.push(SequenceOutput(request_id="r", new_token_ids=[1])) for _ in text]
    with_calls = [delta.calls for delta in deltas if delta.calls]
    assert len(with_calls) > len(OSLO)
    assert json.loads("".join(call.arguments for calls in with_calls for call in calls)) == json.loads(OSLO)


@pytest.mark.parametrize("name", REASONING_FORMATS)
@pytest.mark.parametrize("has_begun", [False, True])
def test_reasoning_is_told_apart(name: str, has_begun: bool) -> None:
    formats = AnswerFormats(TOOL_FORMATS["hermes"](), REASONING_FORMATS[name])
    begin, end, *_ = REASONING_FORMATS[name]
    text = f"\n{'' if has_begun else begin}\nHm <{end[:-1]} {{\n{end}\n\nYes.\n{HERMES}"
    for pieces in ([text], [*text]):
        found = read(formats, pieces, has_begun_reasoning=has_begun)
        assert found == ("Yes.", f"Hm <{end[:-1]} {{\n", ONE, "tool_calls")
    without = read(AnswerFormats(None, REASONING_FORMATS[name]), [*"\n Yes.\n"])
    assert (without.text, without.reasoning) == ("\n Yes.\n", "")


TAGGED = [(name, *tags) for name, each in REASONING_FORMATS.items() for tags in each.answer]


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "begin", "end"), TAGGED)
@pytest.mark.parametrize("thought", ["", "Hm."])
@given(data=st.data())
def test_tags_around_an_answer_are_no_text(name: str, begin: str, end: str, thought: str, data: st.DataObject) -> None:
    reasoning = REASONING_FORMATS[name]
    before = f"{reasoning.begin}{thought}{reasoning.end}\n" if thought else ""
    text, whole = f"{before}{begin}\nYes, {begin} < \n\nno.\n{end}\n", f"Yes, {begin} < \n\nno."
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    size = data.draw(st.integers(0, len(text)))
    for tools in (None, TOOL_FORMATS["hermes"]()):
        formats = AnswerFormats(tools, reasoning)
        assert read(formats, pieces)[:2] == (whole, thought)
        assert read(formats, [text + HERMES])[:3] == (whole, thought, ONE) or tools is None
        cut = read(formats, [*text[:size], ""], FinishReason.LENGTH)
        assert cut == read(formats, [text[:size]], FinishReason.LENGTH)
        assert whole.startswith(cut.text.rstrip()), text[:size]
        for other in (f"{begin[:-1]}", f" {begin[:-2]} a", "Yes.", f"Yes. {begin}"):  # no tag around it
            assert read(formats, [*other]).text.strip() == other.strip()


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("case", ["hermes", "mistral-list", "deepseek-fenced"])
def test_a_call_in_reasoning_that_is_never_closed_is_one(case: str, has_begun: bool) -> None:
    answer = ANSWERS[case]
    formats = tools(answer.format, reasoning="think")
    text = ("" if has_begun else "<think>") + "Hm.\n" + answer.text.removeprefix(answer.content)
    for pieces in ([text], [*text]):
        found = read(formats, pieces, has_begun_reasoning=has_begun)
        assert (found.text, found.calls, found.end) == ("", [*answer.calls], "tool_calls")
        assert found.reasoning.rstrip() == "Hm."
        cut = read(formats, pieces, FinishReason.LENGTH, has_begun_reasoning=has_begun)
        assert (cut.calls, cut.end) == ([], "length"), "it may have been a thought"


def test_a_call_that_is_only_thought_of_is_none() -> None:
    formats = tools("hermes", reasoning="think")
    for text, content in ((f"<think>{HERMES} no.</think>Hi", "Hi"), ("<think>What is a <tool_call>?", "")):
        for pieces in ([text], [*text]):
            found = read(formats, pieces)
            assert (found.text, found.calls) == (content, [])
            assert "<tool_call>" in found.reasoning
    called = read(formats, [*f"<think>{HERMES} no.</think>{HERMES}"])
    assert called.calls == ONE


def test_the_end_of_reasoning_that_never_began_is_no_text() -> None:
    for name in ("hermes", "llama3_json"):
        formats = tools(name, reasoning="think")
        for pieces in (["Hm.\n</think>\n\nFair."], [*"Hm.\n</think>\n\nFair."]):
            assert read(formats, pieces).text == "Hm.\nFair."
        for text in ("a </thin", "</th<", "x </ y"):
            assert read(formats, [*text]).text == text
    called = read(tools("hermes", reasoning="think"), [*f"Hm.\n</think>\n{HERMES}"])
    assert (called.text.rstrip(), called.calls) == ("Hm.", ONE)


def test_calls_beyond_the_most_are_left_out() -> None:
    assert read(tools("hermes"), [*ANSWERS["hermes"].text], most_calls=1).calls == ONE


@pytest.mark.parametrize(
    ("template", "tool_parser", "reasoning"),
    [
        ("{{ '<tool_call>' }}<think>", "Hermes", "think"),
        ("<tool_call>", "Hermes", None),
        ("<tool_call>\n<function={{ name }}>", "Forced", None),
        ("[TOOL_CALLS][THINK]", "Mistral", "mistral"),
        ("<|START_ACTION|><|START_THINKING|>", "CohereCommand", "cohere_command3"),
        ("{% set think_begin_token = '<seed:think>' %}", "Forced", "seed_oss"),
        ("between <think></think> and <response></response>", "Forced", "granite"),
        ("'<think>' + each + '</think><answer>'", "Forced", "hunyuan_a13b"),
        ("List of tools: <|tool_list_start|>[", "Lfm2", None),
        ("prefix function calls with functools[", "Phi4", None),
        ("<｜tool▁calls▁begin｜></think><think>", "DeepSeek", "think"),
        ("<|channel|><|message|>", "Harmony", None),
        ('<|start_header_id|>{"name": x, "parameters": y}', "Llama3", None),
        ("{{ messages }}", "Forced", None),
        (None, "Forced", None),
    ],
)
def test_a_template_shows_the_formats(template: str | None, tool_parser: str, reasoning: str | None) -> None:
    found = choose_formats(template, "auto", "auto")
    assert type(found.tools).__name__ == tool_parser
    assert found.reasoning == (REASONING_FORMATS[reasoning] if reasoning else None)
    assert choose_formats(template, "none", "none") == AnswerFormats()
    assert type(choose_formats(template, "mistral", "think").tools) is TOOL_FORMATS["mistral"]


def test_every_format_can_be_set_at_an_engine_and_in_a_spec() -> None:
    assert set(ToolCallParser) == {"auto", "none", *TOOL_FORMATS}
    assert set(ReasoningParser) == {"auto", "none", *REASONING_FORMATS}
