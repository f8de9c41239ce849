"""The HTTP server of an engine's process: limits, patience, answers to requests refused before the application, and
settings of garbage collection.

Engines serve gateways, but whoever reaches the port must not hold connections for nothing.
"""

import gc
from collections.abc import Callable
from typing import Any

from fairlead_common.http.connections import CutConnections
from fairlead_common.http.framing import Fault
from fairlead_common.http.limited import HttpLimits, LimitedProtocol, OnCut, WholeAnswer, make_protocol
from fairlead_common.http.server import HttpServer
from fairlead_engine.errors import QueueFull
from fairlead_engine.host.metrics import Metrics
from fairlead_engine.host.refusals import Outcome, Refusal, refusal

SHUTDOWN_SECONDS = 5
"""Time for written answers to leave when the server stops."""
_KEEP_ALIVE_SECONDS = 75
"""Idle connections stay open this long: gateways reuse them, and the connecting side should close first."""
_BACKLOG = 128
"""Connections queued by the system: at most so many are set up between two tokens."""
_GC_THRESHOLDS = 10_000, 10, 5
"""More new objects than a step makes for a thousand streams, all gone before the next step. With Python's own
thresholds each step's objects are searched for garbage and survive, until all objects of the streams are searched: a
tenth of a second every few seconds without tokens. At most half a million garbage objects wait."""


def make_http_server(
    app: Any, metrics: Metrics, max_connections: int, on_closed: Callable[[], object] | None = None
) -> HttpServer:
    """Serves `app`, and counts requests refused before the application. `on_closed`: called when a connection ends."""
    protocol = engine_protocol(engine_limits(max_connections), metrics.answered, CutConnections(metrics.cut).cut)
    if on_closed is not None:
        told: Callable[[], object] = on_closed

        class Told(protocol):  # type: ignore[misc, valid-type]
            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                told()

        protocol = Told
    return HttpServer(
        app, protocol, backlog=_BACKLOG, keep_alive_seconds=_KEEP_ALIVE_SECONDS, grace_seconds=SHUTDOWN_SECONDS
    )


def settle_garbage() -> None:
    """Exempts all present objects, which live as long as the process, from garbage collection: searching would delay
    tokens."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


PROBES = (b"/health", b"/ping", b"/ready", b"/metrics")
"""Answered at any number of connections: a full engine must not look dead."""

UNREAD_SECONDS = 900.0
"""How long a client may leave its answer unread. A gateway gives its own clients less time, and leaves earlier."""


def engine_limits(max_connections: int) -> HttpLimits:
    return HttpLimits(max_connections=max_connections, exempt_paths=PROBES, unread_timeout=UNREAD_SECONDS)


def engine_protocol(
    limits: HttpLimits, on_refused: Callable[[Outcome], object], on_cut: OnCut
) -> type[LimitedProtocol]:
    """Connections of an engine's server. `on_refused`: called for requests refused before the application."""

    def refuse(fault: Fault, sentence: str, target: str) -> WholeAnswer:
        answer = _refusal(fault, sentence, limits)
        on_refused(answer.outcome)
        headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        return WholeAnswer(answer.status, headers, answer.body())

    return make_protocol(limits, refuse, on_cut)


def _refusal(fault: Fault, sentence: str, limits: HttpLimits) -> Refusal:
    if fault is Fault.CONNECTIONS:
        text = f"this engine has more than the {limits.max_connections} connections that it takes at once"
        return refusal(QueueFull(text))
    most_bytes = limits.max_header_bytes
    status, message = {
        Fault.FIELDS: (431, f"the request has more than the {limits.max_headers} headers and trailers that are taken"),
        Fault.HEAD: (431, f"the request's headers are larger than the {most_bytes} bytes that are taken"),
        Fault.FRAMING: (
            400,
            f"more than {most_bytes} bytes of chunk sizes, chunk extensions and trailers came with the request's body, "
            "beyond its own size; send it in larger chunks, or whole with a Content-Length",
        ),
        Fault.AHEAD: (400, "too many requests came before those in front of them were answered"),
    }.get(fault, (400, sentence))
    return Refusal(status, Outcome.INVALID, "invalid_request_error", message)
