"""Schemas as other people's programs print them: what is accepted, what it means then, and what is relaxed."""

import enum
import json
import pathlib
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits

from fairlead_engine.api import structured_output
from fairlead_engine.api.answers.answer_formats import choose_formats
from fairlead_engine.api.json_schema.normal_form import normal_form
from fairlead_engine.api.schemas import ChatRequest, JsonSchemaFormat, ResponseFormat, StructuredOutputs
from fairlead_engine.api.structured_output import grammar, kept_schema, relaxed_schema, wish_of
from fairlead_engine.api.tool_use import AnswerGrammars, tool_use
from fairlead_engine.errors import RequestError
from fairlead_engine.types import Grammar
from fairlead_engine_testing import ScriptedEngine, answer
from fairlead_engine_testing.byte_level import byte_level, draw_allowed
from fairlead_engine_testing.scripted_engine import scripted_info

FOLDER = pathlib.Path(__file__).with_name("json_schemas")
LOOK_AHEAD = {"type": "string", "pattern": "^(?!x)"}


def rows(name: str) -> list[Any]:
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


class Asked:
    """The fields of a request."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    guided_regex = guided_choice = guided_grammar = None

    def __init__(self, schema: dict[str, Any], *, strict: bool | None) -> None:
        wanted = JsonSchemaFormat(name="n", schema=schema, strict=strict)
        self.response_format = ResponseFormat("json_schema", json_schema=wanted)


def kept_to(schema: dict[str, Any], *, strict: bool | None = None) -> Grammar:
    wish = wish_of(Asked(schema, strict=strict))
    assert wish is not None
    return grammar(wish)


BYTES_ALONE = byte_level(["</s>"])


def drawn(text: str, seed: int) -> str | None:
    ids = draw_allowed(text, BYTES_ALONE.to_str(), seed, most=250, close=0.6)
    return None if ids is None else str(BYTES_ALONE.decode(ids))


# -- What is accepted as a whole ---------------------------------------------------------------------------------------

NOTHING_ASKED: list[dict[str, Any]] = [
    {"type": "array", "uniqueItems": False},
    {"type": "array", "uniqueItems": True, "maxItems": 1},
    {"type": "string", "minLength": 1.0, "maxLength": 3.0},
    {"type": "array", "minItems": 1.0, "maxItems": 2.0, "items": {"const": 1}},
    {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
    {"propertyNames": True},
    {"type": "string", "not": False},
    {"dependentRequired": {}},
    {"dependentRequired": {"a": []}, "dependentSchemas": {"b": True}, "dependencies": {"c": {}}},
    {"required": ["b"], "dependentRequired": {"a": ["b"]}},
    *({"type": "string", "format": name} for name in ("password", "binary", "path", "uri-reference", "phone")),
    {"type": "string", "format": "ulid", "pattern": "^[0-9A-Z]{26}$"},
    {"type": "string", "format": "colour", "pattern": "^#[0-9a-f]{6}$"},
    {"type": ["integer", "null"], "format": "int33"},
    {"if": {"type": "string"}},
    {"then": False},
    {"if": True, "then": {"type": "string"}},
    {"if": False, "else": {"type": "string"}},
    {"minContains": 3},
    {"contains": {"type": "string"}, "minContains": 0},
    {"type": "array", "contains": True},
    {"unevaluatedProperties": True, "unevaluatedItems": {}},
    {"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False},
    {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
    {"type": "integer", "exclusiveMinimum": -(2**70), "exclusiveMaximum": 2**70},
    {"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38},
    {"type": "number", "minimum": -1.7976931348623157e308, "exclusiveMaximum": 1.7976931348623157e308},
    {"type": "number", "minimum": 0, "exclusiveMinimum": True},
    {"type": "string", "default": 2**70, "examples": [-(2**64)], "title": "T", "$comment": "c"},
    {"$schema": "https://example.com/dialect", "type": "string"},
    {"oneOf": [{"type": "string"}]},
    {"oneOf": [{"enum": ["a", "b"]}, {"const": "c"}, {"type": "integer"}, {"type": "null"}]},
    {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"enum": ["cat", "lion"]}}, "required": ["kind"]},
            {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]},
        ]
    },
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "propertyNames": {"pattern": "^x-"}, "additionalProperties": {"type": "integer"}},
]


@pytest.mark.parametrize("schema", NOTHING_ASKED, ids=lambda schema: json.dumps(schema)[:60])
def test_keywords_count_by_what_they_ask(schema: dict[str, Any]) -> None:
    """In a request that wants all of it, alone and deep within."""
    kept_to(schema, strict=True)
    kept_to({"type": "object", "properties": {"a": {"type": "array", "items": schema}}, "title": "T"}, strict=True)
    for seed in range(8):
        if (text := drawn(kept_to(schema, strict=True).text, seed)) is not None:
            of_draft_6 = {
                name: value for name, value in schema.items() if value is not True or name != "exclusiveMinimum"
            }
            jsonschema.Draft202012Validator(of_draft_6).validate(json.loads(text))


@pytest.mark.parametrize(("name", "schema", "valid", "invalid"), rows("test_suite.jsonl"))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_normal_form_means_the_same(name: str, schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    """And what is relaxed allows no less. The suite's own values decide, where they agree with the reference."""
    before, after, wider = (
        jsonschema.Draft202012Validator(each) for each in (schema, normal_form(schema), relaxed_schema(schema, {}))
    )
    for value in (*valid, *invalid):
        try:
            is_valid = before.is_valid(value)
        except Exception:  # the reference fetches nothing either
            continue
        assert after.is_valid(value) == is_valid
        assert not is_valid or wider.is_valid(value)


def test_what_zod_prints_is_taken() -> None:
    """All but patterns that look around, of which the field is named."""
    for schema in rows("zod.jsonl"):
        kept_to(schema)
        try:
            kept_to(schema, strict=True)
        except RequestError as error:
            assert "look" in error.message, schema
            assert ".pattern cannot be kept to" in error.message
            assert "strict = false" in error.message


class Tier(enum.StrEnum):
    GOLD, IRON = "gold", "iron"


class Cat(pydantic.BaseModel):
    kind: Literal["cat", "lion"] = "cat"
    friend: "Pet | None" = None


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
BY_PYDANTIC: dict[str, Any] = {
    "tagged": Pet,
    "tagged_list": list[Pet],
    "named": dict[Tier, int],
    "any": dict[str, Any],
    "secret": pydantic.SecretStr,
    "path": pathlib.Path,
    "folder": pydantic.DirectoryPath,
    "bytes": bytes,
    "url": pydantic.AnyUrl,
    "dsn": pydantic.PostgresDsn,
    "time": datetime,
    "tuple": tuple[int, str],
    "uuid": pydantic.UUID4,
    "json": pydantic.Json[Any],
    "base64": pydantic.Base64Str,
    "number": Annotated[float, pydantic.Field(gt=0, le=1e308)],
    "integer": Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63)],
}


@pytest.mark.parametrize("name", BY_PYDANTIC)
def test_what_pydantic_prints_is_taken_and_read_back(name: str) -> None:
    adapter = pydantic.TypeAdapter(BY_PYDANTIC[name])
    schema = adapter.json_schema()
    text = kept_to(schema, strict=True).text
    found = [answer for seed in range(20) if (answer := drawn(text, seed)) is not None]
    if name in ("tagged", "tagged_list", "named", "any", "tuple", "integer"):
        for answer in found:
            adapter.validate_json(answer)
        assert found


DECIMAL = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]}
"""As pydantic 2.12 prints one."""
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
SETS = pydantic.TypeAdapter(set[int]).json_schema()
NAMED = pydantic.TypeAdapter(dict[Annotated[str, pydantic.Field(min_length=1)], int]).json_schema()


@pytest.mark.parametrize("schema", [DECIMAL, SETS, NAMED, {"type": "string", "format": "email", "pattern": EMAIL}])
def test_what_no_grammar_holds_is_relaxed_unless_all_is_wanted(schema: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="send strict = false"):
        kept_to(schema, strict=True)
    assert drawn(kept_to(schema).text, 3) is not None


def test_published_tools_are_taken() -> None:
    for tool in rows("github_mcp_server.jsonl"):
        kept_schema("tools", tool["inputSchema"])


# -- What is relaxed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "wider"),
    [
        ({"type": "object", "properties": {"a": LOOK_AHEAD, "b": {"const": 1}}},
         {"type": "object", "properties": {"a": {"type": "string"}, "b": {"const": 1}}}),
        ({"type": "array", "items": {"$ref": "https://example.com/x"}, "maxItems": 2},
         {"type": "array", "items": {}, "maxItems": 2}),
        ({"type": "object", "properties": {"a": {"type": "INTEGER"}, "b": 5}, "additionalProperties": False},
         {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "additionalProperties": False}),
        ({"patternProperties": {"(?=a)": {}}, "additionalProperties": False, "type": "object"}, {"type": "object"}),
        ({"anyOf": [LOOK_AHEAD, {"const": 2**70}, {"type": "null"}]},
         {"anyOf": [{"type": "string"}, {}, {"type": "null"}]}),
        ({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}, {}),
    ],
)  # fmt: skip
def test_no_more_is_relaxed_than_cannot_be_kept_to(schema: dict[str, Any], wider: dict[str, Any]) -> None:
    found = relaxed_schema(schema, {})
    del found["x-guidance"]
    assert found == wider


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


HOSTILE: list[dict[str, Any]] = [
    {"$ref": "#"},
    {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/allOf/0"}}},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"], "enum": [2**70]},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"type": [], "enum": [], "anyOf": [], "oneOf": []},
    {"x-guidance": {"whitespace_pattern": "("}, "type": "array"},
    {"$id": "(", "$schema": 7, "$ref": "(", "$anchor": []},
    {"type": "array", "minItems": 2**70, "items": False},
    {"properties": {"%": {"$ref": "#/properties/%25"}}, "type": "object"},
    {"type": "object", "propertyNames": {"$ref": "#"}},
    {"$defs": {"a": {"properties": {"a": {"propertyNames": {"$ref": "#/$defs/a"}}}}}, "$ref": "#/$defs/a"},
    nested(50),
    nested(400),
]
NAMES = ("a", "b", "type", "properties", "$ref", "%", "é")
REFERENCES = ("#", "#/$defs/a", "#/properties/a", "#/items", "#a", "https://example.com/", "#/anyOf/0")
PATTERNS = ("^a+$", "(?=x)", "(", r"\bfoo\b", "(a|b){2,5}", ".*", r"\p{Lu}")
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**66), 2**66) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([*NAMES, *REFERENCES, *PATTERNS, "string", "object"]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(NAMES), below, max_size=3),
    max_leaves=6,
)  # fmt: skip


def keywords(below: Any) -> Any:
    """A schema, of which any value may be one that no keyword has."""
    of_names = st.dictionaries(st.sampled_from(NAMES), below, max_size=3)
    number = st.integers(-3, 9) | st.sampled_from([2**63 - 1, -(2**63), 1e300, 0.5, 2**70])
    known = {
        **dict.fromkeys(("properties", "$defs", "dependentSchemas", "definitions"), of_names),
        "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), below, max_size=2),
        **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), st.lists(below, max_size=3)),
        **dict.fromkeys(
            ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
             "unevaluatedProperties", "unevaluatedItems"), below,
        ),
        **dict.fromkeys(
            ("minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "minItems", "maxItems", "multipleOf",
             "minProperties", "maxProperties"), number,
        ),
        "type": st.sampled_from(["object", "array", "string", "number", "integer", "null", "STRING", "any"])
        | st.lists(st.sampled_from(["string", "object", "integer", "null"]), max_size=3),
        "enum": st.lists(anything, max_size=3),
        "const": anything,
        "required": st.lists(st.sampled_from(NAMES), max_size=3),
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES))),
        "pattern": st.sampled_from(PATTERNS),
        "format": st.sampled_from(["email", "date", "ulid", "colour", "uri-reference"]),
        "$ref": st.sampled_from(REFERENCES),
        "uniqueItems": st.booleans(),
        "discriminator": st.fixed_dictionaries({"propertyName": st.sampled_from(NAMES)}),
        "x-other": anything,
    }  # fmt: skip

    @st.composite
    def schema(draw: Any) -> dict[str, Any]:
        names = draw(st.lists(st.sampled_from(sorted(known)), max_size=5, unique=True))
        return {name: draw(known[name] if draw(st.integers(0, 9)) else anything) for name in names}

    return schema()


def whatever(function: Any) -> Any:
    for schema in HOSTILE:
        function = example(schema, 0)(function)
    schemas = st.recursive(st.booleans() | keywords(st.booleans()), keywords, max_leaves=8)
    run = given(schemas.filter(lambda schema: isinstance(schema, dict)), st.integers(0, 2**20))
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=80, deadline=None, suppress_health_check=slow)(run(function))


@whatever
def test_a_schema_that_is_not_strict_is_never_refused_and_answers_are_json(schema: dict[str, Any], seed: int) -> None:
    text = drawn(kept_to(schema).text, seed)
    if text is not None:
        json.loads(text)


@whatever
def test_a_strict_schema_is_kept_to_or_refused_by_its_field(schema: dict[str, Any], seed: int) -> None:
    try:
        wanted = kept_to(schema, strict=True)
    except RequestError as error:
        assert error.field == "response_format.json_schema.schema"
        assert "strict = false" in error.message
        return
    text = drawn(wanted.text, seed)
    if text is not None:
        json.loads(text)


# -- Over HTTP ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def app(start_app: Any) -> Any:
    """An engine that answers whatever it is asked, and has room for long descriptions of tools."""
    engine = ScriptedEngine(answer([5]), info=scripted_info(max_model_len=2**20))
    return start_app(engine, tool_call_parser="hermes")


def tools(*parameters: tuple[bool, dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"f{index}", "parameters": schema, "strict": strict}}
        for index, (strict, schema) in enumerate(parameters)
    ]


def choices() -> Iterator[dict[str, Any]]:
    yield {"tool_choice": "required"}
    yield {"tool_choice": "auto"}
    yield {"tool_choice": {"type": "function", "function": {"name": "f0"}}}
    yield {"tool_choice": "auto", "response_format": {"type": "json_object"}}


REFUSED_ONCE: list[dict[str, Any]] = [
    {"type": "object", "properties": {"v": LOOK_AHEAD}},
    {"type": "object", "properties": {"v": {"type": "STRING"}}},
    {"type": "object", "properties": {"v": {"type": "integer", "minimum": -(2**63)}}},
    {"type": "objekt"},
    {"$ref": "https://example.com/x"},
    nested(60),
]


@pytest.mark.parametrize("schema", REFUSED_ONCE, ids=lambda schema: json.dumps(schema)[:50])
async def test_a_tool_that_is_not_strict_is_never_refused_for_its_schema(app: Any, schema: Any) -> None:
    strict = (True, {"type": "object", "properties": {"a": {"const": 1}}})
    for fields in choices():
        for offered in (tools((False, schema)), tools((False, schema), strict)):
            response = await app.chat(tools=offered, **fields)
            assert response.status_code == 200, response.text


def test_many_tools_that_are_not_strict_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each could be kept to alone; all of them take more than a grammar may."""
    monkeypatch.setattr(structured_output, "parser_limits", lambda: LLParserLimits(max_grammar_size=2000))
    strict, other = ({"type": "object", "properties": {"v": {"const": each}}} for each in ("a", "b"))
    fields = {"tools": tools((True, strict), *[(False, other)] * 50), "tool_choice": "required"}
    request = msgspec.convert({"model": "m", "messages": [], **fields}, ChatRequest)
    formats = choose_formats(None, "hermes", "none")
    found = AnswerGrammars(formats, lambda marker: None).grammar(None, tool_use(request, formats), False)
    assert found is not None
    assert json.loads(found.text)["grammars"][0]["lark_grammar"].count('"const"') == 1


def test_a_strict_schema_that_is_too_deep_is_refused_as_that() -> None:
    with pytest.raises(RequestError, match="stand in one another deeper than a grammar can be; leave it out, or send"):
        kept_to(nested(100), strict=True)


async def test_what_of_a_strict_schema_cannot_be_kept_to_is_named_with_what_to_do(app: Any) -> None:
    schema = {"type": "object", "properties": {"v": LOOK_AHEAD}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert (await app.chat(response_format=wanted)).status_code == 200
    wanted["json_schema"]["strict"] = True  # type: ignore[index]
    for fields, place in (
        ({"response_format": wanted}, "response_format.json_schema.schema"),
        ({"tools": tools((True, schema))}, "tools[0].function.parameters"),
    ):
        response = await app.chat(**fields)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == place
        assert f"{place}.properties.v.pattern cannot be kept to" in error["message"]
        assert "send strict = false" in error["message"]
