"""Conditions of an LLMDeployment: closed sets of types and reasons, and how a list of them is brought up to date."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ConditionType(StrEnum):
    """What a condition is about. Each is always present, so that clients can wait for any of them."""

    READY = "Ready"
    """Requests are answered by as many replicas as are desired. That holds at zero, where a request starts one."""
    PROGRESSING = "Progressing"
    """The fleet is on its way to what is desired, without anybody's help."""
    MODEL_AVAILABLE = "ModelAvailable"
    """The model's files were found and an engine could load them."""
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
    """Why a condition has its status. A container's own reasons (such as an engine's) may stand beside these."""

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
    """Nothing is wrong. The message also names what is done without, because the API server does not serve it or the
    operator may not write it: `Done without PodDisruptionBudget: this API server does not serve policy/v1.`"""
    # On the way.
    RECONCILING = "Reconciling"
    """The operator has applied the objects, and the cluster has not acted on them yet."""
    SCHEDULING = "Scheduling"
    """A pod waits for a node."""
    CONTAINER_CREATING = "ContainerCreating"
    """A pod has a node, which prepares volumes and image."""
    DOWNLOADING = "Downloading"
    """A pod downloads the model, or an adapter; the message says how far it is."""
    LOADING_MODEL = "LoadingModel"
    """An engine runs and loads the model."""
    ROLLING_OUT = "RollingOut"
    """The engine's Deployment is being brought to what is desired."""
    SCALING = "Scaling"
    """Replicas drain: they finish the requests they have, and then go."""
    PAUSED = "Paused"
    """Somebody has paused the rollout of the engine's Deployment, so changes wait for `kubectl rollout resume`."""
    NOT_LOADED_YET = "NotLoadedYet"
    """No engine has loaded the model yet, and none has failed to."""
    # Whether it fits.
    FITS = "Fits"
    """Weights, cache and work space fit what a replica gets; the message has the numbers."""
    FEWER_SEQUENCES = "FewerSequences"
    """It starts, and holds fewer sequences of the longest context at once than `engine.maxNumSeqs` says."""
    TOO_LARGE = "TooLarge"
    """By an estimate there is no room for the cache of one sequence. It is tried all the same."""
    WEIGHTS_TOO_LARGE = "WeightsTooLarge"
    """The weights alone are larger than the memory, so no first pod is made."""
    NOT_DIVISIBLE = "NotDivisible"
    """`engine.tensorParallelSize` does not divide the model, so no first pod is made."""
    NOT_SUPPORTED = "NotSupported"
    """The engine refuses these settings for this model; the message names the field."""
    MODEL_UNKNOWN = "ModelUnknown"
    """The catalogue does not have the model's source, so nothing is known before it is loaded."""
    ENGINE_NOT_OURS = "EngineNotOurs"
    """`engine.type` is another engine, which lays out memory its own way."""
    MEMORY_UNKNOWN = "MemoryUnknown"
    """It is not known how much memory a replica gets: the profile has no `gpuMemory`, or bounds no memory."""
    # What the user wrote cannot be done.
    SIDECARS_NOT_SUPPORTED = "SidecarsNotSupported"
    """The API server keeps no sidecar containers, of which a pod of this spec needs one: Kubernetes older than 1.29, or
    one whose feature gate SidecarContainers is off."""
    INVALID_SPEC = "InvalidSpec"
    """A field or a rule between fields is broken; the message names it."""
    NOT_PERMITTED = "NotPermitted"
    """The operator's `admissionPolicy` does not allow a field; the message names the field and the setting."""
    UNKNOWN_PROFILE = "UnknownProfile"
    """`resources.profile` is not in the operator's settings; the message lists those that are."""
    PROFILE_NOT_USABLE = "ProfileNotUsable"
    """The ConfigMap that `engine.profile` names does not exist, holds no profile, or one of other number formats than
    `engine` asks for; the message says which."""
    SOURCE_NOT_SUPPORTED = "SourceNotSupported"
    """`model.source` is of a kind that is not served here."""
    MODEL_SOURCE_NOT_FOUND = "ModelSourceNotFound"
    """The PersistentVolumeClaim that `model.source` names does not exist."""
    ADAPTER_SOURCE_NOT_FOUND = "AdapterSourceNotFound"
    """The PersistentVolumeClaim that an adapter's source names does not exist. The model is served without it."""
    NAME_CONFLICT = "NameConflict"
    """An older LLMDeployment has one of the names; this one answers to its other names only."""
    RESOURCE_NOT_OWNED = "ResourceNotOwned"
    """An object of a name that is needed exists and belongs to somebody else."""
    # What the cluster or the engine says.
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
    """The engine said why it could not start, but not in one word; the message is its own."""
    CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"
    """The engine ends again and again; the message is what it said last."""
    OUT_OF_MEMORY = "OutOfMemory"
    """The engine took more memory than its limit and was killed."""
    ENGINE_NOT_READY = "EngineNotReady"
    """An engine runs, had started, and does not say that it is ready."""
    REPLICA_HANGS = "ReplicaHangs"
    """A ready engine has been in one step for so long that it will hardly end. It gets no new requests while another is
    well, and is restarted when it lasts."""
    TOKENIZER_NOT_RUN = "TokenizerNotRun"
    """Gateways do not run the model's tokenizer and chat template, which take more processor time or memory than they
    may, or fail. Its engines tokenise; what their caches hold of a prompt is not known."""
    PODS_REFUSED = "PodsRefused"
    """Pods cannot be created, for example because of a quota or an admission webhook."""
    APPLY_FAILED = "ApplyFailed"
    """The API server refused an object of ours; the message is its own."""
    ADAPTER_NOT_LOADED = "AdapterNotLoaded"
    """An engine cannot load an adapter; the message is its own. The model and its other adapters are served."""
    ADAPTER_LOADED = "AdapterLoaded"
    """Every ready replica has loaded an adapter."""
    ADAPTER_LOADING = "AdapterLoading"
    """An adapter waits for replicas to be ready, or for those that are to load it."""
    # Who scales.
    AUTOSCALING_NOT_CONFIGURED = "AutoscalingNotConfigured"
    """`spec.autoscaling` is absent: the number of replicas is yours."""
    SCALING_ACTIVE = "ScalingActive"
    """The operator's autoscaler adjusts `spec.replicas`."""
    SIGNALS_MISSING = "SignalsMissing"
    """Gateways say nothing, so replicas may be added, but none are taken away."""
    EXTERNAL_AUTOSCALER = "ExternalAutoscaler"
    """Somebody else scales, through the scale subresource."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, without the times, which depend on its history."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    """CamelCase; a Reason, or the word of an engine that could not start."""
    message: str
    """A sentence; where the user can do something, it says what."""


MAX_REASON_LENGTH = 256
MAX_MESSAGE_LENGTH = 4096
"""Characters of a message in a status. Engines, webhooks and API servers may quote megabytes, and API servers refuse
statuses that are too large."""


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
