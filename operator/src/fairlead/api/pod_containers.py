"""The containers of a pod's spec: which of them run as long as the pod does. Pure."""

from collections.abc import Mapping
from typing import Any

Container = Mapping[str, Any]


def is_sidecar(init_container: Container) -> bool:
    """Whether an init container is one that the kubelet starts before the others, restarts, and ends after them."""
    return init_container.get("restartPolicy") == "Always"


def sidecars(spec: Mapping[str, Any]) -> list[Container]:
    """In the order in which they start."""
    return [each for each in spec.get("initContainers") or () if is_sidecar(each)]


def lasting_containers(spec: Mapping[str, Any]) -> list[Container]:
    """All that run as long as the pod: sidecars, and what is no init container."""
    return [*sidecars(spec), *(spec.get("containers") or ())]


def lasting_container(spec: Mapping[str, Any], name: str) -> Container:
    """The one of that name; empty where there is none."""
    return next((each for each in lasting_containers(spec) if each.get("name") == name), {})


def lasting_statuses(pod: Mapping[str, Any]) -> list[Container]:
    """What the kubelet says of those that run as long as the pod."""
    status, beside = pod.get("status") or {}, {each["name"] for each in sidecars(pod.get("spec") or {})}
    of_sidecars = [each for each in status.get("initContainerStatuses") or () if each.get("name") in beside]
    return [*of_sidecars, *(status.get("containerStatuses") or ())]
