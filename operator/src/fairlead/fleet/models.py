"""LLMDeployments → what the gateway needs of them: the model, and the outlook while no replica is ready. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.api.conditions import ConditionStatus, ConditionType, Reason, find_condition
from fairlead.api.llmdeployment import LLMDeployment, ScalingMode
from fairlead.fleet.pods import is_active
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
        engine=_engine(deployment),
        max_model_len=_max_model_len(deployment),
        routing=spec.routing,
    )


def _engine(deployment: LLMDeployment) -> str:
    spec = deployment.spec
    text = repr((spec.model.source, spec.engine, spec.resources, spec.template))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _max_model_len(deployment: LLMDeployment) -> int | None:
    """What the engines are sure to be started with: arguments and templates win over the field."""
    spec = deployment.spec
    said_elsewhere = "max-model-len" in repr((spec.engine.extra_args, spec.template))
    return None if said_elsewhere else spec.engine.max_model_len


def outlook(deployment: LLMDeployment, pods: Iterable[Mapping[str, Any]]) -> Outlook:
    """Whether a replica is going to be ready: pods exist that may become so, are going to be created, or somebody is
    going to be asked for one by the requests that wait.

    Pods that exist always count, whatever the conditions say: a condition may be older than the pods. The message is
    what the operator says of this very spec, where it has looked at it: why the model cannot be loaded, if that is so.
    """
    message = _trouble(deployment)
    if any(is_active(pod) for pod in pods):
        return Outlook(True, message or "Its replicas are starting.")
    if _is_hopeless(deployment):
        return Outlook(False, message)
    if deployment.desired_replicas == 0:
        is_woken, who = _who_wakes(deployment)
        return Outlook(is_woken, message or f"It is scaled to zero; {who}.", asleep=True)
    return Outlook(True, message or "Its first replica is being created.")


def _trouble(deployment: LLMDeployment) -> str:
    """The operator's sentence about what keeps the model from answering; empty where it has none about this spec.

    An engine that could not load the model has said why, which helps more than how many replicas are ready.
    """
    for kind in (ConditionType.MODEL_AVAILABLE, ConditionType.READY):
        condition = find_condition(deployment.status, kind)
        if condition is not None and _is_false_now(deployment, condition):
            is_wanted = condition.get("reason") == Reason.SCALED_TO_ZERO
            return "" if is_wanted else str(condition.get("message") or "")
    return ""


def _who_wakes(deployment: LLMDeployment) -> tuple[bool, str]:
    """Whether an autoscaler answers waiting requests with a replica, and who has to do what."""
    autoscaling, metadata = deployment.spec.autoscaling, deployment.metadata
    command = f"`kubectl scale llmdeployment {metadata.name} --namespace {metadata.namespace} --replicas 1`"
    if autoscaling is None:
        return False, f"{command} starts a replica"
    if autoscaling.mode is ScalingMode.EXTERNAL:
        return (
            True,
            f"its external autoscaler (autoscaling.mode External) has to raise spec.replicas, as {command} does",
        )
    return True, "Fairlead's autoscaler starts a replica for the requests that wait"


def _is_false_now(deployment: LLMDeployment, condition: Mapping[str, Any]) -> bool:
    """Whether the condition is False, and about the spec as it is now."""
    generation = condition.get("observedGeneration", deployment.metadata.generation)
    return bool(condition.get("status") == ConditionStatus.FALSE and generation == deployment.metadata.generation)


def _is_hopeless(deployment: LLMDeployment) -> bool:
    """Whether the operator has looked at this very spec and found that it cannot run it."""
    conditions = (
        find_condition(deployment.status, kind) for kind in (ConditionType.READY, ConditionType.MODEL_AVAILABLE)
    )
    return any(
        condition is not None and _is_false_now(deployment, condition) and condition.get("reason") in HOPELESS_REASONS
        for condition in conditions
    )
