"""LLMDeployments → what the gateway needs of them: the model, and the outlook while no replica is ready. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.api.conditions import ConditionStatus, ConditionType, Reason, find_condition
from fairlead.api.llmdeployment import LLMDeployment, ScalingMode
from fairlead.fleet.directory import Outlook, ServedAdapter, ServedModel
from fairlead.fleet.pods import is_active
from fairlead_protocol.downloads import DownloadFailure

HOPELESS_REASONS = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.NOT_PERMITTED,
        Reason.UNKNOWN_PROFILE,
        Reason.RESOURCE_NOT_OWNED,
        Reason.SOURCE_NOT_SUPPORTED,
        Reason.SIDECARS_NOT_SUPPORTED,
    }
)
"""Reasons under which the operator creates no pods until somebody changes the object."""

HOPELESS_ADAPTERS = frozenset(
    {Reason.ADAPTER_NOT_LOADED, Reason.ADAPTER_SOURCE_NOT_FOUND, Reason.SOURCE_NOT_SUPPORTED, *DownloadFailure}
)
"""Reasons under which no replica serves an adapter until somebody changes something."""


def served_model(deployment: LLMDeployment) -> ServedModel:
    """The part of the LLMDeployment that requests are served by."""
    metadata, spec = deployment.metadata, deployment.spec
    engine = repr((spec.model.source, spec.engine, spec.resources, spec.template))
    # What the engines are sure to be started with: arguments and templates win over the field.
    said_elsewhere = "max-model-len" in repr((spec.engine.extra_args, spec.template))
    return ServedModel(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        served_name=spec.model.served_name,
        aliases=tuple(spec.model.aliases),
        adapters=_adapters(deployment),
        created=metadata.creation_timestamp.timestamp(),
        engine=hashlib.blake2b(engine.encode(), digest_size=16).hexdigest(),
        max_model_len=None if said_elsewhere else spec.engine.max_model_len,
        routing=spec.routing,
    )


def _adapters(deployment: LLMDeployment) -> tuple[ServedAdapter, ...]:
    """Those that it lists, with what the operator has found to be wrong with each."""
    said = {each.get("name"): each for each in deployment.status.get("adapters") or ()}
    found = []
    for adapter in deployment.spec.adapters:
        status = said.get(adapter.name) or {}
        trouble = str(status.get("message") or "") if status.get("reason") in HOPELESS_ADAPTERS else ""
        found.append(ServedAdapter(adapter.name, adapter.served_name, trouble))
    return tuple(found)


def outlook(deployment: LLMDeployment, pods: Iterable[Mapping[str, Any]]) -> Outlook:
    """Whether a replica is going to be ready: pods exist that may become so, are going to be created, or somebody is
    going to be asked for one by the requests that wait.

    Pods that exist always count, whatever the conditions say: a condition may be older than the pods. The message is
    what the operator says of this very spec, where it has looked at it: why the model cannot be loaded, if that is so,
    which helps more than how many replicas are ready.
    """
    status, metadata, generation = deployment.status, deployment.metadata, deployment.metadata.generation
    kinds = (ConditionType.MODEL_AVAILABLE, ConditionType.READY)
    troubles = [
        condition
        for condition in filter(None, (find_condition(status, kind) for kind in kinds))
        if condition.get("status") == ConditionStatus.FALSE
        and condition.get("observedGeneration", generation) == generation
    ]
    is_trouble = troubles and troubles[0].get("reason") != Reason.SCALED_TO_ZERO
    message = str(troubles[0].get("message") or "") if is_trouble else ""
    if any(is_active(pod) for pod in pods):
        return Outlook(True, message or "Its replicas are starting.")
    if any(condition.get("reason") in HOPELESS_REASONS for condition in troubles):
        return Outlook(False, message)
    if deployment.desired_replicas != 0:
        return Outlook(True, message or "Its first replica is being created.")
    autoscaling = deployment.spec.autoscaling
    command = f"`kubectl scale llmdeployment {metadata.name} --namespace {metadata.namespace} --replicas 1`"
    if autoscaling is None:
        who = f"{command} starts a replica"
    elif autoscaling.mode is ScalingMode.EXTERNAL:
        who = f"its external autoscaler (autoscaling.mode External) has to raise spec.replicas, as {command} does"
    else:
        who = "Fairlead's autoscaler starts a replica for the requests that wait"
    return Outlook(autoscaling is not None, message or f"It is scaled to zero; {who}.", asleep=True)
