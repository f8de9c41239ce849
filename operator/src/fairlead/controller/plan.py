"""Plan: which children have to be written or removed to get from observed to desired. Pure.

A child is applied when the operator wants something else than it applied last (the hash on the child), or when
somebody has changed a field that the operator sets. So a fleet at rest causes no writes.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.llmdeployment import ScalingMode
from fairlead.api.quantities import parse_quantity
from fairlead.controller.desired import Desired
from fairlead.controller.observe import ChildKey, Observed
from fairlead.controller.victims import choose_victims, has_acted, is_rolling, left_over
from fairlead.kube.client import JsonObject
from fairlead.manifests.common import Manifest, fingerprint

HUNG = -1
"""Requests that a replica which hangs counts as having, where the least loaded one is to go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to write."""

    apply: tuple[Manifest, ...] = ()
    prune: tuple[JsonObject, ...] = ()
    """Children of ours that are no longer wanted, as observed."""
    initial_replicas: int | None = None
    """To be written to the LLMDeployment's scale, where an autoscaler needs a count to start from."""
    drain: tuple[JsonObject, ...] = ()
    """Pods to be marked and asked to drain before anything is applied: what is applied lowers the count."""
    replace: tuple[JsonObject, ...] = ()
    """Pods that were asked to drain and are to stay after all: engines do not come back from that, so they are deleted
    and their ReplicaSet makes new ones."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing has to be written."""
        return self == Plan()


def make_plan(
    wanted: Desired,
    observed: Observed,
    settled: Mapping[ChildKey, str] | None = None,
    asked: Collection[str] = (),
) -> Plan:
    """`settled`: what each child looked like right after it was last applied (`content_hash`).

    A child that still looks like that is left alone even where it differs from what is wanted: the API server or a
    webhook insists on something else, and repeating ourselves would not end. `asked`: uids of pods that were asked to
    drain, whether or not `observed` shows it yet.
    """
    if wanted.obstacle is not None or wanted.deployment is None:
        return Plan()
    if wanted.deployment.metadata.deletion_timestamp is not None:
        return Plan()  # the garbage collector takes the children
    keys = {key_of(manifest) for manifest in wanted.children}
    uid = wanted.deployment.metadata.uid
    apply = tuple(child for child in wanted.children if _needs_apply(child, observed, settled or {}))
    return Plan(
        apply=apply,
        prune=tuple(
            child
            for key, child in observed.children.items()
            if key not in keys and is_owned(child, uid) and not _is_in_use(child, apply, observed)
        ),
        initial_replicas=_initial_replicas(wanted),
        drain=_drain(apply, observed, asked),
        replace=_replace(apply, observed, asked),
    )


def key_of(manifest: Mapping[str, Any]) -> ChildKey:
    """Kind and name."""
    return manifest["kind"], manifest["metadata"]["name"]


def is_owned(child: Mapping[str, Any], uid: str) -> bool:
    """Whether the LLMDeployment with this uid is the controller of the child."""
    owners = child["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)


def differs(wanted: Any, found: Any) -> bool:
    """Whether `found` lacks or contradicts anything that `wanted` says. What `found` has beyond it does not count."""
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
    return bool(wanted != found) and not _same_quantity(wanted, found)


def content_hash(child: JsonObject) -> str:
    """Changes when somebody writes to the child, but not when its status does."""
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


def _drain(apply: Iterable[Manifest], observed: Observed, asked: Collection[str]) -> tuple[JsonObject, ...]:
    """The victims, where `apply` lowers the count of a Deployment of ours."""
    engine, count = _engine(observed), _applied_count(apply)
    if engine is None or count is None or count >= _count(engine) or is_rolling(engine):
        return ()
    # One that hangs serves nobody, whatever it has: without this, the one that has least would go, which is well.
    running = {**observed.running, **dict.fromkeys(observed.hanging, HUNG)}
    return choose_victims(observed.pods, count, running, asked)


def _replace(apply: Iterable[Manifest], observed: Observed, asked: Collection[str]) -> tuple[JsonObject, ...]:
    """The marked pods that are left over, once the count is what it is to be."""
    engine = _engine(observed)
    if engine is None or _applied_count(apply) is not None:
        return ()
    return left_over(observed.pods, engine, asked)


def _is_in_use(child: JsonObject, apply: Iterable[Manifest], observed: Observed) -> bool:
    """Whether a configuration is that of pods which are still there, or which a ReplicaSet may still make anew."""
    if child["kind"] != "ConfigMap":
        return False
    engine = _engine(observed)
    if engine is not None and (_applied_count(apply) is not None or is_rolling(engine) or not has_acted(engine)):
        return True
    volumes = (volume for pod in observed.pods for volume in (pod.get("spec") or {}).get("volumes") or [])
    return any((volume.get("configMap") or {}).get("name") == child["metadata"]["name"] for volume in volumes)


def _engine(observed: Observed) -> JsonObject | None:
    """The engine's Deployment, if it is ours."""
    engine = observed.deployment
    return engine if engine is not None and is_owned(engine, observed.body["metadata"]["uid"]) else None


def _applied_count(apply: Iterable[Manifest]) -> int | None:
    """The replicas that `apply` gives the engine's Deployment; None where it does not write it."""
    return next((_count(manifest) for manifest in apply if manifest["kind"] == "Deployment"), None)


def _count(deployment: Mapping[str, Any]) -> int:
    return int(deployment["spec"].get("replicas") or 0)


def _same_quantity(wanted: Any, found: Any) -> bool:
    """Kubernetes rewrites quantities: 1024Mi comes back as 1Gi."""
    if not isinstance(wanted, (str, int)) or not isinstance(found, (str, int)):
        return False
    try:
        return parse_quantity(wanted) == parse_quantity(found)
    except ValueError:
        return False


def _initial_replicas(wanted: Desired) -> int | None:
    deployment = wanted.deployment
    if deployment is None or deployment.spec.replicas is not None or deployment.spec.autoscaling is None:
        return None
    external = deployment.spec.autoscaling.mode is ScalingMode.EXTERNAL
    return deployment.desired_replicas if external else None
