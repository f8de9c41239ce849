"""What containers of an engine's pod have in common."""

import re
from collections.abc import Mapping
from typing import Any

from fairlead.api import names

SCRATCH_VOLUME = "scratch"
GPU = re.compile(r"/(gpu|mig-)")
"""In the name of a resource of any vendor: `nvidia.com/gpu`, `amd.com/gpu`, `nvidia.com/mig-1g.10gb`."""
CONTAINED: Mapping[str, Any] = {
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    },
    "terminationMessagePath": names.TERMINATION_LOG,
    "terminationMessagePolicy": "FallbackToLogsOnError",
}
"""No rights, and a word about how they ended."""
_OF_THE_POD = (("POD_IP", "status.podIP"), ("POD_NAME", "metadata.name"))
"""Environment variables, and the fields of the pod that they are."""


def as_sidecar(container: Mapping[str, Any]) -> dict[str, Any]:
    """The container as an init container that starts before the pod's containers and ends after them."""
    return {**container, "restartPolicy": "Always"}


def environment_of_the_pod() -> list[dict[str, Any]]:
    """Address and name of the pod, which arguments use."""
    return [
        {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}} for name, path in _OF_THE_POD
    ]


def probe(path: str, *, period: int, failures: int, timeout: int) -> dict[str, Any]:
    """A probe of the engine's port. `period` and `timeout` in seconds; `failures` in a row until it has failed."""
    return {
        "httpGet": {"path": path, "port": names.ENGINE_PORT, "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "successThreshold": 1,
        "failureThreshold": failures,
    }
