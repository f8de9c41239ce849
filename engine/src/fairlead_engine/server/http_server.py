"""The HTTP server of one of an engine's processes: its limits, its patience, and what keeps Python from pausing it."""

import gc
from collections.abc import Callable
from typing import Any

from fairlead_engine.server.faults import engine_limits, engine_protocol
from fairlead_engine.server.metrics import Metrics
from fairlead_protocol.http.connections import CutConnections
from fairlead_protocol.http.server import HttpServer

SHUTDOWN_SECONDS = 5
"""Answers already written get this long to leave when the server stops."""
_KEEP_ALIVE_SECONDS = 75
"""Idle connections stay open this long: gateways reuse them, and the side that connects should be the one to close."""
_BACKLOG = 128
"""Connections that the system takes for us: so many at most are set up between two tokens."""
_GC_THRESHOLDS = 10_000, 10, 5
"""More new objects than a step brings for a thousand streams, which are gone before the next step. With Python's own
thresholds each step is searched for garbage, outlives the search, and has all that streams keep searched soon: a tenth
of a second, every few seconds, in which no token leaves. At most half a million objects of garbage wait for that."""


def make_http_server(
    app: Any, metrics: Metrics, max_connections: int, on_closed: Callable[[], object] | None = None
) -> HttpServer:
    """Serves `app`, and counts what it never hears of. `on_closed` is told of each connection's end."""
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
    """Once everything is there that lives as long as the process: it need not be looked at again, which would hold up
    tokens."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
