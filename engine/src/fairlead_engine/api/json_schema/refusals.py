"""Errors for schemas that no grammar can enforce, in the client's terms: the keyword, the place, and a remedy."""

import json
import re
from collections.abc import Iterator
from typing import Any

from fairlead_engine.api.json_schema.parts import DATA, MAPS
from fairlead_engine.errors import RequestError

_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*\])")
_OF_KEYWORD = (
    ("format", re.compile(r"Unknown format: (.*)")),
    ("type", re.compile(r"Invalid type: (.*)")),
    ("$ref", re.compile(r"Pointer '(.*)' does not exist")),
    ("$ref", re.compile(r"Resource '(.*)' is not present")),
    ("oneOf", re.compile(r"oneOf constraints are not supported()")),
    ("pattern", re.compile(r"regex parse error: (.*)")),
    ("pattern", re.compile(r"lookarounds not supported yet; \w+ in regex /(.*)/")),
)
"""llguidance's messages without a keyword, the keyword meant, and a group for the value."""
_RANGE = re.compile(r"Failed to generate regex for \w+ range: min=(?:Some\((.*?)\)|None), max=(?:Some\((.*?)\)|None)")


def schema_error(field: str, schema: Any, problem: str, advice: str) -> RequestError:
    keyword, value, told = _culprit(problem)
    place = None if keyword is None else next(_places(schema, keyword, value), None)
    where = field if place is None else f"{field}{place}"
    return RequestError(field, f"{where} cannot be kept to: {told}; {advice}", "unsupported_value")


def _culprit(problem: str) -> tuple[str | None, str, str]:
    """Keyword behind llguidance's sentence, the end of the value, and a sentence that names the keyword."""
    if found := _UNIMPLEMENTED.search(problem):
        keyword = json.loads(found[1])[0]
        return keyword, "", f"the keyword {keyword!r} is not supported"
    if found := _RANGE.search(problem):
        bounds = f"from {found[1] or 'any'} to {found[2] or 'any'}"
        return None, "", f"numbers {bounds} are beyond what a grammar can hold, which is about 10^18"
    if problem.startswith("recursion limit exceeded"):
        return None, "", "its schemas stand in one another deeper than a grammar can be"
    for keyword, pattern in _OF_KEYWORD:
        if found := pattern.match(problem):
            if keyword == "oneOf":
                problem = "'oneOf' is supported where its schemas exclude one another at sight only; use 'anyOf'"
            return keyword, found[1], problem
    return None, "", problem


def _places(schema: Any, keyword: str, value: str, path: str = "") -> Iterator[str]:
    """Paths at which a schema has the keyword with this end of a value."""
    if isinstance(schema, list):
        for position, part in enumerate(schema):
            yield from _places(part, keyword, value, f"{path}[{position}]")
    if not isinstance(schema, dict):
        return
    if keyword in schema and _is_meant(keyword, schema[keyword], value):
        yield f"{path}.{keyword}"
    for name, part in schema.items():
        if name in MAPS and isinstance(part, dict):
            for key, each in part.items():
                if (keyword, name) == ("pattern", "patternProperties") and _is_meant(keyword, key, value):
                    yield f"{path}.{name}.{key}"
                yield from _places(each, keyword, value, f"{path}.{name}.{key}")
        elif name not in DATA:
            yield from _places(part, keyword, value, f"{path}.{name}")


def _is_meant(keyword: str, found: Any, value: str) -> bool:
    """Whether llguidance's message is about this value: messages quote patterns with comments, and the ends of URIs."""
    if isinstance(found, list):
        return any(_is_meant(keyword, each, value) for each in found)
    if not value or not isinstance(found, str):
        return not value
    if keyword != "pattern":
        return found.endswith(value)
    pattern = " ".join(found.split())
    return value.startswith((pattern, pattern.replace(r"\d", "[0-9]")))
