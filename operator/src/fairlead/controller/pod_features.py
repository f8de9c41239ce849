"""What an API server keeps of a pod: image volumes, sidecars. Asked by making a Deployment with one that is not stored.

Nothing else tells: a server that knows a field and has its feature switched off takes it out of what it is given, in
silence, and an older one reads something else. Pods would run without their model, or wait for ever for a server that
is to go on running.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.llmdeployment import EngineType
from fairlead.api.pod_containers import sidecars
from fairlead.kube.client import KubeClient, KubeError
from fairlead.kube.resources import DEPLOYMENTS
from fairlead.manifests.downloaders import has_adapter_downloader

logger = logging.getLogger(__name__)

ASK_AGAIN_SECONDS = 60.0
"""How long an answer counts."""
_IMAGE = "registry.invalid/none:1"
_CONTAINER = {"name": "none", "image": _IMAGE}


@dataclass(frozen=True, slots=True)
class PodFeature:
    """Something of pods that not every API server keeps."""

    name: str
    """In the names of Deployments that ask for it."""
    pod: Mapping[str, Any]
    """The spec of one that has it."""
    is_kept: Callable[[Mapping[str, Any]], bool]
    """Whether what came back has it still."""
    field: str
    """Part of what a server names that refuses it."""


IMAGE_VOLUMES = PodFeature(
    name="image-volumes",
    pod={
        "containers": [{**_CONTAINER, "volumeMounts": [{"name": "image", "mountPath": "/image"}]}],
        "volumes": [{"name": "image", "image": {"reference": _IMAGE, "pullPolicy": "IfNotPresent"}}],
    },
    is_kept=lambda pod: any(volume.get("image") for volume in pod.get("volumes") or ()),
    field=".volumes[",
)
SIDECARS = PodFeature(
    name="sidecars",
    pod={"containers": [_CONTAINER], "initContainers": [{**_CONTAINER, "name": "side", "restartPolicy": "Always"}]},
    is_kept=lambda pod: bool(sidecars(pod)),
    field=".initContainers[",
)


class PodFeatures:
    """Asks where an LLMDeployment wants one, and remembers the answers for a while: they are about the whole
    cluster."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._client = client
        self._clock = clock
        self._answers: dict[str, tuple[bool, float]] = {}
        """By the feature's name, and when it was asked for."""

    async def are_kept(self, feature: PodFeature, namespace: str) -> bool | None:
        """None where the server does not say, for example because a webhook answers no such questions. Never raises a
        KubeError."""
        answer, asked = self._answers.get(feature.name, (None, 0.0))
        if answer is not None and self._clock() - asked < ASK_AGAIN_SECONDS:
            return answer
        self._answers.pop(feature.name, None)
        answer = await self._ask(feature, namespace)
        if answer is not None:
            self._answers[feature.name] = answer, self._clock()
        return answer

    async def _ask(self, feature: PodFeature, namespace: str) -> bool | None:
        path, params = DEPLOYMENTS.path(namespace), {"dryRun": "All"}
        try:
            made = await self._client.request("POST", path, params=params, body=_deployment(feature))
        except KubeError as e:
            logger.debug("whether there are %s cannot be asked for: %s", feature.name, e)
            return False if e.status == 422 and feature.field in e.message else None
        return feature.is_kept(((made.get("spec") or {}).get("template") or {}).get("spec") or {})


def _deployment(feature: PodFeature) -> dict[str, Any]:
    labels = {names.LABEL_NAME: f"fairlead-{feature.name}"}
    return {
        "apiVersion": DEPLOYMENTS.api_version,
        "kind": DEPLOYMENTS.kind,
        "metadata": {"generateName": f"fairlead-{feature.name}-"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": feature.pod},
        },
    }


def wants_image_volume(body: Mapping[str, Any]) -> bool:
    """Whether an LLMDeployment has its model mounted as an image."""
    cache = ((body.get("spec") or {}).get("model") or {}).get("cache") or {}
    return cache.get("image") is True


def wants_sidecars(body: Mapping[str, Any], engine: Mapping[str, Any] | None) -> bool:
    """Whether pods of an LLMDeployment may have some: a server that is not ours, or what downloads adapters. `engine`:
    its Deployment, if there is one."""
    spec = body.get("spec") or {}
    is_foreign = (spec.get("engine") or {}).get("type") not in (None, EngineType.FAIRLEAD)
    return is_foreign or bool(spec.get("adapters")) or has_adapter_downloader(engine)


def has_sidecars(engine: Mapping[str, Any] | None) -> bool:
    """Whether the pods of a Deployment have some, as the API server keeps it."""
    return bool(sidecars(((engine or {}).get("spec") or {}).get("template", {}).get("spec") or {}))
