"""Strategic merge, as `kubectl patch` does it to a pod: `spec.template` laid over the operator's pod template.

Objects merge by field, lists with a known key merge by that key, other lists are replaced, null removes a field.
"""

from collections.abc import Mapping
from typing import Any

from fairlead.api.pod_containers import sidecars
from fairlead.api.pod_overlay import MERGE_KEYS


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
    """The overlay with what it says of the base's sidecars among its init containers: whoever writes a template names
    containers, and need not know which of them are sidecars here."""
    beside = {each["name"] for each in sidecars(base)}
    containers = overlay.get("containers") or []
    moved = [each for each in containers if each["name"] in beside]
    if not moved:
        return overlay
    others = [each for each in containers if each["name"] not in beside]
    return {**overlay, "containers": others, "initContainers": [*moved, *(overlay.get("initContainers") or [])]}


def _merge_list(field: str, base: list[Any], overlay: list[Any]) -> list[Any]:
    """Items of the base in their order, then the new ones."""
    key = MERGE_KEYS[field]
    merged = {item[key]: item for item in base}
    for item in overlay:
        name, known = item[key], merged.get(item[key])
        if known is None or field == "volumes":  # a volume has one source: the overlay's
            merged[name] = item
        else:  # a variable has one value: the overlay's
            merged[name] = merge({"name": name} if field == "env" else known, item)
    return list(merged.values())
