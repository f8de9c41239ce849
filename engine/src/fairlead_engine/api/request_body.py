"""Bytes of a request body → an instance of a schema, or a `RequestError` that names the field.

Knows JSON and schemas in general, not what the fields mean.
"""

import difflib
import json
import math
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from fairlead_common.openai.budget import OverBudget, check_json
from fairlead_common.openai.unknown_fields import UnknownFields
from fairlead_common.wire.messages import PRIVATE_FIELD_PREFIX
from fairlead_engine.errors import RequestError

Schema = TypeVar("Schema", bound=msgspec.Struct)

_LONGEST_TYPO = 64
"""Longest unknown field compared with known fields, at a cost of the length squared."""
_LIKE = 0.7
"""Least similarity, from 0 to 1, of a typo and the intended name."""
_LONGEST_NAME = 128
"""Characters of a client's own names that are quoted in answers and in the log."""
_SEARCHED_BYTES = 256 * 1024
"""Malformed bodies up to this size are searched for the wrong field."""
_PLACE = re.compile(r"^(?P<problem>.*?)(?: - at (?:`key` in )?`(?P<path>\$.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$")


def decode(body: bytes, schema: type[Schema], unknown: UnknownFields) -> Schema:
    """The request in `body`. Wrong types, numbers that are not finite and, where `unknown` says so, unknown fields are
    refused by name."""
    try:
        check_json(body)
        return unknown.decode(body, schema)
    except OverBudget as error:
        raise RequestError(None, str(error), "request_too_complex") from None
    except msgspec.ValidationError as error:
        raise _invalid(str(error), schema) from None
    except RecursionError:
        raise RequestError(None, "the request body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(body, error) from None


def _invalid(problem: str, schema: type[msgspec.Struct]) -> RequestError:
    place = _PLACE.match(problem)
    assert place is not None  # the pattern matches any text
    text, path = place["problem"], (place["path"] or "$").removeprefix("$").removeprefix(".")
    if found := _UNKNOWN.match(text):
        name = f"{path}.{found['name']}" if path else found["name"]
        is_typo = not path and len(name) <= _LONGEST_TYPO
        known = [field for field in schema.__struct_fields__ if not field.startswith(PRIVATE_FIELD_PREFIX)]
        meant = getattr(schema, "OTHER_NAMES", {}).get(name)
        close = (
            [meant] if meant in known else difflib.get_close_matches(name, known, n=1, cutoff=_LIKE) if is_typo else []
        )
        name = _shown(name)
        advice = f"did you mean {close[0]!r}?" if close else "leave it out"
        return RequestError(name, f"unknown field {name!r}; {advice}")
    if found := _MISSING.match(text):
        name = f"{path}.{found['name']}" if path else found["name"]
        return RequestError(name, f"the field {name!r} is missing")
    if not path:
        return RequestError(None, f"the request body must be a JSON object: {_lower_first(text)}")
    return RequestError(path, f"{path}: {_lower_first(text)}")


def _malformed(body: bytes, error: Exception) -> RequestError:
    """Names the field with NaN or infinity, if any: Python writes both, JSON has neither."""
    try:
        path = next(_not_finite(json.loads(body)), None) if len(body) <= _SEARCHED_BYTES else None
    except (ValueError, RecursionError):
        path = None
    if path is None:
        return RequestError(None, f"the request body is not valid JSON: {error}")
    path = _shown(path)
    return RequestError(path, f"{path} must be a finite number")


def _not_finite(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _not_finite(part, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for position, part in enumerate(value):
            yield from _not_finite(part, f"{path}[{position}]")


def _shown(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
