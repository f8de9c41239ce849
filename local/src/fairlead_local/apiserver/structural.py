"""Structural OpenAPI schemas, as CustomResourceDefinitions carry them: validate, prune, default (rules: `cel`).

Who calls it: `admission`, for every object. Nothing here knows an LLMDeployment. Messages are worded as in Kubernetes.
Violations in unchanged parts of an update are tolerated, however strict the definition has become since (ratcheting of
Kubernetes, KEP-4008, from version 1.33 on).
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from datetime import date
from typing import Any

from fairlead.api.cel import matches
from fairlead.api.schema import is_whole, join
from fairlead_local.apiserver.status import Violation, ViolationKind, invalid_value, required_value, unsupported_value

Schema = Mapping[str, Any]

IMPLICIT_FIELDS = ("apiVersion", "kind", "metadata")
"""Fields of the root object that every resource has, in the schema or not."""
KEEP_UNKNOWN = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
EMBEDDED = "x-kubernetes-embedded-resource"
LIST_TYPE = "x-kubernetes-list-type"
LIST_KEYS = "x-kubernetes-list-map-keys"


BLOCKING = frozenset(
    (
        ViolationKind.REQUIRED,
        ViolationKind.TYPE,
        ViolationKind.NOT_SUPPORTED,
        ViolationKind.TOO_LONG,
        ViolationKind.TOO_MANY,
    )
)
"""Violations after which no rules are checked: rules rely on types, and their cost on sizes."""


def field_schema(schema: Schema, name: str) -> Schema | None:
    """The schema of a field of an object; None = the field is unknown."""
    found = (schema.get("properties") or {}).get(name, schema.get("additionalProperties"))
    return found if isinstance(found, Mapping) else None


def validate(schema: Schema, value: Any, path: str = "", *, old: Any = None) -> list[Violation]:
    """Every violation of types, limits, patterns or required fields in `value`; no rules (see `cel.check_rules`).

    `old`: the value before an update. Violations in unchanged fields are tolerated; duplicates, where `old` has any.
    """
    found = list(_violations(schema, value, old, path))
    if old is None or not any(each.kind is ViolationKind.DUPLICATE for each in found):
        return found
    had_duplicates = any(each.kind is ViolationKind.DUPLICATE for each in _violations(schema, old, None, path))
    return [each for each in found if each.kind is not ViolationKind.DUPLICATE or not had_duplicates]


def prune(schema: Schema, value: Any, path: str = "", *, root: bool = False) -> tuple[Any, list[str]]:
    """`value` without unknown fields, and their paths. With `root`, the fields of every object stay."""
    unknown: list[str] = []

    def pruned(schema: Schema, value: Any, path: str, is_object: bool) -> Any:
        is_object = is_object or bool(schema.get(EMBEDDED))
        if isinstance(value, list):
            items = schema.get("items") or {}
            return [pruned(items, item, f"{path}[{index}]", False) for index, item in enumerate(value)]
        if not isinstance(value, Mapping):
            return value
        keeps_all = schema.get("additionalProperties") is True or schema.get(KEEP_UNKNOWN)
        kept = {}
        for name, item in value.items():
            if (child := field_schema(schema, name)) is not None:
                kept[name] = pruned(child, item, join(path, name), False)
            elif keeps_all or (is_object and name in IMPLICIT_FIELDS):
                kept[name] = item
            else:
                unknown.append(join(path, name))
        return kept

    return pruned(schema, value, path, root), unknown


def prune_nulls(schema: Schema, value: Any) -> Any:
    """`value` without null fields that are not nullable, in depth: null means absent. Fields with a default stay, for
    `apply_defaults`; so do items of lists."""
    if isinstance(value, Mapping):
        kept = {}
        for name, item in value.items():
            if (child := field_schema(schema, name)) is None:
                kept[name] = item
            elif item is not None or child.get("nullable") or "default" in child:
                kept[name] = prune_nulls(child, item)
        return kept
    if isinstance(value, list):
        return [prune_nulls(schema.get("items") or {}, item) for item in value]
    return value


def apply_defaults(schema: Schema, value: Any) -> Any:
    """A copy of `value` with the defaults of the schema for absent fields, in depth."""
    if isinstance(value, Mapping):
        filled = dict(value)
        for name, child in (schema.get("properties") or {}).items():
            nulled = name in filled and filled[name] is None and not child.get("nullable")
            if "default" in child and (name not in filled or nulled):
                filled[name] = deepcopy(child["default"])
        return {name: apply_defaults(field_schema(schema, name) or {}, item) for name, item in filled.items()}
    if isinstance(value, list):
        return [apply_defaults(schema.get("items") or {}, item) for item in value]
    return value


# ── types and limits ──────────────────────────────────────────────────────────────────────────────────────────────────


def _violations(schema: Schema, value: Any, old: Any, path: str) -> Iterator[Violation]:
    if (value is None and schema.get("nullable")) or (old is not None and is_unchanged(schema, value, old)):
        return
    fits = value is not None and _has_type(schema, value)
    if not fits:
        yield _type_violation(path, _json_type(value), schema.get("type"), schema)
    if "enum" in schema and value not in schema["enum"]:
        choices = ", ".join(json.dumps(choice) for choice in schema["enum"])
        yield unsupported_value(path, f"{quoted(value)}: supported values: {choices}")
    if not fits:
        return
    if isinstance(value, Mapping):
        yield from _object_violations(schema, value, old, path)
    elif isinstance(value, list):
        yield from _list_violations(schema, value, old, path)
    elif isinstance(value, str):
        yield from _string_violations(schema, value, path)
    elif not isinstance(value, bool):
        yield from _number_violations(schema, value, path)


def _object_violations(schema: Schema, value: Mapping[str, Any], old: Any, path: str) -> Iterator[Violation]:
    before = old if isinstance(old, Mapping) else {}
    # An absent field and a null field mean the same, unless the schema calls null a value.
    children = {name: child for name in value if (child := field_schema(schema, name)) is not None}
    absent = {name for name, child in children.items() if value[name] is None and not child.get("nullable")}
    for name in schema.get("required") or []:
        if name not in value or name in absent:
            yield required_value(join(path, name))
    yield from _size_violations(schema, value, len(value) - len(absent), "Properties", path)
    for name, child in children.items():
        if name not in absent:
            yield from _violations(child, value[name], before.get(name), join(path, name))


def _list_violations(schema: Schema, value: list[Any], old: Any, path: str) -> Iterator[Violation]:
    yield from _size_violations(schema, value, len(value), "Items", path)
    for index, (item, old_item) in enumerate(zip(value, old_items(schema, value, old), strict=True)):
        yield from _violations(schema.get("items") or {}, item, old_item, f"{path}[{index}]")
    if schema.get(LIST_TYPE) in ("set", "map"):
        yield from _duplicates(schema, value, path)


def _size_violations(schema: Schema, value: Any, size: int, what: str, path: str) -> Iterator[Violation]:
    """`what`: `Items` or `Properties`, the end of the keywords."""
    most, fewest = schema.get(f"max{what}"), schema.get(f"min{what}")
    if most is not None and size > most:
        yield Violation(path, ViolationKind.TOO_MANY, f"Too many: {size}: must have at most {most} items")
    if fewest is not None and size < fewest:
        yield _out_of_bounds(path, value, f"should have at least {fewest} {what.lower()}")


def _duplicates(schema: Schema, value: list[Any], path: str) -> Iterator[Violation]:
    """A violation for each duplicate value, at the second place."""
    keys = value
    if schema[LIST_TYPE] == "map":
        if not all(item is None or isinstance(item, Mapping) for item in value):
            return
        names = schema.get(LIST_KEYS) or []
        keys = [{name: item[name] for name in names if item and name in item} for item in value]
    times: Counter[str] = Counter()
    for index, key in enumerate(keys):
        text = json.dumps(key, sort_keys=True)
        times[text] += 1
        if times[text] == 2:
            yield Violation(f"{path}[{index}]", ViolationKind.DUPLICATE, f"Duplicate value: {quoted(key)}")


def _string_violations(schema: Schema, value: str, path: str) -> Iterator[Violation]:
    longest, shortest, pattern = schema.get("maxLength"), schema.get("minLength"), schema.get("pattern")
    if longest is not None and len(value) > longest:
        yield Violation(path, ViolationKind.TOO_LONG, f"Too long: may not be more than {longest} bytes")
    elif shortest is not None and len(value) < shortest:
        yield _out_of_bounds(path, value, f"should be at least {shortest} chars long")
    elif pattern is not None and not matches(pattern, value):
        yield _out_of_bounds(path, value, f"should match '{pattern}'")
    if schema.get("format") == "date-time" and not _is_date_time(value):
        yield _type_violation(path, value, "date-time", schema)


def _number_violations(schema: Schema, value: float, path: str) -> Iterator[Violation]:
    for keyword, sign, word in (("Minimum", 1, "greater"), ("Maximum", -1, "less")):
        bound, is_exclusive = schema.get(keyword.lower()), schema.get(f"exclusive{keyword}")
        if bound is not None and (sign * value < sign * bound or (value == bound and is_exclusive)):
            than = "than" if is_exclusive else "than or equal to"
            yield _out_of_bounds(path, value, f"should be {word} {than} {bound}")
    if (step := schema.get("multipleOf")) and value % step:
        yield _out_of_bounds(path, value, f"should be a multiple of {step}")
    if schema.get("format") == "int32" and not -(2**31) <= value < 2**31:
        yield _out_of_bounds(path, value, "should fit into 32 bits")


_TYPES: Mapping[str, type] = {"object": Mapping, "array": list, "string": str, "boolean": bool}


def _has_type(schema: Schema, value: Any) -> bool:
    kind = schema.get("type")
    if schema.get(INT_OR_STRING):
        return isinstance(value, str) or is_whole(value)
    if kind == "integer":
        return is_whole(value)
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return kind is None or isinstance(value, _TYPES.get(kind, ()))


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = ((Mapping, "object"), (list, "array"), (str, "string"), (int, "integer"), (float, "number"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")


def _type_violation(path: str, found: str, wanted: str | None, schema: Schema) -> Violation:
    wanted = "integer,string" if schema.get(INT_OR_STRING) else wanted
    message = f"Invalid value: {quoted(found)}: {path} in body must be of type {wanted}: {quoted(found)}"
    return Violation(path, ViolationKind.TYPE, message)


def _out_of_bounds(path: str, value: Any, sentence: str) -> Violation:
    return invalid_value(path, f"{quoted(value)}: {path} in body {sentence}")


def quoted(value: Any) -> str:
    """A value as refusals show it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_DATE_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _is_date_time(text: str) -> bool:
    """Whether the text is a time as in RFC 3339."""
    found = _DATE_TIME.fullmatch(text)
    try:
        return found is not None and bool(date.fromisoformat(found[1]))
    except ValueError:
        return False


# ── what an update leaves alone ───────────────────────────────────────────────────────────────────────────────────────


def old_items(schema: Mapping[str, Any], value: list[Any], old: Any) -> list[Any]:
    """For each item of `value` the same item in `old`, by the keys of the list; None = no such item, or no keys."""
    names = schema.get(LIST_KEYS) or []
    if schema.get(LIST_TYPE) != "map" or not isinstance(old, list):
        return [None] * len(value)

    def is_same(was: Any, item: Any) -> bool:
        are_objects = isinstance(was, Mapping) and isinstance(item, Mapping)
        return bool(names) and are_objects and all(was.get(name) == item.get(name) for name in names)

    return [next((each for each in old if is_same(each, item)), None) for item in value]


def is_unchanged(schema: Mapping[str, Any], value: Any, old: Any) -> bool:
    """Whether both values are equal; the order of a list with keys does not count."""
    if isinstance(value, Mapping) and isinstance(old, Mapping):
        return value.keys() == old.keys() and all(
            is_unchanged(field_schema(schema, name) or {}, item, old[name]) for name, item in value.items()
        )
    if isinstance(value, list) and isinstance(old, list):
        before = old_items(schema, value, old) if schema.get(LIST_TYPE) == "map" else old
        items = schema.get("items") or {}
        return len(value) == len(old) and all(
            is_unchanged(items, new, was) for new, was in zip(value, before, strict=True)
        )
    return isinstance(value, bool) is isinstance(old, bool) and bool(value == old)  # to Python, true is 1
