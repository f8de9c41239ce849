"""FleetWatch: follows LLMDeployments, their pods and the gateways' signals. All the I/O of `fairlead top` and of the
demo's live view; what it means is worked out in `fleet_state.py`."""

import asyncio

from fairlead.api import names
from fairlead.cli.fleet_state import FleetView, fleet_view, is_measured
from fairlead.fleet.gateways import GatewayFollower
from fairlead.fleet.pods import POD_SELECTOR
from fairlead.kube.client import KubeClient
from fairlead.kube.resources import LLMDEPLOYMENTS, PODS
from fairlead.kube.watch import Reflector

GATEWAY_SELECTOR = f"{names.LABEL_NAME}={names.GATEWAY_NAME}"
PATIENCE_SECONDS = 3.0
"""How long a first view waits for gateways to speak; they are asked to every second."""


class FleetWatch:
    """`run` it as a task; `view` says what is known at any time after `synced`."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str | None = None,
        name: str | None = None,
        system_namespace: str = names.SYSTEM_NAMESPACE,
    ) -> None:
        """`namespace`, `name`: which LLMDeployments; None = all. `system_namespace`: where the gateways are."""
        self._name = name
        self._deployments = Reflector(client, LLMDEPLOYMENTS, namespace=namespace)
        self._pods = Reflector(client, PODS, namespace=namespace, label_selector=POD_SELECTOR)
        self._gateways = GatewayFollower(client, namespace=system_namespace, selector=GATEWAY_SELECTOR)

    async def run(self) -> None:
        """Follows everything until cancelled."""
        async with asyncio.TaskGroup() as group:
            for follower in (self._deployments, self._pods, self._gateways):
                group.create_task(follower.run())

    async def synced(self) -> None:
        """Returns once every object has been seen, and gateways had the time to speak twice: rates are differences."""
        for reflector in (self._deployments, self._pods):
            await reflector.synced.wait()
        clock = asyncio.get_running_loop().time
        deadline = clock() + PATIENCE_SECONDS
        while clock() < deadline:
            readings = self._gateways.readings()
            if not readings.num_missing and is_measured(readings):
                return
            await asyncio.sleep(0.05)

    def view(self) -> FleetView:
        """What is known now."""
        deployments = self._deployments.store.values()
        return fleet_view(
            [body for body in deployments if self._name in (None, body["metadata"]["name"])],
            self._pods.store.values(),
            self._gateways.readings(),
        )
