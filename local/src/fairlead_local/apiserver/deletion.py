"""What deleting an object means: preconditions, grace, finalizers, and who removes its dependents. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from fairlead_local.apiserver.resources import NAMESPACES, PODS, ResourceType
from fairlead_local.apiserver.status import Json, bad_request, conflict, forbidden
from fairlead_local.apiserver.times import timestamp


class Propagation(StrEnum):
    """What happens to dependents: deleted after the owner, deleted before it, or left alone."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


PERMANENT_NAMESPACES = ("default", "kube-system")
FOREGROUND_FINALIZER = "foregroundDeletion"
ORPHAN_FINALIZER = "orphan"
_FINALIZERS = {Propagation.FOREGROUND: FOREGROUND_FINALIZER, Propagation.ORPHAN: ORPHAN_FINALIZER}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """How to delete. `grace_seconds` None means what the pod itself says; preconditions None ask for nothing."""

    propagation: Propagation = Propagation.BACKGROUND
    grace_seconds: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


def parse_options(body: Json) -> DeleteOptions:
    """From the body of a DELETE (already merged with its query); raises 400 for values that mean nothing."""
    policy = body.get("propagationPolicy")
    if policy is None:
        policy = Propagation.ORPHAN if body.get("orphanDependents") else Propagation.BACKGROUND
    if policy not in list(Propagation):
        raise bad_request(f'invalid DeleteOptions: propagationPolicy: Unsupported value: "{policy}"')
    grace = body.get("gracePeriodSeconds")
    if grace is not None and (not isinstance(grace, int) or isinstance(grace, bool)):
        raise bad_request("invalid DeleteOptions: gracePeriodSeconds must be a whole number of seconds")
    conditions = body.get("preconditions") or {}
    return DeleteOptions(
        propagation=Propagation(policy),
        grace_seconds=grace,
        uid=conditions.get("uid"),
        resource_version=conditions.get("resourceVersion"),
        dry_run=bool(body.get("dryRun")),
    )


def check_preconditions(resource: ResourceType, obj: Json, options: DeleteOptions) -> None:
    """Raises 409 when the object is not the one the client saw."""
    metadata = obj["metadata"]
    for name, wanted, actual in (
        ("UID", options.uid, metadata["uid"]),
        ("ResourceVersion", options.resource_version, metadata["resourceVersion"]),
    ):
        if wanted is not None and wanted != actual:
            why = f"Precondition failed: {name} in precondition: {wanted}, {name} in object meta: {actual}"
            raise conflict(resource.qualified, metadata["name"], why)


def mark(resource: ResourceType, obj: Json, options: DeleteOptions) -> Json | None:
    """The object marked for deletion, or None when nothing holds it and it goes at once."""
    metadata = dict(obj["metadata"])
    if resource is NAMESPACES and metadata["name"] in PERMANENT_NAMESPACES:
        raise forbidden(resource.qualified, metadata["name"], "this namespace may not be deleted")
    finalizers = list(metadata.get("finalizers") or ())
    wanted = _FINALIZERS.get(options.propagation)
    if wanted and wanted not in finalizers and "deletionTimestamp" not in metadata:
        finalizers.append(wanted)
        metadata["finalizers"] = finalizers
    grace = _grace_seconds(resource, obj, options)
    if "deletionTimestamp" not in metadata or grace < metadata.get("deletionGracePeriodSeconds", 0):
        metadata["deletionTimestamp"] = timestamp(datetime.now(UTC) + timedelta(seconds=grace))
        metadata["deletionGracePeriodSeconds"] = grace
        if metadata.get("generation") and "deletionTimestamp" not in obj["metadata"]:
            metadata["generation"] += 1
    marked = {**obj, "metadata": metadata}
    if resource is NAMESPACES:
        marked["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
    return None if is_finished(marked) else marked


def is_finished(obj: Json) -> bool:
    """Whether the object is being deleted and nothing holds it any more."""
    metadata = obj["metadata"]
    held = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
    content = obj["kind"] == "Namespace" and obj["spec"].get("finalizers")
    return "deletionTimestamp" in metadata and not held and not content


def _grace_seconds(resource: ResourceType, obj: Json, options: DeleteOptions) -> int:
    """Only pods that run somewhere have grace: for them somebody else confirms the end."""
    if resource is not PODS or not obj["spec"].get("nodeName"):
        return 0
    if (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    if options.grace_seconds is not None:
        return max(0, options.grace_seconds)
    return max(1, int(obj["spec"].get("terminationGracePeriodSeconds", 30)))
