"""Schemas of the built-in kinds: their fields and types, defaults, and how lists merge.

`schemas.json` holds them, one per type of Kubernetes' API; `docs/generate_schemas.py` writes it. `resources` looks up
each kind's own, and `definitions` adds those of ObjectMeta to custom kinds.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from fairlead_local.apiserver.status import Json


@cache
def schema_of(name: str) -> Json:
    """The schema of a type, such as `Pod` or `ObjectMeta`, with those it refers to. Do not change the result."""
    schema: Json = _resolved(_types()[name])
    return schema


@cache
def _types() -> dict[str, Json]:
    types: dict[str, Json] = json.loads(Path(__file__).with_name("schemas.json").read_bytes())
    return types


def _resolved(part: Any) -> Any:
    """A part of a schema with the types it refers to. `$ref` holds a type's name; a default may stand beside it."""
    if not isinstance(part, dict):
        return part
    resolved = {word: _resolved(below) for word, below in part.items() if word != "$ref"}
    if "$ref" not in part:
        return resolved
    referred = schema_of(part["$ref"])
    return {**referred, **resolved} if resolved else referred
