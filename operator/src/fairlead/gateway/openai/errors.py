"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`. Every refusal of the gateway is one of
these.

OpenAIError
├── bad_request, body_too_large, answer_too_large, …     the client's: 4xx
├── invalid_api_key                                      401
├── model_not_found, unknown_path, method_not_allowed    404, 405
├── refused                                              the queue's: 429, 503
└── upstream_failed, replicas_died, upstream_timed_out   the replicas': 502, 503, 504
"""

import math

import msgspec

from fairlead.gateway.request_outcomes import RequestOutcome
from fairlead.routing.queue_outcomes import QueueOutcome

Header = tuple[bytes, bytes]
MAX_MESSAGE_LENGTH = 1000
"""Characters of what a refused client is told."""


class OpenAIError(Exception):
    """An answer with an HTTP status of 400 or above. `message` is for the client to read, `code` for its program."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str,
        code: str | None = None,
        param: str | None = None,
        outcome: str = RequestOutcome.CLIENT_ERROR,
        retry_after: float | None = None,
        headers: tuple[Header, ...] = (),
    ) -> None:
        """`message`: may quote the request, and is shortened. `outcome`: what the request is counted under.
        `retry_after`: seconds, sent as a header; None = no such header."""
        if len(message) > MAX_MESSAGE_LENGTH:
            message = message[: MAX_MESSAGE_LENGTH - 1] + "…"
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.outcome = outcome
        self.headers = headers
        if retry_after is not None:
            self.headers += ((b"retry-after", str(max(1, math.ceil(retry_after))).encode()),)

    def body(self) -> bytes:
        """The JSON body."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """The same as a server-sent event, for a stream that has begun."""
        return b"data: " + self.body() + b"\n\n"


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> OpenAIError:
    """400: what the client sent cannot be understood."""
    return OpenAIError(400, message, type="invalid_request_error", param=param, code=code)


def invalid_api_key(message: str) -> OpenAIError:
    """401: who asks is not known. `message` must not quote what was sent."""
    challenge = ((b"www-authenticate", b"Bearer"),)
    return OpenAIError(
        401,
        message,
        type="invalid_request_error",
        code="invalid_api_key",
        outcome=RequestOutcome.UNAUTHORIZED,
        headers=challenge,
    )


def unsupported_encoding(encoding: str) -> OpenAIError:
    """415: the body is compressed."""
    message = f"The request body has content-encoding {encoding!r}; send it as plain JSON."
    return OpenAIError(415, message, type="invalid_request_error", code="unsupported_content_encoding")


def body_too_large(limit: int) -> OpenAIError:
    """413. The connection stays open and the rest is read to nowhere, or the client could be cut before it reads
    this."""
    message = f"The request body is larger than the {limit} bytes that this gateway takes."
    return OpenAIError(413, message, type="invalid_request_error", code="request_too_large")


def too_many_bodies() -> OpenAIError:
    """503: all bodies together are too large."""
    message = "This gateway is receiving more request bodies at once than it has memory for."
    return _overloaded(message, code="overloaded")


def headers_too_large(limit: int) -> OpenAIError:
    """431; the connection is closed."""
    message = f"The request's headers are larger than the {limit} bytes that this gateway takes."
    return OpenAIError(431, message, type="invalid_request_error", code="headers_too_large")


def too_many_headers(limit: int) -> OpenAIError:
    """431; the connection is closed."""
    message = f"The request has more than the {limit} headers and trailers that this gateway takes."
    return OpenAIError(431, message, type="invalid_request_error", code="headers_too_large")


def too_much_framing(limit: int) -> OpenAIError:
    """400; the connection is closed."""
    message = (
        f"More than {limit} bytes of chunk sizes, chunk extensions and trailers came with the request's body, beyond "
        "its own size; send it in larger chunks, or whole with a Content-Length."
    )
    return bad_request(message, code="invalid_http")


def too_many_connections(limit: int) -> OpenAIError:
    """503; the connection is closed."""
    message = f"This gateway has more than the {limit} connections that it takes at once."
    return _overloaded(message, code="too_many_connections")


def too_many_followers(limit: int) -> OpenAIError:
    """503, on the control port."""
    return _overloaded(f"This gateway's signals are followed by {limit} already.", code="too_many_followers")


def _overloaded(message: str, *, code: str) -> OpenAIError:
    return OpenAIError(
        503, message, type="service_unavailable", code=code, outcome=RequestOutcome.OVERLOADED, retry_after=1
    )


def too_many_requests_ahead() -> OpenAIError:
    """429; the connection is closed."""
    message = "More requests than are kept were sent before the first on their connection was answered."
    return OpenAIError(429, message, type="rate_limit_error", code="too_many_requests", retry_after=1)


def body_too_slow(seconds: float) -> OpenAIError:
    """408; the connection is closed."""
    message = f"The request body did not arrive within {seconds:g} seconds."
    close = ((b"connection", b"close"),)
    return OpenAIError(408, message, type="invalid_request_error", code="request_timeout", headers=close)


def unknown_path(method: str, path: str) -> OpenAIError:
    """404: no such endpoint."""
    return OpenAIError(404, f"Invalid URL ({method} {path}).", type="invalid_request_error", code="unknown_url")


def method_not_allowed(method: str, path: str, allowed: str) -> OpenAIError:
    """405."""
    message = f"Not allowed to {method} on {path}; use {allowed}."
    allow = ((b"allow", allowed.encode()),)
    return OpenAIError(405, message, type="invalid_request_error", code="method_not_allowed", headers=allow)


def model_not_found(name: str, *, here: str | None = None) -> OpenAIError:
    """404. `here`: the LLMDeployment that the request chose by path or Host, whose name it is not."""
    place = f" at {here}" if here else ""
    message = f"The model {name!r} does not exist{place}."
    return OpenAIError(404, message, type="invalid_request_error", param="model", code="model_not_found")


def adapter_not_found(message: str) -> OpenAIError:
    """404: the model is there."""
    return OpenAIError(404, message, type="invalid_request_error", param="model", code="model_not_found")


def refused(outcome: QueueOutcome, message: str, *, retry_after: float | None) -> OpenAIError:
    """The queue's refusal, with the status that the outcome is tied to."""
    type = "rate_limit_error" if outcome.http_status == 429 else "service_unavailable"
    return OpenAIError(
        outcome.http_status, message, type=type, code=outcome.label, outcome=outcome.label, retry_after=retry_after
    )


def not_synced() -> OpenAIError:
    """503: this gateway has just started and does not know the models yet."""
    message = "This gateway has just started and is still learning which models there are."
    return OpenAIError(
        503, message, type="service_unavailable", code="starting", outcome=RequestOutcome.STARTING, retry_after=1
    )


def answer_too_large(what: str) -> OpenAIError:
    """400: the replica is well, and sending the request again would give as large an answer."""
    message = f"The answer has {what}, which is more than this gateway takes; lower n, max_tokens or top_logprobs"
    return OpenAIError(400, f"{message}, or stream it.", type="invalid_request_error", code="answer_too_large")


def upstream_failed(message: str, *, status: int = 502) -> OpenAIError:
    """502 or 503: replicas failed."""
    return OpenAIError(
        status,
        message,
        type="server_error",
        code="replica_failed",
        outcome=RequestOutcome.REPLICA_FAILED,
        retry_after=1 if status == 503 else None,
    )


def replicas_died(number: int, *, is_to_blame: bool) -> OpenAIError:
    """So many replicas broke down with this one request. 502 where nothing else can have caused the last time: OpenAI's
    clients leave it at that, for the header. 503 where others were there that can: it may well be served next time."""
    if not is_to_blame:
        message = f"{number} replicas broke down while they had this request among others; send it again."
        return upstream_failed(message, status=503)
    message = f"{number} replicas broke down on this request, so it is not tried on another; do not send it again."
    return OpenAIError(
        502,
        message,
        type="server_error",
        code="replica_failed",
        outcome=RequestOutcome.REPLICA_FAILED,
        headers=((b"x-should-retry", b"false"),),
    )


def upstream_timed_out(message: str) -> OpenAIError:
    """504: a replica took the request and then kept silent."""
    return OpenAIError(
        504, message, type="server_error", code="replica_timeout", outcome=RequestOutcome.REPLICA_TIMEOUT
    )


def shutting_down() -> OpenAIError:
    """503: this gateway is going and its time to finish is over."""
    message = "This gateway is shutting down and could not finish the request; send it again."
    return OpenAIError(
        503, message, type="service_unavailable", code="shutting_down", outcome=RequestOutcome.CUT, retry_after=1
    )


def internal_error() -> OpenAIError:
    """500: a defect of the gateway; the log has the rest."""
    message = "The gateway failed on this request."
    return OpenAIError(500, message, type="server_error", code="internal_error", outcome=RequestOutcome.INTERNAL_ERROR)
