"""Plan: which children have to be written or removed to get from observed to desired. Pure.

A child is applied when the operator wants something else than it applied last (the hash on the child), or when
somebody has changed a field that the operator sets. So a fleet at rest causes no writes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.llmdeployment import ScalingMode
from fairlead.api.quantities import parse_quantity
from fairlead.controller.desired import Desired
from fairlead.controller.observe import ChildKey, Observed, is_owned
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
    deployment, engine = wanted.deployment, observed.engine
    if wanted.obstacle is not None or deployment is None:
        return Plan()
    if deployment.metadata.deletion_timestamp is not None:
        return Plan()  # the garbage collector takes the children
    keys = {key_of(manifest) for manifest in wanted.children}
    apply = tuple(child for child in wanted.children if _needs_apply(child, observed, settled or {}))
    count = next((_count(manifest) for manifest in apply if manifest["kind"] == "Deployment"), None)
    drain: tuple[JsonObject, ...] = ()
    if engine is not None and count is not None and count < _count(engine) and not is_rolling(engine):
        # One that hangs serves nobody, whatever it has: without this, the one that has least would go, which is well.
        running = {**observed.running, **dict.fromkeys(observed.hanging, HUNG)}
        drain = choose_victims(observed.pods, count, running, asked)
    # A configuration that is not wanted any more goes when no pod has it, and no ReplicaSet may make one that does.
    is_at_rest = engine is None or (count is None and has_acted(engine) and not is_rolling(engine))
    volumes = (volume for pod in observed.pods for volume in (pod.get("spec") or {}).get("volumes") or [])
    in_use = {("ConfigMap", (volume.get("configMap") or {}).get("name")) for volume in volumes}
    prune = (
        child
        for key, child in observed.children.items()
        if key not in keys
        and is_owned(child, deployment.metadata.uid)
        and (child["kind"] != "ConfigMap" or (is_at_rest and key not in in_use))
    )
    autoscaling = deployment.spec.autoscaling
    is_external = autoscaling is not None and autoscaling.mode is ScalingMode.EXTERNAL
    return Plan(
        apply=apply,
        prune=tuple(prune),
        initial_replicas=deployment.desired_replicas if is_external and deployment.spec.replicas is None else None,
        drain=drain,
        replace=left_over(observed.pods, engine, asked) if engine is not None and count is None else (),
    )


def key_of(manifest: Mapping[str, Any]) -> ChildKey:
    """Kind and name."""
    return manifest["kind"], manifest["metadata"]["name"]


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
    if wanted == found or not isinstance(wanted, (str, int)) or not isinstance(found, (str, int)):
        return bool(wanted != found)
    try:  # Kubernetes rewrites quantities: 1024Mi comes back as 1Gi
        return parse_quantity(wanted) != parse_quantity(found)
    except ValueError:
        return True


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


def _count(deployment: Mapping[str, Any]) -> int:
    return int(deployment["spec"].get("replicas") or 0)
