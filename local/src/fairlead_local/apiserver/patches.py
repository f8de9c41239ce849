"""Patches: JSON merge patch (RFC 7386), JSON patch (RFC 6902), and for built-in kinds strategic merge patch, a merge
patch that knows which lists are told apart by a key. Pure.

The merge key of a list is the first of its `x-kubernetes-list-map-keys`. Directives: `$patch: replace | delete`,
`$deleteFromPrimitiveList/FIELD`, `$setElementOrder/FIELD`.
"""

from functools import partial
from typing import Any

import jsonpatch

from fairlead_local.apiserver.status import Json, StatusError, bad_request
from fairlead_local.apiserver.structural import Schema, field_schema

_DELETE_VALUES = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


def merge_patch(target: Any, patch: Any) -> Any:
    """`target` with `patch` laid over it; null deletes a field. Neither argument is changed."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for field, value in patch.items():
        if value is None:
            result.pop(field, None)
        else:
            result[field] = merge_patch(result.get(field), value)
    return result


def json_patch(target: Json, operations: Any) -> Json:
    """`target` after the operations; 422 when one does not apply (a failed `test` too), 400 when they are malformed."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    try:
        result = jsonpatch.JsonPatch(operations).apply(target)
    except jsonpatch.InvalidJsonPatch as error:
        raise bad_request(f"error decoding patch: {error}") from error
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        text = f"the server rejected our request due to an error in our request: {error}"
        raise StatusError(422, "Invalid", text) from error
    if not isinstance(result, dict):
        raise bad_request("a patch must leave an object")
    return result


def strategic_merge(schema: Schema, target: Json, patch: Json) -> Json:
    """`target` after `patch`; raises 400 for a directive that is not taken or a list item without its merge key."""
    directive = patch.get("$patch")
    if directive == "replace":
        return {field: value for field, value in patch.items() if field != "$patch"}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"unknown patch directive: $patch: {directive}")
    if "$retainKeys" in patch:
        raise bad_request("local mode does not take $retainKeys: write null for what is to go, or replace the object")
    result = dict(target)
    for field, value in patch.items():
        below, current = field_schema(schema, field) or {}, result.get(field)
        if field.startswith("$"):
            continue
        if value is None:
            result.pop(field, None)
        elif isinstance(value, dict) and below.get("x-kubernetes-map-type") != "atomic":
            result[field] = strategic_merge(below, current if isinstance(current, dict) else {}, value)
        else:
            result[field] = _merge_list(below, current or [], value) if isinstance(value, list) else value
    _apply_list_directives(schema, result, patch)
    return result


def _merge_list(schema: Schema, current: list[Any], patch: list[Any]) -> list[Any]:
    kind = schema.get("x-kubernetes-list-type")
    if kind == "set":
        return current + [item for item in patch if item not in current]
    if kind != "map" or any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if not (isinstance(item, dict) and "$patch" in item)]
    key = schema["x-kubernetes-list-map-keys"][0]
    items = {item.get(key): item for item in current}
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        if item.get("$patch") == "delete":
            items.pop(item[key], None)
        else:
            items[item[key]] = strategic_merge(schema.get("items", {}), items.get(item[key]) or {}, item)
    return list(items.values())


def _apply_list_directives(schema: Schema, result: Json, patch: Json) -> None:
    for directive, values in patch.items():
        if directive.startswith(_DELETE_VALUES):
            field = directive.removeprefix(_DELETE_VALUES)
            result[field] = [item for item in result.get(field) or [] if item not in values]
        elif directive.startswith(_ORDER):
            field = directive.removeprefix(_ORDER)
            if field in result:
                # Items the patch names come in its order; the others stay behind them, as they were.
                identity = partial(_identity, field_schema(schema, field) or {})
                ranks = {identity(item): rank for rank, item in enumerate(values)}
                result[field] = sorted(result[field], key=lambda item: ranks.get(identity(item), len(ranks)))


def _identity(schema: Schema, item: Any) -> str:
    """The merge key of an item, or the item itself."""
    keys = schema.get("x-kubernetes-list-map-keys")
    return str(item.get(keys[0]) if keys and isinstance(item, dict) else item)
