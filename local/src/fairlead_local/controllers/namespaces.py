"""What a deletion has to clear away first: a namespace its objects, a CustomResourceDefinition its resources."""

from collections.abc import Iterable

from fairlead_local.apiserver.definitions import CLEANUP_FINALIZER, resource_types
from fairlead_local.apiserver.deletion import DeleteOptions
from fairlead_local.apiserver.operations import Operations, WriteOptions
from fairlead_local.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, ResourceType
from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.store import Change
from fairlead_local.controllers.loop import Key


class NamespaceController:
    """Empties a namespace that is being deleted, then lets it go."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

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
        self._operations.edit(NAMESPACES, "", key[0], lambda _: finalized, WriteOptions(manager="namespace-controller"))
        return None


class DefinitionController:
    """Deletes the objects of a kind whose definition is being deleted, then lets the definition go."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

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
            options = WriteOptions(manager="definition-controller")
            self._operations.edit(CUSTOM_RESOURCE_DEFINITIONS, "", key[0], _released, options)
        return None


def _clear(operations: Operations, resources: Iterable[ResourceType], namespace: str) -> bool:
    """Deletes every object of these resources; true when none is left."""
    left = 0
    for resource in resources:
        for obj in operations.list(resource, namespace):
            metadata = obj["metadata"]
            if "deletionTimestamp" not in metadata:
                operations.delete(resource, metadata.get("namespace", ""), metadata["name"], DeleteOptions())
            left += operations.find(resource, metadata.get("namespace", ""), metadata["name"]) is not None
    return left == 0


def _released(definition: Json) -> Json:
    metadata = definition["metadata"]
    left = [finalizer for finalizer in metadata.get("finalizers") or () if finalizer != CLEANUP_FINALIZER]
    return {**definition, "metadata": {**metadata, "finalizers": left}}
