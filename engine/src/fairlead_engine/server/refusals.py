"""Errors → answers in OpenAI's shape. Every refused request gets one, with the status that says what a client may do.

400 = this request is wrong; 404 = no such thing here; 408 = it came too slowly; 410 = list
again; 429 = try again later, nothing was
started; 503 = this process cannot serve now, another may; 500 = it failed.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from fairlead_engine.errors import Draining, EngineDead, EngineError, EngineGone, NotReady, QueueFull, RequestError
from fairlead_protocol import messages

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


class NotFound(RequestError):
    """There is no such path or model here (404)."""


class MethodNotAllowed(RequestError):
    """The path exists, for other methods (405); `allowed` lists them as the Allow header does."""

    def __init__(self, method: str, allowed: str) -> None:
        self.allowed = allowed
        super().__init__(None, f"{method} is not possible here; use {allowed}", "method_not_allowed")


class BodyTooLarge(RequestError):
    """The request body exceeds the server's limit (413)."""

    def __init__(self, limit: int) -> None:
        super().__init__(None, f"the request body is larger than {limit} bytes", "request_too_large")


class UnsupportedEncoding(RequestError):
    """The request body is compressed (415)."""

    def __init__(self, encoding: str) -> None:
        message = f"the request body has content-encoding {encoding!r}; send it as plain JSON"
        super().__init__(None, message, "unsupported_content_encoding")


class BodyTooSlow(RequestError):
    """The request body did not arrive in time (408); the connection is closed, its rest would be read as a request."""

    def __init__(self, limit_seconds: float) -> None:
        super().__init__(None, f"the request body did not arrive within {limit_seconds:g} s", "request_timeout")


class Gone(RequestError):
    """What the client wants to go on from is not known here any more (410)."""

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
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """OpenAI's error object as JSON."""
        return msgspec.json.encode(ErrorReply(ErrorObject(self.message, self.kind, self.param, self.code)))


def refusal(error: Exception) -> Refusal:
    """The answer to a request that ended with `error`."""
    if isinstance(error, RequestError):
        return _request_refusal(error)
    if isinstance(error, QueueFull):
        headers = _headers(messages.REASON_ENGINE_FULL, math.ceil(error.retry_after_seconds))
        return Refusal(429, Outcome.ENGINE_FULL, "rate_limit_error", error.message, code="engine_full", headers=headers)
    if isinstance(error, Draining):
        headers = _headers(messages.REASON_DRAINING, DRAINING_RETRY_SECONDS)
        return _unavailable(error, Outcome.DRAINING, "draining", headers)
    if isinstance(error, NotReady):
        headers = _headers(messages.REASON_LOADING, LOADING_RETRY_SECONDS)
        return _unavailable(error, Outcome.LOADING, "loading", headers)
    if isinstance(error, EngineGone):
        headers = _headers(messages.REASON_ENGINE_DEAD, LOADING_RETRY_SECONDS)
        return _unavailable(error, Outcome.FAILED, messages.CODE_ENGINE_DEAD, headers)
    if isinstance(error, EngineError):
        code = messages.CODE_ENGINE_DEAD if isinstance(error, EngineDead) else "engine_error"
        return Refusal(500, Outcome.FAILED, "server_error", error.message, code=code)
    return Refusal(500, Outcome.FAILED, "server_error", "internal error; the server's log has the details")


def _request_refusal(error: RequestError) -> Refusal:
    status, outcome, headers = 400, Outcome.INVALID, {}
    if isinstance(error, NotFound):
        status, outcome = 404, Outcome.NOT_FOUND
    elif isinstance(error, MethodNotAllowed):
        status, headers = 405, {"allow": error.allowed}
    elif isinstance(error, BodyTooLarge):
        status, outcome = 413, Outcome.TOO_LARGE
    elif isinstance(error, UnsupportedEncoding):
        status = 415
    elif isinstance(error, BodyTooSlow):
        status, outcome, headers = 408, Outcome.TOO_SLOW, {"connection": "close"}
    elif isinstance(error, Gone):
        status, outcome = 410, Outcome.GONE
    return Refusal(status, outcome, "invalid_request_error", error.message, error.field, error.code, headers)


def _unavailable(error: EngineError, outcome: Outcome, code: str, headers: dict[str, str]) -> Refusal:
    return Refusal(503, outcome, "service_unavailable_error", error.message, code=code, headers=headers)


def _headers(reason: str, retry_after_seconds: int) -> dict[str, str]:
    return {messages.HEADER_REASON: reason, "retry-after": str(retry_after_seconds)}
