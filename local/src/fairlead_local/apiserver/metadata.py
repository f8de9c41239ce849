"""Metadata through the life of an object: names, identity, fixed fields, and deletion with preconditions, grace and
finalizers. Pure but for random ids."""

import random
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from fairlead_local.apiserver.resources import NAMESPACES, PODS, ResourceType
from fairlead_local.apiserver.selectors import KEY, VALUE
from fairlead_local.apiserver.status import (
    STALE,
    Json,
    Violation,
    ViolationKind,
    bad_request,
    conflict,
    forbidden,
    forbidden_value,
    invalid_value,
    required_value,
)
from fairlead_local.apiserver.times import timestamp

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME_RULES = {
    "Namespace": (_LABEL, 63, "a lowercase RFC 1123 label"),
    "Service": (_LABEL_1035, 63, "a DNS-1035 label"),
}
SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Letters without vowels and look-alikes: no suffix spells a word."""

_MAX_ANNOTATION_BYTES = 256 * 1024

_SERVER_OWNED = (
    *("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"),
)


def random_suffix(length: int = 5) -> str:
    return "".join(random.choices(SUFFIX_LETTERS, k=length))


def identify(resource: ResourceType, obj: Json, namespace: str) -> Json:
    """The object as a creation stores it: named, placed, with an identity of its own."""
    metadata = dict(obj.get("metadata") or {})
    if metadata.get("resourceVersion"):
        raise bad_request("resourceVersion should not be set on objects to be created")
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"][:58] + random_suffix()
    check_name(resource, metadata.get("name") or "")
    metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion", "generation"):
        metadata.pop(field, None)
    if resource.namespaced:
        metadata["namespace"] = namespace
    if resource.has_generation:
        metadata["generation"] = 1
    return {**obj, "metadata": metadata}


def check_name(resource: ResourceType, name: str) -> None:
    """Raises 422 for a name the kind does not allow."""
    if not name:
        raise resource.invalid(name, required_value("metadata.name", "name or generateName is required"))
    pattern, longest, words = _NAME_RULES.get(resource.kind, (_SUBDOMAIN, 253, "a lowercase RFC 1123 subdomain"))
    if len(name) > longest or not pattern.fullmatch(name):
        text = f'"{name}": must be {words} of at most {longest} characters (regex {pattern.pattern!r})'
        raise resource.invalid(name, invalid_value("metadata.name", text))


def check_address(resource: ResourceType, body: Json, namespace: str, name: str | None) -> Json:
    """The body with `apiVersion` and `kind` filled in; raises where those, name or namespace disagree with the path."""
    if body.get("metadata") is not None and not isinstance(body["metadata"], dict):
        raise bad_request("metadata must be an object")
    metadata = dict(body.get("metadata") or {})
    version, kind = body.get("apiVersion"), body.get("kind")
    if resource.custom and not kind:
        raise bad_request("Object 'Kind' is missing in the request's body")
    if kind and kind != resource.kind:
        if resource.custom:
            violation = invalid_value("kind", f'"{kind}": must be {resource.kind}')
            raise resource.invalid(metadata.get("name", ""), violation)
        text = f'{kind} in version "{version}" cannot be handled as a {resource.kind}'
        raise bad_request(f"{text}: no kind {kind!r} is served at this path")
    if version and version != resource.api_version:
        text = f"the API version in the data ({version}) does not match the expected API version"
        raise bad_request(f"{text} ({resource.api_version})")
    if resource.namespaced and metadata.get("namespace", namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if name is not None and metadata.setdefault("name", name) != name:
        text = f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
        raise bad_request(text)
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body, "metadata": metadata}


def check_version(resource: ResourceType, live: Json, proposed: Json, *, required: bool) -> None:
    """Optimistic concurrency: 409 where `proposed` was made from another state, 422 where it must say and does not."""
    asked, metadata = (proposed.get("metadata") or {}).get("resourceVersion"), live["metadata"]
    if not asked:
        if required:
            text = "0x0: must be specified for an update"
            raise resource.invalid(metadata["name"], invalid_value("metadata.resourceVersion", text))
        return
    if asked != metadata["resourceVersion"]:
        raise conflict(resource.qualified, metadata["name"], STALE)


def carry_over(resource: ResourceType, live: Json, proposed: Json) -> Json:
    """`proposed` with the identity of `live`; raises 409 for another uid, 422 for finalizers added while deleting."""
    old, new = live["metadata"], dict(proposed.get("metadata") or {})
    if new.get("uid") and new["uid"] != old["uid"]:
        why = f"Precondition failed: UID in precondition: {new['uid']}, UID in object meta: {old['uid']}"
        raise conflict(resource.qualified, old["name"], why)
    if "deletionTimestamp" in old:
        added = [item for item in new.get("finalizers") or () if item not in (old.get("finalizers") or ())]
        if added:
            text = f"no new finalizers can be added if the object is being deleted, found new finalizers {added}"
            raise resource.invalid(old["name"], forbidden_value("metadata.finalizers", text))
    new = {field: value for field, value in new.items() if field not in _SERVER_OWNED}
    fixed = (*_SERVER_OWNED, "name", "namespace", "generateName", "resourceVersion")
    new |= {field: old[field] for field in fixed if field in old}
    return {**proposed, "metadata": new}


def label_problems(obj: Json) -> list[Violation]:
    """Labels and annotations that no API server takes."""
    metadata, found = obj["metadata"], []
    for field in ("labels", "annotations"):
        for key in metadata.get(field) or {}:
            if not KEY.fullmatch(key):
                text = f'"{key}": must consist of alphanumeric characters and -_.'
                found.append(invalid_value(f"metadata.{field}", text))
    for value in (metadata.get("labels") or {}).values():
        if not VALUE.fullmatch(value):
            text = f'"{value}": a valid label must be an empty string or consist of at most 63 '
            text += "alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
            found.append(invalid_value("metadata.labels", text))
    size = sum(len(key) + len(value) for key, value in (metadata.get("annotations") or {}).items())
    if size > _MAX_ANNOTATION_BYTES:
        text = f"Too long: may not be more than {_MAX_ANNOTATION_BYTES} bytes"
        found.append(Violation("metadata.annotations", ViolationKind.TOO_LONG, text))
    return found


def content(obj: Json, *, without_status: bool) -> Json:
    """What a generation counts: everything but metadata and, where it is a subresource, the status."""
    hidden = ("metadata", "status") if without_status else ("metadata",)
    return {field: value for field, value in obj.items() if field not in hidden}


def with_metadata(obj: Json, **fields: Any) -> Json:
    """The object with other fields of the metadata."""
    return {**obj, "metadata": {**obj["metadata"], **fields}}


def is_owned_by(obj: Json, uid: str) -> bool:
    """Whether the object's managing controller is the object with this uid."""
    return any(ref.get("controller") and ref["uid"] == uid for ref in owner_references(obj))


def owner_references(obj: Json) -> list[Json]:
    references: list[Json] = obj["metadata"].get("ownerReferences") or []
    return references


def controller_reference(owner: Json) -> Json:
    """The ownerReference a controller puts on what it creates for `owner`."""
    names = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}
    return names | {"uid": owner["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}


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
    """How to delete. `grace_seconds`: None = by the pod; preconditions: None = not checked."""

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
    """The object marked for deletion; None = the object is removed at once."""
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
    """Whether the object is being deleted, without finalizers, grace period or content left."""
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
