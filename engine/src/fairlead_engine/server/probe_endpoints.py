"""Endpoints for those who run the engine: kubelet, gateway, Prometheus, operator."""

import math

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead_engine.errors import RequestError
from fairlead_engine.server import metrics
from fairlead_engine.server.lifecycle import Phase
from fairlead_engine.server.service import Service
from fairlead_engine.server.struct_response import StructResponse
from fairlead_protocol.messages import HEADER_REASON
from fairlead_protocol.scrapes import Scrapes

_MAX_WAIT_SECONDS = 10.0
READY_PARAMETERS = [
    {
        "name": "wait",
        "in": "query",
        "required": False,
        "description": f"Seconds to wait for readiness, 0 to {_MAX_WAIT_SECONDS:g}",
        "schema": {"type": "string"},
    }
]
"""OpenAPI's description of what `/ready` may be asked with. It is read here, so that its refusal is like all others."""


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reply of `/health` and `/ready`."""

    status: str
    message: str | None = None
    """What is wrong; absent when nothing is."""


class DrainReply(msgspec.Struct, frozen=True):
    """Reply of the drain."""

    status: Phase
    num_running: int
    """Requests that are still being answered."""


class ProbeEndpoints:
    """`/health`, `/ready`, `/metrics` and drain."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._scrapes = Scrapes(service.metrics.render, lambda: service.siblings.ask())

    async def health(self) -> Response:
        """503 when only a restart helps, because the core died or hangs."""
        problem = self._service.health_problem()
        return StructResponse(Status("failed", problem), 503) if problem else StructResponse(Status("ok"))

    async def ready(self, request: Request) -> Response:
        """200 from the first warm forward pass until the drain begins, else 503."""
        if wait := _seconds(request):
            await self._service.lifecycle.loaded(wait)
        problem = self._service.readiness_problem()
        if problem is None:
            return StructResponse(Status("ready"))
        reason, message = problem
        return StructResponse(Status(reason, message), 503, headers={HEADER_REASON: reason})

    async def metrics(self) -> Response:
        """Everything this engine counts, in Prometheus' text format."""
        return Response(await self._scrapes.text(), media_type=metrics.CONTENT_TYPE)

    async def drain(self) -> Response:
        """Begins to drain, as SIGTERM does; answers at once."""
        self._service.drain()
        lifecycle, siblings = self._service.lifecycle, self._service.siblings
        await siblings.ask()
        return StructResponse(DrainReply(lifecycle.phase, lifecycle.num_running + siblings.num_running), 202)


def _seconds(request: Request) -> float:
    """How long the client waits for readiness. Raises `RequestError`.

    A kubelet asks once a second at most, so one whose question is held learns of readiness when it comes.
    """
    text = request.query_params.get("wait", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds <= _MAX_WAIT_SECONDS:
        raise RequestError("wait", f"wait must be seconds in [0, {_MAX_WAIT_SECONDS:g}], not {text[:40]!r}")
    return seconds
