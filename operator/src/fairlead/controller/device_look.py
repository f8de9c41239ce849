"""Asks the API for the cluster's devices, for LLMDeployments with devices. The answers serve sentences and the
condition Fits only: without the cluster-wide rights nothing is said about devices."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from fairlead.api.llmdeployment import InvalidSpec, LLMDeployment
from fairlead.controller.observe import Observed
from fairlead.fit.published_devices import DeviceNeed, DeviceSupply, device_need, gpu_node, published_devices
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.resources import DEVICE_CLASSES, NODES, RESOURCE_SLICES, Resource
from fairlead.manifests.engine import replica_profile
from fairlead.manifests.source import CannotBuild
from fairlead.operator_settings import OperatorSettings

logger = logging.getLogger(__name__)

ASK_AGAIN_SECONDS = 30.0
"""How long an answer counts, for all LLMDeployments."""
REFUSED_SECONDS = 600.0
"""The same for a refusal."""


class DeviceLook:
    """Remembers what the API answered for a while."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._client = client
        self._clock = clock
        self._answers: dict[Resource, tuple[tuple[JsonObject, ...] | None, float]] = {}
        """The objects of each kind, and the time until they count; None = refused."""

    async def add(self, observed: Observed, settings: OperatorSettings) -> Observed:
        """With the devices that the LLMDeployment's replicas may get. Never raises a KubeError."""
        need = _need(observed.body, settings)
        if need is None:
            return observed
        supply = await self._by_claim() if need.devices is not None else await self._by_node()
        return replace(observed, devices=supply, device_lack=supply.lack(need))

    async def _by_claim(self) -> DeviceSupply:
        slices, classes = await self._all(RESOURCE_SLICES), await self._all(DEVICE_CLASSES)
        selectors = None
        if classes is not None:
            selectors = {
                each["metadata"]["name"]: tuple(
                    str((selector.get("cel") or {}).get("expression"))
                    for selector in (each.get("spec") or {}).get("selectors") or ()
                )
                for each in classes
            }
        return DeviceSupply(None if slices is None else published_devices(slices), selectors)

    async def _by_node(self) -> DeviceSupply:
        nodes = await self._all(NODES)
        if nodes is None:
            return DeviceSupply()
        return DeviceSupply(nodes=tuple(map(gpu_node, nodes)))

    async def _all(self, resource: Resource) -> tuple[JsonObject, ...] | None:
        """Every object of a kind; None = it cannot be asked for."""
        answer, counts_until = self._answers.get(resource, (None, 0.0))
        if self._clock() < counts_until:
            return answer
        try:
            answer, seconds = tuple((await self._client.list(resource))["items"]), ASK_AGAIN_SECONDS
        except KubeError as e:
            logger.debug("the %s of the cluster cannot be listed: %s", resource.plural, e)
            answer, seconds = None, REFUSED_SECONDS if e.status in (403, 404) else ASK_AGAIN_SECONDS
        self._answers[resource] = answer, self._clock() + seconds
        return answer


def _need(body: JsonObject, settings: OperatorSettings) -> DeviceNeed | None:
    try:
        deployment = LLMDeployment.from_body(body)
        return device_need(deployment, replica_profile(deployment, settings))
    except (InvalidSpec, CannotBuild):
        return None  # as its conditions say
