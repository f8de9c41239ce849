"""Pods as Kubernetes describes them: engines as replicas, and where gateways can be asked. Pure."""

from collections.abc import Mapping
from typing import Any

from fairlead.api import names
from fairlead.routing.replica import Replica
from fairlead_common.http.addresses import authority

POD_SELECTOR = f"{names.LABEL_LLMDEPLOYMENT},{names.LABEL_COMPONENT}={names.ENGINE_COMPONENT}"
"""Label selector of the pods to follow."""


def owner_of(pod: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name of the pod's LLMDeployment."""
    metadata = pod["metadata"]
    return metadata["namespace"], (metadata.get("labels") or {}).get(names.LABEL_LLMDEPLOYMENT, "")


def is_terminating(pod: Mapping[str, Any]) -> bool:
    """Whether the pod's deletion was requested: from then on it takes no new requests."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_finished(pod: Mapping[str, Any]) -> bool:
    """Whether the pod has ended for good (evicted, for instance)."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_active(pod: Mapping[str, Any]) -> bool:
    """Whether a ReplicaSet counts the pod."""
    return not is_terminating(pod) and not is_finished(pod)


def became_ready(pod: Mapping[str, Any]) -> str | None:
    """When the pod's condition Ready came to hold, as text; None when it does not."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    holds = (each for each in conditions if each.get("type") == "Ready" and each.get("status") == "True")
    return next((str(each.get("lastTransitionTime") or "") for each in holds), None)


def ready_since(pod: Mapping[str, Any]) -> str | None:
    """When the pod last became ready, as text; None = not ready, terminating, or without an address."""
    return became_ready(pod) if is_active(pod) and (pod.get("status") or {}).get("podIP") else None


def finishes_answers(pod: Mapping[str, Any]) -> bool:
    """Whether a pod that takes no new requests may still finish answers: terminating, and not gone."""
    return is_terminating(pod) and not is_finished(pod) and bool((pod.get("status") or {}).get("podIP"))


def replica_of(pod: Mapping[str, Any]) -> Replica:
    """The replica of a ready pod, before its engine was asked."""
    metadata, address = pod["metadata"], pod["status"]["podIP"]
    return Replica(metadata["uid"], metadata["name"], address, names.ENGINE_PORT)


def control_url(pod: Mapping[str, Any], path: str) -> str:
    """A URL of a gateway's pod with an address, on the port named for control, or the usual one."""
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports") or [])
    named = (port["containerPort"] for port in ports if port.get("name") == names.CONTROL_PORT_NAME)
    return f"http://{authority(pod['status']['podIP'], next(named, names.GATEWAY_CONTROL_PORT))}{path}"
