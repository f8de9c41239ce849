"""The budget: how much one request may cost before admission. Gateway and engine hold every request to the budget.

Bounds on fields are types, which decoders check. Bounds on a whole body are counted on the bytes, because decoding is
the cost. Bounds that only an engine knows (context, number of choices) are left to the engine.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta

MAX_MODEL_NAME_LENGTH = 512
MAX_CACHE_SALT_LENGTH = 256
MAX_MESSAGES = 4096
MAX_TOOLS = 1024
MAX_TAG_LENGTH = 512
MAX_METADATA = 64
MAX_TEXTS = 100_000
"""Strings in a body, names of fields among them."""
MAX_CONTAINERS = 100_000
"""Lists and objects in a body; each takes a hundred bytes when decoded, and work of the garbage collector."""
MAX_ITEMS = 2**21
"""Items of all lists and objects together: a prompt of a million token ids, twice, because a gateway adds a copy."""
MAX_RENDERED_CHARACTERS = 16 * 2**20
"""Output of a chat template for one request. A template may repeat the input for every message."""
MAX_RENDERED_PIECES = 1_000_000
"""Pieces of the output of a chat template; each takes a fraction of a microsecond."""

MAX_INDENTED_NESTING = 64
"""Nesting that a template may write indented: lines grow with the depth. Enough for schemas of tools."""

ModelName = Annotated[str, Meta(max_length=MAX_MODEL_NAME_LENGTH)]
CacheSalt = Annotated[str, Meta(max_length=MAX_CACHE_SALT_LENGTH)]
Messages = Annotated[list[dict[str, Any]], Meta(max_length=MAX_MESSAGES)]
Tools = Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)]
Tag = Annotated[str, Meta(max_length=MAX_TAG_LENGTH)]
"""A text that changes nothing, such as `user`."""
KeptTokens = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
"""How many tokens of a prompt are kept."""
TruncationSide = Literal["left", "right"]
"""Where the others are left out."""
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Metadata = Annotated[dict[Tag, Any], Meta(max_length=MAX_METADATA)]


class OverBudget(ValueError):
    """A body would cost more than a request may; the text says what to send less of."""


def check_json(body: bytes) -> None:
    """Raises `OverBudget` for JSON whose many parts would hold up the event loop while decoding.

    Takes about as long as reading the bytes, for any content. Up to twice `MAX_TEXTS` strings may pass.
    """
    if len(body) <= 2 * MAX_CONTAINERS:
        return
    # An escaped quote is inside a string. A string that ends in a backslash, escaped, is counted once instead of twice.
    if body.count(b'"') - body.count(b'\\"') > 2 * MAX_TEXTS:
        raise _over("texts (strings and names of fields)", MAX_TEXTS)
    if _num_containers(body) > MAX_CONTAINERS or body.count(b",") > MAX_ITEMS:
        structure = _without_texts(body)
        if _num_containers(structure) > MAX_CONTAINERS:
            raise _over("lists and objects", MAX_CONTAINERS)
        if structure.count(b",") > MAX_ITEMS:
            raise _over("items in its lists and objects", MAX_ITEMS)


def nesting(value: Any) -> int:
    """Nesting depth of lists and objects in decoded JSON; 0 for other values."""
    level, depth = [value], 0
    while level := [part for part in level if isinstance(part, list | dict)]:
        level = [child for part in level for child in (part.values() if isinstance(part, dict) else part)]
        depth += 1
    return depth


def _over(what: str, limit: int) -> OverBudget:
    return OverBudget(f"the request body holds more than {limit:,} {what}; send less in one request")


def _num_containers(raw: bytes) -> int:
    return raw.count(b"[") + raw.count(b"{")


def _without_texts(body: bytes) -> bytes:
    """The bytes outside of strings; arbitrary for invalid JSON."""
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(unescaped.split(b'"')[::2])
