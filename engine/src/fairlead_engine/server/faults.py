"""What clients get whose requests no application hears of, and the limits of their connections.

Engines are for gateways alone, but whoever reaches the port must not be able to hold its connections for nothing.
"""

from collections.abc import Callable

from fairlead_engine.errors import QueueFull
from fairlead_engine.server.refusals import Outcome, Refusal, refusal
from fairlead_protocol.http.framing import Fault
from fairlead_protocol.http.limited import HttpLimits, LimitedProtocol, OnCut, WholeAnswer, make_protocol

PROBES = (b"/health", b"/ready", b"/metrics")
"""Answered however many connections there are: who only looks must not take an engine that is full for a dead one."""

UNREAD_SECONDS = 900.0
"""How long a client may leave what it was sent unread. A gateway gives its own clients less, and leaves before."""


def engine_limits(max_connections: int) -> HttpLimits:
    """What clients may take of an engine's server."""
    return HttpLimits(max_connections=max_connections, exempt_paths=PROBES, unread_timeout=UNREAD_SECONDS)


def engine_protocol(
    limits: HttpLimits, on_refused: Callable[[Outcome], object], on_cut: OnCut
) -> type[LimitedProtocol]:
    """The connections of an engine's server; `on_refused` is told of requests that no application hears of."""

    def refuse(fault: Fault, sentence: str, target: str) -> WholeAnswer:
        answer = _refusal(fault, sentence, limits)
        on_refused(answer.outcome)
        headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        return WholeAnswer(answer.status, headers, answer.body())

    return make_protocol(limits, refuse, on_cut)


def _refusal(fault: Fault, sentence: str, limits: HttpLimits) -> Refusal:
    status, message = 400, sentence
    match fault:
        case Fault.CONNECTIONS:
            text = f"this engine has more than the {limits.max_connections} connections that it takes at once"
            return refusal(QueueFull(text))
        case Fault.FIELDS:
            status = 431
            message = f"the request has more than the {limits.max_headers} headers and trailers that are taken"
        case Fault.HEAD:
            status = 431
            message = f"the request's headers are larger than the {limits.max_header_bytes} bytes that are taken"
        case Fault.FRAMING:
            message = (
                f"more than {limits.max_header_bytes} bytes of chunk sizes, chunk extensions and trailers came with "
                "the request's body, beyond its own size; send it in larger chunks, or whole with a Content-Length"
            )
        case Fault.AHEAD:
            message = "too many requests came before those in front of them were answered"
    return Refusal(status, Outcome.INVALID, "invalid_request_error", message)
