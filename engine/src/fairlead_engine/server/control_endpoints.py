"""Endpoints for those who run the engine: kubelet, gateway, Prometheus, operator; and the list and watch of its blocks
and load, `GET /fairlead/v1/kv/blocks` and `GET /fairlead/v1/kv/events`.
"""

import math
from collections.abc import AsyncIterator, Callable
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead_common.http.loop_shares import Scrapes
from fairlead_common.wire.messages import HEADER_REASON
from fairlead_engine.api.service import Service
from fairlead_engine.errors import RequestError
from fairlead_engine.host import metrics
from fairlead_engine.host.engine_stream import EngineStream, Follower, NotInRing
from fairlead_engine.host.exchange import ClientDisconnected, Exchange, StructResponse
from fairlead_engine.host.lifecycle import Phase
from fairlead_engine.host.refusals import Gone
from fairlead_engine.version import __version__

NDJSON = "application/x-ndjson"
"""One JSON object per line."""
MAX_WAIT_SECONDS = 10.0
READY_PARAMETERS = [
    {
        "name": "wait",
        "in": "query",
        "required": False,
        "description": f"Seconds to wait for readiness, 0 to {MAX_WAIT_SECONDS:g}",
        "schema": {"type": "string"},
    }
]
"""OpenAPI's description of the query of `/ready`, which is parsed here for uniform refusals."""


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


class Version(msgspec.Struct, frozen=True):
    """Reply of `/version`."""

    version: str


class ServerLoad(msgspec.Struct, frozen=True):
    """Reply of `/load`."""

    server_load: int
    """Requests in progress, of all HTTP processes."""


class ProbeEndpoints:
    """`/health`, `/ready`, `/metrics`, drain, and names that other servers have for such things."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._scrapes = Scrapes(service.metrics.render, lambda: service.siblings.ask())

    async def health(self) -> Response:
        """503 when only a restart helps, because the core died or hangs."""
        problem = self._service.health_problem()
        return StructResponse(Status("failed", problem), 503) if problem else StructResponse(Status("ok"))

    async def ping(self) -> Response:
        """`/health`, by the name that SageMaker asks for."""
        return await self.health()

    async def version(self) -> Response:
        """The version of this engine, in vLLM's shape."""
        return StructResponse(Version(__version__))

    async def server_load(self) -> Response:
        """How many requests run, in vLLM's shape."""
        await self._service.siblings.ask()
        return StructResponse(ServerLoad(self._service.lifecycle.num_running + self._service.siblings.num_running))

    async def ready(self, request: Request) -> Response:
        """200 from the first warm forward pass until the drain begins, else 503."""
        if wait := wait_seconds(request.query_params.get("wait", "0"), f"in [0, {MAX_WAIT_SECONDS:g}]"):
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


def wait_seconds(text: str, bounds: str) -> float:
    """How long the client waits for readiness. `bounds`: of the value, for the error. Raises `RequestError`.

    A kubelet asks at most once a second; a question that is held is answered the moment the engine is ready.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds <= MAX_WAIT_SECONDS:
        raise RequestError("wait", f"wait must be seconds {bounds}, not {text[:40]!r}")
    return seconds


class KVEndpoints:
    """A follower's list and watch, which neither count as running requests nor delay a drain."""

    def __init__(self, stream: EngineStream, check_model: Callable[[], object]) -> None:
        """`check_model` raises `NotReady` or `Draining` while no model is served."""
        self._stream = stream
        self._check_model = check_model

    async def kv_blocks(self) -> Response:
        """Every reusable block, and the point in the stream of changes from which to watch."""
        return StructResponse(self._followed().mirror.blocks())

    async def kv_events(self, exchange: Exchange) -> None:
        """Changes of the blocks since `epoch` and `seq` as they happen, and the load; it ends when the server stops."""
        stream = self._followed()
        query = parse_qs(exchange.scope["query_string"].decode("latin-1"))
        epoch, seq = query.get("epoch", [""])[-1], query.get("seq", [""])[-1]
        if not epoch:
            problem = "epoch is missing; list the blocks first and send the epoch and seq of the list"
            raise RequestError("epoch", problem)
        if not (seq.isascii() and seq.isdigit() and len(seq) < 16):
            raise RequestError("seq", f"seq must be the number of the last change you have, not {seq[:40]!r}")
        try:
            with stream.followed(epoch, int(seq)) as follower:
                await exchange.while_connected(self._send(exchange, follower))
        except NotInRing:
            raise Gone(
                f"changes since seq {int(seq)} of epoch {epoch!r} are not known here; list the blocks again"
            ) from None
        except ClientDisconnected:
            pass  # how a watch ends

    async def _send(self, exchange: Exchange, follower: Follower) -> None:
        if exchange.scope["method"] == "HEAD":
            follower.end()

        async def chunks() -> AsyncIterator[bytes]:
            while chunk := await follower.take():
                yield chunk

        await exchange.send_stream(chunks(), NDJSON)
        exchange.facts["cut_off"] = "true" if follower.was_cut_off else None

    def _followed(self) -> EngineStream:
        """Raises `NotReady`, `Draining` or `EngineDead` while no stream is available."""
        self._check_model()
        self._stream.check()
        return self._stream
