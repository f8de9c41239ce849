"""Errors → answers in OpenAI's shape, for every refused request. The status tells the client's options:

400 = this request is wrong; 404 = no such thing here; 408 = it came too slowly; 410 = list again; 429 = try again
later, nothing was started; 503 = this process cannot serve now, another may; 500 = it failed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

import msgspec

from fairlead_common.wire import messages
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
    """A `RequestError` with a status of its own. `headers`: extra headers of the answer."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None,
        *,
        field: str | None = None,
        outcome: Outcome = Outcome.INVALID,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(field, message, code)
        self.status, self.outcome, self.headers = status, outcome, headers


class NotFound(StatusError):
    """There is no such path or model here."""

    def __init__(self, field: str | None, message: str, code: str | None) -> None:
        super().__init__(404, message, code, field=field, outcome=Outcome.NOT_FOUND)


class Gone(StatusError):
    """The client refers to a state that is not known here any more."""

    def __init__(self, message: str) -> None:
        super().__init__(410, message, "gone", outcome=Outcome.GONE)


def method_not_allowed(method: str, allowed: str) -> StatusError:
    """The path exists for other methods; `allowed` is the value of the Allow header."""
    text = f"{method} is not possible here; use {allowed}"
    return StatusError(405, text, "method_not_allowed", headers={"allow": allowed})


class ErrorObject(msgspec.Struct, frozen=True):
    """What OpenAI's clients show of an error."""

    message: str
    type: str
    param: str | None
    """The wrong field of the request; None = no field in particular."""
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
        refused = Refusal(400, Outcome.INVALID, "invalid_request_error", error.message, error.field, error.code)
        if isinstance(error, StatusError):
            return replace(refused, status=error.status, outcome=error.outcome, headers=error.headers)
        return refused
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
