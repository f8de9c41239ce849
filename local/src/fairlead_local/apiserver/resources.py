"""The kinds the API serves, and their schemas: built-in kinds, and those that CustomResourceDefinitions add.

`schemas.json` holds one schema per type of the built-in API: fields and types, defaults, and how lists merge.
`docs/generate_schemas.py` writes it.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fairlead_local.apiserver.status import Json, StatusError, Violation, invalid, no_such_path


def schema_of(name: str) -> Json:
    """The schema of a type, such as `Pod` or `ObjectMeta`, including referenced types. Do not change the result."""
    return _types()[name]


@cache
def _types() -> dict[str, Json]:
    types: dict[str, Json] = json.loads(Path(__file__).with_name("schemas.json").read_bytes())
    for schema in types.values():
        _link(schema, types)
    return types


def _link(part: Json, types: dict[str, Json]) -> Json:
    """The part of a schema, with types in the places of their names (`$ref`); a default may stand beside a name.

    The part is changed in place: copies would cost the imports of `fairlead local` a full garbage collection, 30 ms.
    """
    for word, below in part.items():
        if isinstance(below, dict):
            part[word] = _link(below, types)
    if "$ref" not in part:
        return part
    referred = types[part.pop("$ref")]
    return {**referred, **part} if part else referred


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`. `priority` above 0 shows with `-o wide` only; `cell` computes the value to print."""

    name: str
    cell: Callable[[Json], Any]
    type: str = "string"
    priority: int = 0
    description: str = ""


NAME = Column("Name", lambda obj: obj["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Where a scalable object keeps its counts, as JSONPaths; `selector` is None when it publishes none."""

    spec_replicas: str
    status_replicas: str
    selector: str | None


@dataclass(frozen=True, slots=True)
class ResourceType:
    """One kind as one version serves it.

    `schema` is the OpenAPI v3 schema of the whole object. `subresources` lists `status`, `scale`, `log`. Kinds with
    `unconditional_update` accept a PUT without resourceVersion; with `create_on_update` a PUT creates what is absent.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    schema: Json
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    scale: ScalePaths | None = None
    columns: tuple[Column, ...] | None = None
    field_labels: frozenset[str] = frozenset()
    has_generation: bool = False
    unconditional_update: bool = True
    create_on_update: bool = False
    custom: bool = False
    singular: str = ""
    list_kind: str = ""

    @property
    def qualified(self) -> str:
        """`plural.group`, or `plural` for the core group: how messages and the store name the resource."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular_name(self) -> str:
        return self.singular or self.kind.lower()

    @property
    def list_name(self) -> str:
        return self.list_kind or f"{self.kind}List"

    def invalid(self, name: str, *violations: Violation) -> StatusError:
        """422 for an object of this kind."""
        return invalid(self.kind, self.group, name, violations)

    def selectable(self, path: str) -> bool:
        """Whether a field selector may name `path`."""
        return (
            path == "metadata.name" or (path == "metadata.namespace" and self.namespaced) or path in self.field_labels
        )


_WORKLOAD: dict[str, Any] = {
    "group": "apps",
    "subresources": "status scale",
    "categories": ("all",),
    "scale": ScalePaths(".spec.replicas", ".status.replicas", None),
    "has_generation": True,
}


def _built_in(
    kind: str,
    plural: str,
    short: str = "",
    *,
    namespaced: bool = True,
    subresources: str = "",
    fields: str = "",
    **rest: Any,
) -> ResourceType:
    """`short`, `subresources` and `fields` (of field selectors) are words, apart by spaces."""
    return ResourceType(
        **{"group": "", "version": "v1", "kind": kind, "plural": plural, "namespaced": namespaced, **rest},
        schema=schema_of(kind),
        short_names=tuple(short.split()),
        subresources=frozenset(subresources.split()),
        field_labels=frozenset(fields.split()),
    )


NAMESPACES = _built_in("Namespace", "namespaces", "ns", namespaced=False, subresources="status", fields="status.phase")
PODS = _built_in(
    *("Pod", "pods", "po"),
    subresources="status log",
    fields="status.phase status.podIP spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName",
    categories=("all",),
    has_generation=True,
)
CONFIG_MAPS = _built_in("ConfigMap", "configmaps", "cm")
SECRETS = _built_in("Secret", "secrets", fields="type")
SERVICES = _built_in("Service", "services", "svc", subresources="status", categories=("all",))
EVENTS = _built_in(
    *("Event", "events", "ev"),
    fields="reason type source reportingComponent involvedObject.kind involvedObject.namespace involvedObject.name "
    "involvedObject.uid involvedObject.apiVersion involvedObject.resourceVersion involvedObject.fieldPath",
    create_on_update=True,
)
SERVICE_ACCOUNTS = _built_in("ServiceAccount", "serviceaccounts", "sa")
CLAIMS = _built_in("PersistentVolumeClaim", "persistentvolumeclaims", "pvc", subresources="status")
NODES = _built_in("Node", "nodes", "no", namespaced=False, subresources="status", fields="spec.unschedulable")
ENDPOINTS = _built_in("Endpoints", "endpoints", "ep", create_on_update=True)
DEPLOYMENTS = _built_in("Deployment", "deployments", "deploy", **_WORKLOAD)
REPLICA_SETS = _built_in("ReplicaSet", "replicasets", "rs", fields="status.replicas", **_WORKLOAD)
LEASES = _built_in("Lease", "leases", group="coordination.k8s.io", unconditional_update=False, create_on_update=True)
CUSTOM_RESOURCE_DEFINITIONS = _built_in(
    *("CustomResourceDefinition", "customresourcedefinitions", "crd crds"),
    namespaced=False,
    subresources="status",
    group="apiextensions.k8s.io",
    categories=("api-extensions",),
    has_generation=True,
    unconditional_update=False,
)

BUILT_IN = (
    *(NAMESPACES, PODS, CONFIG_MAPS, SECRETS, SERVICES, EVENTS, SERVICE_ACCOUNTS, CLAIMS, NODES, ENDPOINTS),
    *(DEPLOYMENTS, REPLICA_SETS, LEASES, CUSTOM_RESOURCE_DEFINITIONS),
)


class Registry:
    """What is served now. Custom kinds come and go with their definitions; the core group comes first."""

    def __init__(self) -> None:
        self._types = {(each.group, each.version, each.plural): each for each in BUILT_IN}

    def add(self, resource: ResourceType) -> None:
        self._types[resource.group, resource.version, resource.plural] = resource

    def remove(self, group: str, plural: str) -> None:
        """Stops serving every version of a custom kind."""
        for key in [key for key in self._types if (key[0], key[2]) == (group, plural)]:
            del self._types[key]

    def get(self, group: str, version: str, plural: str) -> ResourceType:
        """Raises the 404 that clients read as "not installed"."""
        if found := self._types.get((group, version, plural)):
            return found
        raise no_such_path()

    def by_qualified(self, qualified: str) -> ResourceType | None:
        """Any served version of `plural.group`."""
        return next((resource for resource in self if resource.qualified == qualified), None)

    def by_kind(self, api_version: str, kind: str) -> ResourceType | None:
        """The type of an owner reference or an `involvedObject`; the version may be one that is not served."""
        group = api_version.partition("/")[0] if "/" in api_version else ""
        return next((r for r in self if r.group == group and r.kind == kind), None)

    def __iter__(self) -> Iterator[ResourceType]:
        return iter(tuple(self._types.values()))

    def versions(self) -> dict[str, list[str]]:
        """Group → its served versions, in the order they were added."""
        groups: dict[str, list[str]] = {}
        for group, version, _ in self._types:
            if version not in groups.setdefault(group, []):
                groups[group].append(version)
        return groups
