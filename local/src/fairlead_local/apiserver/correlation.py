"""Which old value a value of an update has, and whether it is still that. What an update leaves alone is not held
against it, however strict the definition has become since (Kubernetes' ratcheting, KEP-4008, from version 1.33 on).

Who calls it: `structural`. Lists with keys correlate by them, all others only as a whole.
"""

from collections.abc import Mapping
from typing import Any

LIST_TYPE = "x-kubernetes-list-type"
LIST_KEYS = "x-kubernetes-list-map-keys"


def old_items(schema: Mapping[str, Any], value: list[Any], old: Any) -> list[Any]:
    """For each item of `value` the one that it was in `old`; None = there was none, or nobody can tell."""
    names = schema.get(LIST_KEYS) or []
    if schema.get(LIST_TYPE) != "map" or not isinstance(old, list):
        return [None] * len(value)
    return [next((each for each in old if _has_same_keys(names, each, item)), None) for item in value]


def is_unchanged(schema: Mapping[str, Any], value: Any, old: Any) -> bool:
    """Whether the value is what it was; the order of a list with keys does not count."""
    if isinstance(value, Mapping) and isinstance(old, Mapping):
        properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
        rest = others if isinstance(others, Mapping) else {}
        return value.keys() == old.keys() and all(
            is_unchanged(properties.get(name, rest), item, old[name]) for name, item in value.items()
        )
    if isinstance(value, list) and isinstance(old, list):
        before = old_items(schema, value, old) if schema.get(LIST_TYPE) == "map" else old
        items = schema.get("items") or {}
        return len(value) == len(old) and all(
            is_unchanged(items, new, was) for new, was in zip(value, before, strict=True)
        )
    return isinstance(value, bool) is isinstance(old, bool) and bool(value == old)  # to Python, true is 1


def _has_same_keys(names: list[str], old: Any, new: Any) -> bool:
    if not names or not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return False
    return all(old.get(name) == new.get(name) for name in names)
