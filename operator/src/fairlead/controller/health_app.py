"""The operator's own HTTP port: /health (the process lives), /ready (it may take over), /metrics."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from fairlead.controller.operator_metrics import OperatorMetrics


def health_app(metrics: OperatorMetrics) -> web.Application:
    """A waiting candidate is as ready as the leader: it serves no requests, and is there to take over."""

    async def alive(_: web.Request) -> web.Response:
        """200 while the process lives."""
        return web.Response(text="ok\n")

    async def export(_: web.Request) -> web.Response:
        """Metrics in Prometheus' text format."""
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/health", alive)
    app.router.add_get("/ready", alive)
    app.router.add_get("/metrics", export)
    return app


@asynccontextmanager
async def serve_health(metrics: OperatorMetrics, host: str, port: int) -> AsyncIterator[None]:
    """Serves while the context lasts; port 0 = not at all. Raises OSError when the port is taken."""
    if port == 0:
        yield
        return
    runner = web.AppRunner(health_app(metrics), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()
