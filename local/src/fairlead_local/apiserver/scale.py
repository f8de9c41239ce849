"""The `scale` subresource: any scalable object seen as an autoscaling/v1 Scale."""

from collections.abc import Callable
from copy import deepcopy

from fairlead_local.apiserver import jsonpath
from fairlead_local.apiserver.operations import Operations, WriteOptions
from fairlead_local.apiserver.resources import ResourceType, ScalePaths
from fairlead_local.apiserver.status import STALE, Cause, Json, conflict, internal_error, invalid


def read(operations: Operations, resource: ResourceType, namespace: str, name: str) -> Json:
    """The object's Scale. Raises 500 for a custom object that has no replicas, as API servers do."""
    paths, obj = _paths(resource), operations.get(resource, namespace, name)
    if resource.custom and jsonpath.find(obj, paths.spec_replicas) is None:
        raise internal_error(f'the spec replicas field "{paths.spec_replicas}" does not exist')
    return _scale_of(paths, obj)


def edit(
    operations: Operations,
    resource: ResourceType,
    namespace: str,
    name: str,
    change: Callable[[Json], Json],
    options: WriteOptions,
) -> Json:
    """Writes the changed Scale's `spec.replicas` into the object; raises 409 where it was made from another state."""
    paths, live = _paths(resource), operations.get(resource, namespace, name)
    wanted = change(_scale_of(paths, live))
    replicas = _replicas(resource, name, wanted)
    asked = (wanted.get("metadata") or {}).get("resourceVersion")
    if asked and asked != live["metadata"]["resourceVersion"]:
        raise conflict(resource.qualified, name, STALE)

    def set_replicas(obj: Json) -> Json:
        obj = deepcopy(obj)
        jsonpath.place(obj, paths.spec_replicas, replicas)
        return obj

    return _scale_of(paths, operations.edit(resource, namespace, name, set_replicas, options).object)


def _paths(resource: ResourceType) -> ScalePaths:
    if resource.scale is None:
        raise ValueError(f"{resource.qualified} has no scale subresource")
    return resource.scale


def _replicas(resource: ResourceType, name: str, scale: Json) -> int:
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if isinstance(replicas, int) and not isinstance(replicas, bool) and replicas >= 0:
        return replicas
    text = f"Invalid value: {replicas}: must be a whole number greater than or equal to 0"
    raise invalid(resource.kind, resource.group, name, [Cause("spec.replicas", "FieldValueInvalid", text)])


def _scale_of(paths: ScalePaths, obj: Json) -> Json:
    metadata = obj["metadata"]
    status: Json = {"replicas": jsonpath.find(obj, paths.status_replicas) or 0}
    selector = jsonpath.find(obj, paths.selector) if paths.selector else _selector_text(obj)
    if selector:
        status["selector"] = selector
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {field: metadata[field] for field in kept if field in metadata},
        "spec": {"replicas": jsonpath.find(obj, paths.spec_replicas) or 0},
        "status": status,
    }


def _selector_text(obj: Json) -> str:
    """A workload's selector in the form query strings use."""
    selector = obj.get("spec", {}).get("selector")
    if not isinstance(selector, dict):
        return ""
    terms = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    words = {"In": "in", "NotIn": "notin"}
    for expression in selector.get("matchExpressions") or ():
        key, operator = expression["key"], expression["operator"]
        if operator in words:
            terms.append(f"{key} {words[operator]} ({','.join(expression.get('values') or ())})")
        else:
            terms.append(key if operator == "Exists" else f"!{key}")
    return ",".join(terms)
