"""Checks of every object before it is stored: unknown fields, defaults, schema, rules of the kind, CEL rules. Pure."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fairlead.api.schema import is_whole
from fairlead_local.apiserver import cel, rules, selectors, structural
from fairlead_local.apiserver.metadata import label_problems
from fairlead_local.apiserver.resources import ResourceType, ScalePaths
from fairlead_local.apiserver.status import Json, StatusError, Violation, bad_request, invalid_value

_MOST_REPLICAS = 2**31 - 1
_GO_TYPES = {
    bool: "bool",
    int: "float64",  # one that does not fit into 64 bits
    float: "float64",
    str: "string",
    list: "[]interface {}",
    dict: "map[string]interface {}",
}
"""Type of a JSON value that is no count → name in messages of the genuine server."""


class FieldValidation(StrEnum):
    """Treatment of unknown fields: dropped, dropped with a warning, or the request refused."""

    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A decoded body, and warnings for the client."""

    object: Json
    warnings: tuple[str, ...] = ()

    @contextmanager
    def warning(self) -> Iterator[None]:
        """Refusals inside the block carry the warnings too."""
        try:
            yield
        except StatusError as error:
            error.warnings = self.warnings
            raise


def decode(resource: ResourceType, body: Json, validation: FieldValidation) -> Admitted:
    """The body without unknown fields. Strict validation raises 400, naming each unknown field."""
    known, unknown = structural.prune(resource.schema, body, root=True)
    if not unknown or validation is FieldValidation.IGNORE:
        return Admitted(known)
    sentences = [f'unknown field "{path}"' for path in unknown]
    if validation is FieldValidation.STRICT:
        subject = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        raise bad_request(f"{subject}: strict decoding error: {', '.join(sentences)}")
    return Admitted(known, tuple(sentences))


def refuse_undeclared(resource: ResourceType, config: Json) -> None:
    """Raises 400 for unknown fields of a server-side apply, at any validation level: the manager would own them."""
    _, unknown = structural.prune(resource.schema, config, root=True)
    if unknown:
        metadata = config.get("metadata") or {}
        where = (
            f"{metadata.get('namespace', '')}/{metadata.get('name', '')}; {resource.api_version}, Kind={resource.kind}"
        )
        fields = "\n".join(f".{path}: field not declared in schema" for path in unknown)
        raise bad_request(f"failed to create typed patch object ({where}): {fields}")


def admit(resource: ResourceType, obj: Json, old: Json | None) -> Json:
    """`obj` with defaults, valid as a new state of `old` (None: it is created); raises 422 with everything wrong."""
    return _admit_custom(resource, obj, old) if resource.custom else _admit_built_in(resource, obj, old)


def _admit_built_in(resource: ResourceType, obj: Json, old: Json | None) -> Json:
    obj = structural.apply_defaults(resource.schema, _without_nulls(obj))
    _refuse(resource, obj, structural.validate(resource.schema, obj))
    _refuse(resource, obj, label_problems(obj))
    obj = rules.complete(resource.kind, obj)
    _refuse(resource, obj, rules.check(resource.kind, obj, old))
    return obj


def _admit_custom(resource: ResourceType, obj: Json, old: Json | None) -> Json:
    """Rules are checked together with the schema, except after `BLOCKING` violations. Violations in unchanged parts of
    an update are tolerated, since the definition may have become stricter."""
    obj = {**obj, "metadata": _without_nulls(obj["metadata"])}
    obj = structural.apply_defaults(resource.schema, structural.prune_nulls(resource.schema, obj))
    before = None
    if old is not None:  # as the present definition reads it: without unknown fields, with defaults
        before = structural.apply_defaults(resource.schema, structural.prune(resource.schema, old, root=True)[0])
    violations = structural.validate(resource.schema, obj, old=before)
    blocked = any(violation.kind in structural.BLOCKING for violation in violations)
    violations += _scale_problems(resource.scale, obj)
    if not blocked:
        violations += [*label_problems(obj), *cel.check_rules(resource.schema, obj, before)]
    _refuse(resource, obj, violations)
    stored: Json = _as_stored(obj)
    return stored


def _as_stored(value: Any) -> Any:
    """2.0 comes back as 2: API servers write whole doubles without a point."""
    if isinstance(value, dict):
        return {field: _as_stored(item) for field, item in value.items()}
    if isinstance(value, list):
        return [_as_stored(item) for item in value]
    return int(value) if isinstance(value, float) and is_whole(value) else value


def _refuse(resource: ResourceType, obj: Json, violations: list[Violation]) -> None:
    if violations:
        metadata = obj["metadata"]
        raise resource.invalid(metadata.get("name") or metadata.get("generateName") or "", *violations)


def _without_nulls(value: Any) -> Any:
    """Built-in kinds have no nulls: one that is sent means that the field is absent."""
    if isinstance(value, dict):
        return {field: _without_nulls(item) for field, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _scale_problems(paths: ScalePaths | None, obj: Json) -> list[Violation]:
    """Violations at the paths of a scale subresource, independent of the schema: each count must be a whole number from
    0, and the selector a text. Absent values are fine."""
    if paths is None:
        return []
    found = []
    for path in (paths.spec_replicas, paths.status_replicas):
        if (count := selectors.find(obj, path)) is None:
            continue
        # 2.0 is no whole number here: the server decodes no number with a point as an integer.
        if isinstance(count, bool) or not isinstance(count, int) or abs(count) >= 2**63:
            found.append(_not_of_type(path, count, "int64"))
        elif count < 0:
            found.append(invalid_value(path, f"{count}: should be a non-negative integer"))
        elif count > _MOST_REPLICAS:
            found.append(invalid_value(path, f"{count}: should be less than or equal to {_MOST_REPLICAS}"))
    if paths.selector and not isinstance(selector := selectors.find(obj, paths.selector), str | None):
        found.append(_not_of_type(paths.selector, selector, "string"))
    return found


def _not_of_type(path: str, found: Any, wanted: str) -> Violation:
    """The genuine server shows an empty value here."""
    empty = 0 if wanted == "int64" else '""'
    kind = _GO_TYPES[type(found)]
    return invalid_value(path, f"{empty}: {path} accessor error: {found} is of the type {kind}, expected {wanted}")
