"""The kinds the API serves: built-in ones, and those that CustomResourceDefinitions add while it runs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fairlead_local.apiserver.schemas import schema_of
from fairlead_local.apiserver.status import Json, no_such_path


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`. `priority` above 0 shows with `-o wide` only; `cell` computes the value to print."""

    name: str
    cell: Callable[[Json], Any]
    type: str = "string"
    priority: int = 0
    description: str = ""


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

    def selectable(self, path: str) -> bool:
        """Whether a field selector may name `path`."""
        return (
            path == "metadata.name" or (path == "metadata.namespace" and self.namespaced) or path in self.field_labels
        )


_WORKLOAD_SCALE = ScalePaths(".spec.replicas", ".status.replicas", None)
_STATUS = frozenset({"status"})
_EVENT_FIELDS = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")

NAMESPACES = ResourceType(
    "",
    "v1",
    "Namespace",
    "namespaces",
    False,
    schema_of("Namespace"),
    ("ns",),
    (),
    _STATUS,
    field_labels=frozenset({"status.phase"}),
)
PODS = ResourceType(
    "",
    "v1",
    "Pod",
    "pods",
    True,
    schema_of("Pod"),
    ("po",),
    ("all",),
    frozenset({"status", "log"}),
    field_labels=frozenset(
        {
            "status.phase",
            "spec.nodeName",
            "status.podIP",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
        }
    ),
    has_generation=True,
)
CONFIG_MAPS = ResourceType("", "v1", "ConfigMap", "configmaps", True, schema_of("ConfigMap"), ("cm",))
SECRETS = ResourceType("", "v1", "Secret", "secrets", True, schema_of("Secret"), field_labels=frozenset({"type"}))
SERVICES = ResourceType("", "v1", "Service", "services", True, schema_of("Service"), ("svc",), ("all",), _STATUS)
EVENTS = ResourceType(
    "",
    "v1",
    "Event",
    "events",
    True,
    schema_of("Event"),
    ("ev",),
    create_on_update=True,
    field_labels=frozenset(
        {"reason", "type", "source", "reportingComponent", *(f"involvedObject.{name}" for name in _EVENT_FIELDS)}
    ),
)
SERVICE_ACCOUNTS = ResourceType(
    "", "v1", "ServiceAccount", "serviceaccounts", True, schema_of("ServiceAccount"), ("sa",)
)
CLAIMS = ResourceType(
    "",
    "v1",
    "PersistentVolumeClaim",
    "persistentvolumeclaims",
    True,
    schema_of("PersistentVolumeClaim"),
    ("pvc",),
    (),
    _STATUS,
)
NODES = ResourceType(
    "",
    "v1",
    "Node",
    "nodes",
    False,
    schema_of("Node"),
    ("no",),
    (),
    _STATUS,
    field_labels=frozenset({"spec.unschedulable"}),
)
ENDPOINTS = ResourceType(
    "", "v1", "Endpoints", "endpoints", True, schema_of("Endpoints"), ("ep",), create_on_update=True
)
DEPLOYMENTS = ResourceType(
    "apps",
    "v1",
    "Deployment",
    "deployments",
    True,
    schema_of("Deployment"),
    ("deploy",),
    ("all",),
    frozenset({"status", "scale"}),
    _WORKLOAD_SCALE,
    has_generation=True,
)
REPLICA_SETS = ResourceType(
    "apps",
    "v1",
    "ReplicaSet",
    "replicasets",
    True,
    schema_of("ReplicaSet"),
    ("rs",),
    ("all",),
    frozenset({"status", "scale"}),
    _WORKLOAD_SCALE,
    has_generation=True,
    field_labels=frozenset({"status.replicas"}),
)
LEASES = ResourceType(
    "coordination.k8s.io",
    "v1",
    "Lease",
    "leases",
    True,
    schema_of("Lease"),
    unconditional_update=False,
    create_on_update=True,
)
CUSTOM_RESOURCE_DEFINITIONS = ResourceType(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    False,
    schema_of("CustomResourceDefinition"),
    ("crd", "crds"),
    ("api-extensions",),
    _STATUS,
    has_generation=True,
    unconditional_update=False,
)

BUILT_IN = (
    NAMESPACES,
    PODS,
    CONFIG_MAPS,
    SECRETS,
    SERVICES,
    EVENTS,
    SERVICE_ACCOUNTS,
    CLAIMS,
    NODES,
    ENDPOINTS,
    DEPLOYMENTS,
    REPLICA_SETS,
    LEASES,
    CUSTOM_RESOURCE_DEFINITIONS,
)


@dataclass(slots=True)
class Registry:
    """What is served now. Custom kinds come and go with their definitions; the core group comes first."""

    _types: dict[tuple[str, str, str], ResourceType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for resource in BUILT_IN:
            self.add(resource)

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
