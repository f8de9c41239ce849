"""Errors as the Kubernetes API reports them: a `StatusError` raised anywhere below HTTP becomes a `Status` body."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

Json = dict[str, Any]
"""A decoded JSON object."""


class ViolationKind(StrEnum):
    """Kind of a violation: `details.causes[].reason` of Kubernetes."""

    REQUIRED = "FieldValueRequired"
    INVALID = "FieldValueInvalid"
    TYPE = "FieldValueTypeInvalid"
    NOT_SUPPORTED = "FieldValueNotSupported"
    NOT_FOUND = "FieldValueNotFound"
    FORBIDDEN = "FieldValueForbidden"
    TOO_LONG = "FieldValueTooLong"
    TOO_MANY = "FieldValueTooMany"
    DUPLICATE = "FieldValueDuplicate"
    CONFLICT = "FieldManagerConflict"


@dataclass(frozen=True, slots=True)
class Violation:
    """One field at fault."""

    path: str
    """As in `spec.autoscaling.minReplicas` or `spec.aliases[1]`; empty = the whole object."""
    kind: ViolationKind
    message: str
    """The sentence after `path: `."""

    def __str__(self) -> str:
        return f"{self.path or '<nil>'}: {self.message}"


def required_value(path: str, why: str = "") -> Violation:
    return Violation(path, ViolationKind.REQUIRED, f"Required value: {why}" if why else "Required value")


def invalid_value(path: str, text: str) -> Violation:
    return Violation(path, ViolationKind.INVALID, f"Invalid value: {text}")


def forbidden_value(path: str, why: str) -> Violation:
    return Violation(path, ViolationKind.FORBIDDEN, f"Forbidden: {why}")


def unsupported_value(path: str, text: str) -> Violation:
    return Violation(path, ViolationKind.NOT_SUPPORTED, f"Unsupported value: {text}")


class StatusError(Exception):
    """A refused request: the HTTP `code`, the CamelCase `reason` clients switch on, and a sentence for people."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.warnings: tuple[str, ...] = ()
        """Sentences for the client beside the message, such as fields dropped before the refusal."""

    def body(self) -> Json:
        """The `Status` object sent to the client."""
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            status["details"] = self.details
        return status


bad_request = partial(StatusError, 400, "BadRequest")
expired = partial(StatusError, 410, "Expired")
"""The resourceVersion is no longer (or not yet) known; the client lists again."""
unsupported_media_type = partial(StatusError, 415, "UnsupportedMediaType")
method_not_allowed = partial(
    StatusError, 405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
)
no_such_path = partial(StatusError, 404, "NotFound", "the server could not find the requested resource")
"""The answer where nothing is served: clients read it as "this API is not installed"."""


def not_found(qualified: str, name: str) -> StatusError:
    """`qualified` is `plural` or `plural.group`."""
    plural, _, group = qualified.partition(".")
    details = {"name": name, "kind": plural} | ({"group": group} if group else {})
    return StatusError(404, "NotFound", f'{qualified} "{name}" not found', details)


def already_exists(qualified: str, name: str) -> StatusError:
    return StatusError(409, "AlreadyExists", f'{qualified} "{name}" already exists', {"name": name, "kind": qualified})


def conflict(qualified: str, name: str, why: str) -> StatusError:
    text = f'Operation cannot be fulfilled on {qualified} "{name}": {why}'
    return StatusError(409, "Conflict", text, {"name": name, "kind": qualified})


STALE = "the object has been modified; please apply your changes to the latest version and try again"


def invalid(kind: str, group: str, name: str, violations: Iterable[Violation]) -> StatusError:
    """422: the object was understood and breaks rules; every broken rule is listed."""
    qualified = f"{kind}.{group}" if group else kind
    listed = list(violations)
    text = str(listed[0]) if len(listed) == 1 else f"[{', '.join(map(str, listed))}]"
    details = {"name": name, "group": group, "kind": kind, "causes": causes(listed)}
    return StatusError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', details)


def forbidden(qualified: str, name: str, why: str) -> StatusError:
    return StatusError(403, "Forbidden", f'{qualified} "{name}" is forbidden: {why}', {"name": name, "kind": qualified})


def not_implemented(what: str) -> StatusError:
    """For a feature of clusters; `what`: the object of the sentence."""
    return StatusError(501, "NotImplemented", f"local mode does not support {what}")


def internal_error(message: str) -> StatusError:
    return StatusError(500, "InternalError", f"Internal error occurred: {message}")


def success(details: Json) -> Json:
    """The `Status` a finished deletion answers."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def causes(violations: Iterable[Violation]) -> list[Json]:
    """`details.causes` of a Status."""
    return [{"reason": each.kind, "message": each.message, "field": each.path or "<nil>"} for each in violations]
