"""What every object passes before it is stored: unknown fields, defaults, schema, its kind's rules, CEL rules. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fairlead.api import structural
from fairlead.local.apiserver.kinds import rules
from fairlead.local.apiserver.metadata import label_problems
from fairlead.local.apiserver.resources import ResourceType
from fairlead.local.apiserver.status import Cause, Json, bad_request, invalid


class FieldValidation(StrEnum):
    """What happens to a field the schema does not know: dropped, dropped with a warning, or the request refused."""

    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"


@dataclass(frozen=True, slots=True)
class Admitted:
    object: Json
    warnings: tuple[str, ...] = ()


def decode(resource: ResourceType, body: Json, validation: FieldValidation) -> Admitted:
    """The body without fields the schema does not know. Raises 400, naming each, when validation is strict."""
    known, unknown = structural.prune(resource.schema, body, root=True)
    if not unknown or validation is FieldValidation.IGNORE:
        return Admitted(known)
    sentences = [f'unknown field "{path}"' for path in unknown]
    if validation is FieldValidation.STRICT:
        subject = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        raise bad_request(f"{subject}: strict decoding error: {', '.join(sentences)}")
    return Admitted(known, tuple(sentences))


def refuse_undeclared(resource: ResourceType, config: Json) -> None:
    """Server-side apply owns what it is given, so it refuses unknown fields whatever the request's validation level."""
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
    name = obj["metadata"].get("name") or obj["metadata"].get("generateName") or ""
    if resource.custom:
        obj = {**obj, "metadata": _without_nulls(obj["metadata"])}
    else:
        obj = _without_nulls(obj)
    obj = structural.apply_defaults(resource.schema, obj)
    violations = structural.validate(resource.schema, obj)
    if violations:
        raise invalid(resource.kind, resource.group, name, _causes(violations))
    if causes := label_problems(obj):
        raise invalid(resource.kind, resource.group, name, causes)
    if not resource.custom:
        obj = rules.complete(resource.kind, obj)
        if causes := rules.check(resource.kind, obj, old):
            raise invalid(resource.kind, resource.group, name, causes)
        return obj
    if violations := structural.check_rules(resource.schema, obj, old):
        raise invalid(resource.kind, resource.group, name, _causes(violations))
    return obj


def _causes(violations: list[structural.Violation]) -> list[Cause]:
    return [Cause(violation.path or "<nil>", violation.kind, violation.message) for violation in violations]


def _without_nulls(value: Any) -> Any:
    """Built-in kinds have no nulls: one that is sent means that the field is absent."""
    if isinstance(value, dict):
        return {field: _without_nulls(item) for field, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
