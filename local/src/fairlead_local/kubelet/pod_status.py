"""A pod's status from the states of its containers, in the words of the kubelet. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.times import condition, conditions_of, with_condition


@dataclass(slots=True)
class ContainerRecord:
    """Known facts of one container. `state` and `last_state` are as in a containerStatus."""

    name: str
    image: str
    state: Json = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last_state: Json = field(default_factory=dict)
    restart_count: int = 0
    started: bool = False
    ready: bool = False
    container_id: str = ""
    is_done: bool = False
    """Ended for good, by the restart policy of the pod."""
    is_sidecar: bool = False
    """An init container that runs as long as the pod."""

    @property
    def ever_ran(self) -> bool:
        return bool(self.container_id)

    @property
    def has_succeeded(self) -> bool:
        """Whether the container has ended with exit code 0."""
        return bool(self.state.get("terminated", {}).get("exitCode") == 0)

    @property
    def is_initialized(self) -> bool:
        """Of an init container: whether the next container may begin."""
        return self.started if self.is_sidecar else self.has_succeeded

    @property
    def is_running(self) -> bool:
        return "running" in self.state

    def status(self) -> Json:
        """The containerStatus."""
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image if self.ever_ran else "",
            "state": self.state,
            "lastState": self.last_state,
            "restartCount": self.restart_count,
            "started": self.started,
            "ready": self.ready,
        } | ({"containerID": self.container_id} if self.ever_ran else {})


def pod_status(
    pod: Json,
    containers: Sequence[ContainerRecord],
    pod_ip: str,
    host_ip: str,
    start_time: str,
    *,
    init: Sequence[ContainerRecord] = (),
) -> Json:
    """The whole status; conditions keep their times while they do not turn. `pod_ip` is empty before there is one.
    `init`: init containers, in their order."""
    phase = _phase(containers, init)
    conditions = conditions_of(pod)
    for new in _conditions(phase, containers, pod_ip, init):
        conditions = with_condition(conditions, new)
    addresses = {"podIP": pod_ip, "podIPs": [{"ip": pod_ip}]} if pod_ip else {}
    return {
        "phase": phase,
        "conditions": conditions,
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        **addresses,
        "startTime": start_time,
        "qosClass": qos_class(pod),
        "containerStatuses": [container.status() for container in sorted(containers, key=lambda c: c.name)],
        # An init container is ready after success; a sidecar, like a main container, by its probe.
        **(
            {
                "initContainerStatuses": [
                    each.status() | ({} if each.is_sidecar else {"ready": each.has_succeeded}) for each in init
                ]
            }
            if init
            else {}
        ),
    }


def _phase(containers: Sequence[ContainerRecord], init: Sequence[ContainerRecord]) -> str:
    # Exit codes of sidecars do not count; a pod ends after its sidecars.
    have_ended = all(each.is_done for each in init if each.is_sidecar)
    if any(each.is_done and not each.has_succeeded for each in init if not each.is_sidecar):
        return "Failed" if have_ended else "Pending"
    if have_ended and all(container.is_done for container in containers):
        failed = any(container.state.get("terminated", {}).get("exitCode") for container in containers)
        return "Failed" if failed else "Succeeded"
    return "Running" if all(container.ever_ran for container in containers) else "Pending"


def _conditions(
    phase: str, containers: Sequence[ContainerRecord], pod_ip: str, init: Sequence[ContainerRecord]
) -> list[Json]:
    initialized, has_begun = condition("Initialized", "True"), any(each.ever_ran for each in containers)
    if not has_begun and (incomplete := [each.name for each in init if not each.is_initialized]):
        text = f"containers with incomplete status: [{' '.join(incomplete)}]"
        initialized = condition("Initialized", "False", "ContainersNotInitialized", text)
    network = condition("PodReadyToStartContainers", "True" if pod_ip else "False")
    sidecars = (each for each in init if each.is_sidecar)
    unready = [container.name for container in (*sidecars, *containers) if not container.ready]
    why = ["True"]
    if phase == "Succeeded":
        why = ["False", "PodCompleted"]
    elif unready:
        why = ["False", "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"]
    return [network, initialized, condition("Ready", *why), condition("ContainersReady", *why)]


def qos_class(pod: Json) -> str:
    """Guaranteed = requests of every container equal the limits; BestEffort = no requests or limits; else Burstable."""
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
    resources = [container.get("resources") or {} for container in containers]
    if not any(found.get("requests") or found.get("limits") for found in resources):
        return "BestEffort"

    def guaranteed(found: Json) -> bool:
        limits, requests = found.get("limits") or {}, found.get("requests") or {}
        return all(name in limits and requests.get(name, limits[name]) == limits[name] for name in ("cpu", "memory"))

    return "Guaranteed" if all(map(guaranteed, resources)) else "Burstable"
