"""The verbs of the API on objects, called by HTTP requests, controllers and kubelet.

Every verb is synchronous and atomic: read the store, decide, write once or raise `StatusError`. No HTTP.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fairlead_local.apiserver import admission, definitions, managed_fields, metadata
from fairlead_local.apiserver.admission import FieldValidation
from fairlead_local.apiserver.managed_fields import Manager, Ownership
from fairlead_local.apiserver.metadata import DeleteOptions
from fairlead_local.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, Registry, ResourceType
from fairlead_local.apiserver.selectors import EVERY_FIELD, EVERY_LABEL, FieldSelector, LabelSelector
from fairlead_local.apiserver.status import Json, already_exists, forbidden, not_found, success
from fairlead_local.apiserver.store import Change, ChangeType, Store, key_of
from fairlead_local.apiserver.times import timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of a write. `manager` names the writer in managedFields; with `dry_run` nothing is stored."""

    manager: str = "fairlead-local"
    dry_run: bool = False
    validation: FieldValidation = FieldValidation.WARN
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """The stored object, whether the object is new, and warnings for the client."""

    object: Json
    created: bool = False
    warnings: tuple[str, ...] = ()


Edit = Callable[[Json], Json]
"""The live object → the object wanted."""


class Operations:
    """The verbs over one store. Stored definitions decide which custom kinds `registry` serves."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self.store = store
        self.registry = registry
        for definition in store.list(CUSTOM_RESOURCE_DEFINITIONS.qualified):
            self._serve(definition)
        store.subscribe(self._follow_definitions)

    def ensure_namespaces(self, *names: str) -> None:
        """Creates the missing namespaces among `names` and the namespaces of every cluster."""
        for name in (*metadata.PERMANENT_NAMESPACES, *names):
            if self.find(NAMESPACES, "", name) is None:
                self.create(NAMESPACES, "", {"metadata": {"name": name}}, WriteOptions())

    def get(self, resource: ResourceType, namespace: str, name: str) -> Json:
        """Raises 404."""
        if (found := self.find(resource, namespace, name)) is None:
            raise not_found(resource.qualified, name)
        return found

    def find(self, resource: ResourceType, namespace: str, name: str) -> Json | None:
        """As `get`; None = no such object."""
        found = self.store.get(resource.qualified, namespace, name)
        return presented(resource, found) if found else None

    def list(
        self,
        resource: ResourceType,
        namespace: str = "",
        labels: LabelSelector = EVERY_LABEL,
        fields: FieldSelector = EVERY_FIELD,
    ) -> Sequence[Json]:
        """In order of namespace and name; all namespaces when `namespace` is empty."""
        return [
            presented(resource, obj)
            for obj in self.store.list(resource.qualified, namespace)
            if labels.matches(obj["metadata"].get("labels")) and fields.matches(obj)
        ]

    def create(self, resource: ResourceType, namespace: str, body: Json, options: WriteOptions) -> Written:
        decoded = admission.decode(
            resource, metadata.check_address(resource, body, namespace, None), options.validation
        )
        with decoded.warning():
            obj = self._admit_new(resource, namespace, decoded.object)
        ownership = managed_fields.track(resource.schema, {}, _manager(resource, options), {}, obj, timestamp())
        return Written(self._store(resource, None, obj, ownership, options), True, decoded.warnings)

    def update(self, resource: ResourceType, namespace: str, name: str, body: Json, options: WriteOptions) -> Written:
        """PUT: `body` replaces the object, or the status as the subresource says."""
        body = metadata.check_address(resource, body, namespace, name)
        live = self.find(resource, namespace, name)
        if live is None:
            if resource.create_on_update and not options.subresource:
                return self.create(resource, namespace, body, options)
            raise not_found(resource.qualified, name)
        metadata.check_version(resource, live, body, required=not resource.unconditional_update)
        return self._replace(resource, live, body, options)

    def edit(self, resource: ResourceType, namespace: str, name: str, edit: Edit, options: WriteOptions) -> Written:
        """PATCH: `edit` maps the live object to the changed object."""
        live = self.get(resource, namespace, name)
        proposed = metadata.check_address(resource, edit(live), namespace, name)
        metadata.check_version(resource, live, proposed, required=False)
        return self._replace(resource, live, proposed, options)

    def set_status(self, resource: ResourceType, obj: Json, status: Json, options: WriteOptions) -> Json:
        """Writes the status of an object, known in any version; returns the object."""
        options = replace(options, subresource="status")
        return self.edit(resource, *key_of(obj), lambda live: {**live, "status": status}, options).object

    def apply(
        self, resource: ResourceType, namespace: str, name: str, config: Json, options: WriteOptions, *, force: bool
    ) -> Written:
        """Server-side apply; creates a missing object. Raises 409 for fields of other managers."""
        config = metadata.check_address(resource, config, namespace, name)
        admission.refuse_undeclared(resource, config)
        config = _restricted(resource, config, options.subresource)
        live = self.find(resource, namespace, name)
        manager = _manager(resource, options, "Apply")
        if live is None:
            if options.subresource:
                raise not_found(resource.qualified, name)
            _, ownership = managed_fields.apply(resource.schema, {}, manager, {}, config, timestamp(), force=force)
            obj = self._admit_new(resource, namespace, config)
            return Written(self._store(resource, None, obj, ownership, options), True)
        metadata.check_version(resource, live, config, required=False)
        ownership = managed_fields.decode(live["metadata"].get("managedFields"))
        applied, ownership = managed_fields.apply(
            resource.schema, ownership, manager, live, config, timestamp(), force=force
        )
        obj = self._admit_change(resource, live, applied, options)
        return Written(self._store(resource, live, obj, ownership, options))

    def delete(self, resource: ResourceType, namespace: str, name: str, options: DeleteOptions) -> Json:
        """The object marked for deletion, or a Success `Status` after removal."""
        live = self.get(resource, namespace, name)
        metadata.check_preconditions(resource, live, options)
        marked = metadata.mark(resource, live, options)
        if options.dry_run:
            return marked or _gone(resource, live)
        if marked is None:
            self.store.remove(resource.qualified, live)
            return _gone(resource, live)
        return marked if marked == live else self.store.put(resource.qualified, marked)

    def delete_collection(
        self,
        resource: ResourceType,
        namespace: str,
        labels: LabelSelector,
        fields: FieldSelector,
        options: DeleteOptions,
    ) -> Sequence[Json]:
        """Deletes the selected objects; returns their last state."""
        selected = self.list(resource, namespace, labels, fields)
        for obj in selected:
            self.delete(resource, *key_of(obj), options)
        return selected

    def _admit_new(self, resource: ResourceType, namespace: str, obj: Json) -> Json:
        if resource.namespaced:
            found = self.get(NAMESPACES, "", namespace)
            if "deletionTimestamp" in found["metadata"]:
                name = (obj.get("metadata") or {}).get("name", "")
                why = f"unable to create new content in namespace {namespace} because it is being terminated"
                raise forbidden(resource.qualified, name, why)
        obj = metadata.identify(resource, obj, namespace)
        if "status" in resource.subresources:
            obj.pop("status", None)
        name = obj["metadata"]["name"]
        if self.store.get(resource.qualified, namespace, name):
            raise already_exists(resource.qualified, name)
        return admission.admit(resource, obj, None)

    def _replace(self, resource: ResourceType, live: Json, proposed: Json, options: WriteOptions) -> Written:
        decoded = admission.decode(resource, proposed, options.validation)
        with decoded.warning():
            obj = self._admit_change(resource, live, decoded.object, options)
        # A client may rewrite managedFields; kubectl does when it moves to server-side apply.
        declared = (decoded.object.get("metadata") or {}).get("managedFields")
        ownership = managed_fields.decode(live["metadata"].get("managedFields") if declared is None else declared)
        manager = _manager(resource, options)
        ownership = managed_fields.track(resource.schema, ownership, manager, live, obj, timestamp())
        return Written(self._store(resource, live, obj, ownership, options), False, decoded.warnings)

    def _admit_change(self, resource: ResourceType, live: Json, proposed: Json, options: WriteOptions) -> Json:
        obj = metadata.carry_over(resource, live, _confined(resource, live, proposed, options.subresource))
        obj = admission.admit(resource, obj, live)
        hides_status = "status" in resource.subresources or not resource.custom
        before, after = (metadata.content(o, without_status=hides_status) for o in (live, obj))
        if resource.has_generation and before != after:
            obj["metadata"]["generation"] = live["metadata"].get("generation", 0) + 1
        return obj

    def _store(
        self, resource: ResourceType, live: Json | None, obj: Json, ownership: Ownership, options: WriteOptions
    ) -> Json:
        """Stores a new state of `live` (None = a creation), unless nothing changed."""
        obj["metadata"].pop("managedFields", None)
        if entries := managed_fields.encode(ownership):
            obj["metadata"]["managedFields"] = entries
        if obj == live or options.dry_run:
            return obj
        if metadata.is_finished(obj):
            return self.store.remove(resource.qualified, obj)
        return self.store.put(resource.qualified, obj)

    def _serve(self, definition: Json, *, is_gone: bool = False) -> None:
        spec = definition["spec"]
        self.registry.remove(spec["group"], spec["names"]["plural"])
        for resource in () if is_gone else definitions.resource_types(definition):
            self.registry.add(resource)

    def _follow_definitions(self, change: Change) -> None:
        if change.resource == CUSTOM_RESOURCE_DEFINITIONS.qualified:
            self._serve(change.object, is_gone=change.type is ChangeType.DELETED)


def presented(resource: ResourceType, obj: Json) -> Json:
    """A stored object in this version: versions of a custom kind differ only by name."""
    if obj.get("apiVersion") == resource.api_version:
        return obj
    return {**obj, "apiVersion": resource.api_version, "kind": resource.kind}


def _confined(resource: ResourceType, live: Json, proposed: Json, subresource: str) -> Json:
    """`live` with the part of `proposed` that the endpoint may change."""
    if subresource == "status":
        rest = {field: value for field, value in live.items() if field != "status"}
        return rest | ({"status": proposed["status"]} if "status" in proposed else {})
    if "status" in resource.subresources:
        rest = {field: value for field, value in proposed.items() if field != "status"}
        return rest | ({"status": live["status"]} if "status" in live else {})
    return proposed


def _restricted(resource: ResourceType, config: Json, subresource: str) -> Json:
    """An applied configuration, restricted to fields that the endpoint writes and a manager may own."""
    if subresource == "status":
        identity = {field: config["metadata"].get(field) for field in ("name", "namespace", "resourceVersion")}
        kept = {field: config[field] for field in ("apiVersion", "kind", "status") if field in config}
        return kept | {"metadata": {field: value for field, value in identity.items() if value}}
    if "status" in resource.subresources:
        return {field: value for field, value in config.items() if field != "status"}
    return config


def _manager(resource: ResourceType, options: WriteOptions, operation: str = "Update") -> Manager:
    return Manager(options.manager, operation, resource.api_version, options.subresource)


def _gone(resource: ResourceType, obj: Json) -> Json:
    meta = obj["metadata"]
    return success({"name": meta["name"], "group": resource.group, "kind": resource.plural, "uid": meta["uid"]})
