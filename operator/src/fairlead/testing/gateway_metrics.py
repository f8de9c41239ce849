"""A gateway of which only the metrics are real: what the autoscaler reads, as a test sets it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fairlead.testing.http import RecordedRequest, Responder, serve_http


class FakeGateway:
    """Figures of one model. Change them between two readings."""

    def __init__(self, model: str = "default/dinghy") -> None:
        """`model`: the LLMDeployment's `namespace/name`."""
        self._registry = CollectorRegistry()
        self.waiting = self._gauge("queue_requests", "model").labels(model)
        self.running = self._gauge("in_flight_requests", "model", "replica").labels(model, "p")
        self.ended = Counter(
            "fairlead_gateway_requests_total", "Ended.", ["model", "outcome", "status"], registry=self._registry
        ).labels(model, "ok", "200")
        self.ttft = Histogram(
            "fairlead_gateway_time_to_first_token_seconds", "TTFT.", ["model"],
            buckets=(0.1, 1.0, 10.0), registry=self._registry,
        ).labels(model)  # fmt: skip
        self.is_broken = False
        """Whether it answers with an error."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Serves its metrics on a free port of 127.0.0.1; the port."""
        server = await serve_http(self._answer)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    async def _answer(self, request: RecordedRequest, responder: Responder) -> None:
        if self.is_broken or request.path != "/metrics":
            await responder.json(500, {})
            return
        await responder.start(200, {"content-type": "text/plain; version=0.0.4"})
        await responder.chunk(generate_latest(self._registry))
        await responder.end()

    def _gauge(self, name: str, *labels: str) -> Gauge:
        return Gauge(f"fairlead_gateway_{name}", "A figure.", labels, registry=self._registry)
