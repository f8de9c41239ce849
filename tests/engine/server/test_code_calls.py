"""Calls that are written as code: what becomes of values, and calls with any arguments in any pieces."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_common.openai.chat import ChatTemplate
from fairlead_engine.api.answers.answer_formats import TOOL_FORMATS, AnswerFormats
from fairlead_engine_testing.written_answers import read_pieces
from fairlead_engine_testing.written_templates import WRITES, written_by

VALUES = [
    ("1", 1), ("-1.5e3", -1.5e3), (".5", 0.5), ("1_000", 1000), ("True", True), ("false", False), ("None", None),
    ("null", None), ("Oslo", "Oslo"), ("NaN", "NaN"), ("''", ""), ("'a'", "a"), ('"it\'s"', "it's"),
    ("'it's'", "it's"), (r"'\'\n\\\x41\u00f6\U0001F600\d\/'", "'\n\\Aö😀\\d/"), (r'"\ud83d\ude00"', "😀"),
    ("'a\nb, c'", "a\nb, c"), ("[]", []), ("[1, 'a', [None,],]", [1, "a", [None]]),
    ("{}", {}), ("{'a': {\"b\": 1}, c: [2]}", {"a": {"b": 1}, "c": [2]}), ("<|tool_call_end", None),
    ("1 + 1", None), ("g(1)", None), ("[1", None), ("{'a'}", None), ("[" * 99, None), ("(1, 2)", None),
]  # fmt: skip


@pytest.mark.parametrize(("written", "value"), VALUES)
def test_literals_become_json_and_nothing_else_does(written: str, value: Any) -> None:
    text = f"<|tool_call_start|>[f(x={written}, y=2)]<|tool_call_end|>"
    found = [
        read_pieces(AnswerFormats(TOOL_FORMATS["lfm2"]()), pieces, functions={"f": {}})
        for pieces in ([text], [*text], [text[place : place + 3] for place in range(0, len(text), 3)])
    ]
    assert found == found[:1] * len(found)
    [(name, arguments)] = found[0].calls
    assert name == "f"
    if value is None and written not in ("None", "null"):
        assert found[0].end == "stop"
    else:
        assert (json.loads(arguments), found[0].text, found[0].end) == ({"x": value, "y": 2}, "", "tool_calls")


TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\"'\\\n<|{}[]():,=ö😀"), max_size=12)
MARKERS = st.sampled_from([marker for kind in TOOL_FORMATS.values() for marker in kind().markers])
"""Of all formats, as parts of texts."""
LEAVES = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e6, 1e6) | TEXTS
NESTED = st.recursive(
    LEAVES, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.just("k"), each), max_leaves=6
)
QUOTED = sorted(
    set(WRITES) - {"harmony", "glm45", "qwen3_coder", "minimax_m2", "seed_oss", "hy_v3", "deepseek_v32", "gemma4"}
)
"""Formats that can write any text in any value: in tags, and in Harmony, no text has the ends of values."""


@pytest.mark.parametrize("name", QUOTED)
@given(
    data=st.data(),
    text=st.tuples(TEXTS, MARKERS, TEXTS).map("".join),
    value=NESTED,
    before=st.sampled_from(["", "I look: "]),
)
def test_any_arguments_come_back_from_any_pieces(name: str, data: Any, text: str, value: Any, before: str) -> None:
    arguments = {"text": text, "value": value}
    if name == "llama3_json":  # its calls are the whole answer
        before = ""
    written = before + written_by(
        ChatTemplate("{% for call in messages[0].tool_calls %}" + WRITES[name] + "{% endfor %}"), "f", arguments
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    pieces = [written[start:end] for start, end in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    found = read_pieces(AnswerFormats(TOOL_FORMATS[name](WRITES[name])), pieces, functions={"f": {}})
    assert [(called, json.loads(given)) for called, given in found.calls] == [("f", arguments)]
    assert (found.text, found.end) == (before.strip(), "tool_calls")
