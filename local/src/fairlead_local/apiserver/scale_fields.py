"""What a custom object must have at the paths of its scale subresource, whatever its schema says about them. Pure."""

from typing import Any

from fairlead_local.apiserver import jsonpath
from fairlead_local.apiserver.resources import ScalePaths
from fairlead_local.apiserver.status import Cause, Json

_MOST = 2**31 - 1
_GO_TYPES = {
    bool: "bool",
    int: "float64",  # one that does not fit into 64 bits
    float: "float64",
    str: "string",
    list: "[]interface {}",
    dict: "map[string]interface {}",
}
"""What the genuine server calls the type of a JSON value that is no count."""


def problems(paths: ScalePaths | None, obj: Json) -> list[Cause]:
    """A cause for each count that is no whole number from 0, and for a selector that is no text; absent is fine."""
    if paths is None:
        return []
    counts = [cause for path in (paths.spec_replicas, paths.status_replicas) for cause in _count_problems(obj, path)]
    return counts + (_text_problems(obj, paths.selector) if paths.selector else [])


def _count_problems(obj: Json, path: str) -> list[Cause]:
    """2.0 is no whole number here: the server reads counts as integers, and decodes what has a point as none."""
    found = jsonpath.find(obj, path)
    if found is None:
        return []
    if isinstance(found, bool) or not isinstance(found, int) or abs(found) >= 2**63:
        return [_not(path, found, "int64")]
    if found < 0:
        return [_invalid(path, found, "should be a non-negative integer")]
    return [_invalid(path, found, f"should be less than or equal to {_MOST}")] if found > _MOST else []


def _text_problems(obj: Json, path: str) -> list[Cause]:
    found = jsonpath.find(obj, path)
    return [] if found is None or isinstance(found, str) else [_not(path, found, "string")]


def _not(path: str, found: Any, wanted: str) -> Cause:
    """The genuine server shows an empty value here."""
    empty = 0 if wanted == "int64" else '""'
    text = f"{path} accessor error: {found} is of the type {_GO_TYPES[type(found)]}, expected {wanted}"
    return _invalid(path, empty, text)


def _invalid(path: str, value: Any, sentence: str) -> Cause:
    return Cause(path, "FieldValueInvalid", f"Invalid value: {value}: {sentence}")
