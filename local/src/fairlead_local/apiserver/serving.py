"""Putting an API server on a loopback port, with the namespaces every cluster has."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

from fairlead_local.apiserver.deletion import PERMANENT_NAMESPACES
from fairlead_local.apiserver.operations import Operations, WriteOptions
from fairlead_local.apiserver.resources import NAMESPACES
from fairlead_local.apiserver.watching import BOOKMARK_SECONDS

HOST = "127.0.0.1"
_SHUTDOWN_SECONDS = 0.1
"""Watches never end by themselves, so there is nothing to wait for."""


@asynccontextmanager
async def serving(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    """Serves on loopback while the context lasts; yields the base URL. Raises OSError when the port is taken."""
    runner = web.AppRunner(app, shutdown_timeout=_SHUTDOWN_SECONDS, handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, port)
        await site.start()
        yield f"http://{HOST}:{runner.addresses[0][1]}"
    finally:
        await asyncio.wait_for(runner.cleanup(), BOOKMARK_SECONDS)


def ensure_namespaces(operations: Operations, names: Sequence[str] = ()) -> None:
    """Creates the namespaces every cluster has, and `names`, where they do not exist."""
    for name in (*PERMANENT_NAMESPACES, *names):
        if operations.find(NAMESPACES, "", name) is None:
            operations.create(NAMESPACES, "", {"metadata": {"name": name}}, WriteOptions())
