"""Schemas of the built-in kinds: their fields and types, defaults, and how lists merge.

`schemas.json` holds them, one per type of Kubernetes' API; `docs/generate_schemas.py` writes it. `resources` looks up
each kind's own, and `definitions` adds those of ObjectMeta to custom kinds.
"""

import json
from functools import cache
from pathlib import Path

from fairlead_local.apiserver.status import Json


def schema_of(name: str) -> Json:
    """The schema of a type, such as `Pod` or `ObjectMeta`, with those it refers to. Do not change the result."""
    return _types()[name]


@cache
def _types() -> dict[str, Json]:
    types: dict[str, Json] = json.loads(Path(__file__).with_name("schemas.json").read_bytes())
    for schema in types.values():
        _link(schema, types)
    return types


def _link(part: Json, types: dict[str, Json]) -> Json:
    """The part of a schema, with types in the places of their names (`$ref`); a default may stand beside a name.

    The part is changed and not copied: twice as many objects cost the imports of `fairlead local` one more full
    garbage collection, 30 ms.
    """
    for word, below in part.items():
        if isinstance(below, dict):
            part[word] = _link(below, types)
    if "$ref" not in part:
        return part
    referred = types[part.pop("$ref")]
    return {**referred, **part} if part else referred
