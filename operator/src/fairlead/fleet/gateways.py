"""GatewayReader: reads every ready gateway pod's metrics, for the autoscaler. The only place where its signals do I/O.

A gateway that does not answer keeps the figures it gave last, which grow old; one that never answered is missing. What
either means for scaling is not decided here.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from fairlead.api import names
from fairlead.autoscaler.demand import GatewayReading, GatewayWindow, Readings
from fairlead.fleet.gateway_metrics import model_readings
from fairlead.fleet.pods import ready_since
from fairlead.kube.client import KubeClient
from fairlead.kube.resources import PODS
from fairlead.kube.watch import Reflector

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 2.0
"""For one gateway's whole answer."""


class GatewayReader:
    """`run` it as a task; `read` whenever new figures are wanted."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        selector: str,
        timeout: float = TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`namespace` and label `selector` say which pods are gateways."""
        self._pods = Reflector(client, PODS, namespace=namespace, label_selector=selector)
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._clock = clock
        self._windows: dict[str, GatewayWindow] = {}
        """By the pod's uid."""
        self._silent: set[str] = set()
        """Those whose silence has been logged."""

    async def run(self) -> None:
        """Follows the gateways' pods until cancelled."""
        await self._pods.run()

    async def read(self) -> Readings:
        """Reads all ready gateways at once. Never raises for one that does not answer."""
        pods = {pod["metadata"]["uid"]: pod for pod in self._pods.store.values() if ready_since(pod) is not None}
        self._windows = {uid: window for uid, window in self._windows.items() if uid in pods}
        self._silent &= pods.keys()
        async with aiohttp.ClientSession(timeout=self._timeout) as session:
            found = await asyncio.gather(*(self._read_one(session, uid, pod) for uid, pod in pods.items()))
        self._windows.update(found_window for found_window in found if found_window is not None)
        return Readings(self._clock(), tuple(self._windows.values()), len(pods) - len(self._windows))

    async def _read_one(
        self, session: aiohttp.ClientSession, uid: str, pod: Mapping[str, Any]
    ) -> tuple[str, GatewayWindow] | None:
        """The gateway's window as it is now; None while it has never answered."""
        known = self._windows.get(uid)
        latest = known.latest if known is not None else None
        try:
            async with session.get(_metrics_url(pod)) as response:
                response.raise_for_status()
                models = model_readings(await response.text())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if uid not in self._silent:
                logger.warning(
                    "cannot read gateway %s: %s", pod["metadata"]["name"], str(error) or type(error).__name__
                )
            self._silent.add(uid)
            return None if latest is None else (uid, GatewayWindow(latest, latest))  # nothing was counted in between
        self._silent.discard(uid)
        return uid, GatewayWindow(GatewayReading(self._clock(), models), latest)


def _metrics_url(pod: Mapping[str, Any]) -> str:
    address = pod["status"]["podIP"]
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{_control_port(pod)}/metrics"


def _control_port(pod: Mapping[str, Any]) -> int:
    """The container port that is named for it, or the usual one."""
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports") or [])
    named = (port["containerPort"] for port in ports if port.get("name") == names.CONTROL_PORT_NAME)
    return int(next(named, names.GATEWAY_CONTROL_PORT))
