"""Errors in OpenAI's shape, `{"error": {"message", "type", "param", "code"}}`: every refusal of the gateway, the line's
included. Pure."""

import math
from collections.abc import Sequence
from enum import Enum, StrEnum

import msgspec

from fairlead.fleet.directory import Pool, ServedAdapter
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead_common.http.bodies import BodyFault, BodyReader
from fairlead_common.http.framing import Fault
from fairlead_common.openai.prompts import PromptError
from fairlead_common.wire.adapters import UnknownAdapter

Header = tuple[bytes, bytes]
MAX_MESSAGE_LENGTH = 1000
"""Characters of what a refused client is told."""
_TYPES = {429: "rate_limit_error", 503: "service_unavailable"}


class RequestOutcome(StrEnum):
    """How a request ended, beside the line's own `QueueOutcome`: a closed set of metric labels."""

    COMPLETED = "completed"
    """The client has the whole answer."""
    CLIENT_ERROR = "client_error"
    """Refused as the client's mistake, by the gateway or by an engine."""
    UNAUTHORIZED = "unauthorized"
    """Refused for want of a valid API key."""
    OVERLOADED = "overloaded"
    """Refused because this gateway has more connections, or partly received bodies, than it takes."""
    ENGINE_ERROR = "engine_error"
    """An engine answered with an error of its own."""
    REPLICA_FAILED = "replica_failed"
    """Replicas broke down on it."""
    REPLICA_TIMEOUT = "replica_timeout"
    """A replica took it and then kept silent."""
    DISCONNECTED = "disconnected"
    """The client went away first."""
    STARTING = "starting"
    """This gateway did not know the models yet."""
    CUT = "cut"
    """This gateway was shut down before it was finished."""
    INTERNAL_ERROR = "internal_error"
    """A defect of the gateway."""


class OpenAIError(Exception):
    """An answer with an HTTP status of 400 or above. `message` is for the client to read, `code` for its program."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        code: str | None = None,
        param: str | None = None,
        outcome: str = RequestOutcome.CLIENT_ERROR,
        retry_after: float | None = None,
        headers: tuple[Header, ...] = (),
    ) -> None:
        """`message`: may quote the request, and is shortened. `type`: None = the usual one of the status. `outcome`:
        what the request is counted under. `retry_after`: seconds, sent as a header; None = no such header."""
        if len(message) > MAX_MESSAGE_LENGTH:
            message = message[: MAX_MESSAGE_LENGTH - 1] + "…"
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
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
        """The error as a server-sent event, for a stream that has begun."""
        return b"data: " + self.body() + b"\n\n"


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> OpenAIError:
    """400: what the client sent cannot be understood."""
    return OpenAIError(400, message, param=param, code=code)


def invalid_api_key(message: str) -> OpenAIError:
    """401: who asks is not known. `message` must not quote what was sent."""
    challenge = ((b"www-authenticate", b"Bearer"),)
    return OpenAIError(401, message, code="invalid_api_key", outcome=RequestOutcome.UNAUTHORIZED, headers=challenge)


def http_refusal(fault: Fault, sentence: str, settings: GatewaySettings) -> OpenAIError:
    """400, 429, 431 or 503 for what no application hears of; the connection is closed. `sentence`: what is not HTTP."""
    max_bytes = settings.max_header_bytes
    match fault:
        case Fault.FIELDS:
            fields = f"{settings.max_headers} headers and trailers"
            message = f"The request has more than the {fields} that this gateway takes."
            return OpenAIError(431, message, code="headers_too_large")
        case Fault.HEAD:
            message = f"The request's headers are larger than the {max_bytes} bytes that this gateway takes."
            return OpenAIError(431, message, code="headers_too_large")
        case Fault.FRAMING:
            sentence = (
                f"More than {max_bytes} bytes of chunk sizes, chunk extensions and trailers came with the request's "
                "body, beyond its own size; send it in larger chunks, or whole with a Content-Length."
            )
        case Fault.CONNECTIONS:
            message = f"This gateway has more than the {settings.max_connections} connections that it takes at once."
            return overloaded(message, code="too_many_connections")
        case Fault.AHEAD:
            message = "More requests than are kept were sent before the first on their connection was answered."
            return OpenAIError(429, message, code="too_many_requests", retry_after=1)
    return bad_request(sentence, code="invalid_http")


def unsupported_encoding(encoding: str) -> OpenAIError:
    """415: the body is compressed."""
    message = f"The request body has content-encoding {encoding!r}; send it as plain JSON."
    return OpenAIError(415, message, code="unsupported_content_encoding")


def body_refusal(fault: BodyFault, bodies: BodyReader) -> OpenAIError:
    """413, 408 or 503. After 413 the connection stays open and the rest is discarded, or the client could be cut before
    it reads the answer; after 408 it is closed."""
    if fault is BodyFault.TOO_LARGE:
        message = f"The request body is larger than the {bodies.limit} bytes that this gateway takes."
        return OpenAIError(413, message, code="request_too_large")
    if fault is BodyFault.TOO_SLOW:
        message = f"The request body did not arrive within {bodies.timeout:g} seconds."
        return OpenAIError(408, message, code="request_timeout", headers=((b"connection", b"close"),))
    message = "This gateway is receiving more request bodies at once than it has memory for."
    return overloaded(message, code="overloaded")


def overloaded(message: str, code: str, outcome: str = RequestOutcome.OVERLOADED) -> OpenAIError:
    """503: not now, and not this gateway."""
    return OpenAIError(503, message, code=code, outcome=outcome, retry_after=1)


def not_synced() -> OpenAIError:
    """503: this gateway has just started and does not know the models yet."""
    message = "This gateway has just started and is still learning which models there are."
    return overloaded(message, code="starting", outcome=RequestOutcome.STARTING)


def shutting_down() -> OpenAIError:
    """503: the gateway ends, and the time of its drain is over."""
    message = "This gateway is shutting down and could not finish the request; send it again."
    return overloaded(message, code="shutting_down", outcome=RequestOutcome.CUT)


def unknown_path(method: str, path: str, there: str) -> OpenAIError:
    """404: no such endpoint. `there`: where or what those are that there are."""
    message = f"Invalid URL ({method} {path}); use one of those {there}."
    return OpenAIError(404, message, code="unknown_url")


def body_stalled(seconds: float) -> OpenAIError:
    """408: nothing more of the body came. The connection is closed."""
    message = f"Nothing more of the request body came for {seconds:g} seconds."
    return OpenAIError(408, message, code="request_timeout", headers=((b"connection", b"close"),))


def no_files(path: str) -> OpenAIError:
    """404: this gateway keeps no files."""
    message = f"{path}: files are not kept here; whoever runs this gateway may set --file-store and --response-store."
    return OpenAIError(404, message, code="not_stored")


def not_stored(path: str) -> OpenAIError:
    """404: this gateway has no store of responses."""
    message = f"{path}: responses are not stored here; whoever runs this gateway may set --response-store."
    return OpenAIError(404, message, code="not_stored")


MAX_SHOWN_ID = 128


def request_not_kept(request_id: str, num_kept: int) -> OpenAIError:
    """404: it is not over, was too long ago, was asked with another key, or another gateway served it."""
    message = (
        f"This gateway keeps no request with the id {request_id[:MAX_SHOWN_ID]!r}: it keeps the last {num_kept} that "
        "have ended, and tells each to the key that sent it. Another gateway may have served it."
    )
    return OpenAIError(404, message, code="request_not_kept")


def method_not_allowed(method: str, path: str, allowed: str) -> OpenAIError:
    """405."""
    message = f"Not allowed to {method} on {path}; use {allowed}."
    return OpenAIError(405, message, code="method_not_allowed", headers=((b"allow", allowed.encode()),))


MOST_LISTED_NAMES = 10


def model_not_found(name: str, served: Sequence[str], *, here: str | None = None) -> OpenAIError:
    """404. `served`: names to ask for instead. `here`: the LLMDeployment chosen by path or Host, without this name."""
    listed, num_more = ", ".join(map(repr, served[:MOST_LISTED_NAMES])), len(served) - MOST_LISTED_NAMES
    advice = f"Served: {listed}" if served else "No model is served"
    advice += f" and {num_more} more (GET /v1/models)." if num_more > 0 else "."
    message = f"The model {name!r} does not exist{f' at {here}' if here else ''}. {advice}"
    return OpenAIError(404, message, param="model", code="model_not_found")


def answer_too_large(what: str) -> OpenAIError:
    """400: the replica is well, and sending the request again would give as large an answer."""
    message = f"The answer has {what}, which is more than this gateway takes; lower n, max_tokens or top_logprobs"
    return bad_request(f"{message}, or stream it.", code="answer_too_large")


def upstream_failed(message: str, *, status: int = 502, headers: tuple[Header, ...] = ()) -> OpenAIError:
    """502 or 503: replicas failed."""
    return OpenAIError(
        status,
        message,
        type="server_error",
        code="replica_failed",
        outcome=RequestOutcome.REPLICA_FAILED,
        retry_after=1 if status == 503 else None,
        headers=headers,
    )


def replicas_died(number: int, *, is_to_blame: bool) -> OpenAIError:
    """Several replicas died with this request. 502 where the request alone can be the cause: the header keeps OpenAI's
    clients from retrying. 503 where other requests may be the cause: a retry may well succeed."""
    if not is_to_blame:
        message = f"Replicas broke down {number} times while they had this request among others; send it again."
        return upstream_failed(message, status=503)
    message = f"Replicas broke down {number} times on this request, so it is not tried again; do not send it again."
    return upstream_failed(message, headers=((b"x-should-retry", b"false"),))


def upstream_timed_out(message: str) -> OpenAIError:
    """504: a replica took the request and then kept silent."""
    return OpenAIError(504, message, code="replica_timeout", outcome=RequestOutcome.REPLICA_TIMEOUT)


def internal_error() -> OpenAIError:
    """500: a defect of the gateway; the log has the rest."""
    message = "The gateway failed on this request."
    return OpenAIError(500, message, code="internal_error", outcome=RequestOutcome.INTERNAL_ERROR)


COLD_RETRY_AFTER_SECONDS = 10.0
"""What a client is told to wait when nothing is ready: a model, or an adapter, takes a while to load."""
LONGEST_RETRY_AFTER_SECONDS = 30.0

_NOT_AGAIN = ((b"x-should-retry", b"false"),)
"""Has OpenAI's clients, which retry a 503 by themselves, show the sentence at once."""


class QueueOutcome(Enum):
    """How a request's wait for a replica ends in vain: (metric label, HTTP status, what the client is told). 429 means
    "try later", 503 "nothing can serve this"."""

    QUEUE_FULL = ("queue_full", 429, "Too many requests wait for the model {name!r} already; try again later.")
    """As many requests wait already as may."""
    QUEUE_TIMEOUT = (
        "queue_timeout",
        429,
        "Every replica of the model {name!r} was full for {limits.max_queue_time:g} seconds; try again later.",
    )
    """Replicas are ready but none had room within maxQueueTime."""
    NO_REPLICAS = ("no_replicas", 503, "Nothing serves the model {name!r}. {outlook}")
    """No replica is ready and none is going to be."""
    COLD_START_TIMEOUT = (
        "cold_start_timeout",
        503,
        "No replica of the model {name!r} became ready within {limits.cold_start_timeout:g} seconds. {outlook}",
    )
    """No replica became ready within coldStartTimeout."""
    REPLICAS_FAILING = ("replicas_failing", 503, "Every replica of the model {name!r} fails at the moment.")
    """Replicas are listed as ready, but requests to them fail."""
    ADAPTER_NOT_LOADED = (
        "adapter_not_loaded",
        503,
        "No replica of the model {name!r} has loaded its adapter {adapter!r}. {trouble}",
    )
    """The LLMDeployment lists the adapter, and no replica could load it, or none has within maxQueueTime."""
    MODEL_REMOVED = ("model_removed", 404, "The model {name!r} was removed.")
    """The LLMDeployment was deleted while the request waited."""

    def __init__(self, label: str, http_status: int, sentence: str) -> None:
        self.label = label
        self.http_status = http_status
        self.sentence = sentence


def unfit(error: PromptError) -> OpenAIError:
    """An engine's own answer for a prompt that no replica could ever serve: 400, or 404 for an unknown adapter."""
    if isinstance(error, UnknownAdapter):
        return OpenAIError(404, error.message, param="model", code="model_not_found")
    return bad_request(error.message, param=error.field, code=error.code)


def without_adapter(pool: Pool, adapter: str, *, is_late: bool = False) -> OpenAIError | None:
    """For an adapter that no replica serves: 404 where it is not listed, 503 where it cannot be loaded or, if
    `is_late`, was not; None = the request may wait."""
    listed = pool.model.adapter(adapter)
    if listed is None:
        return unfit(UnknownAdapter(adapter, pool.adapters))
    if not listed.trouble and not is_late:
        return None
    return refusal(QueueOutcome.ADAPTER_NOT_LOADED, pool, adapter=listed)


def refusal(
    outcome: QueueOutcome, pool: Pool, *, oldest_wait_seconds: float = 0.0, adapter: ServedAdapter | None = None
) -> OpenAIError:
    """`oldest_wait_seconds`: of the line, an estimate for a client that comes again. `adapter`: subject of the
    refusal."""
    model, about = pool.model, adapter or ServedAdapter("")
    message = outcome.sentence.format(
        name=model.served_name,
        limits=model.routing,
        outlook=pool.outlook.message,
        adapter=about.name,
        trouble=about.trouble,
    )
    retry_after: float | None = min(max(1.0, oldest_wait_seconds), LONGEST_RETRY_AFTER_SECONDS)
    if outcome in (QueueOutcome.COLD_START_TIMEOUT, QueueOutcome.ADAPTER_NOT_LOADED):
        retry_after = COLD_RETRY_AFTER_SECONDS
    elif outcome in (QueueOutcome.NO_REPLICAS, QueueOutcome.MODEL_REMOVED):
        retry_after = None
    status, label = outcome.http_status, outcome.label
    headers = _NOT_AGAIN if outcome is QueueOutcome.NO_REPLICAS else ()
    return OpenAIError(status, message.rstrip(), code=label, outcome=label, retry_after=retry_after, headers=headers)
