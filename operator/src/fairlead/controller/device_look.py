"""Asks the API for the cluster's devices, for LLMDeployments with devices. The answers serve sentences and the
condition Fits only: without the cluster-wide rights nothing is said about devices."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fairlead.api.llmdeployment import InvalidSpec, LLMDeployment
from fairlead.controller.observe import Observed
from fairlead.fit.published_devices import DeviceNeed, DeviceSupply, device_need, gpu_node, published_devices
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.resources import DEVICE_CLASSES, NODES, RESOURCE_SLICES, Resource
from fairlead.manifests.engine import replica_profile
from fairlead.manifests.source import CannotBuild
from fairlead.operator_settings import OperatorSettings

logger = logging.getLogger(__name__)
T = TypeVar("T")

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
        self._answers: dict[Resource, tuple[Any, float]] = {}
        """What was read of the objects of each kind, and the time until that counts; None = refused. Whole nodes and
        slices of a large cluster would take hundreds of megabytes."""

    async def add(self, observed: Observed, settings: OperatorSettings) -> Observed:
        """With the devices that the LLMDeployment's replicas may get. Never raises a KubeError."""
        need = _need(observed.body, settings)
        if need is None:
            return observed
        supply = await self._by_claim() if need.devices is not None else await self._by_node()
        return replace(observed, devices=supply, device_lack=supply.lack(need))

    async def _by_claim(self) -> DeviceSupply:
        devices = await self._read(RESOURCE_SLICES, published_devices)
        return DeviceSupply(devices, await self._read(DEVICE_CLASSES, _selectors))

    async def _by_node(self) -> DeviceSupply:
        return DeviceSupply(nodes=await self._read(NODES, lambda nodes: tuple(map(gpu_node, nodes))))

    async def _read(self, resource: Resource, read: Callable[[Sequence[JsonObject]], T]) -> T | None:
        """What is read of every object of a kind; None = the objects cannot be listed."""
        answer: T | None
        answer, counts_until = self._answers.get(resource, (None, 0.0))
        if self._clock() < counts_until:
            return answer
        try:
            answer, seconds = read((await self._client.list(resource))["items"]), ASK_AGAIN_SECONDS
        except KubeError as e:
            logger.debug("the %s of the cluster cannot be listed: %s", resource.plural, e)
            answer, seconds = None, REFUSED_SECONDS if e.status in (403, 404) else ASK_AGAIN_SECONDS
        self._answers[resource] = answer, self._clock() + seconds
        return answer


def _selectors(classes: Sequence[JsonObject]) -> Mapping[str, tuple[str, ...]]:
    """CEL expressions of DeviceClasses, by name."""
    specs = ((each["metadata"]["name"], (each.get("spec") or {}).get("selectors") or ()) for each in classes)
    return {name: tuple(str((each.get("cel") or {}).get("expression")) for each in told) for name, told in specs}


def _need(body: JsonObject, settings: OperatorSettings) -> DeviceNeed | None:
    try:
        deployment = LLMDeployment.from_body(body)
        return device_need(deployment, replica_profile(deployment, settings))
    except (InvalidSpec, CannotBuild):
        return None  # as its conditions say
