"""Errors → answers in OpenAI's shape. Every refused request gets one, with the status that says what a client may do.

400 = this request is wrong; 404 = no such thing here; 408 = it came too slowly; 410 = list again; 429 = try again
later, nothing was started; 503 = this process cannot serve now, another may; 500 = it failed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import msgspec

from fairlead_common import messages
from fairlead_engine.errors import Draining, EngineDead, EngineError, EngineGone, NotReady, QueueFull, RequestError

DRAINING_RETRY_SECONDS = 1
LOADING_RETRY_SECONDS = 5


class Outcome(StrEnum):
    """How a request ended, as metrics and the log count it."""

    OK = "ok"
    INVALID = "invalid"
    NOT_FOUND = "not-found"
    TOO_LARGE = "too-large"
    TOO_SLOW = "too-slow"
    GONE = "gone"
    ENGINE_FULL = "engine-full"
    LOADING = "loading"
    DRAINING = "draining"
    FAILED = "failed"
    DISCONNECTED = "disconnected"


class StatusError(RequestError):
    """A `RequestError` with a status of its own."""

    status = 400
    outcome = Outcome.INVALID
    headers: Mapping[str, str] = MappingProxyType({})
    """Extra headers of the answer."""


class NotFound(StatusError):
    """There is no such path or model here."""

    status, outcome = 404, Outcome.NOT_FOUND


class MethodNotAllowed(StatusError):
    """The path exists for other methods; `allowed` is the value of the Allow header."""

    status = 405

    def __init__(self, method: str, allowed: str) -> None:
        self.headers = {"allow": allowed}
        super().__init__(None, f"{method} is not possible here; use {allowed}", "method_not_allowed")


class BodyTooLarge(StatusError):
    """The request body exceeds the server's limit."""

    status, outcome = 413, Outcome.TOO_LARGE

    def __init__(self, limit: int) -> None:
        super().__init__(None, f"the request body is larger than {limit} bytes", "request_too_large")


class UnsupportedEncoding(StatusError):
    """The request body is compressed."""

    status = 415

    def __init__(self, encoding: str) -> None:
        message = f"the request body has content-encoding {encoding!r}; send it as plain JSON"
        super().__init__(None, message, "unsupported_content_encoding")


class BodyTooSlow(StatusError):
    """The request body did not arrive in time. The connection is closed: the body's rest would be read as a request."""

    status, outcome, headers = 408, Outcome.TOO_SLOW, MappingProxyType({"connection": "close"})

    def __init__(self, limit_seconds: float) -> None:
        super().__init__(None, f"the request body did not arrive within {limit_seconds:g} s", "request_timeout")


class Gone(StatusError):
    """The client refers to a state that is not known here any more."""

    status, outcome = 410, Outcome.GONE

    def __init__(self, message: str) -> None:
        super().__init__(None, message, "gone")


class ErrorObject(msgspec.Struct, frozen=True):
    """What OpenAI's clients show of an error."""

    message: str
    type: str
    param: str | None
    """The request's field that is wrong, where one is."""
    code: str | None


class ErrorReply(msgspec.Struct, frozen=True):
    """The body of every refusal, and the last event of a stream that fails."""

    error: ErrorObject


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as HTTP: status, OpenAI's error object, extra headers."""

    status: int
    outcome: Outcome
    kind: str
    """OpenAI's `type`."""
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """OpenAI's error object as JSON."""
        return msgspec.json.encode(ErrorReply(ErrorObject(self.message, self.kind, self.param, self.code)))


_UNAVAILABLE: tuple[tuple[type[EngineError], Outcome, str, str, int], ...] = (
    (Draining, Outcome.DRAINING, "draining", messages.REASON_DRAINING, DRAINING_RETRY_SECONDS),
    (NotReady, Outcome.LOADING, "loading", messages.REASON_LOADING, LOADING_RETRY_SECONDS),
    (EngineGone, Outcome.FAILED, messages.CODE_ENGINE_DEAD, messages.REASON_ENGINE_DEAD, LOADING_RETRY_SECONDS),
)
"""Errors answered with 503: outcome, code, reason header, seconds until a retry."""


def refusal(error: Exception) -> Refusal:
    """The answer to a request that ended with `error`."""
    if isinstance(error, RequestError):
        how = error if isinstance(error, StatusError) else StatusError
        kind, headers = "invalid_request_error", how.headers
        return Refusal(how.status, how.outcome, kind, error.message, error.field, error.code, headers)
    if isinstance(error, QueueFull):
        told = _headers(messages.REASON_ENGINE_FULL, math.ceil(error.retry_after_seconds))
        return Refusal(429, Outcome.ENGINE_FULL, "rate_limit_error", error.message, code="engine_full", headers=told)
    for unavailable, outcome, code, reason, seconds in _UNAVAILABLE:
        if isinstance(error, unavailable):
            told = _headers(reason, seconds)
            return Refusal(503, outcome, "service_unavailable_error", error.message, code=code, headers=told)
    if isinstance(error, EngineError):
        code = messages.CODE_ENGINE_DEAD if isinstance(error, EngineDead) else "engine_error"
        return Refusal(500, Outcome.FAILED, "server_error", error.message, code=code)
    return Refusal(500, Outcome.FAILED, "server_error", "internal error; the server's log has the details")


def _headers(reason: str, retry_after_seconds: int) -> dict[str, str]:
    return {messages.HEADER_REASON: reason, "retry-after": str(retry_after_seconds)}
