"""A pod's spec: its lasting containers, the shape of `spec.template.spec`, and the pod with the template laid over.
Pure.

To the CRD a template is any object; the API server refuses the Deployment for errors beyond the fields read here.
Templates are merged as by `kubectl patch`: objects by field, lists with a known key by the key; other lists are
replaced, and null removes a field.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.api.quantities import parse_quantity
from fairlead.api.rules import BrokenRule

Container = Mapping[str, Any]


def pod_spec_of(workload: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The spec of a Deployment's pods; empty = no Deployment, or no such spec."""
    template: Mapping[str, Any] = ((workload or {}).get("spec") or {}).get("template") or {}
    return template.get("spec") or {}


def is_sidecar(init_container: Container) -> bool:
    """Whether the kubelet starts an init container before the pod's containers, restarts it, and ends it afterwards."""
    return init_container.get("restartPolicy") == "Always"


def sidecars(spec: Mapping[str, Any]) -> list[Container]:
    """In the order in which they start."""
    return [each for each in spec.get("initContainers") or () if is_sidecar(each)]


def lasting_containers(spec: Mapping[str, Any]) -> list[Container]:
    """All that run as long as the pod: sidecars, and what is no init container."""
    return [*sidecars(spec), *(spec.get("containers") or ())]


def lasting_container(spec: Mapping[str, Any], name: str) -> Container:
    """The one of that name; empty where there is none."""
    return next((each for each in lasting_containers(spec) if each.get("name") == name), {})


def lasting_statuses(pod: Mapping[str, Any]) -> list[Container]:
    """The kubelet's statuses of lasting containers."""
    status, beside = pod.get("status") or {}, {each["name"] for each in sidecars(pod.get("spec") or {})}
    of_sidecars = [each for each in status.get("initContainerStatuses") or () if each.get("name") in beside]
    return [*of_sidecars, *(status.get("containerStatuses") or ())]


Keys = Mapping[str, str]
"""Field of a list → Kubernetes' merge key of the list's items."""

_OF_PODS: Keys = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}
_OF_CONTAINERS: Keys = {
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
}
_OF_RESOURCES: Keys = {"claims": "name"}
MERGE_KEYS: Keys = {**_OF_PODS, **_OF_CONTAINERS, **_OF_RESOURCES}
"""Of pod specs, at any depth."""
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_NUMBERS = ("containerPort",)
"""Keys that are numbers; the others are texts."""


def misfits(spec: Mapping[str, Any], path: str) -> Iterator[BrokenRule]:
    """Fields of a partial pod spec without a pod's shape, and their right shape."""
    yield from _lists(spec, path, _OF_PODS)
    for kind in _CONTAINERS:
        for index, container in _objects(spec, kind):
            yield from _lists(container, f"{path}.{kind}[{index}]", _OF_CONTAINERS)
            yield from _resources(container, f"{path}.{kind}[{index}].resources")


def _objects(spec: Mapping[str, Any], field: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(place, item) of a list's objects; empty for other values."""
    items = spec.get(field)
    yield from (
        (index, item) for index, item in enumerate(items if isinstance(items, list) else ()) if _is_object(item)
    )


def _lists(spec: Mapping[str, Any], path: str, keys: Keys) -> Iterator[BrokenRule]:
    """Fields of the wrong shape, where a list of objects with keys should be."""
    for field, key in keys.items():
        items, where = spec.get(field), f"{path}.{field}"
        if items is None:
            continue
        if not isinstance(items, list):
            yield _wrong(where, "a list of objects")
            continue
        kind, word = (int, "a number") if key in _NUMBERS else (str, "a text")
        for index, item in enumerate(items):
            if not _is_object(item):
                yield _wrong(f"{where}[{index}]", "an object")
            elif not isinstance(item.get(key), kind) or isinstance(item[key], bool):
                yield _wrong(f"{where}[{index}].{key}", word)


def _resources(container: Mapping[str, Any], path: str) -> Iterator[BrokenRule]:
    resources = container.get("resources")
    if resources is None:
        return
    if not _is_object(resources):
        yield _wrong(path, "an object")
        return
    yield from _lists(resources, path, _OF_RESOURCES)
    for kind in ("limits", "requests"):
        named = resources.get(kind)
        if named is None:
            continue
        if not _is_object(named):
            yield _wrong(f"{path}.{kind}", "an object")
            continue
        yield from (_wrong(f"{path}.{kind}.{name}", "a quantity") for name, each in named.items() if not _counts(each))


def _counts(value: Any) -> bool:
    """Whether the value is a quantity, or null to remove one."""
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return False
    try:
        parse_quantity(str(value))
    except ValueError:
        return False
    return True


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _wrong(path: str, wanted: str) -> BrokenRule:
    return BrokenRule(path, f"{path.removeprefix('spec.')} must be {wanted}, as in a pod")


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `overlay` laid over it. Neither is changed."""
    merged = dict(base)
    for field, value in overlay.items():
        known = merged.get(field)
        if value is None:
            merged.pop(field, None)
        elif isinstance(value, Mapping):
            merged[field] = merge(known if isinstance(known, Mapping) else {}, value)
        elif isinstance(value, list) and isinstance(known, list) and field in MERGE_KEYS:
            merged[field] = _merge_list(field, known, value)
        else:
            merged[field] = value
    return merged


def for_sidecars(overlay: Mapping[str, Any], base: Mapping[str, Any]) -> Mapping[str, Any]:
    """The overlay with containers named as the base's sidecars moved to the init containers: authors of templates need
    not know the sidecars."""
    beside = {each["name"] for each in sidecars(base)}
    containers = overlay.get("containers") or []
    moved = [each for each in containers if each["name"] in beside]
    if not moved:
        return overlay
    others = [each for each in containers if each["name"] not in beside]
    return {**overlay, "containers": others, "initContainers": [*moved, *(overlay.get("initContainers") or [])]}


def _merge_list(field: str, base: list[Any], overlay: list[Any]) -> list[Any]:
    """The base's items in order, then new ones."""
    key = MERGE_KEYS[field]
    merged = {item[key]: item for item in base}
    for item in overlay:
        name, known = item[key], merged.get(item[key])
        if known is None or field == "volumes":  # a volume has one source: the overlay's
            merged[name] = item
        else:  # a variable has one value: the overlay's
            merged[name] = merge({"name": name} if field == "env" else known, item)
    return list(merged.values())
