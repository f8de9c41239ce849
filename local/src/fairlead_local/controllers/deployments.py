"""The Deployment controller: one ReplicaSet per pod template, and the rollout from the old ones to the newest."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairlead_local.apiserver.metadata import (
    SUFFIX_LETTERS,
    DeleteOptions,
    controller_reference,
    is_owned_by,
    owner_references,
    with_metadata,
)
from fairlead_local.apiserver.resources import DEPLOYMENTS, REPLICA_SETS
from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.store import Change, key_of
from fairlead_local.controllers import rollout
from fairlead_local.controllers.controller import Controller, Key

TEMPLATE_HASH = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class Sets:
    """ReplicaSets of a Deployment. `new`: with the present template, None = not created; `old`: earlier sets by age."""

    new: Json | None
    old: Sequence[Json]

    @property
    def all(self) -> list[Json]:
        return [*([self.new] if self.new else []), *self.old]


class DeploymentController(Controller):
    """Makes ReplicaSets and sizes them; pods are left to the controller of ReplicaSets."""

    manager = "deployment-controller"

    def keys(self, change: Change) -> Iterable[Key]:
        metadata = change.object["metadata"]
        if change.resource == DEPLOYMENTS.qualified:
            yield key_of(change.object)
        elif change.resource == REPLICA_SETS.qualified:
            for reference in owner_references(change.object):
                if reference["kind"] == "Deployment":
                    yield metadata["namespace"], reference["name"]

    def reconcile(self, key: Key) -> float | None:
        deployment = self._operations.find(DEPLOYMENTS, *key)
        if deployment is None:
            return None
        sets, created = self._sets(deployment), False
        if "deletionTimestamp" not in deployment["metadata"]:
            deployment, sets, created = self._progress(deployment, sets)
        status = rollout.status_of(deployment, sets.new, sets.old, created=created)
        if collisions := (deployment.get("status") or {}).get("collisionCount"):
            status["collisionCount"] = collisions
        deployment = self._operations.set_status(DEPLOYMENTS, deployment, status, self._options)
        return rollout.seconds_to_deadline(deployment)

    def _progress(self, deployment: Json, sets: Sets) -> tuple[Json, Sets, bool]:
        """One step: a new set, or the next counts. The last value: whether a set was created."""
        created = False
        limits, paused = rollout.RolloutLimits.of(deployment), deployment["spec"].get("paused", False)
        if sets.new is None and not paused:
            created = self._create_set(deployment, sets.old)
        elif rollout.is_scaling(deployment, sets.all):
            self._resize(deployment, sets, rollout.scaled_counts(limits, sets.new, sets.old))
        elif sets.new is not None and not paused:
            recreate = deployment["spec"]["strategy"]["type"] == "Recreate"
            self._resize(deployment, sets, rollout.next_counts(limits, sets.new, sets.old, recreate=recreate))
            self._number(deployment, sets)
            if rollout.is_complete(deployment, deployment.get("status") or {}):
                empty = [
                    found
                    for found in sets.old
                    if not rollout.wanted(found) and not (found.get("status") or {}).get("replicas")
                ]
                beyond = len(empty) - deployment["spec"].get("revisionHistoryLimit", 10)
                for found in empty[: max(0, beyond)]:
                    self._operations.delete(REPLICA_SETS, *key_of(found), DeleteOptions())
        deployment = self._operations.get(DEPLOYMENTS, *key_of(deployment))
        return deployment, self._sets(deployment), created

    def _sets(self, deployment: Json) -> Sets:
        metadata, template = deployment["metadata"], deployment["spec"]["template"]
        found = self._operations.list(REPLICA_SETS, metadata["namespace"])
        owned = [each for each in found if is_owned_by(each, metadata["uid"])]
        owned.sort(key=lambda s: (_revision(s), s["metadata"]["creationTimestamp"]))
        new = next((s for s in owned if _plain(s["spec"]["template"]) == template), None)
        return Sets(new, [s for s in owned if s is not new])

    def _create_set(self, deployment: Json, old: Sequence[Json]) -> bool:
        spec, metadata = deployment["spec"], deployment["metadata"]
        template, collisions = spec["template"], (deployment.get("status") or {}).get("collisionCount", 0)
        hashed = hashlib.sha256(json.dumps([template, collisions], sort_keys=True).encode()).digest()
        digest = "".join(SUFFIX_LETTERS[byte % len(SUFFIX_LETTERS)] for byte in hashed[:10])
        meta = template.get("metadata") or {}
        template = {**template, "metadata": {**meta, "labels": {**(meta.get("labels") or {}), TEMPLATE_HASH: digest}}}
        name = f"{metadata['name']}-{digest}"
        if self._operations.find(REPLICA_SETS, metadata["namespace"], name):
            # Another template hashed to this name: the next attempt hashes with a higher count.
            status = deployment.get("status") or {}
            counted = {**status, "collisionCount": status.get("collisionCount", 0) + 1}
            self._operations.set_status(DEPLOYMENTS, deployment, counted, self._options)
            return False
        selector = spec["selector"]
        labels = {**(selector.get("matchLabels") or {}), TEMPLATE_HASH: digest}
        annotations = {
            rollout.REVISION: str(1 + max(map(_revision, old), default=0)),
            rollout.DESIRED: str(spec.get("replicas", 1)),
        }
        body = {
            "metadata": {
                "name": name,
                "labels": template["metadata"]["labels"],
                "annotations": annotations,
                "ownerReferences": [controller_reference(deployment)],
            },
            "spec": {
                "replicas": 0,
                "selector": {**selector, "matchLabels": labels},
                "template": template,
                **{field: spec[field] for field in ("minReadySeconds",) if field in spec},
            },
        }
        self._operations.create(REPLICA_SETS, metadata["namespace"], body, self._options)
        return True

    def _resize(self, deployment: Json, sets: Sets, counts: rollout.Counts) -> None:
        desired = str(deployment["spec"].get("replicas", 1))
        for found in sets.all:
            count = counts.get(rollout.name_of(found), rollout.wanted(found))
            annotations = {**(found["metadata"].get("annotations") or {}), rollout.DESIRED: desired}
            if count == rollout.wanted(found) and annotations == found["metadata"].get("annotations"):
                continue
            spec = {**found["spec"], "replicas": count}
            sized = with_metadata({**found, "spec": spec}, annotations=annotations)
            self._operations.update(REPLICA_SETS, *key_of(found), sized, self._options)
            if count != rollout.wanted(found):
                direction = "up" if count > rollout.wanted(found) else "down"
                text = (
                    f"Scaled {direction} replica set {rollout.name_of(found)} from {rollout.wanted(found)} to {count}"
                )
                self._recorder.normal(deployment, "ScalingReplicaSet", text)

    def _number(self, deployment: Json, sets: Sets) -> None:
        """Gives the present template the highest revision, on its ReplicaSet and on the Deployment."""
        if sets.new is None:
            return
        newest = max([_revision(sets.new), *(_revision(found) + 1 for found in sets.old)])
        for resource, found in ((REPLICA_SETS, sets.new), (DEPLOYMENTS, deployment)):
            if _revision(found) != newest:
                live = self._operations.get(resource, *key_of(found))
                annotations = {**(live["metadata"].get("annotations") or {}), rollout.REVISION: str(newest)}
                numbered = with_metadata(live, annotations=annotations)
                self._operations.update(resource, *key_of(found), numbered, self._options)


def _revision(obj: Json) -> int:
    text = (obj["metadata"].get("annotations") or {}).get(rollout.REVISION, "0")
    return int(text) if text.isdigit() else 0


def _plain(template: Json) -> Json:
    """The template as the Deployment has it: without the hash label."""
    labels = {key: value for key, value in template["metadata"]["labels"].items() if key != TEMPLATE_HASH}
    return with_metadata(template, labels=labels)
