"""What children of an LLMDeployment have in common: names, labels, the owner, the hash of what was asked for; and parts
of their pods' containers."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from fairlead.api import names
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.operator_settings import OperatorSettings, Profile

Manifest = dict[str, Any]


def selector_labels(deployment: LLMDeployment) -> dict[str, str]:
    """The engine pods' selector; fixed, because a Deployment's selector cannot change."""
    return {names.LABEL_LLMDEPLOYMENT: deployment.metadata.name, names.LABEL_COMPONENT: names.ENGINE_COMPONENT}


def own_labels(deployment: LLMDeployment) -> dict[str, str]:
    """The labels of every child and of the engine's pods."""
    ours = {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_PART_OF: names.PART_OF}
    return ours | selector_labels(deployment)


def child(
    deployment: LLMDeployment,
    api_version: str,
    kind: str,
    body: Mapping[str, Any],
    *,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Manifest:
    """An object of that kind, owned by the LLMDeployment, with `body` beside its metadata. `name`: None = the usual
    one. `labels`: added to every child's own, which win."""
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": deployment.metadata.name,
        "uid": deployment.metadata.uid,
        "controller": True,  # the garbage collector deletes the child after its LLMDeployment
        "blockOwnerDeletion": True,
    }
    metadata: dict[str, Any] = {
        "name": name or names.engine_child(deployment.metadata.name),
        "namespace": deployment.metadata.namespace,
        "labels": {**(labels or {}), **own_labels(deployment)},
        "ownerReferences": [owner],
    }
    manifest = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
    metadata["annotations"] = {names.ANNOTATION_APPLIED_HASH: fingerprint(manifest)}
    return manifest


def fingerprint(value: Any) -> str:
    """Sixteen hex digits that change with the value; the order of keys does not count."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


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
"""No rights, and a message about how a container ended."""
_OF_THE_POD = (("POD_IP", "status.podIP"), ("POD_NAME", "metadata.name"))
"""Environment variables and their fields of the pod."""


def engine_image(deployment: LLMDeployment, settings: OperatorSettings, profile: Profile) -> str:
    """Of the engine, and of what downloads for it: the LLMDeployment's, else the profile's, else the settings'."""
    return deployment.spec.engine.image or profile.image or settings.engine_image


def as_sidecar(container: Mapping[str, Any]) -> dict[str, Any]:
    """The container as an init container that starts before the pod's containers and ends after them."""
    return {**container, "restartPolicy": "Always"}


def environment_of_the_pod() -> list[dict[str, Any]]:
    """Address and name of the pod, for arguments."""
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
