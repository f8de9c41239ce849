"""Calls whose arguments stand in tags: what becomes of values, which have no quotes there."""

import json
from typing import Any

import pytest

from fairlead_engine.api.answers.answer_formats import TOOL_FORMATS, AnswerFormats
from fairlead_engine_testing.written_answers import read_pieces

WRITTEN = {
    "glm45": "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>",
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=x>\nVALUE\n</parameter>\n</function>\n</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="x">VALUE</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "seed_oss": "<seed:tool_call>\n<function=f>\n<parameter=x>VALUE</parameter>\n</function>\n</seed:tool_call>",
    "hy_v3": "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>x"
    "</arg_key:opensource>\n<arg_value:opensource>VALUE</arg_value:opensource>\n</tool_call:opensource>\n"
    "</tool_calls:opensource>",
}
"""As the chat templates of their makers write them."""
DEFINED = {"$defs": {"color": {"enum": ["red", "7"]}}}
VALUES: list[tuple[Any, str, Any]] = [
    ({"type": "string"}, "Oslo", "Oslo"),
    ({"type": "string"}, "5", "5"),
    ({"type": "string"}, "null", "null"),
    ({"type": "string"}, "", ""),
    ({"type": "string"}, 'a "b" \\ <c> </d>\n\n\te ö', 'a "b" \\ <c> </d>\n\n\te ö'),
    ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
    ({"type": "integer"}, "5", 5),
    ({"type": "integer"}, "five", "five"),
    ({"type": "number"}, "5", 5),
    ({"type": "boolean"}, "true", True),
    ({"type": "boolean"}, "True", True),
    ({"type": "array"}, "[1, 'a']", [1, "a"]),
    ({"type": "array"}, '[1, {"a": "</x>"}]', [1, {"a": "</x>"}]),
    ({"type": "object"}, '{"a": null}', {"a": None}),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": ["string", "null"]}, "5", "5"),
    ({"type": ["string", "integer"]}, "5", 5),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "None", None),
    ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "[1]", [1]),
    ({"$ref": "#/$defs/color"}, "7", "7"),
    ({"$ref": "#/$defs/none"}, "7", 7),
    ({"enum": ["1", "2"]}, "2", "2"),
    ({}, "5", 5),
    ({}, "Oslo", "Oslo"),
    ({}, "NaN", "NaN"),
    (None, "true", True),
    (True, "x y", "x y"),
]


def called(name: str, text: str, schema: Any) -> tuple[list[str], str, str]:
    """Names, arguments and content; the same whole and in pieces."""
    found = []
    for size in (1, 2, 3, 7, len(text)):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        found.append(read_pieces(AnswerFormats(TOOL_FORMATS[name]()), pieces, functions={"f": schema, "g": {}}))
    assert found == found[:1] * len(found)
    calls = found[0].calls
    return [name for name, _ in calls], "".join(arguments for _, arguments in calls), found[0].text


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize(("schema", "written", "value"), VALUES)
def test_a_value_is_what_its_schema_says(name: str, schema: Any, written: str, value: Any) -> None:
    parameters = {"type": "object", "properties": {"x": schema}, **DEFINED}
    names, arguments, content = called(name, WRITTEN[name].replace("VALUE", written), parameters)
    assert (names, json.loads(arguments), content) == (["f"], {"x": value}, "")


@pytest.mark.parametrize("parameters", [{}, {"properties": []}, {"properties": {"x": {"$ref": "#/properties/x"}}}])
def test_schemas_of_any_shape_are_taken(parameters: Any) -> None:
    for name, text in WRITTEN.items():
        assert json.loads(called(name, text, parameters)[1]) == {"x": "VALUE"}


FORGOTTEN = {
    "glm45": "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>VALUE\n<arg_key>y</arg_key>\n<arg_value>2</arg_value>\n"
    "</tool_call>",
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=x>\nVALUE\n<parameter=y>\n2\n</parameter>\n</function>\n"
    "</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="x">VALUE\n<parameter name="y">2</parameter>'
    "\n</invoke>\n</minimax:tool_call>",
    "seed_oss": "<seed:tool_call>\n<function=f>\n<parameter=x>VALUE\n<parameter=y>2</parameter>\n</function>\n"
    "</seed:tool_call>",
}


@pytest.mark.parametrize("name", FORGOTTEN)
@pytest.mark.parametrize(("kind", "written", "value"), [("string", "a\n b", "a\n b"), ("array", "[1]", [1])])
def test_the_next_argument_ends_a_value_whose_end_the_model_forgot(
    name: str, kind: str, written: str, value: Any
) -> None:
    text, kinds = FORGOTTEN[name].replace("VALUE", written), {"x": {"type": kind}, "y": {"type": "integer"}}
    assert json.loads(called(name, text, {"properties": kinds})[1]) == {"x": value, "y": 2}
    for properties in ({"x": {"type": "string"}}, {"x": {"type": "string"}, "yy": {}}):  # y is no argument
        [told] = json.loads(called(name, text, {"properties": properties})[1]).values()
        assert told.startswith(written + "\n<")


@pytest.mark.parametrize(
    ("name", "text", "names", "content"),
    [
        ("qwen3_coder", "<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>", ["f"], ""),
        ("qwen3_coder", "<function=nothing>\n</function>", [], "<function=nothing>\n</function>"),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</tool_call>", ["f"], ""),
        ("qwen3_coder", "<tool_call>\nhm</tool_call>", [], "<tool_call>\nhm</tool_call>"),
        ("qwen3_coder", "<tool_call><function=></tool_call>", [], "<tool_call><function=></tool_call>"),
        ("glm45", "<tool_call>a b</tool_call>", [], "<tool_call>a b</tool_call>"),
        ("glm45", "<tool_call></tool_call>", [], "<tool_call></tool_call>"),
        ("glm45", "<tool_call>f</tool_call> <tool_call>g</tool_call>\nSo.", ["f", "g"], "So."),
        ("minimax_m2", "<minimax:tool_call>no</minimax:tool_call>", [], "<minimax:tool_call>no</minimax:tool_call>"),
    ],
)  # fmt: skip
def test_what_is_a_call_and_what_is_none(name: str, text: str, names: list[str], content: str) -> None:
    found, _, told = called(name, text, {})
    assert (found, told) == (names, content)


@pytest.mark.parametrize(
    ("is_text", "written", "value"),
    [("true", "5", "5"), ("true", 'a "b"\n</x>', 'a "b"\n</x>'), ("false", "5", 5), ("false", '["a"]', ["a"])],
)
def test_a_tag_may_tell_a_text_whatever_the_schema_says(is_text: str, written: str, value: Any) -> None:
    text = (
        f'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="x" string="{is_text}">{written}'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    )
    for kind in ("string", "integer", "array"):
        assert json.loads(called("deepseek_v32", text, {"properties": {"x": {"type": kind}}})[1]) == {"x": value}
