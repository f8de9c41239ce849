"""Conditions of an LLMDeployment: closed sets of types and reasons, and the update of a list of conditions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ConditionType(StrEnum):
    """The subject of a condition. Every type is always present, so clients can wait for any."""

    READY = "Ready"
    """As many replicas as desired answer requests. Also true at zero replicas, where a request starts one."""
    PROGRESSING = "Progressing"
    """The fleet is on its way to the desired state, without anybody's help."""
    MODEL_AVAILABLE = "ModelAvailable"
    """The model's files were found, and an engine could load the model."""
    FITS = "Fits"
    """The model fits what a replica gets: by arithmetic before a replica has tried, as far as the model is in the
    catalogue and the profile's memory is known. With the reasons WeightsTooLarge and NotDivisible no first pod is made.
    """
    SCALING_ACTIVE = "ScalingActive"
    """Somebody adjusts `spec.replicas` to the load."""
    DEGRADED = "Degraded"
    """Something is wrong that waiting alone may not repair; the message says what to do."""


class ConditionStatus(StrEnum):
    """Kubernetes' three truth values."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Why a condition has its status. Reasons reported by containers, such as engines, may also appear."""

    # All is well, or nothing is asked for.
    REPLICAS_READY = "ReplicasReady"
    """As many replicas answer as are desired."""
    SCALED_TO_ZERO = "ScaledToZero"
    """No replica is desired, so none runs."""
    MODEL_LOADED = "ModelLoaded"
    """An engine has loaded the model."""
    COMPLETE = "Complete"
    """Nothing is on its way: all replicas are the desired ones."""
    AS_EXPECTED = "AsExpected"
    """Nothing is wrong. The message also names kinds of objects that the API server does not serve or the operator may
    not write: `Done without PodDisruptionBudget: this API server does not serve policy/v1.`"""
    # On the way.
    RECONCILING = "Reconciling"
    """The operator has applied the objects; the cluster has not acted on them yet."""
    SCHEDULING = "Scheduling"
    """A pod waits for a node."""
    CONTAINER_CREATING = "ContainerCreating"
    """A pod has a node; the node prepares volumes and image."""
    DOWNLOADING = "Downloading"
    """A pod downloads the model, or an adapter; the message says how far it is."""
    LOADING_MODEL = "LoadingModel"
    """An engine runs and loads the model."""
    ROLLING_OUT = "RollingOut"
    """The engine's Deployment is on its way to the desired state."""
    SCALING = "Scaling"
    """Replicas drain: they finish their requests, and then go."""
    PAUSED = "Paused"
    """Somebody has paused the rollout of the engine's Deployment, so changes wait for `kubectl rollout resume`."""
    NOT_LOADED_YET = "NotLoadedYet"
    """No engine has loaded the model yet, and no engine has failed to."""
    # Whether it fits.
    FITS = "Fits"
    """Weights, cache and work space fit what a replica gets; the message has the numbers."""
    FEWER_SEQUENCES = "FewerSequences"
    """The engine starts, and holds fewer sequences of the longest context at once than `engine.maxNumSeqs`."""
    TOO_LARGE = "TooLarge"
    """By an estimate, memory does not suffice for the cache of one sequence. Pods are started all the same."""
    WEIGHTS_TOO_LARGE = "WeightsTooLarge"
    """The weights alone are larger than the memory, so no first pod is made."""
    NOT_DIVISIBLE = "NotDivisible"
    """`engine.tensorParallelSize` does not divide the model, so no first pod is made."""
    NOT_SUPPORTED = "NotSupported"
    """The engine refuses these settings for this model; the message names the field."""
    MODEL_UNKNOWN = "ModelUnknown"
    """The model's source is not in the catalogue, or is a GGUF file: nothing is known before the model is loaded."""
    ENGINE_NOT_OURS = "EngineNotOurs"
    """`engine.type` is another engine, with its own layout of memory."""
    MEMORY_UNKNOWN = "MemoryUnknown"
    """The memory of a replica is unknown: the profile has no `gpuMemory` and no device or node tells its own, or the
    profile bounds no memory."""
    # What the user wrote cannot be done.
    SIDECARS_NOT_SUPPORTED = "SidecarsNotSupported"
    """A pod of this spec needs a sidecar container, and the API server does not support sidecars: Kubernetes is older
    than 1.29, or its feature gate SidecarContainers is off."""
    INVALID_SPEC = "InvalidSpec"
    """A field or a rule between fields is broken; the message names it."""
    NOT_PERMITTED = "NotPermitted"
    """The operator's `admissionPolicy` does not allow a field; the message names the field and the setting."""
    UNKNOWN_PROFILE = "UnknownProfile"
    """`resources.profile` is not in the operator's settings; the message lists those that are."""
    PROFILE_NOT_USABLE = "ProfileNotUsable"
    """The ConfigMap of `engine.profile` does not exist, holds no profile, or holds a profile of other number formats
    than `engine` asks for; the message has the details."""
    SOURCE_NOT_SUPPORTED = "SourceNotSupported"
    """`model.source` is of a kind not served here."""
    MODEL_SOURCE_NOT_FOUND = "ModelSourceNotFound"
    """The PersistentVolumeClaim that `model.source` names does not exist."""
    ADAPTER_SOURCE_NOT_FOUND = "AdapterSourceNotFound"
    """The PersistentVolumeClaim that an adapter's source names does not exist. The model is served without it."""
    DEVICES_NOT_SUPPORTED = "DevicesNotSupported"
    """Devices are asked for by dynamic resource allocation, and the API server does not serve resource.k8s.io/v1
    (Kubernetes from 1.34 on), or the operator may not write ResourceClaimTemplates."""
    CLAIM_TEMPLATE_NOT_FOUND = "ClaimTemplateNotFound"
    """The ResourceClaimTemplate of `resources.claimTemplateName` does not exist."""
    NAME_CONFLICT = "NameConflict"
    """An older LLMDeployment has one of the names; this one answers to its other names only."""
    RESOURCE_NOT_OWNED = "ResourceNotOwned"
    """A needed object exists under the same name and belongs to somebody else."""
    # What the cluster or the engine says.
    DEVICE_CLASS_NOT_FOUND = "DeviceClassNotFound"
    """A pod waits for devices of a DeviceClass that does not exist."""
    DEVICES_MISSING = "DevicesMissing"
    """A pod waits for devices that no node has: no driver publishes any of the class, none is as the selectors ask, no
    node has as many, or no node has the extended resource, such as nvidia.com/gpu."""
    DEVICES_NOT_PREPARED = "DevicesNotPrepared"
    """The driver of a pod's devices fails to prepare them on the pod's node; the message is the cluster's."""
    UNSCHEDULABLE = "Unschedulable"
    """No node fits a pod; the message is the scheduler's."""
    IMAGE_PULL_BACK_OFF = "ImagePullBackOff"
    """The engine's image cannot be pulled."""
    FAILED_MOUNT = "FailedMount"
    """A pod's volume cannot be attached or mounted, for example for want of a Secret; the message is the cluster's."""
    FAILED_CREATE_POD_SANDBOX = "FailedCreatePodSandBox"
    """A node cannot set a pod up, for example for want of a network; the message is the cluster's."""
    CREATE_CONTAINER_ERROR = "CreateContainerError"
    """The container cannot be set up, for example for want of a Secret."""
    ENGINE_START_FAILED = "EngineStartFailed"
    """The engine gave a reason for its failure to start, but not in one word; the message is the engine's own."""
    CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"
    """The engine ends again and again; the message is what it said last."""
    OUT_OF_MEMORY = "OutOfMemory"
    """The engine exceeded its memory limit and was killed."""
    ENGINE_NOT_READY = "EngineNotReady"
    """An engine runs and had started, but does not report ready."""
    REPLICA_HANGS = "ReplicaHangs"
    """A ready engine has been in one step for too long to expect an end. It gets no new requests while another replica
    is well, and is restarted if the step lasts."""
    TOKENIZER_NOT_RUN = "TokenizerNotRun"
    """Gateways do not run the model's tokenizer and chat template, because these fail or exceed their limits of
    processor time or memory. The engines tokenise; how much of a prompt their caches hold is unknown."""
    PODS_REFUSED = "PodsRefused"
    """Pods cannot be created, for example because of a quota or an admission webhook."""
    APPLY_FAILED = "ApplyFailed"
    """The API server refused an object of ours; the message is its own."""
    ADAPTER_NOT_LOADED = "AdapterNotLoaded"
    """An engine cannot load an adapter; the message is its own. The model and its other adapters are served."""
    ADAPTER_LOADED = "AdapterLoaded"
    """Every ready replica has loaded an adapter."""
    ADAPTER_LOADING = "AdapterLoading"
    """An adapter waits for replicas to be ready, or to load it."""
    # Who scales.
    AUTOSCALING_NOT_CONFIGURED = "AutoscalingNotConfigured"
    """`spec.autoscaling` is absent: the number of replicas is yours."""
    SCALING_ACTIVE = "ScalingActive"
    """The operator's autoscaler adjusts `spec.replicas`."""
    SIGNALS_MISSING = "SignalsMissing"
    """Gateways send no signals, so replicas may be added, but not taken away."""
    EXTERNAL_AUTOSCALER = "ExternalAutoscaler"
    """Somebody else scales, through the scale subresource."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, without its times, which depend on earlier conditions."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    """CamelCase; a Reason, or the word reported by a failed engine."""
    message: str
    """A sentence, with advice where the user can act."""


MAX_REASON_LENGTH = 256
MAX_MESSAGE_LENGTH = 4096
"""Characters of a message in a status. Engines, webhooks and API servers may quote megabytes, and API servers refuse
large statuses."""


def shortened(message: str) -> str:
    """The message, cut to a status' limit."""
    return message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[: MAX_MESSAGE_LENGTH - 1]}…"


def merge_conditions(
    before: Iterable[Mapping[str, Any]], now: Sequence[Condition], *, generation: int, time: str
) -> list[dict[str, Any]]:
    """The `status.conditions` to apply: `lastTransitionTime` moves only where `status` changed.

    `before`: what the object carries. `generation`: which spec was looked at. `time`: RFC 3339, for what changed now.
    """
    known = {condition.get("type"): condition for condition in before}
    merged = []
    for condition in now:
        old = known.get(condition.type, {})
        unchanged = old.get("status") == condition.status and old.get("lastTransitionTime")
        merged.append(
            {
                "type": str(condition.type),
                "status": str(condition.status),
                "reason": str(condition.reason)[:MAX_REASON_LENGTH],
                "message": shortened(condition.message),
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if unchanged else time,
            }
        )
    return merged


def find_condition(status: Mapping[str, Any], type: str) -> Mapping[str, Any]:
    """A status' condition of that type; empty = none."""
    return next((each for each in status.get("conditions") or () if each.get("type") == type), {})


def wrong_condition(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The condition that needs a person, Ready or not: Degraded, or a paused rollout; else empty."""
    degraded = find_condition(status, ConditionType.DEGRADED)
    if degraded.get("status") == ConditionStatus.TRUE:
        return degraded
    progressing = find_condition(status, ConditionType.PROGRESSING)
    return progressing if progressing.get("reason") == Reason.PAUSED else {}
