"""Whether the API server lets pods mount images (Kubernetes' image volumes): asked by making a Deployment with one that
is not stored.

Nothing else tells: a server that knows the field and has the feature switched off takes the volume out of what it is
given, in silence, and an older one makes an empty folder of it. Pods would run without their model.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from fairlead.api import names
from fairlead.kube.client import KubeClient, KubeError
from fairlead.kube.resources import DEPLOYMENTS

logger = logging.getLogger(__name__)

ASK_AGAIN_SECONDS = 60.0
"""How long an answer counts."""
_LABELS = {names.LABEL_NAME: "fairlead-image-volumes"}
_POD = {
    "containers": [
        {"name": "none", "image": "registry.invalid/none:1", "volumeMounts": [{"name": "image", "mountPath": "/image"}]}
    ],
    "volumes": [{"name": "image", "image": {"reference": "registry.invalid/none:1", "pullPolicy": "IfNotPresent"}}],
}
_DEPLOYMENT = {
    "apiVersion": DEPLOYMENTS.api_version,
    "kind": DEPLOYMENTS.kind,
    "metadata": {"generateName": "fairlead-image-volumes-"},
    "spec": {
        "replicas": 0,
        "selector": {"matchLabels": _LABELS},
        "template": {"metadata": {"labels": _LABELS}, "spec": _POD},
    },
}


class ImageVolumes:
    """Asks where an LLMDeployment wants one, and remembers the answer for a while: it is about the whole cluster."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._client = client
        self._clock = clock
        self._answer: bool | None = None
        self._asked = float("-inf")

    async def are_kept(self, namespace: str) -> bool | None:
        """None where the server does not say, for example because a webhook answers no such questions. Never raises a
        KubeError."""
        if self._answer is None or self._clock() - self._asked >= ASK_AGAIN_SECONDS:
            self._answer, self._asked = await self._ask(namespace), self._clock()
        return self._answer

    async def _ask(self, namespace: str) -> bool | None:
        path, params = DEPLOYMENTS.path(namespace), {"dryRun": "All"}
        try:
            made = await self._client.request("POST", path, params=params, body=_DEPLOYMENT)
        except KubeError as e:
            logger.debug("whether there are image volumes cannot be asked for: %s", e)
            return False if e.status == 422 and ".volumes[" in e.message else None
        pod = ((made.get("spec") or {}).get("template") or {}).get("spec") or {}
        return any(volume.get("image") for volume in pod.get("volumes") or ())


def wants_image_volume(body: Mapping[str, Any]) -> bool:
    """Whether an LLMDeployment has its model mounted as an image."""
    cache = ((body.get("spec") or {}).get("model") or {}).get("cache") or {}
    return cache.get("image") is True
