"""Asking engines to drain, over HTTP. Best effort, because the SIGTERM that follows asks again.

Who calls it: `applier`, before it lowers the Deployment's count. It knows nothing of marks and counts.
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


async def ask_to_drain(pods: Iterable[JsonObject], *, timeout: float = TIMEOUT_SECONDS) -> None:
    """Asks all at once. Never raises for one that cannot be reached: it has nothing to finish."""

    async def ask(session: aiohttp.ClientSession, pod: JsonObject) -> None:
        try:
            async with session.post(engine_url(pod) + PATH_DRAIN) as response:
                response.raise_for_status()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.info("%s cannot be asked to drain: %s", pod["metadata"]["name"], str(error) or type(error).__name__)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout)) as session:
        await asyncio.gather(*(ask(session, pod) for pod in pods if (pod.get("status") or {}).get("podIP")))


def engine_url(pod: JsonObject) -> str:
    """Where the engine of a pod with an address answers: at its port, or the usual one."""
    engines = (each for each in pod["spec"]["containers"] if each["name"] == names.ENGINE_CONTAINER)
    ports = (port["containerPort"] for engine in engines for port in engine.get("ports") or [])
    return f"http://{authority(pod['status']['podIP'], next(ports, names.ENGINE_PORT))}"
