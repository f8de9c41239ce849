"""Drainer: asks engines to drain, over HTTP. Best effort, because the SIGTERM that follows asks again.

Who calls it: `applier`, before it lowers the Deployment's count.
"""

import asyncio
import logging
from collections.abc import Iterable

import aiohttp

from fairlead.addresses import authority
from fairlead.api import names
from fairlead.kube.client import JsonObject
from fairlead_protocol.messages import PATH_DRAIN

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 2.0
"""For one engine's answer: a victim that hangs delays scale-down by so much, and no more."""


class Drainer:
    """Knows nothing of marks and counts."""

    def __init__(self, *, timeout: float = TIMEOUT_SECONDS) -> None:
        """`timeout` in seconds."""
        self._timeout = aiohttp.ClientTimeout(total=timeout)

    async def ask(self, pods: Iterable[JsonObject]) -> None:
        """Asks all at once. Never raises for one that cannot be reached: it has nothing to finish."""
        urls = {pod["metadata"]["name"]: engine_url(pod) for pod in pods if (pod.get("status") or {}).get("podIP")}
        async with aiohttp.ClientSession(timeout=self._timeout) as session:
            await asyncio.gather(*(self._ask_one(session, name, url) for name, url in urls.items()))

    async def _ask_one(self, session: aiohttp.ClientSession, name: str, url: str) -> None:
        try:
            async with session.post(url + PATH_DRAIN) as response:
                response.raise_for_status()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.info("%s cannot be asked to drain: %s", name, str(error) or type(error).__name__)


def engine_url(pod: JsonObject) -> str:
    """Where the engine of a pod with an address answers: at its port, or the usual one."""
    engines = (each for each in pod["spec"]["containers"] if each["name"] == names.ENGINE_CONTAINER)
    ports = (port["containerPort"] for engine in engines for port in engine.get("ports") or [])
    return f"http://{authority(pod['status']['podIP'], next(ports, names.ENGINE_PORT))}"
