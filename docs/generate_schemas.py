"""Writes the schemas of the kinds that local mode serves, trimmed from Kubernetes' own OpenAPI document.

`make schemas` calls it, and `tests/local/test_schemas.py` compares. The document comes with `kubernetes-validate`
(requirements/kubernetes.txt). It says which fields there are, their types, and how lists merge. What an API server
does in code, the defaults and the enumerations, is in the tables here.
"""

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

Json = dict[str, Any]

VERSION = "1.37"
"""The newest version of Kubernetes whose document there is: older clients send nothing that it does not know."""
FILE = Path(__file__).parent.parent / "local" / "src" / "fairlead_local" / "apiserver" / "schemas.json"

KINDS = {
    "io.k8s.api.core.v1": (
        *("ConfigMap", "Endpoints", "Event", "Namespace", "Node", "PersistentVolumeClaim", "Pod", "Secret", "Service"),
        "ServiceAccount",
    ),
    "io.k8s.api.apps.v1": ("Deployment", "ReplicaSet"),
    "io.k8s.api.coordination.v1": ("Lease",),
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1": ("CustomResourceDefinition",),
}

_OPEN: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_NUMBER_OR_TEXT: Json = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
_TIME: Json = {"type": "string", "format": "date-time"}
REPLACED: Mapping[str, Json] = {
    "FieldsV1": _OPEN,
    "JSONSchemaProps": _OPEN,
    "IntOrString": _NUMBER_OR_TEXT,
    "MicroTime": _TIME,
    "Quantity": _NUMBER_OR_TEXT,
    "Time": _TIME,
}
"""Types that are written as they are in CustomResourceDefinitions, or that a validator cannot follow."""

DEFAULTS: Mapping[str, Json] = {
    "ConfigMapVolumeSource": {"defaultMode": 420},
    "Container": {
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    },
    "ContainerPort": {"protocol": "TCP"},
    "Deployment": {"spec": {}},
    "DeploymentSpec": {"progressDeadlineSeconds": 600, "replicas": 1, "revisionHistoryLimit": 10},
    "DeploymentStrategy": {"type": "RollingUpdate"},
    "HTTPGetAction": {"path": "/", "scheme": "HTTP"},
    "ObjectFieldSelector": {"apiVersion": "v1"},
    "PersistentVolumeClaimSpec": {"volumeMode": "Filesystem"},
    "Pod": {"spec": {}},
    "PodSpec": {
        "dnsPolicy": "ClusterFirst",
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
    },
    "Probe": {"failureThreshold": 3, "periodSeconds": 10, "successThreshold": 1, "timeoutSeconds": 1},
    "ReplicaSet": {"spec": {}},
    "ReplicaSetSpec": {"replicas": 1},
    "Secret": {"type": "Opaque"},
    "SecretVolumeSource": {"defaultMode": 420},
    "Service": {"spec": {}},
    "ServicePort": {"protocol": "TCP"},
    "ServiceSpec": {"sessionAffinity": "None", "type": "ClusterIP"},
}

CHOICES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "Container": {
        "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
        "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
    },
    "CustomResourceDefinitionSpec": {"scope": ("Namespaced", "Cluster")},
    "DeploymentStrategy": {"type": ("RollingUpdate", "Recreate")},
    "HTTPGetAction": {"scheme": ("HTTP", "HTTPS")},
    "PodSpec": {"restartPolicy": ("Always", "OnFailure", "Never")},
    "ServiceSpec": {"type": ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")},
}

DESCRIPTIONS: Mapping[str, Mapping[str, str]] = {
    "Container": {
        "image": "Local mode runs Fairlead's own images only.",
        "name": "Name of the container, unique within the pod.",
    },
    "DeploymentSpec": {"replicas": "Number of pods wanted."},
}

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "Condition": ("type", "status"),
    "ContainerStatus": ("name",),
    "DeploymentCondition": ("type", "status"),
    "Event": (),
    "HostIP": (),
    "NodeSystemInfo": (),
    "ReplicaSetCondition": ("type", "status"),
    "ReplicaSetStatus": (),
}
"""What an object has to have, of types for which the document says more than an API server insists on, or less than
whoever reads the object counts on."""

KEPT = ("format", "required", "x-kubernetes-list-map-keys", "x-kubernetes-list-type", "x-kubernetes-map-type")
"""What is taken over of a part as it is."""


def schemas() -> dict[str, Json]:
    """Name of a type → its schema, for every kind and what it refers to; `$ref` holds such a name."""
    source, found = _document(), {}
    todo = [f"{package}.{kind}" for package, kinds in KINDS.items() for kind in kinds]
    while todo:
        full = todo.pop()
        name = full.rpartition(".")[2]
        if name in found:
            continue
        found[name] = REPLACED.get(name) or _completed(name, _trimmed(source[full]))
        if name not in REPLACED:
            todo += _referred(source[full])
    return dict(sorted(found.items()))


def text() -> str:
    """The file: one type per line."""
    lines = (f"{json.dumps(name)}: {json.dumps(schema, sort_keys=True)}" for name, schema in schemas().items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _document() -> dict[str, Json]:
    """Full name of a type → its schema. Raises ModuleNotFoundError where `kubernetes-validate` is not installed."""
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{VERSION}.0-local"
    types: dict[str, Json] = json.loads((folder / "_definitions.json").read_text())["$defs"]
    return types


def _referred(part: Json) -> Iterator[str]:
    """The full names of the types that are in a part."""
    if "$ref" in part:
        yield part["$ref"].removeprefix("#/$defs/")
    inner = [part[word] for word in ("items", "additionalProperties") if word in part]
    for below in (*inner, *part.get("properties", {}).values()):
        yield from _referred(below)


def _trimmed(part: Json) -> Json:
    """Without descriptions, null as a type, and what only generators of clients read."""
    kept = {word: part[word] for word in KEPT if word in part}
    if "$ref" in part:
        return {"$ref": part["$ref"].rpartition(".")[2], **kept}
    types = part["type"]
    kept["type"] = types[0] if isinstance(types, list) else types
    for word in ("items", "additionalProperties"):
        if word in part:
            kept[word] = _trimmed(part[word])
    if "properties" in part:
        kept["properties"] = {name: _trimmed(field) for name, field in part["properties"].items()}
    return kept


def _completed(name: str, schema: Json) -> Json:
    """The schema with what the tables say of the type. Raises KeyError for a field that it does not have."""
    for word, table in (("default", DEFAULTS), ("enum", CHOICES), ("description", DESCRIPTIONS)):
        for field, value in table.get(name, {}).items():
            schema["properties"][field][word] = value
    required = REQUIRED.get(name, schema.pop("required", ()))
    return {**schema, "required": required} if required else schema


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
