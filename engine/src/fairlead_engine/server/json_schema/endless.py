"""Parts of a schema that no JSON text can ever meet, as each needs another one of its kind within it."""

from typing import Any

from fairlead_engine.server.json_schema import parts


def endless(root: dict[str, Any]) -> set[int]:
    """The `id`s of those schemas within it."""
    nodes = [*parts.within(root)]
    left = {id(node) for node in nodes}
    before = len(left) + 1
    while len(left) < before:  # from leaves towards the root, so mostly twice
        before = len(left)
        for node in nodes:
            if id(node) in left and _ends(node, root, left):
                left.discard(id(node))
    return left


def _ends(node: dict[str, Any], root: Any, left: set[int]) -> bool:
    def can(part: Any) -> bool:
        return part is not False and id(part) not in left

    if "$ref" in node and not can(parts.target(root, node["$ref"])):
        return False
    if not all(map(can, _list(node, "allOf"))):
        return False
    if any(found and not any(map(can, found)) for found in (_list(node, "anyOf"), _list(node, "oneOf"))):
        return False
    if "enum" in node or "const" in node:
        return True
    kinds = parts.types(node)
    if kinds - {"object", "array"}:
        return True
    return ("object" in kinds and all(map(can, _needed_properties(node)))) or (
        "array" in kinds and all(map(can, _needed_items(node)))
    )


def _list(node: dict[str, Any], name: str) -> list[Any]:
    found = node.get(name)
    return found if isinstance(found, list) else []


def _needed_properties(node: dict[str, Any]) -> list[Any]:
    properties, required = node.get("properties"), node.get("required")
    if not isinstance(required, list):
        return []
    known = properties if isinstance(properties, dict) else {}
    others = True if "patternProperties" in node else node.get("additionalProperties", True)
    return [known.get(name, others) for name in required if isinstance(name, str)]


def _needed_items(node: dict[str, Any]) -> list[Any]:
    least = node.get("minItems", 0)
    if not isinstance(least, int) or least <= 0:
        return []
    items = node.get("items", True)
    first, more = (items, node.get("additionalItems", True)) if isinstance(items, list) else ([], items)
    first = [*first, *_list(node, "prefixItems")][:least]
    return [*first, more] if len(first) < least else first
