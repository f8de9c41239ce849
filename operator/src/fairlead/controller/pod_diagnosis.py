"""The meaning of pods' statuses for people waiting for the model. Pure: a pod or a replica in, a diagnosis with reason
and sentence out.

Useful words of kubelet and scheduler follow a sentence with advice. The `{"reason", "message"}` in an engine's
termination log goes first.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any

from fairlead.api import names
from fairlead.api.conditions import Reason, find_condition
from fairlead.api.pod_spec import lasting_container
from fairlead.fit.published_devices import DeviceLack
from fairlead.fleet.pods import ReplicaPods, became_ready, is_finished, is_marked, is_terminating
from fairlead.manifests.source import MODEL_VOLUME, SPECULATIVE_VOLUME
from fairlead_common.wire.downloads import DownloadProgress, DownloadStage

MAX_MESSAGE_LENGTH = 1024
"""Of what is copied from a container's end: the rest is in its log."""
IMAGE_REASONS = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
CREATE_REASONS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError")
_VOLUME = (
    Reason.FAILED_MOUNT,
    "a volume cannot be mounted; check the claims, Secrets and ConfigMaps that the pod mounts, and the storage driver",
)
_SANDBOX = (
    Reason.FAILED_CREATE_POD_SANDBOX,
    "its node cannot set it up; check the node's network and container runtime",
)
WARNINGS = {
    "FailedMount": _VOLUME,
    "FailedAttachVolume": _VOLUME,
    "FailedMapVolume": _VOLUME,
    "FailedCreatePodSandBox": _SANDBOX,
    "NetworkNotReady": _SANDBOX,
    "FailedPrepareDynamicResources": (
        Reason.DEVICES_NOT_PREPARED,
        "the driver of its devices cannot prepare them; check the driver's pod on that node",
    ),
}
"""Warning about a pod in creation → reason, and what to do."""
_FIELDS = {MODEL_VOLUME: "model.source", SPECULATIVE_VOLUME: "engine.speculative.source"}
"""Volumes of ours that may be images → the naming fields."""
_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
_STEP_TIMEOUT = "--step-timeout"
_DOWNLOADERS = (*names.DOWNLOAD_CONTAINERS, names.ADAPTERS_CONTAINER)
_SPEAKING = (names.ENGINE_CONTAINER, *_DOWNLOADERS)
"""Containers that leave a reason and a sentence when they fail."""
_STARTS: Mapping[str, int] = {Reason.DOWNLOADING: 1, Reason.CONTAINER_CREATING: 2, Reason.SCHEDULING: 3}
"""Reason of a starting pod → how far it is from loading the model."""
_HAS_RUN = ("running", "terminated")
"""States of a container whose node has prepared the pod."""


class Stage(StrEnum):
    """How far a replica is. Of pods of one replica the later stage here decides."""

    READY = "ready"
    STARTING = "starting"
    """On its way; time will tell."""
    FAILING = "failing"
    """Something keeps it from starting; Kubernetes tries again, but waiting alone may not help."""
    DRAINING = "draining"
    """Chosen or asked to go; finishes what it has. No capacity, whatever else its status says."""
    FINISHED = "finished"
    """Will never run again: evicted, for instance."""


@dataclass(frozen=True, slots=True)
class PodWarning:
    """The cluster's last warning about one pod, in the Event's words."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One pod, or a replica by the pod that decides its stage, understood."""

    pod: str
    stage: Stage
    reason: str = ""
    """Empty for a ready pod that is well."""
    message: str = ""
    model_failed: bool = False
    """Whether the engine rejected the model, or the model's own image cannot be had."""
    waits_for_another: bool = False
    """Whether another pod downloads what it needs."""
    is_outdated: bool = False
    """Whether the replica is older than an edit, and a replica with the edit will replace it."""

    @property
    def sentence(self) -> str:
        """With the pod's name."""
        return f"{self.pod}: {self.message}" if self.message else self.pod


def diagnose(
    pod: Mapping[str, Any],
    warning: PodWarning | None = None,
    hangs_since: str | None = None,
    progress: DownloadProgress | None = None,
    lack: DeviceLack | None = None,
) -> Diagnosis:
    """`warning`: about a pod slow in creation. `hangs_since`: begin of the hanging step (RFC 3339). `progress`: of the
    pod's download. `lack`: why no node has its devices. Never raises for a status that lacks parts."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    phase = status.get("phase")
    if is_finished(pod):
        detail = status.get("message") or status.get("reason") or f"ended with phase {phase}"
        return Diagnosis(name, Stage.FINISHED, str(status.get("reason") or phase), _shorten(detail))
    if is_terminating(pod) or is_marked(pod):
        told = find_condition(status, "DisruptionTarget")  # somebody else than us: an eviction, a tainted node
        message = f"is taken away ({told.get('reason')}). {told.get('message') or ''}"
        return Diagnosis(name, Stage.DRAINING, message=_shorten(message) if told.get("status") == "True" else "")
    if became_ready(pod) is not None:
        return _hanging(name, pod, hangs_since) if hangs_since else Diagnosis(name, Stage.READY)
    scheduled = find_condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        words = scheduled.get("message") or "no node fits"
        message = f"no node can take it; check resources and the nodes. The scheduler says: {words}"
        if advice := lack.message if lack is not None else _pending_claim(pod):
            message = f"{advice}. The scheduler says: {words}"
        reason = Reason.UNSCHEDULABLE if lack is None else lack.reason
        return Diagnosis(name, Stage.FAILING, reason, _shorten(message))
    statuses = _container_statuses(status)
    if is_downloading(pod) and progress is not None:  # also after an attempt that failed
        waits = progress.stage is DownloadStage.WAITING
        return Diagnosis(name, Stage.STARTING, Reason.DOWNLOADING, in_words(progress), waits_for_another=waits)
    for container in statuses:
        failure = _failure(pod, container)
        if failure is not None:
            return failure
    starting = _starting(name, pod, statuses)
    if warning is None or starting.reason != Reason.CONTAINER_CREATING:
        return starting
    said = f"{warning.reason}: {warning.message}"
    if warning.reason == "Failed" and (failure := _model_not_pulled(pod, warning.message)) is not None:
        return failure
    if warning.reason in WARNINGS:
        reason, advice = WARNINGS[warning.reason]
        return Diagnosis(name, Stage.FAILING, reason, _shorten(f"{advice}. The cluster says: {said}"))
    message = _shorten(f"the container is still being created; the last warning about it is {said}")
    return Diagnosis(name, Stage.STARTING, Reason.CONTAINER_CREATING, message)


def _pending_claim(pod: Mapping[str, Any]) -> str:
    """What an unscheduled pod's claim for devices waits for; empty = it has none."""
    if not any(each.get("name") == names.DEVICES_CLAIM for each in (pod.get("spec") or {}).get("resourceClaims") or ()):
        return ""
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    claim = next((each.get("resourceClaimName") for each in made if each.get("name") == names.DEVICES_CLAIM), None)
    if claim is None:
        return "its claim for devices is not made yet; check quotas, and the pod's events by kubectl describe pod"
    return f"its claim {claim} for devices is pending: those of the class are taken, or on nodes that do not fit"


def diagnose_replica(
    replica: ReplicaPods,
    warnings: Mapping[str, PodWarning],
    hanging: Mapping[str, str],
    downloads: Mapping[str, DownloadProgress],
    lack: DeviceLack | None = None,
) -> Diagnosis:
    """The diagnosis of the least advanced pod, of equal ones the leader's. The others: by the pod's uid, as in
    `diagnose`."""
    uids = [(pod, pod["metadata"].get("uid", "")) for pod in replica.pods]
    found = (diagnose(pod, warnings.get(uid), hanging.get(uid), downloads.get(uid), lack) for pod, uid in uids)
    least = max(found, key=_lag)
    if replica.is_whole or least.stage is not Stage.READY:
        return least
    return Diagnosis(replica.name, Stage.STARTING, Reason.SCHEDULING, "waits for the other pods of its group")


def _lag(pod: Diagnosis) -> tuple[int, bool, bool, int]:
    """Larger for a pod that is further from ready, or says more about it."""
    return list(Stage).index(pod.stage), pod.model_failed, bool(pod.message), _STARTS.get(pod.reason, 0)


def _hanging(name: str, pod: Mapping[str, Any], since: str) -> Diagnosis:
    words = lasting_container(pod.get("spec") or {}, names.ENGINE_CONTAINER).get("args") or []
    told = [following for word, following in pairwise(words) if word == _STEP_TIMEOUT]
    told += [word.removeprefix(f"{_STEP_TIMEOUT}=") for word in words if word.startswith(f"{_STEP_TIMEOUT}=")]
    message = (
        f"its engine has been in one step since {since}, far longer than any should take. It gets no new requests "
        f"while another replica is well; after its --step-timeout ({told[-1] if told else '120 s by default'}) /health "
        f"fails and the kubelet restarts it. kubectl delete pod {name} replaces it at once"
    )
    return Diagnosis(name, Stage.READY, Reason.REPLICA_HANGS, message)


def is_downloading(pod: Mapping[str, Any]) -> bool:
    """Whether a downloading init container of the pod runs."""
    found = (pod.get("status") or {}).get("initContainerStatuses") or ()
    return any(
        each.get("name") in names.DOWNLOAD_CONTAINERS and "running" in (each.get("state") or {}) for each in found
    )


def in_words(progress: DownloadProgress) -> str:
    """How far a download is: `downloading hf://a/b: 3.1 of 15.2 GB, 210 MB/s, 58 s left`."""
    source = progress.source
    match progress.stage:
        case DownloadStage.WAITING:
            return f"waits for another pod's download of {source}"
        case DownloadStage.LISTING:
            return f"asks which files {source} has"
        case DownloadStage.DONE:
            return f"{source} is there"
    verb = str(progress.stage)
    parts = [f"{verb} {source}: {_amount(progress.bytes, progress.total_bytes)}"]
    if progress.stage is DownloadStage.DOWNLOADING and progress.bytes_per_second:
        parts.append(f"{_size(progress.bytes_per_second)}/s")
    if progress.stage is DownloadStage.DOWNLOADING and progress.remaining_seconds is not None:
        parts.append(f"{_time(progress.remaining_seconds)} left")
    return ", ".join(parts)


def _amount(done: int, total: int | None) -> str:
    if total is None:
        return _size(done)
    unit, name = _unit(total)
    return f"{_figure(done / unit)} of {_figure(total / unit)} {name}"


def _size(num_bytes: float) -> str:
    unit, name = _unit(num_bytes)
    return f"{_figure(num_bytes / unit)} {name}"


def _unit(num_bytes: float) -> tuple[int, str]:
    return next((each for each in _UNITS if num_bytes >= each[0]), _UNITS[-1])


def _figure(value: float) -> str:
    """One decimal for small values, none for whole numbers."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}".removesuffix(".0")


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _container_statuses(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _model_images(pod: Mapping[str, Any]) -> dict[str, str]:
    """Images that a pod mounts as volumes, by the field with the name."""
    volumes = ((each.get("name"), each.get("image") or {}) for each in (pod.get("spec") or {}).get("volumes") or ())
    return {_FIELDS[name]: str(image.get("reference")) for name, image in volumes if image and name in _FIELDS}


def _model_not_pulled(body: Mapping[str, Any], words: str) -> Diagnosis | None:
    """The diagnosis of a failed pull of a model's image; None = the words are about another. Container runtimes write
    tags and digests their own way."""
    for field, image in _model_images(body).items():
        if re.search(re.escape(re.sub(r"(:[^:/@]+)?(@.*)?$", "", image)) + r"(?![\w./-])", words):
            message = f"{image} cannot be pulled; check {field}, and that model.credentials names a Secret of the type "
            message = _shorten(f"{message}kubernetes.io/dockerconfigjson, if the registry wants one. {words}")
            name = body["metadata"]["name"]
            return Diagnosis(name, Stage.FAILING, Reason.IMAGE_PULL_BACK_OFF, message, model_failed=True)
    return None


def _failure(body: Mapping[str, Any], container: Mapping[str, Any]) -> Diagnosis | None:
    """What keeps this container from running; None = nothing."""
    pod = body["metadata"]["name"]
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason, detail = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if reason in IMAGE_REASONS:
        image = container.get("image") or "the image"
        # The kubelet says of the container what keeps it, also where that is the image of a volume.
        if image not in detail and (told := _model_not_pulled(body, detail)) is not None:
            return told
        message = f"{image} cannot be pulled; check engine.image and the registry's credentials. {detail or reason}"
        return Diagnosis(pod, Stage.FAILING, Reason.IMAGE_PULL_BACK_OFF, _shorten(message))
    if reason in CREATE_REASONS:
        suspect = "model.credentials" if container.get("name") in _DOWNLOADERS else "engine.env"
        if container.get("name") not in _DOWNLOADERS and _model_images(body):
            suspect = f"whether its node can mount images (else write model.cache: {{node: true}}), {suspect}"
        message = f"the container cannot be created ({reason}); check {suspect} and template. {detail}"
        return Diagnosis(pod, Stage.FAILING, Reason.CREATE_CONTAINER_ERROR, _shorten(message))
    if "running" in state and (container.get("started") or not container.get("restartCount")):
        return None  # it runs for the first time, or has got further than its start
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
    if ended and (ended.get("exitCode") or ended.get("signal") or reason == "CrashLoopBackOff"):
        return _ended(pod, container, ended)
    if reason == "CrashLoopBackOff":
        return Diagnosis(pod, Stage.FAILING, Reason.CRASH_LOOP_BACK_OFF, _shorten(detail or "it ends again and again"))
    return None


def _ended(pod: str, container: Mapping[str, Any], ended: Mapping[str, Any]) -> Diagnosis:
    restarts = container.get("restartCount") or 0
    suffix = f" (restarted {restarts} times)" if restarts > 1 else ""
    text = str(ended.get("message") or "")
    # Before the engine's own words: where the kernel killed one of its processes, the other can only guess why.
    if ended.get("reason") == "OOMKilled":
        message = "the container was killed because it used more memory than its limit: raise resources.limits.memory"
        if container.get("name") == names.ENGINE_CONTAINER:
            message += ", or lower engine.kvCache.memory"
        return Diagnosis(pod, Stage.FAILING, Reason.OUT_OF_MEMORY, message + suffix)
    if container.get("name") in (*_SPEAKING, names.FRONT_CONTAINER) and (told := start_failure(text)) is not None:
        reason, message = told
        if container.get("name") == names.DOWNLOAD_SPECULATIVE_CONTAINER:
            message = f"{names.DOWNLOAD_CONTAINERS[names.DOWNLOAD_SPECULATIVE_CONTAINER]}: {message}"
        return Diagnosis(pod, Stage.FAILING, reason, _shorten(message) + suffix, model_failed=True)
    code = f"signal {ended['signal']}" if ended.get("signal") else f"exit code {ended.get('exitCode', 'unknown')}"
    last_line = text.strip().rpartition("\n")[2]
    message = f"the container {container.get('name')!r} ended with {code}{suffix}; see kubectl logs {pod} --previous"
    if last_line:
        message += f". Its last line: {last_line}"
    return Diagnosis(pod, Stage.FAILING, Reason.CRASH_LOOP_BACK_OFF, _shorten(message))


def start_failure(termination_message: str) -> tuple[str, str] | None:
    """Reason and message from an engine's termination log; None when it holds something else."""
    try:
        told = json.loads(termination_message)
    except ValueError:
        return None
    if not isinstance(told, dict) or not isinstance(told.get("message"), str):
        return None
    reason = told.get("reason")
    # A condition's reason must be one CamelCase word, whatever the container wrote.
    usable = isinstance(reason, str) and reason.isascii() and reason.isalnum() and reason[:1].isalpha()
    return str(reason if usable else Reason.ENGINE_START_FAILED), str(told["message"])


def _starting(name: str, pod: Mapping[str, Any], containers: list[Mapping[str, Any]]) -> Diagnosis:
    status = pod.get("status") or {}
    scheduled = find_condition(status, "PodScheduled")
    if scheduled.get("status") != "True" and not (pod.get("spec") or {}).get("nodeName"):
        return Diagnosis(name, Stage.STARTING, Reason.SCHEDULING, "waits for the scheduler to choose a node")
    if is_downloading(pod):
        return Diagnosis(name, Stage.STARTING, Reason.DOWNLOADING, "the model is downloaded")
    engine = next((each for each in containers if each.get("name") == names.ENGINE_CONTAINER), None)
    if engine is None or "running" not in (engine.get("state") or {}):
        message = "the container is being created: its image is pulled and its volumes are mounted"
        if images := _model_images(pod):
            message += f", of which {' and '.join(images.values())} may have to be pulled, too"
        return Diagnosis(name, Stage.STARTING, Reason.CONTAINER_CREATING, message)
    if engine.get("started") and (others := [str(each["name"]) for each in containers if _is_created(each)]):
        message = f"the engine has started; the container {others[0]!r} is being created"
        return Diagnosis(name, Stage.STARTING, Reason.CONTAINER_CREATING, message)
    # A pod that never was ready is not ready since before its container started. Both are in UTC: text sorts as time.
    since = str(find_condition(status, "Ready").get("lastTransitionTime") or "")
    if engine.get("started") and since > str(engine["state"]["running"].get("startedAt") or ""):
        message = f"the engine runs but does not say that it is ready any more; see kubectl logs {name}"
        return Diagnosis(name, Stage.STARTING, Reason.ENGINE_NOT_READY, message)
    if engine.get("started"):  # between its startup probe and its first readiness probe, that is for a moment
        message = f"the engine has started, but not said yet that it is ready; if that lasts, see kubectl logs {name}"
        return Diagnosis(name, Stage.STARTING, Reason.LOADING_MODEL, message)
    return Diagnosis(name, Stage.STARTING, Reason.LOADING_MODEL, "the engine is loading the model")


def _is_created(container: Mapping[str, Any]) -> bool:
    """Whether the node is about to create the container for the first time."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    return waiting.get("reason") in ("ContainerCreating", "PodInitializing") and not container.get("restartCount")


def seconds_in_creation(pod: Mapping[str, Any], now: datetime) -> float | None:
    """For how long a node has been preparing the pod; None = a container has run, or another reason is known."""
    if diagnose(pod).reason != Reason.CONTAINER_CREATING:
        return None
    status = pod.get("status") or {}
    if any(state in (each.get("state") or {}) for each in _container_statuses(status) for state in _HAS_RUN):
        return None
    since = find_condition(status, "PodScheduled").get("lastTransitionTime")
    since = since or status.get("startTime") or pod["metadata"].get("creationTimestamp")
    return None if since is None else (now - datetime.fromisoformat(since)).total_seconds()


def _shorten(words: Any) -> str:
    text = str(words).strip()
    return text if len(text) <= MAX_MESSAGE_LENGTH else text[: MAX_MESSAGE_LENGTH - 1] + "…"
