"""Plan: which children have to be written or removed to get from observed to desired. Pure.

A child is applied when the operator wants something else than it applied last (the hash on the child), or when
somebody has changed a field that the operator sets. So a fleet at rest causes no writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.llmdeployment import ScalingMode
from fairlead.api.quantities import parse_quantity
from fairlead.controller.desired import Desired
from fairlead.controller.observe import ChildKey, Observed
from fairlead.kube.client import JsonObject
from fairlead.manifests.common import Manifest, fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to write."""

    apply: tuple[Manifest, ...] = ()
    prune: tuple[JsonObject, ...] = ()
    """Children of ours that are no longer wanted, as observed."""
    initial_replicas: int | None = None
    """To be written to the LLMDeployment's scale, where an autoscaler needs a count to start from."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing has to be written."""
        return not self.apply and not self.prune and self.initial_replicas is None


def make_plan(wanted: Desired, observed: Observed, settled: Mapping[ChildKey, str] | None = None) -> Plan:
    """`settled`: what each child looked like right after it was last applied (`content_hash`).

    A child that still looks like that is left alone even where it differs from what is wanted: the API server or a
    webhook insists on something else, and repeating ourselves would not end.
    """
    if wanted.obstacle is not None or wanted.deployment is None:
        return Plan()
    if wanted.deployment.metadata.deletion_timestamp is not None:
        return Plan()  # the garbage collector takes the children
    keys = {key_of(manifest) for manifest in wanted.children}
    uid = wanted.deployment.metadata.uid
    return Plan(
        apply=tuple(child for child in wanted.children if _needs_apply(child, observed, settled or {})),
        prune=tuple(child for key, child in observed.children.items() if key not in keys and is_owned(child, uid)),
        initial_replicas=_initial_replicas(wanted),
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
