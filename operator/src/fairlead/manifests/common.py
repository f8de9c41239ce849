"""What every child of an LLMDeployment has in common: names, labels, the owner, and the hash of what was asked for."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fairlead.api import names
from fairlead.api.llmdeployment import LLMDeployment

Manifest = dict[str, Any]


def selector_labels(deployment: LLMDeployment) -> dict[str, str]:
    """The labels that select the engine's pods; never more than these, because a Deployment's selector cannot
    change."""
    return {names.LABEL_LLMDEPLOYMENT: deployment.metadata.name, names.LABEL_COMPONENT: names.ENGINE_COMPONENT}


def own_labels(deployment: LLMDeployment) -> dict[str, str]:
    """The labels of every child and of the engine's pods."""
    ours = {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_PART_OF: names.PART_OF}
    return ours | selector_labels(deployment)


def child(
    deployment: LLMDeployment,
    api_version: str,
    kind: str,
    body: Mapping[str, Any],
    *,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Manifest:
    """A whole object of that kind, owned by the LLMDeployment, with `body` beside its metadata. `name`: None = that of
    most children. `labels`: beside those that every child has, which they cannot replace."""
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": deployment.metadata.name,
        "uid": deployment.metadata.uid,
        "controller": True,  # the garbage collector deletes the child after its LLMDeployment
        "blockOwnerDeletion": True,
    }
    metadata: dict[str, Any] = {
        "name": name or names.engine_child(deployment.metadata.name),
        "namespace": deployment.metadata.namespace,
        "labels": {**(labels or {}), **own_labels(deployment)},
        "ownerReferences": [owner],
    }
    manifest = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
    metadata["annotations"] = {names.ANNOTATION_APPLIED_HASH: fingerprint(manifest)}
    return manifest


def fingerprint(value: Any) -> str:
    """Sixteen hex digits that change with the value; the order of keys does not count."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
