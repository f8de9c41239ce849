"""Whether `spec.template.spec` has a pod's shape, as far as the operator reads it and merges by it. Pure.

To the CRD it is any object. What is wrong in it beyond this, the API server says of the Deployment.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.api.quantities import parse_quantity
from fairlead.api.rules import BrokenRule

Keys = Mapping[str, str]
"""Field of a list → the key by which Kubernetes merges its items."""

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
MERGE_KEYS: Keys = {**_OF_PODS, **_OF_CONTAINERS}
"""Those of a pod spec, wherever they are in it."""
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_NUMBERS = ("containerPort",)
"""Keys that are numbers; the others are texts."""


def misfits(spec: Mapping[str, Any], path: str) -> Iterator[BrokenRule]:
    """What of a partial pod spec has not a pod's shape: the field, and what it should be."""
    yield from _lists(spec, path, _OF_PODS)
    for kind in _CONTAINERS:
        for index, container in _objects(spec, kind):
            yield from _lists(container, f"{path}.{kind}[{index}]", _OF_CONTAINERS)
            yield from _resources(container, f"{path}.{kind}[{index}].resources")


def _objects(spec: Mapping[str, Any], field: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The items of a list that are objects, with their places; none where it is no list."""
    items = spec.get(field)
    yield from (
        (index, item) for index, item in enumerate(items if isinstance(items, list) else ()) if _is_object(item)
    )


def _lists(spec: Mapping[str, Any], path: str, keys: Keys) -> Iterator[BrokenRule]:
    """Those that are no lists of objects with their keys."""
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
    for kind in ("limits", "requests"):
        named = resources.get(kind)
        if named is None:
            continue
        if not _is_object(named):
            yield _wrong(f"{path}.{kind}", "an object")
            continue
        yield from (_wrong(f"{path}.{kind}.{name}", "a quantity") for name, each in named.items() if not _counts(each))


def _counts(value: Any) -> bool:
    """Whether it is a quantity, or null, which takes one away."""
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
