"""Deletions that follow deletions: dependents after the last owner, objects of a namespace, objects of a
CustomResourceDefinition."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from fairlead_local.apiserver.definitions import CLEANUP_FINALIZER, resource_types
from fairlead_local.apiserver.metadata import (
    FOREGROUND_FINALIZER,
    ORPHAN_FINALIZER,
    DeleteOptions,
    Propagation,
    owner_references,
)
from fairlead_local.apiserver.operations import Operations
from fairlead_local.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, ResourceType
from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.store import Change, ChangeType, key_of
from fairlead_local.controllers.controller import Controller, Key


class GarbageCollector(Controller):
    """Follows ownerReferences. Keys are (`plural.group`, namespace, name)."""

    manager = "garbage-collector"

    def __init__(self, operations: Operations) -> None:
        super().__init__(operations)
        self._dependents: dict[str, set[Key]] = defaultdict(set)

    def keys(self, change: Change) -> Iterable[Key]:
        key, metadata = _key(change.resource, change.object), change.object["metadata"]
        self._index(change, key)
        if change.type is ChangeType.DELETED:
            yield from tuple(self._dependents.pop(metadata["uid"], ()))
            yield from self._owners(change.object)
        elif owner_references(change.object) or "deletionTimestamp" in metadata:
            yield key

    def _index(self, change: Change, key: Key) -> None:
        for reference in owner_references(change.previous) if change.previous else ():
            self._dependents[reference["uid"]].discard(key)
        if change.type is not ChangeType.DELETED:
            for reference in owner_references(change.object):
                self._dependents[reference["uid"]].add(key)

    def _owners(self, obj: Json) -> Iterable[Key]:
        for reference in owner_references(obj):
            if found := self._owner(obj, reference):
                resource, owner = found
                yield _key(resource.qualified, owner)

    def reconcile(self, key: Key) -> float | None:
        qualified, namespace, name = key
        resource = self._operations.registry.by_qualified(qualified)
        obj = self._operations.find(resource, namespace, name) if resource else None
        if resource is None or obj is None:
            return None
        if "deletionTimestamp" in obj["metadata"]:
            self._release(resource, obj)
        elif owner_references(obj):
            self._collect(resource, obj)
        return None

    def _collect(self, resource: ResourceType, obj: Json) -> None:
        """Deletes an object without staying owners, or drops references to the others."""
        references = owner_references(obj)
        known = [r for r in references if self._operations.registry.by_kind(r["apiVersion"], r["kind"])]
        owners = {r["uid"]: self._owner(obj, r) for r in known}
        staying = {uid for uid, found in owners.items() if found and not _waits_for_dependents(found[1])}
        unknown = {r["uid"] for r in references} - owners.keys()
        if staying or unknown:
            kept = [r for r in references if r["uid"] in staying | unknown]
            if kept != references:
                self._edit(resource, obj, "ownerReferences", kept)
            return
        waiting = any(owners.values())
        metadata = obj["metadata"]
        foreground = waiting and self._dependents.get(metadata["uid"])
        policy = Propagation.FOREGROUND if foreground else Propagation.BACKGROUND
        options = DeleteOptions(propagation=policy, uid=metadata["uid"])
        self._operations.delete(resource, *key_of(obj), options)

    def _release(self, resource: ResourceType, obj: Json) -> None:
        """Does the collector's part of a deletion in progress."""
        finalizers = obj["metadata"].get("finalizers") or ()
        uid = obj["metadata"]["uid"]
        if ORPHAN_FINALIZER in finalizers:
            for dependent, child in self._children(uid):
                kept = [reference for reference in owner_references(child) if reference["uid"] != uid]
                self._edit(dependent, child, "ownerReferences", kept)
            self._drop_finalizer(resource, obj, ORPHAN_FINALIZER)
        elif FOREGROUND_FINALIZER in finalizers:
            children = self._children(uid)
            for dependent, child in children:
                if "deletionTimestamp" not in child["metadata"]:
                    self._collect(dependent, child)
            if not any(_blocks(child, uid) for _, child in self._children(uid)):
                self._drop_finalizer(resource, obj, FOREGROUND_FINALIZER)

    def _children(self, uid: str) -> list[tuple[ResourceType, Json]]:
        found = []
        for qualified, namespace, name in tuple(self._dependents.get(uid, ())):
            resource = self._operations.registry.by_qualified(qualified)
            child = self._operations.find(resource, namespace, name) if resource else None
            if resource and child:
                found.append((resource, child))
        return found

    def _owner(self, obj: Json, reference: Json) -> tuple[ResourceType, Json] | None:
        """The owner in a reference; None = the very object is gone. Owners share the namespace, or have none."""
        resource = self._operations.registry.by_kind(reference["apiVersion"], reference["kind"])
        if resource is None:
            return None
        namespace = obj["metadata"].get("namespace", "") if resource.namespaced else ""
        owner = self._operations.find(resource, namespace, reference["name"])
        return (resource, owner) if owner and owner["metadata"]["uid"] == reference["uid"] else None

    def _edit(self, resource: ResourceType, obj: Json, field: str, left: Sequence[Any]) -> None:
        """Writes a list of the metadata; an empty list removes the field."""

        def changed(live: Json) -> Json:
            metadata = {name: value for name, value in live["metadata"].items() if name != field}
            return {**live, "metadata": metadata | ({field: left} if left else {})}

        self._operations.edit(resource, *key_of(obj), changed, self._options)

    def _drop_finalizer(self, resource: ResourceType, obj: Json, finalizer: str) -> None:
        left = [found for found in obj["metadata"].get("finalizers") or () if found != finalizer]
        self._edit(resource, obj, "finalizers", left)


def _key(qualified: str, obj: Json) -> Key:
    return (qualified, *key_of(obj))


def _waits_for_dependents(owner: Json) -> bool:
    metadata = owner["metadata"]
    return "deletionTimestamp" in metadata and FOREGROUND_FINALIZER in (metadata.get("finalizers") or ())


def _blocks(child: Json, uid: str) -> bool:
    return any(ref["uid"] == uid and ref.get("blockOwnerDeletion") for ref in owner_references(child))


class NamespaceController(Controller):
    """Empties a namespace that is being deleted, then lets it go."""

    manager = "namespace-controller"

    def keys(self, change: Change) -> Iterable[Key]:
        metadata = change.object["metadata"]
        yield (metadata["name"] if change.resource == NAMESPACES.qualified else metadata.get("namespace", ""),)

    def reconcile(self, key: Key) -> float | None:
        namespace = self._operations.find(NAMESPACES, "", key[0])
        if namespace is None or "deletionTimestamp" not in namespace["metadata"]:
            return None
        if not _clear(self._operations, [r for r in self._operations.registry if r.namespaced], key[0]):
            return None
        finalized = {**namespace, "spec": {**namespace["spec"], "finalizers": []}}
        self._operations.edit(NAMESPACES, "", key[0], lambda _: finalized, self._options)
        return None


class DefinitionController(Controller):
    """Deletes the objects of a kind whose definition is being deleted, then lets the definition go."""

    manager = "definition-controller"

    def keys(self, change: Change) -> Iterable[Key]:
        if change.resource == CUSTOM_RESOURCE_DEFINITIONS.qualified:
            yield (change.object["metadata"]["name"],)
        else:
            yield (change.resource,)  # a definition is named after the resource it defines

    def reconcile(self, key: Key) -> float | None:
        definition = self._operations.find(CUSTOM_RESOURCE_DEFINITIONS, "", key[0])
        if definition is None or "deletionTimestamp" not in definition["metadata"]:
            return None
        if _clear(self._operations, resource_types(definition)[:1], ""):
            self._operations.edit(CUSTOM_RESOURCE_DEFINITIONS, "", key[0], _released, self._options)
        return None


def _clear(operations: Operations, resources: Iterable[ResourceType], namespace: str) -> bool:
    """Deletes every object of the resources; true = nothing is left."""
    left = 0
    for resource in resources:
        for obj in operations.list(resource, namespace):
            if "deletionTimestamp" not in obj["metadata"]:
                operations.delete(resource, *key_of(obj), DeleteOptions())
            left += operations.find(resource, *key_of(obj)) is not None
    return left == 0


def _released(definition: Json) -> Json:
    metadata = definition["metadata"]
    left = [finalizer for finalizer in metadata.get("finalizers") or () if finalizer != CLEANUP_FINALIZER]
    return {**definition, "metadata": {**metadata, "finalizers": left}}
