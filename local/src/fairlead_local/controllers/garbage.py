"""Deletions after deletions: dependents after the last owner, objects of a namespace, objects of a custom kind."""

from collections import defaultdict
from collections.abc import Callable, Iterable
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


class _Releasing(Controller):
    def _keep(self, resource: ResourceType, obj: Json, field: str, keeps: Callable[[Any], bool]) -> None:
        """Keeps some items of a list of the metadata; without items the field goes."""

        def edited(live: Json) -> Json:
            left = [each for each in live["metadata"].get(field) or () if keeps(each)]
            metadata = {name: value for name, value in live["metadata"].items() if name != field}
            return {**live, "metadata": metadata | ({field: left} if left else {})}

        self._operations.edit(resource, *key_of(obj), edited, self._options)


class GarbageCollector(_Releasing):
    """Follows ownerReferences. Keys are (`plural.group`, namespace, name)."""

    manager = "garbage-collector"

    def __init__(self, operations: Operations) -> None:
        super().__init__(operations)
        self._dependents: dict[str, set[Key]] = defaultdict(set)

    def keys(self, change: Change) -> Iterable[Key]:
        key, metadata = _key(change.resource, change.object), change.object["metadata"]
        for reference in owner_references(change.previous) if change.previous else ():
            self._dependents[reference["uid"]].discard(key)
        if change.type is not ChangeType.DELETED:
            for reference in owner_references(change.object):
                self._dependents[reference["uid"]].add(key)
        if change.type is ChangeType.DELETED:
            yield from tuple(self._dependents.pop(metadata["uid"], ()))
            owners = (self._owner(change.object, reference) for reference in owner_references(change.object))
            yield from (_key(found[0].qualified, found[1]) for found in owners if found)
        elif owner_references(change.object) or "deletionTimestamp" in metadata:
            yield key

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
            if not staying | unknown >= {r["uid"] for r in references}:
                self._keep(resource, obj, "ownerReferences", lambda each: each["uid"] in staying | unknown)
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
                self._keep(dependent, child, "ownerReferences", lambda each: each["uid"] != uid)
            self._keep(resource, obj, "finalizers", lambda each: each != ORPHAN_FINALIZER)
        elif FOREGROUND_FINALIZER in finalizers:
            for dependent, child in self._children(uid):
                if "deletionTimestamp" not in child["metadata"]:
                    self._collect(dependent, child)
            left = (reference for _, child in self._children(uid) for reference in owner_references(child))
            if not any(each["uid"] == uid and each.get("blockOwnerDeletion") for each in left):
                self._keep(resource, obj, "finalizers", lambda each: each != FOREGROUND_FINALIZER)

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


def _key(qualified: str, obj: Json) -> Key:
    return (qualified, *key_of(obj))


def _waits_for_dependents(owner: Json) -> bool:
    metadata = owner["metadata"]
    return "deletionTimestamp" in metadata and FOREGROUND_FINALIZER in (metadata.get("finalizers") or ())


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


class DefinitionController(_Releasing):
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
            self._keep(CUSTOM_RESOURCE_DEFINITIONS, definition, "finalizers", lambda each: each != CLEANUP_FINALIZER)
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
