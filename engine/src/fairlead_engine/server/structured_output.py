"""What a request says that its answer has to keep to → the text of a grammar, which the core compiles.

The fields are OpenAI's `response_format`, vLLM's `structured_outputs` and its older `guided_…`; what cannot be
kept to is refused here, by the name of the field and of the keyword. llguidance is loaded when the first one comes.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import msgspec

from fairlead_engine.errors import RequestError
from fairlead_engine.types import Grammar

_MOST_CHOICES = 10_000
_WHITESPACE = r"[ \t\r\n]{1,64}"
"""Between the tokens of JSON: a model cannot go on with it for ever."""
_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values map names to schemas."""
_DATA = ("enum", "const", "default", "examples", "required")
"""Keywords whose values are no schemas."""
_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*\])")
_OF_KEYWORD = (
    ("format", re.compile(r"Unknown format: (.*)")),
    ("type", re.compile(r"Invalid type: (.*)")),
    ("$ref", re.compile(r"Pointer '(.*)' does not exist")),
    ("$ref", re.compile(r"Resource '(.*)' is not present")),
    ("oneOf", re.compile(r"oneOf constraints are not supported()")),
    ("pattern", re.compile(r"regex parse error()")),
)
"""What llguidance says of keywords that it does not name, and the value that it says it of."""


class JsonSchemaFormat(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`response_format.json_schema`."""

    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    """It is kept to in either case."""
    description: str | None = None


class Structure(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A part of a text that keeps to a schema, and what stands before and behind it."""

    begin: str
    schema: dict[str, Any]
    end: str


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """OpenAI's `response_format`, and vLLM's structural tags."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    structures: list[Structure] | None = None
    triggers: list[str] | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """vLLM's `structured_outputs`."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None


class StructuredOutputFields(Protocol):
    """The fields that say so."""

    @property
    def response_format(self) -> ResponseFormat | None: ...
    @property
    def structured_outputs(self) -> StructuredOutputs | None: ...
    @property
    def guided_json(self) -> dict[str, Any] | str | None: ...
    @property
    def guided_regex(self) -> str | None: ...
    @property
    def guided_choice(self) -> list[str] | None: ...
    @property
    def guided_grammar(self) -> str | None: ...


class Wish(NamedTuple):
    """What an answer is to keep to, before anything was made of it."""

    field: str
    make: "Callable[[str, str, str | None], str]"
    """Of field, source and whitespace, the grammar's text; raises RequestError."""
    source: str
    """A schema as JSON, a pattern (in which \\d is 0 to 9), a grammar."""
    whitespace: str | None = _WHITESPACE
    """Pattern of what may be between the tokens of JSON; None = nothing."""


def wish_of(fields: StructuredOutputFields) -> Wish | None:
    """What of them is sent, if any. Raises `RequestError` for more than one, and for one that says nothing."""
    wishes = list(_wishes(fields))
    if len(wishes) > 1:
        names = " and ".join(wish.field for wish in wishes)
        raise RequestError(wishes[1].field, f"{names} cannot be sent together; an answer keeps to one of them")
    return wishes[0] if wishes else None


@lru_cache(maxsize=256)
def grammar(wish: Wish) -> Grammar:
    """Raises RequestError, naming the field and what in it cannot be kept to. May take long; call it in a thread."""
    text = wish.make(wish.field, wish.source, wish.whitespace)
    return Grammar(text, wish.field)


def _wishes(fields: StructuredOutputFields) -> Iterator[Wish]:
    if (response_format := fields.response_format) is not None:
        yield from _of_response_format(response_format)
    if (wanted := fields.structured_outputs) is not None:
        whitespace = wanted.whitespace_pattern or _WHITESPACE
        found = list(_of_names("structured_outputs.", wanted, None if wanted.disable_any_whitespace else whitespace))
        if not found:
            names = "json, json_object, regex, choice, grammar or structural_tag"
            raise RequestError("structured_outputs", f"structured_outputs says nothing; set one of {names}")
        yield from found
    older = (fields.guided_json, fields.guided_regex, fields.guided_choice, fields.guided_grammar)
    yield from _of_names("guided_", StructuredOutputs(*older), _WHITESPACE)


def _of_response_format(wanted: ResponseFormat) -> Iterator[Wish]:
    field = "response_format"
    match wanted.type:
        case "text":
            return
        case "json_object":
            yield Wish(field, _json, '{"type":"object"}')
        case "json_schema":
            if wanted.json_schema is None or wanted.json_schema.schema is None:
                raise RequestError(f"{field}.json_schema.schema", f"{field}.json_schema.schema is missing")
            yield Wish(f"{field}.json_schema.schema", _json, _encode(wanted.json_schema.schema))
        case "structural_tag":
            yield Wish(field, _tags, _encode(wanted))
        case other:
            known = "text, json_object, json_schema and structural_tag"
            raise RequestError(f"{field}.type", f"{field}.type = {other!r} is not supported; there are {known}")


def _of_names(prefix: str, wanted: StructuredOutputs, whitespace: str | None) -> Iterator[Wish]:
    if wanted.json is not None:
        schema = wanted.json if isinstance(wanted.json, str) else _encode(wanted.json)
        yield Wish(prefix + "json", _json, schema, whitespace)
    if wanted.regex is not None:
        yield Wish(prefix + "regex", _regex, wanted.regex)
    if wanted.choice is not None:
        yield Wish(prefix + "choice", _choice, _encode(wanted.choice))
    if wanted.grammar is not None:
        yield Wish(prefix + "grammar", _lark, wanted.grammar)
    if wanted.json_object:
        yield Wish(prefix + "json_object", _json, '{"type":"object"}', whitespace)
    if wanted.structural_tag is not None:
        yield Wish(prefix + "structural_tag", _tags, wanted.structural_tag)


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# -- from each kind to a grammar ---------------------------------------------------------------------------------------


def _json(field: str, source: str, whitespace: str | None) -> str:
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise RequestError(field, f"{field} is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise RequestError(field, f"{field} must be a JSON object, a schema")
    return schema_grammar(field, schema, whitespace)


def check_schema(field: str, schema: dict[str, Any], *, is_lenient: bool = False) -> dict[str, Any]:
    """The schema as it can stand within a grammar. `is_lenient`: keywords that cannot be kept to are ignored. Raises
    RequestError, naming the field and what in it cannot be kept to."""
    schema = {**schema, "x-guidance": {"whitespace_pattern": _WHITESPACE, "lenient": is_lenient}}
    _grammar_of(field, schema, None)
    return schema


def schema_grammar(field: str, schema: dict[str, Any], whitespace: str | None = _WHITESPACE) -> str:
    """The grammar of the JSON that a schema allows. Raises RequestError as `check_schema` does."""
    options: dict[str, Any] = {"whitespace_flexible": False}
    if whitespace is not None:
        options = {"whitespace_pattern": whitespace}
    return _grammar_of(field, schema, options)


def _grammar_of(field: str, schema: dict[str, Any], options: dict[str, Any] | None) -> str:
    from llguidance import LLMatcher

    try:
        text = LLMatcher.grammar_from_json_schema(schema, overrides=options)  # type: ignore[arg-type]
    except ValueError as error:
        told = f"numbers of a schema have at most 64 bits, and its texts are Unicode ({error})"
        raise _schema_error(field, schema, told) from None
    if problem := problem_of(text):
        raise _schema_error(field, schema, problem)
    return text


def _regex(field: str, source: str, whitespace: str | None) -> str:
    from llguidance import regex_to_lark

    if not source:
        raise RequestError(field, f"{field} is empty; send a pattern")
    return _checked(field, f"start: /{regex_to_lark(source, use_ascii='d')}/")


def _choice(field: str, source: str, whitespace: str | None) -> str:
    from llguidance import LLMatcher

    texts = json.loads(source)
    if not texts or len(texts) > _MOST_CHOICES or not all(texts):
        raise RequestError(field, f"{field} must hold 1 to {_MOST_CHOICES} texts, none of them empty")
    return _checked(field, LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(text) for text in texts)))


def _lark(field: str, source: str, whitespace: str | None) -> str:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        lark = any_to_lark(source)
    except Exception as error:  # it raises bare ones, too
        problem = f"it has no rule named start, as Lark has, and is not GBNF either: {error}"
        raise RequestError(field, f"{field} cannot be kept to: {problem}") from None
    return _checked(field, LLMatcher.grammar_from_lark(lark))


def _tags(field: str, source: str, whitespace: str | None) -> str:
    from llguidance import LLMatcher, StructTag

    try:
        wanted = msgspec.json.decode(source, type=ResponseFormat)
    except msgspec.DecodeError as error:
        raise RequestError(field, f"{field}: {error}") from None
    if not wanted.structures or not wanted.triggers or not all(wanted.triggers):
        raise RequestError(field, f"{field} needs structures and triggers, none of them empty")
    tags = []
    for structure in wanted.structures:
        triggers = [trigger for trigger in wanted.triggers if structure.begin.startswith(trigger)]
        if not triggers:
            raise RequestError(field, f"{field}: no trigger is the beginning of {structure.begin!r}")
        schema = check_schema(field, structure.schema)
        tags.append(StructTag(trigger=max(triggers, key=len), begin=structure.begin, grammar=schema, end=structure.end))
    return _checked(field, LLMatcher.grammar_from_lark(StructTag.to_grammar(tags, assume_special=False)))


def _checked(field: str, text: str) -> str:
    if problem := problem_of(text):
        raise RequestError(field, f"{field} cannot be kept to: {problem}", "unsupported_value")
    return text


def problem_of(text: str) -> str | None:
    """Why a grammar cannot be used, as far as can be said without a tokenizer."""
    from llguidance import LLMatcher

    from fairlead_engine.core.grammars import described, parser_limits

    is_wrong, messages = LLMatcher.validate_grammar_with_warnings(text, limits=parser_limits())
    return described(messages[0]) if is_wrong else None


# -- what is wrong with a schema ---------------------------------------------------------------------------------------


def _schema_error(field: str, schema: Any, problem: str) -> RequestError:
    """The refusal of a schema, which names the keyword and the first place that has it."""
    keyword, value, told = _culprit(problem)
    place = None if keyword is None else next(_places(schema, keyword, value), None)
    where = field if place is None else f"{field}{place}"
    return RequestError(field, f"{where} cannot be kept to: {told}", "unsupported_value")


def _culprit(problem: str) -> tuple[str | None, str, str]:
    """The keyword that llguidance's sentence is about, what its value ends with, and a sentence that names it."""
    if found := _UNIMPLEMENTED.search(problem):
        keyword = json.loads(found[1])[0]
        return keyword, "", f"the keyword {keyword!r} is not supported"
    for keyword, pattern in _OF_KEYWORD:
        if found := pattern.match(problem):
            if keyword == "oneOf":
                problem = "'oneOf' is supported where its schemas exclude one another at sight only; use 'anyOf'"
            return keyword, found[1], problem
    return None, "", problem


def _places(schema: Any, keyword: str, value: str, path: str = "") -> Iterator[str]:
    """Where a schema has a keyword with a value that ends so, as a path within it."""
    if isinstance(schema, list):
        for position, part in enumerate(schema):
            yield from _places(part, keyword, value, f"{path}[{position}]")
    if not isinstance(schema, dict):
        return
    if keyword in schema and _ends_with(schema[keyword], value):
        yield f"{path}.{keyword}"
    for name, part in schema.items():
        if name in _SCHEMAS and isinstance(part, dict):
            for key, each in part.items():
                yield from _places(each, keyword, value, f"{path}.{name}.{key}")
        elif name not in _DATA:
            yield from _places(part, keyword, value, f"{path}.{name}")


def _ends_with(found: Any, value: str) -> bool:
    if isinstance(found, list):
        return any(_ends_with(each, value) for each in found)
    return not value or (isinstance(found, str) and found.endswith(value))
