"""LLMDeployments → what the gateway needs of them: the model, and the outlook while no replica is ready. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.api.conditions import ConditionStatus, ConditionType, Reason, find_condition
from fairlead.api.llmdeployment import LLMDeployment, ScalingMode
from fairlead.fleet.pods import is_finished, is_terminating
from fairlead.fleet.pool import Outlook, ServedModel

HOPELESS_REASONS = frozenset(
    {Reason.INVALID_SPEC, Reason.UNKNOWN_PROFILE, Reason.RESOURCE_NOT_OWNED, Reason.SOURCE_NOT_SUPPORTED}
)
"""Reasons under which the operator creates no pods until somebody changes the object."""


def served_model(deployment: LLMDeployment) -> ServedModel:
    """The part of the LLMDeployment that requests are served by."""
    metadata, spec = deployment.metadata, deployment.spec
    return ServedModel(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        served_name=spec.model.served_name,
        aliases=tuple(spec.model.aliases),
        created=metadata.creation_timestamp.timestamp(),
        policy=str(spec.routing.policy),
        max_queue_time=spec.routing.max_queue_time,
        cold_start_timeout=spec.routing.cold_start_timeout,
    )


def outlook(deployment: LLMDeployment, pods: Iterable[Mapping[str, Any]]) -> Outlook:
    """Whether a replica is going to be ready: pods exist that may become so, or are going to be created.

    Pods that exist always count, whatever the conditions say: a condition may be older than the pods.
    """
    message = _ready_message(deployment)
    if any(not is_terminating(pod) and not is_finished(pod) for pod in pods):
        return Outlook(True, message or "Its replicas are starting.")
    if deployment.desired_replicas == 0:
        return Outlook(_may_scale_from_zero(deployment), message or "It is scaled to zero replicas.")
    return Outlook(not _is_hopeless(deployment), message or "Its first replica is being created.")


def _ready_message(deployment: LLMDeployment) -> str:
    """The sentence of the condition Ready, unless it says that all is well: then it is older than what we see."""
    condition = find_condition(deployment.status, ConditionType.READY)
    if condition is None or condition.get("status") == ConditionStatus.TRUE:
        return ""
    return str(condition.get("message") or "")


def _may_scale_from_zero(deployment: LLMDeployment) -> bool:
    """Whether an autoscaler outside may answer waiting requests with a replica."""
    autoscaling = deployment.spec.autoscaling
    return autoscaling is not None and autoscaling.mode is ScalingMode.EXTERNAL


def _is_hopeless(deployment: LLMDeployment) -> bool:
    """Whether the operator has looked at this very spec and found that it cannot run it."""
    for kind in (ConditionType.READY, ConditionType.MODEL_AVAILABLE):
        condition = find_condition(deployment.status, kind)
        if condition is None or condition.get("status") != ConditionStatus.FALSE:
            continue
        if condition.get("observedGeneration", deployment.metadata.generation) != deployment.metadata.generation:
            continue
        if condition.get("reason") in HOPELESS_REASONS:
            return True
    return False
