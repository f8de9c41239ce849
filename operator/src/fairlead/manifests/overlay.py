"""Strategic merge, as `kubectl patch` does it to a pod: `spec.template` laid over the operator's pod template.

Objects merge by field, lists with a known key merge by that key, other lists are replaced, null removes a field.
"""

from collections.abc import Mapping
from typing import Any

MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}
"""Field of a pod spec → the key by which Kubernetes merges the list's items."""


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `overlay` laid over it. Neither is changed."""
    merged = dict(base)
    for field, value in overlay.items():
        if value is None:
            merged.pop(field, None)
        else:
            merged[field] = _merge_value(field, merged.get(field), value)
    return merged


def _merge_value(field: str, base: Any, overlay: Any) -> Any:
    if isinstance(overlay, Mapping):
        return merge(base if isinstance(base, Mapping) else {}, overlay)
    if isinstance(overlay, list) and isinstance(base, list) and field in MERGE_KEYS:
        return _merge_list(field, base, overlay)
    return overlay


def _merge_list(field: str, base: list[Any], overlay: list[Any]) -> list[Any]:
    """Items of the base in their order, then the new ones."""
    key = MERGE_KEYS[field]
    merged = {item[key]: item for item in base}
    for item in overlay:
        known = merged.get(item[key])
        merged[item[key]] = _merge_item(field, known, item) if known is not None else item
    return list(merged.values())


def _merge_item(field: str, base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    if field == "volumes":
        return dict(overlay)  # a volume has one source: the overlay's
    if field == "env":
        base = {"name": base["name"]}  # a variable has one value: the overlay's
    return merge(base, overlay)
