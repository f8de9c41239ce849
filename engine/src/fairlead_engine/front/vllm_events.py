"""vLLM's KV events, which SGLang has, too, as they come over ZMQ: bytes → events. Pure.

A payload is msgpack of a batch: `[time, [event…], rank]`, or a map with `events`. An event is an array that begins with
its name, whose last fields may be missing and may have others behind them, or a map with `type`: vLLM went from the one
to the other in June 2026. Hashes are whole numbers or bytes. A prompt's salt is an extra key of its first block for
vLLM, and for SGLang a field of all its events.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fairlead_engine.front.foreign_engine import BlockEvent, Cleared, ForeignHash, Removed, Stored

_FIELDS: Mapping[str, Sequence[str]] = {
    "BlockStored": (
        "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
        "group_idx", "kv_cache_spec_kind",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}  # fmt: skip
"""By event, its fields in the order of the array."""
_WHOLE_ATTENTION = (None, "full_attention", "mla_attention")
"""Kinds of layers whose blocks say what of a prompt is cached: those that look at all of it."""
_MAX_TOKEN_ID = 2**32 - 1
_decode = msgspec.msgpack.Decoder().decode


class MalformedEvents(ValueError):
    """What came is not a batch of events."""


def decode_events(payload: bytes) -> list[BlockEvent]:
    """The events of one batch, in order; those of kinds that are not known here, or of other layers, are left out.

    Raises:
        MalformedEvents: whatever the bytes are.
    """
    try:
        batch = _decode(payload)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise MalformedEvents(f"not msgpack: {error}") from error
    if isinstance(batch, Mapping):
        events = batch.get("events")
    else:
        events = batch[1] if isinstance(batch, list) and len(batch) > 1 else None
    if not isinstance(events, list):
        raise MalformedEvents("a batch has no list of events")
    read = (_event(each) for each in events)
    return [event for event in read if event is not None]


def _event(raw: Any) -> BlockEvent | None:
    if isinstance(raw, Mapping):
        kind, fields = raw.get("type"), raw
    elif isinstance(raw, list) and raw:
        kind = raw[0]
        fields = dict(zip(_FIELDS.get(kind, ()), raw[1:])) if isinstance(kind, str) else {}  # noqa: B905  # see above
    else:
        raise MalformedEvents("an event is neither an array nor a map")
    match kind:
        case "BlockStored":
            return _stored(fields)
        case "BlockRemoved":
            if fields.get("group_idx") not in (None, 0):
                return None
            return Removed(hashes=_hashes(fields.get("block_hashes")), medium=_text(fields.get("medium")) or "")
        case "AllBlocksCleared":
            return Cleared()
    return None


def _stored(fields: Mapping[Any, Any]) -> Stored | None:
    hashes, parent, block_size = (
        _hashes(fields.get("block_hashes")),
        fields.get("parent_block_hash"),
        fields.get("block_size"),
    )
    if parent is not None and not _is_hash(parent):
        raise MalformedEvents("a parent is no hash")
    if type(block_size) is not int or block_size < 1:
        raise MalformedEvents("a block has no size")
    tokens = fields.get("token_ids")
    if not isinstance(tokens, list) or len(tokens) != len(hashes) * block_size:
        raise MalformedEvents(f"{len(hashes)} blocks of {block_size} have other than as many tokens")
    if not all(type(token) is int and 0 <= token <= _MAX_TOKEN_ID for token in tokens):
        raise MalformedEvents("a token is no id")
    kind = fields.get("kv_cache_spec_kind")
    if (kind is None and fields.get("group_idx") not in (None, 0)) or kind not in _WHOLE_ATTENTION:
        return None
    return Stored(
        hashes=hashes,
        parent=parent,
        token_ids=tuple(tokens),
        block_size=block_size,
        medium=_text(fields.get("medium")) or "",
        adapter=_text(fields.get("lora_name")),
        extra_keys=_extra_keys(fields.get("extra_keys"), len(hashes))
        or _salt(_text(fields.get("cache_salt")), len(hashes), begins=parent is None),
    )


def _extra_keys(raw: Any, num_blocks: int) -> tuple[tuple[object, ...], ...]:
    if raw is None:
        return ()
    if not isinstance(raw, list) or len(raw) != num_blocks:
        raise MalformedEvents("extra keys are not one for each block")
    return tuple(tuple(each) if isinstance(each, list) else () if each is None else (each,) for each in raw)


def _salt(salt: str | None, num_blocks: int, *, begins: bool) -> tuple[tuple[object, ...], ...]:
    """As a key of a prompt's first block; the others follow from it."""
    return ((salt,), *(() for _ in range(num_blocks - 1))) if salt and begins and num_blocks else ()


def _hashes(raw: Any) -> tuple[ForeignHash, ...]:
    if not isinstance(raw, list) or not all(map(_is_hash, raw)):
        raise MalformedEvents("an event has no list of hashes")
    return tuple(raw)


def _is_hash(raw: Any) -> bool:
    return type(raw) is int or isinstance(raw, bytes)


def _text(raw: Any) -> str | None:
    if raw is not None and not isinstance(raw, str):
        raise MalformedEvents("a name is no text")
    return raw
