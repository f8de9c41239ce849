"""The patch types that need no schema: JSON merge patch (RFC 7386) and JSON patch (RFC 6902)."""

from typing import Any

import jsonpatch

from fairlead_local.apiserver.status import ApiError, Json, bad_request


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
        raise ApiError(422, "Invalid", text) from error
    if not isinstance(result, dict):
        raise bad_request("a patch must leave an object")
    return result
