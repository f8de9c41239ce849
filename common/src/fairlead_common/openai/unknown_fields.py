"""Fields of a request that its schema does not have: refused, or left out with one line in the log for each name.

Gateway and engine decode requests through `UnknownFields`, which each makes once, of a setting. Whole numbers may be
written as floats (`24.0`), which JSON schemas and vLLM take for whole, too.
"""

import logging
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

Schema = TypeVar("Schema", bound=msgspec.Struct)

logger = logging.getLogger(__name__)

_MOST_NAMES = 100
"""Names with a line in the log: clients choose them, so they must not fill it."""
_LONGEST_NAME = 128
"""Characters of a name in the log."""
_DECISIVE = (
    "cache_salt", "chat_template", "documents", "ebnf", "echo", "json_schema", "logits_processors", "lora_path",
    "prompt_name", "regex", "response_format", "stop_regex", "structural_tag", "structured_outputs",
    "truncate_prompt_tokens",
)  # fmt: skip
"""Fields of other servers without which an answer would be another; refused by any setting, unless they are empty."""
_DECISIVE_PARTS = ("response_format.", "structured_outputs.")
"""Beginnings of places whose unknown fields may be what an answer is to keep to."""
_UNKNOWN = "Object contains unknown field"
"""Beginning of msgspec's error."""
_FLOAT = "got `float`"
"""In msgspec's error."""


class Unknown(StrEnum):
    """What becomes of a request with fields that are not known."""

    IGNORE = "ignore"
    """Served without them."""
    REFUSE = "refuse"
    """Refused, naming one."""


class UnknownFields:
    """Decodes requests, and remembers the names that the log has told."""

    def __init__(self, policy: str) -> None:
        self._refuses = Unknown(policy) is Unknown.REFUSE
        self._told: set[str] = set()

    def decode(self, body: bytes, schema: type[Schema]) -> Schema:
        """The request in `body`; `schema` forbids unknown fields. Raises as `msgspec.json.decode`. A body with unknown
        fields, or with a float in place of a whole number, is decoded twice."""
        decode: Callable[[bytes], Schema] = _decoder(schema).decode
        try:
            return decode(body)
        except msgspec.ValidationError as error:
            if (self._refuses or not str(error).startswith(_UNKNOWN)) and _FLOAT not in str(error):
                raise
        left_out: list[str] = []
        found = msgspec.json.decode(body)
        known = _known(found, _type_of(schema), "", left_out)
        for place in left_out:
            if self._refuses or place.startswith(_DECISIVE_PARTS) or (place in _DECISIVE and found[place]):
                above, _, name = place.rpartition(".")
                raise msgspec.ValidationError(f"{_UNKNOWN} `{name}`" + (f" - at `$.{above}`" if above else ""))
        for name in dict.fromkeys(left_out):
            self._tell(name[:_LONGEST_NAME])
        return decode(msgspec.json.encode(known))

    def _tell(self, name: str) -> None:
        if name in self._told or len(self._told) > _MOST_NAMES:
            return
        self._told.add(name)
        if len(self._told) > _MOST_NAMES:
            logger.warning("further unknown fields of requests are ignored without a line", extra={"told": _MOST_NAMES})
        else:
            logger.warning("an unknown field of requests is ignored", extra={"field": name})


@cache
def _decoder(schema: type[Schema]) -> msgspec.json.Decoder[Schema]:
    return msgspec.json.Decoder(schema)


@cache
def _type_of(schema: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(schema)


def _known(value: Any, kind: inspect.Type, place: str, left_out: list[str]) -> Any:
    """`value` without the fields that no schema in `kind` has, and with whole numbers where there must be some; the
    fields' places are added to `left_out`."""
    if isinstance(value, float) and value.is_integer():
        kinds = {type(each) for each in _kinds(kind)}
        return int(value) if inspect.IntType in kinds and inspect.FloatType not in kinds else value
    if isinstance(value, list):
        items = next((each.item_type for each in _kinds(kind) if isinstance(each, inspect.CollectionType)), None)
        return value if items is None else [_known(each, items, place, left_out) for each in value]
    if not isinstance(value, dict):
        return value
    struct = next((each for each in _kinds(kind) if isinstance(each, inspect.StructType) and _is_of(value, each)), None)
    if struct is None or not struct.forbid_unknown_fields:
        return value
    fields = {field.encode_name: field.type for field in struct.fields}
    known = {}
    for name, each in value.items():
        where = f"{place}.{name}" if place else name
        if name in fields:
            known[name] = _known(each, fields[name], where, left_out)
        elif name == struct.tag_field:
            known[name] = each
        else:
            left_out.append(where)
    return known


def _is_of(value: dict[str, Any], kind: inspect.StructType) -> bool:
    return kind.tag_field is None or value.get(kind.tag_field) == kind.tag


def _kinds(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _kinds(each)
    elif isinstance(kind, inspect.Metadata):
        yield from _kinds(kind.type)
    else:
        yield kind
