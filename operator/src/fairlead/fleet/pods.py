"""Pods as Kubernetes describes them: replicas of one or more pods each, and where gateways can be asked. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.conditions import find_condition
from fairlead_common.http.addresses import authority

POD_SELECTOR = f"{names.LABEL_LLMDEPLOYMENT},{names.LABEL_COMPONENT}={names.ENGINE_COMPONENT}"
"""Label selector of the pods to follow."""
Pod = dict[str, Any]
"""The whole object."""


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


def is_marked(pod: Mapping[str, Any]) -> bool:
    """Whether scale-down has chosen the pod to go."""
    return names.ANNOTATION_DRAIN in (pod["metadata"].get("annotations") or {})


def became_ready(pod: Mapping[str, Any]) -> str | None:
    """When the pod's condition Ready came to hold, as text; None when it does not."""
    ready = find_condition(pod.get("status") or {}, "Ready")
    return str(ready.get("lastTransitionTime") or "") if ready.get("status") == "True" else None


def ready_since(pod: Mapping[str, Any]) -> str | None:
    """When the pod last became ready, as text; None = not ready, terminating, or without an address."""
    return became_ready(pod) if is_active(pod) and (pod.get("status") or {}).get("podIP") else None


_STUCK = ("CrashLoopBackOff", "CreateContainerConfigError", "ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName")


def is_stuck(pod: Mapping[str, Any]) -> bool:
    """Whether the kubelet has tried twice or more to start a container that still has not started."""
    status = pod.get("status") or {}
    found = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    waiting = ((each.get("state") or {}).get("waiting") or {} for each in found)
    restarted = (not each.get("started") and (each.get("restartCount") or 0) > 1 for each in found)
    return any(each.get("reason") in _STUCK for each in waiting) or any(restarted)


def group_of(pod: Mapping[str, Any]) -> str:
    """Equal for the pods of one replica. A pod without the label of a group is a replica by itself."""
    metadata = pod["metadata"]
    return str((metadata.get("labels") or {}).get(names.LABEL_GROUP) or metadata.get("uid") or metadata["name"])


_TEMPLATE_HASH = "pod-template-hash"
"""Label of a Deployment's pods with the ReplicaSet's hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPods:
    """One replica as Kubernetes shows it: a leader, whose engine answers, and pods with the model's further ranks. A
    replica is ready when all of its pods are, and goes when any of them does."""

    pods: tuple[Pod, ...]
    """The leader first."""
    leader: Pod
    name: str
    uid: str
    address: str
    """Of the leader, as name and uid are; empty = not known yet, or the leader is gone."""
    created: str
    """Creation of the oldest pod (RFC 3339)."""
    is_whole: bool
    """Whether all pods of the group are there."""
    became_ready: str | None
    """When the last pod became ready, as text; None = a pod is missing or not ready."""
    is_marked: bool
    is_terminating: bool
    is_finished: bool

    @classmethod
    def of(cls, *pods: Pod) -> "ReplicaPods":
        """`pods`: of one group, at least one."""
        ranked = sorted(pods, key=_is_leader, reverse=True)
        leader, size = ranked[0], str(len(ranked))
        metadata, times = leader["metadata"], [became_ready(pod) for pod in ranked]
        is_whole = (metadata.get("annotations") or {}).get(names.ANNOTATION_GROUP_SIZE, size) == size
        return cls(
            pods=tuple(ranked),
            leader=leader,
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            address=str((leader.get("status") or {}).get("podIP") or "") if _is_leader(leader) else "",
            created=min(str(pod["metadata"].get("creationTimestamp") or "") for pod in ranked),
            is_whole=is_whole,
            became_ready=max(time or "" for time in times) if is_whole and None not in times else None,
            is_marked=any(map(is_marked, ranked)),
            is_terminating=any(map(is_terminating, ranked)),
            is_finished=any(map(is_finished, ranked)),
        )

    @property
    def template_hash(self) -> str:
        """Of the ReplicaSet that made the leader; empty = made by something else."""
        return str((self.leader["metadata"].get("labels") or {}).get(_TEMPLATE_HASH) or "")

    @property
    def is_active(self) -> bool:
        """Whether the replica counts among those that are desired."""
        return not self.is_terminating and not self.is_finished

    @property
    def ready_since(self) -> str | None:
        """When the replica last became ready, as text; None = not ready, terminating, or without an address."""
        return self.became_ready if self.is_active and self.address else None


def replicas_of(pods: Iterable[Pod]) -> tuple[ReplicaPods, ...]:
    """The replicas of one LLMDeployment, in the order of their first pods."""
    groups: dict[str, list[Pod]] = {}
    for pod in pods:
        groups.setdefault(group_of(pod), []).append(pod)
    return tuple(ReplicaPods.of(*each) for each in groups.values())


def _is_leader(pod: Pod) -> bool:
    return str((pod["metadata"].get("labels") or {}).get(names.LABEL_GROUP_RANK, 0)) == "0"


def control_url(pod: Mapping[str, Any], path: str) -> str:
    """A URL of a gateway's pod with an address, on the port named for control, or the usual one."""
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports") or [])
    named = (port["containerPort"] for port in ports if port.get("name") == names.CONTROL_PORT_NAME)
    return f"http://{authority(pod['status']['podIP'], next(named, names.GATEWAY_CONTROL_PORT))}{path}"
