"""A request's structured output → the text of a grammar, which the core compiles.

The fields are OpenAI's `response_format` and vLLM's `structured_outputs` and older `guided_…`; wishes that cannot be
enforced are refused, with the field and the keyword. llguidance is loaded at the first wish.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from fairlead_engine.api.json_schema.normal_form import normal_form, without_annotations
from fairlead_engine.api.json_schema.refusals import schema_error
from fairlead_engine.api.json_schema.relaxed import relaxed
from fairlead_engine.api.schemas import GenerationRequest, ResponseFormat, StructuredOutputs
from fairlead_engine.core.grammar_limits import described, parser_limits
from fairlead_engine.errors import RequestError
from fairlead_engine.types import Grammar

_MOST_CHOICES = 10_000
NOT_STRICT = "leave it out, or send strict = false, with which what cannot be kept to is relaxed"
"""Remedy for a strict schema."""
_WHITESPACE = r"[ \t\r\n]{1,64}"
"""Between the tokens of JSON; bounded, as a model could write white space forever."""


class Wish(NamedTuple):
    """A structured output as requested, before a grammar is made."""

    field: str
    make: "Callable[[str, str, str | None], str]"
    """Of field, source and whitespace, the grammar's text; raises RequestError."""
    source: str
    """A schema as JSON, a pattern (with \\d as 0 to 9), or a grammar."""
    whitespace: str | None = _WHITESPACE
    """Pattern of white space between the tokens of JSON; None = no white space."""


def wish_of(fields: GenerationRequest) -> Wish | None:
    """The request's wish, if any. Raises `RequestError` for several wishes, and for an empty one."""
    wishes = list(_wishes(fields))
    if len(wishes) > 1:
        names = " and ".join(wish.field for wish in wishes)
        raise RequestError(wishes[1].field, f"{names} cannot be sent together; an answer keeps to one of them")
    return wishes[0] if wishes else None


def grammar(wish: Wish) -> Grammar:
    """Raises RequestError, naming the field and its problem. May take long, or forever."""
    text = wish.make(wish.field, wish.source, wish.whitespace)
    return Grammar(text, wish.field)


def widest(wish: Wish) -> Wish | None:
    """A wish for any JSON, or any object; None = the wish must not be widened."""
    if wish.make is not _lenient_json:
        return None
    is_object = json.loads(wish.source).get("type") == "object"
    return wish._replace(source='{"type":"object"}' if is_object else "{}")


def bare(wish: Wish) -> Wish:
    """The wish without a schema's annotations."""
    if wish.make not in (_json, _strict_json, _lenient_json):
        return wish
    try:
        schema = json.loads(wish.source)
    except (ValueError, RecursionError):
        return wish
    return wish._replace(source=json.dumps(without_annotations(schema))) if isinstance(schema, dict) else wish


def _wishes(fields: GenerationRequest) -> Iterator[Wish]:
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
    flat = None if wanted.json_schema is not None and wanted.json_schema.schema is not None else wanted.schema
    if wanted.schema is not None and (flat is None or wanted.type not in ("json_object", "json_schema")):
        problem = "is for the type json_object; leave it out, or leave json_schema out"
        raise RequestError(f"{field}.schema", f"{field}.schema {problem}")
    match wanted.type:
        case "text":
            return
        case "json_object" | "json_schema" if flat is not None:
            yield Wish(f"{field}.schema", _lenient_json, _encode(flat))
        case "json_object":
            yield Wish(field, _json, '{"type":"object"}')
        case "json_schema":
            if wanted.json_schema is None or wanted.json_schema.schema is None:
                raise RequestError(f"{field}.json_schema.schema", f"{field}.json_schema.schema is missing")
            make = _strict_json if wanted.json_schema.strict else _lenient_json
            yield Wish(f"{field}.json_schema.schema", make, _encode(wanted.json_schema.schema))
        case "structural_tag":
            yield Wish(field, _tags, _encode(wanted))
        case other:
            known = "text, json_object, json_schema and structural_tag"
            raise RequestError(f"{field}.type", f"{field}.type = {other!r} is not supported; there are {known}")


def _of_names(prefix: str, wanted: StructuredOutputs, whitespace: str | None) -> Iterator[Wish]:
    makers = {"json": _json, "regex": _regex, "choice": _choice, "grammar": _lark, "json_object": _json}
    for name, make in {**makers, "structural_tag": _tags}.items():
        value = getattr(wanted, name)
        if value is not None and value is not False:
            source = '{"type":"object"}' if value is True else value if isinstance(value, str) else _encode(value)
            yield Wish(prefix + name, make, source, whitespace if make is _json else _WHITESPACE)


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# -- from each kind to a grammar ---------------------------------------------------------------------------------------


def _json(field: str, source: str, whitespace: str | None) -> str:
    return _schema_grammar(field, _schema_of(field, source), whitespace, "leave it out")


def _strict_json(field: str, source: str, whitespace: str | None) -> str:
    return _schema_grammar(field, _schema_of(field, source), whitespace, NOT_STRICT)


def _lenient_json(field: str, source: str, whitespace: str | None) -> str:
    schema = _schema_of(field, source)
    return _grammar_text(relaxed_schema(schema, {"type": "object"} if schema.get("type") == "object" else {}), None)


def _schema_of(field: str, source: str) -> dict[str, Any]:
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise RequestError(field, f"{field} is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise RequestError(field, f"{field} must be a JSON object, a schema")
    return schema


def kept_schema(field: str, schema: dict[str, Any], advice: str = "leave it out") -> dict[str, Any]:
    """The complete schema for use within a grammar. Raises RequestError, naming the field, its problem, and the remedy
    in `advice`."""
    kept = _normal(field, schema, advice)
    _grammar_of(field, kept, {"whitespace_pattern": _WHITESPACE}, advice)
    return _with_options(kept)


def relaxed_schema(schema: dict[str, Any], widest: dict[str, Any]) -> dict[str, Any]:
    """The schema for use within a grammar, widened as little as possible where it cannot be enforced."""
    return _with_options(relaxed(schema, _can_be_kept_to, widest), is_lenient=True)


def _with_options(schema: dict[str, Any], *, is_lenient: bool = False) -> dict[str, Any]:
    options = {"whitespace_pattern": _WHITESPACE, "lenient": is_lenient, "coerce_one_of": is_lenient}
    return {**schema, "x-guidance": options}


def _can_be_kept_to(schema: dict[str, Any]) -> bool:
    try:
        return problem_of(_grammar_text(_with_options(schema, is_lenient=True), None)) is None
    except ValueError:  # numbers of more than 64 bits
        return False


def _schema_grammar(field: str, schema: dict[str, Any], whitespace: str | None, advice: str) -> str:
    """The grammar of the JSON that a schema allows. Raises RequestError as `kept_schema` does."""
    options: dict[str, Any] = {"whitespace_flexible": False}
    if whitespace is not None:
        options = {"whitespace_pattern": whitespace}
    return _grammar_of(field, _normal(field, schema, advice), options, advice)


def _normal(field: str, schema: dict[str, Any], advice: str) -> dict[str, Any]:
    found = normal_form(schema)
    if found is False:
        raise schema_error(field, schema, "no JSON text can meet it", advice)
    return found if isinstance(found, dict) else {}


def _grammar_of(field: str, schema: dict[str, Any], options: dict[str, Any], advice: str) -> str:
    try:
        text = _grammar_text(schema, options)
    except ValueError as error:
        told = f"numbers of a schema have at most 64 bits, and its texts are Unicode ({error})"
        raise schema_error(field, schema, told, advice) from None
    if problem := problem_of(text):
        raise schema_error(field, schema, problem, advice)
    return text


def _grammar_text(schema: dict[str, Any], options: dict[str, Any] | None) -> str:
    """Raises ValueError for numbers of more than 64 bits, and for texts outside of Unicode."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(schema, overrides=options)  # type: ignore[arg-type]


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
        schema = kept_schema(field, structure.schema)
        tags.append(StructTag(trigger=max(triggers, key=len), begin=structure.begin, grammar=schema, end=structure.end))
    return _checked(field, LLMatcher.grammar_from_lark(StructTag.to_grammar(tags, assume_special=False)))


def _checked(field: str, text: str) -> str:
    if problem := problem_of(text):
        raise RequestError(field, f"{field} cannot be kept to: {problem}", "unsupported_value")
    return text


def problem_of(text: str) -> str | None:
    """Why a grammar cannot be used, as far as known without a tokenizer."""
    from llguidance import LLMatcher

    is_wrong, messages = LLMatcher.validate_grammar_with_warnings(text, limits=parser_limits())
    return described(messages[0]) if is_wrong else None
