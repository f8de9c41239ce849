"""Errors as the Kubernetes API reports them: an `StatusError` raised anywhere below HTTP becomes a `Status` body."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
"""A decoded JSON object."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One field at fault: dotted `field`, machine-readable `reason` (`FieldValueRequired`, …) and a sentence."""

    field: str
    reason: str
    message: str


class StatusError(Exception):
    """A refused request: the HTTP `code`, the CamelCase `reason` clients switch on, and a sentence for people."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.warnings: tuple[str, ...] = ()
        """What else the client should know, such as fields that were dropped before the object was refused."""

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


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def not_found(qualified: str, name: str) -> StatusError:
    """`qualified` is `plural` or `plural.group`."""
    plural, _, group = qualified.partition(".")
    details = {"name": name, "kind": plural} | ({"group": group} if group else {})
    return StatusError(404, "NotFound", f'{qualified} "{name}" not found', details)


def no_such_path() -> StatusError:
    """What a real API server answers where it serves nothing: clients read it as "this API is not installed"."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def already_exists(qualified: str, name: str) -> StatusError:
    return StatusError(409, "AlreadyExists", f'{qualified} "{name}" already exists', {"name": name, "kind": qualified})


def conflict(qualified: str, name: str, why: str) -> StatusError:
    text = f'Operation cannot be fulfilled on {qualified} "{name}": {why}'
    return StatusError(409, "Conflict", text, {"name": name, "kind": qualified})


STALE = "the object has been modified; please apply your changes to the latest version and try again"


def apply_conflict(message: str, causes: Sequence[Cause]) -> StatusError:
    """Server-side apply met fields that other managers own; `causes` name each field and its manager."""
    return StatusError(409, "Conflict", message, {"causes": _causes(causes)})


def invalid(kind: str, group: str, name: str, causes: Sequence[Cause]) -> StatusError:
    """422: the object was understood and breaks a rule; every broken rule is listed."""
    qualified = f"{kind}.{group}" if group else kind
    sentences = [f"{cause.field}: {cause.message}" for cause in causes]
    text = sentences[0] if len(sentences) == 1 else f"[{', '.join(sentences)}]"
    details = {"name": name, "group": group, "kind": kind, "causes": _causes(causes)}
    return StatusError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', details)


def forbidden(qualified: str, name: str, why: str) -> StatusError:
    return StatusError(403, "Forbidden", f'{qualified} "{name}" is forbidden: {why}', {"name": name, "kind": qualified})


def expired(message: str) -> StatusError:
    """410: the resourceVersion is no longer (or not yet) known; the client lists again."""
    return StatusError(410, "Expired", message)


def method_not_allowed() -> StatusError:
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unsupported_media_type(message: str) -> StatusError:
    return StatusError(415, "UnsupportedMediaType", message)


def not_implemented(what: str) -> StatusError:
    """Something a cluster offers and local mode does not; `what` is the sentence's subject and verb."""
    return StatusError(501, "NotImplemented", f"local mode does not support {what}")


def internal_error(message: str) -> StatusError:
    return StatusError(500, "InternalError", f"Internal error occurred: {message}")


def success(details: Json) -> Json:
    """The `Status` a finished deletion answers."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _causes(causes: Sequence[Cause]) -> list[Json]:
    return [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes]
