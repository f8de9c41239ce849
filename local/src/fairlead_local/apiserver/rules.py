"""Completions and checks of built-in objects beyond the schemas. Pure."""

import json
from base64 import b64encode
from collections.abc import Callable, Mapping

from fairlead_local.apiserver import definitions, selectors
from fairlead_local.apiserver.status import (
    Json,
    Violation,
    ViolationKind,
    forbidden_value,
    invalid_value,
    required_value,
    unsupported_value,
)

Completion = Callable[[Json], Json]
Check = Callable[[Json, Json | None], list[Violation]]


def complete(kind: str, obj: Json) -> Json:
    """`obj` with the defaults a schema cannot express."""
    return _COMPLETIONS[kind](obj) if kind in _COMPLETIONS else obj


def check(kind: str, obj: Json, old: Json | None) -> list[Violation]:
    """The rules `obj` breaks as a new state of `old` (None = a creation)."""
    return _CHECKS[kind](obj, old) if kind in _CHECKS else []


# Namespaces, configuration, services


def _complete_namespace(obj: Json) -> Json:
    metadata = obj["metadata"]
    labels = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}
    rest = {
        "spec": obj.get("spec") or {"finalizers": ["kubernetes"]},
        "status": obj.get("status") or {"phase": "Active"},
    }
    return {**obj, "metadata": {**metadata, "labels": labels}, **rest}


def _complete_secret(obj: Json) -> Json:
    """`stringData` is write-only: the server encodes the texts and adds them to `data`."""
    if "stringData" not in obj:
        return obj
    encoded = {key: b64encode(value.encode()).decode() for key, value in (obj["stringData"] or {}).items()}
    rest = {field: value for field, value in obj.items() if field != "stringData"}
    return {**rest, "data": {**(obj.get("data") or {}), **encoded}}


def _complete_service(obj: Json) -> Json:
    spec = obj.get("spec") or {}
    ports = [{"targetPort": port["port"], **port} for port in spec.get("ports") or ()]
    return {**obj, "spec": {**spec, **({"ports": ports} if ports else {})}}


def _check_immutable(obj: Json, old: Json | None) -> list[Violation]:
    if not old or not old.get("immutable"):
        return []
    return [
        forbidden_value(field, "field is immutable when `immutable` is set")
        for field in ("data", "binaryData", "immutable")
        if obj.get(field) != old.get(field)
    ]


def _check_service(obj: Json, old: Json | None) -> list[Violation]:
    spec = obj["spec"]
    if spec["type"] == "ExternalName":
        return [] if spec.get("externalName") else [required_value("spec.externalName")]
    return [] if spec.get("ports") or spec.get("clusterIP") == "None" else [required_value("spec.ports")]


# Pods and what makes them


def _complete_pod_spec(spec: Json) -> Json:
    grouped = {
        group: [_complete_container(container) for container in spec[group]]
        for group in ("containers", "initContainers")
        if spec.get(group)
    }
    return {**spec, **grouped}


def _complete_container(container: Json) -> Json:
    resources = container.get("resources") or {}
    if limits := resources.get("limits"):
        resources = {**resources, "requests": {**limits, **(resources.get("requests") or {})}}
    image = container.get("image", "")
    latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
    policy = container.get("imagePullPolicy") or ("Always" if latest else "IfNotPresent")
    return {**container, "resources": resources, "imagePullPolicy": policy}


def _complete_pod(obj: Json) -> Json:
    status = obj.get("status") or {"phase": "Pending"}
    return {**obj, "spec": _complete_pod_spec(obj["spec"]), "status": status}


def _complete_template(obj: Json) -> Json:
    spec = obj["spec"]
    template = spec.get("template") or {}
    if "spec" not in template:
        return obj
    return {**obj, "spec": {**spec, "template": {**template, "spec": _complete_pod_spec(template["spec"])}}}


def _complete_deployment(obj: Json) -> Json:
    obj = _complete_template(obj)
    strategy = {"type": "RollingUpdate", **(obj["spec"].get("strategy") or {})}
    if strategy["type"] == "RollingUpdate":
        quarter = {"maxSurge": "25%", "maxUnavailable": "25%"}
        strategy["rollingUpdate"] = {**quarter, **(strategy.get("rollingUpdate") or {})}
    return {**obj, "spec": {**obj["spec"], "strategy": strategy}}


_OF_RUNNING = ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")


def _check_pod_spec(spec: Json, path: str) -> list[Violation]:
    causes = [] if spec["containers"] else [required_value(f"{path}.containers")]
    volumes = {volume["name"] for volume in spec.get("volumes") or ()}
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            where = f"{path}.{group}[{index}]"
            if not container.get("image"):
                causes.append(required_value(f"{where}.image"))
            causes += _check_restarts(container, group, where)
            for number, mount in enumerate(container.get("volumeMounts") or ()):
                if mount["name"] not in volumes:
                    field = f"{where}.volumeMounts[{number}].name"
                    causes.append(Violation(field, ViolationKind.NOT_FOUND, f'Not found: "{mount["name"]}"'))
    return causes


def _check_restarts(container: Json, group: str, where: str) -> list[Violation]:
    """Only init containers may have `restartPolicy: Always`; other init containers have no probes and hooks."""
    policy = container.get("restartPolicy")
    if group == "containers":
        why = "may not be set for non-init containers"
        return [forbidden_value(f"{where}.restartPolicy", why)] if policy else []
    if policy == "Always":
        return []
    causes = []
    if policy is not None:
        causes.append(unsupported_value(f"{where}.restartPolicy", f'"{policy}": supported values: "Always"'))
    why = "may not be set for init containers without restartPolicy=Always"
    return causes + [forbidden_value(f"{where}.{each}", why) for each in _OF_RUNNING if container.get(each)]


_MUTABLE_POD_FIELDS = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "nodeName")


def _check_pod(obj: Json, old: Json | None) -> list[Violation]:
    if old is None:
        return _check_pod_spec(obj["spec"], "spec")

    def fixed(spec: Json) -> Json:
        containers = [{**container, "image": ""} for container in spec["containers"]]
        return {k: v for k, v in spec.items() if k not in _MUTABLE_POD_FIELDS} | {"containers": containers}

    if fixed(obj["spec"]) == fixed(old["spec"]):
        return []
    allowed = "`spec.containers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations`"
    return [forbidden_value("spec", f"pod updates may not change fields other than {allowed}")]


def _check_workload(obj: Json, old: Json | None) -> list[Violation]:
    spec = obj["spec"]
    template, selector = spec.get("template") or {}, spec.get("selector") or {}
    causes = _check_pod_spec(template["spec"], "spec.template.spec") if "spec" in template else []
    if "spec" not in template:
        causes.append(required_value("spec.template.spec"))
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        causes.append(invalid_value("spec.selector", f"{selector}: empty selector is invalid for deployment"))
    elif not selectors.from_object(selector).matches(labels):
        message = f"{labels}: `selector` does not match template `labels`"
        causes.append(invalid_value("spec.template.metadata.labels", message))
    if spec.get("replicas", 0) < 0:
        causes.append(invalid_value("spec.replicas", f"{spec['replicas']}: must be greater than or equal to 0"))
    if old and old["spec"].get("selector") != selector:
        causes.append(invalid_value("spec.selector", f"{selector}: field is immutable"))
    policy = template.get("spec", {}).get("restartPolicy", "Always")
    if policy != "Always":
        message = f'"{policy}": supported values: "Always"'
        causes.append(unsupported_value("spec.template.spec.restartPolicy", message))
    return causes


def _check_deployment(obj: Json, old: Json | None) -> list[Violation]:
    causes = _check_workload(obj, old)
    limits = obj["spec"]["strategy"].get("rollingUpdate") or {}
    if all(str(limits.get(name)).rstrip("%") == "0" for name in ("maxSurge", "maxUnavailable")):
        shown = json.dumps(limits["maxUnavailable"])
        message = f"{shown}: may not be 0 when `maxSurge` is 0"
        causes.append(invalid_value("spec.strategy.rollingUpdate.maxUnavailable", message))
    return causes


_COMPLETIONS: Mapping[str, Completion] = {
    "Namespace": _complete_namespace,
    "Secret": _complete_secret,
    "Service": _complete_service,
    "Pod": _complete_pod,
    "PersistentVolumeClaim": lambda obj: {**obj, "status": obj.get("status") or {"phase": "Pending"}},
    "ReplicaSet": _complete_template,
    "Deployment": _complete_deployment,
    "CustomResourceDefinition": lambda obj: definitions.accepted(obj) if not definitions.problems(obj) else obj,
}
_CHECKS: Mapping[str, Check] = {
    "ConfigMap": _check_immutable,
    "Secret": _check_immutable,
    "Service": _check_service,
    "Pod": _check_pod,
    "ReplicaSet": _check_workload,
    "Deployment": _check_deployment,
    "CustomResourceDefinition": lambda obj, _: definitions.problems(obj),
}
