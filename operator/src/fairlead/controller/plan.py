"""Plan: which children to write or remove to get from observed to desired, and which replicas to drain on scale-down.
Pure; `applier` carries plans out.

A child is applied when the wanted manifest differs from the last applied one (by the hash on the child), or when
somebody has changed a field that the operator sets. So a fleet at rest causes no writes.

For scale-down the order is: mark the victims → ask their engines to drain → lower the Deployment's count, and the
ReplicaSet deletes them. A mark is an annotation on the pod that lowers the pod's deletion cost; an operator that starts
in the middle reads the marks and goes on. The ReplicaSet may choose other pods: a marked pod left over, because another
pod went or the count was raised again, is deleted by the operator and so replaced.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fairlead.api import names
from fairlead.api.llmdeployment import ScalingMode
from fairlead.api.quantities import parse_quantity
from fairlead.controller.desired import Desired
from fairlead.controller.observe import ChildKey, Observed, is_owned
from fairlead.controller.pod_diagnosis import Stage, diagnose
from fairlead.fleet.pods import ReplicaPods
from fairlead.kube.client import JsonObject
from fairlead.manifests.common import Manifest, fingerprint

CHEAPEST = "-2147483647"
"""The smallest cost of deletion that Kubernetes takes."""
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}
HUNG = -1
"""Running requests assumed of a hanging replica, so that hanging replicas go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to write."""

    apply: tuple[Manifest, ...] = ()
    prune: tuple[JsonObject, ...] = ()
    """Children of ours that are no longer wanted."""
    initial_replicas: int | None = None
    """To be written to the LLMDeployment's scale, where an autoscaler needs a count to start from."""
    drain: tuple[ReplicaPods, ...] = ()
    """Replicas to be marked and asked to drain before anything is applied: what is applied lowers the count."""
    replace: tuple[ReplicaPods, ...] = ()
    """Drained replicas that should stay after all: engines do not return from a drain, so the pods are deleted, and
    replaced by their ReplicaSet."""


def make_plan(
    wanted: Desired,
    observed: Observed,
    settled: Mapping[ChildKey, str] | None = None,
    asked: Collection[str] = (),
) -> Plan:
    """`settled`: each child's `content_hash` right after the last apply. Such a child is left alone even if different
    from the wanted manifest: the API server or a webhook insists, and repeating would not end. `asked`: uids of
    replicas asked to drain, perhaps not shown in `observed` yet."""
    deployment, engine = wanted.deployment, observed.engine
    if wanted.obstacle is not None or deployment is None:
        return Plan()
    if deployment.metadata.deletion_timestamp is not None:
        return Plan()  # the garbage collector takes the children
    keys = {key_of(manifest) for manifest in wanted.children}
    apply = tuple(child for child in wanted.children if _needs_apply(child, observed, settled or {}))
    count = next((_count(manifest) for manifest in apply if manifest["kind"] == "Deployment"), None)
    drain: tuple[ReplicaPods, ...] = ()
    if engine is not None and count is not None and count < _count(engine) and not is_rolling(engine):
        # One that hangs serves nobody, whatever it has: without this, the one that has least would go, which is well.
        running = {**observed.running, **dict.fromkeys(observed.hanging, HUNG)}
        drain = choose_victims(observed.replicas, count, running, asked)
    # A configuration that is not wanted any more goes when no pod has it, and no ReplicaSet may make one that does.
    is_at_rest = engine is None or (count is None and has_acted(engine) and not is_rolling(engine))
    in_use = {used for pod in observed.pods for used in _used_by(pod.get("spec") or {})}
    prune = (
        child
        for key, child in observed.children.items()
        if key not in keys
        and is_owned(child, deployment.metadata.uid)
        and (child["kind"] not in USED_BY_PODS or (is_at_rest and key not in in_use))
    )
    autoscaling = deployment.spec.autoscaling
    is_external = autoscaling is not None and autoscaling.mode is ScalingMode.EXTERNAL
    return Plan(
        apply=apply,
        prune=tuple(prune),
        initial_replicas=deployment.desired_replicas if is_external and deployment.spec.replicas is None else None,
        drain=drain,
        replace=left_over(observed.replicas, engine, asked) if engine is not None and count is None else (),
    )


USED_BY_PODS = ("ConfigMap", "ResourceClaimTemplate")
"""Kinds of children that pods name: each configuration has its own."""


def _used_by(pod: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Kind and name of such children, by a pod's spec."""
    for volume in pod.get("volumes") or []:
        yield "ConfigMap", (volume.get("configMap") or {}).get("name")
    for claim in pod.get("resourceClaims") or []:
        yield "ResourceClaimTemplate", claim.get("resourceClaimTemplateName")


def key_of(manifest: Mapping[str, Any]) -> ChildKey:
    """Kind and name."""
    return manifest["kind"], manifest["metadata"]["name"]


def differs(wanted: Any, found: Any) -> bool:
    """Whether `found` lacks or contradicts anything in `wanted`; further content of `found` does not count."""
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping):
            return bool(wanted) or found is not None
        return any(differs(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, (list, tuple)):
        if not isinstance(found, list) or len(found) != len(wanted):
            return bool(wanted) or bool(found)
        return any(differs(one, other) for one, other in zip(wanted, found, strict=True))
    if wanted == "" and found is None:
        return False  # the API leaves out empty strings
    if wanted == found or not isinstance(wanted, (str, int)) or not isinstance(found, (str, int)):
        return bool(wanted != found)
    try:  # Kubernetes rewrites quantities: 1024Mi comes back as 1Gi
        return parse_quantity(wanted) != parse_quantity(found)
    except ValueError:
        return True


def content_hash(child: JsonObject) -> str:
    """Changes when somebody writes to the child, but not with its status."""
    volatile = ("resourceVersion", "generation", "managedFields")
    metadata = {key: value for key, value in child["metadata"].items() if key not in volatile}
    content = {key: value for key, value in child.items() if key != "status"}
    return fingerprint(content | {"metadata": metadata})


def _needs_apply(child: Manifest, observed: Observed, settled: Mapping[ChildKey, str]) -> bool:
    found = observed.children.get(key_of(child))
    if found is None:
        return True
    applied = (found["metadata"].get("annotations") or {}).get(names.ANNOTATION_APPLIED_HASH)
    if applied != child["metadata"]["annotations"][names.ANNOTATION_APPLIED_HASH]:
        return True
    return differs(child, found) and settled.get(key_of(child)) != content_hash(found)


def _count(deployment: Mapping[str, Any]) -> int:
    return int(deployment["spec"].get("replicas") or 0)


def choose_victims(
    replicas: Sequence[ReplicaPods], num_wanted: int, running: Mapping[str, int], asked: Collection[str] = ()
) -> tuple[ReplicaPods, ...]:
    """Replicas to remove so that `num_wanted` stay: marked ones first, then the least useful.

    `running`: requests by the replica's uid. `asked`: uids of marked replicas, even if `replicas` does not show it yet.
    """
    active = [each for each in replicas if each.is_active]
    ranked = sorted(active, key=lambda each: (not _is_victim(each, asked), *_worth(each, running)))
    return tuple(ranked[: max(0, len(active) - num_wanted)])


def left_over(
    replicas: Sequence[ReplicaPods], engine: JsonObject, asked: Collection[str] = ()
) -> tuple[ReplicaPods, ...]:
    """Marked replicas that the Deployment `engine` has no reason to delete any more."""
    if not has_acted(engine):
        return ()
    return tuple(each for each in replicas if each.is_active and _is_victim(each, asked))


def is_rolling(engine: JsonObject) -> bool:
    """Whether pods of an earlier configuration are being replaced. Kubernetes then chooses; our first victims would be
    the new pods, which are not ready."""
    status = engine.get("status") or {}
    return (status.get("updatedReplicas") or 0) < (status.get("replicas") or 0)


def is_seen(engine: JsonObject) -> bool:
    """Whether the Deployment's controller has seen its present spec."""
    return ((engine.get("status") or {}).get("observedGeneration") or 0) >= (engine["metadata"].get("generation") or 0)


def has_acted(engine: JsonObject) -> bool:
    """Whether the Deployment has seen its count and has no more pods."""
    num_pods = (engine.get("status") or {}).get("replicas") or 0
    return is_seen(engine) and num_pods <= (engine["spec"].get("replicas") or 0)


def _is_victim(replica: ReplicaPods, asked: Collection[str]) -> bool:
    return replica.is_marked or replica.uid in asked


def _worth(replica: ReplicaPods, running: Mapping[str, int]) -> tuple[bool, int, bool, bool, int, float, str]:
    """Sort key: the least worth goes first. The first three are the ReplicaSet's own criteria before the deletion
    cost."""
    phases = ((pod.get("status") or {}).get("phase", "Pending") for pod in replica.pods)
    return (
        all((pod.get("spec") or {}).get("nodeName") for pod in replica.pods),
        min(_PHASES.get(phase, 1) for phase in phases),
        replica.became_ready is not None,
        all(diagnose(pod).stage is not Stage.FAILING for pod in replica.pods),
        running.get(replica.uid, 0),
        -datetime.fromisoformat(replica.created).timestamp(),
        replica.name,
    )


def mark(time: str) -> dict[str, str]:
    """The annotations on every pod of a victim. `time`: RFC 3339."""
    return {names.ANNOTATION_DRAIN: time, names.ANNOTATION_DELETION_COST: CHEAPEST}
