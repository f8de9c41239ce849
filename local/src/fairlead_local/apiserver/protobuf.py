"""Kubernetes' protobuf, as far as typed commands such as `kubectl create secret generic` send it: a few kinds, to JSON.

The numbers of fields are those of `generated.proto` of Kubernetes' API, which never change.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Json = dict[str, Any]

MAGIC = b"k8s\0"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_MOST_VARINT_BYTES = 10


class NotRead(ValueError):
    """What is no message, or of a kind or with a field that is not read here."""


Reader = Callable[[Any], Any]
Fields = Mapping[int, tuple[str, Reader]]
"""Number → name in JSON, and how its value is read."""


def decode(body: bytes) -> Json:
    """The object in a message. Raises NotRead."""
    if not body.startswith(MAGIC):
        raise NotRead("it does not begin as a message of Kubernetes does")
    outer = _message(_UNKNOWN)(body[len(MAGIC) :])
    kind = outer.get("typeMeta") or {}
    found = KINDS.get((kind.get("apiVersion", ""), kind.get("kind", "")))
    if found is None:
        raise NotRead(f"{kind.get('kind') or 'an object without a kind'} is not among them")
    read: Json = _message(found)(outer.get("raw", b""))
    return {"apiVersion": kind["apiVersion"], "kind": kind["kind"], **read}


def _fields(body: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field: a number, or bytes."""
    at = 0
    while at < len(body):
        tag, at = _varint(body, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(body, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(body, at)
        elif kind in _WIDTHS:
            length = _WIDTHS[kind]
        else:
            raise NotRead("it has a field of a type that there is not")
        if at + length > len(body):
            raise NotRead("it ends in the middle of a field")
        yield tag >> 3, body[at : at + length]
        at += length


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(body[at : at + _MOST_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise NotRead("it ends in the middle of a number")


class _Many:
    """Of a repeated field: how one of its values is read, and how it is added to those before."""

    def __init__(self, read: Reader, *, is_map: bool) -> None:
        self.read = read
        self.is_map = is_map

    def __call__(self, value: Any) -> Any:
        return self.read(value)


def _message(fields: Fields) -> Reader:
    def read(body: Any) -> Json:
        found: Json = {}
        for number, value in _fields(_as_bytes(body)):
            if number not in fields:
                raise NotRead(f"it has the field number {number}, which is not read")
            name, reader = fields[number]
            one = reader(value)
            if isinstance(reader, _Many) and reader.is_map:
                found.setdefault(name, {}).update(one)
            elif isinstance(reader, _Many):
                found.setdefault(name, []).append(one)
            else:
                found[name] = one
        return {name: value for name, value in found.items() if value not in ("", None)}

    return read


def _as_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise NotRead("it has a number where there should be text")
    return value


def _text(value: Any) -> str:
    try:
        return _as_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise NotRead("it has a text that is not UTF-8") from error


def _base64(value: Any) -> str:
    return base64.b64encode(_as_bytes(value)).decode()


def _boolean(value: Any) -> bool:
    return bool(value)


def _no_time(value: Any) -> None:
    """An object that is yet to be made has none; clients write an empty one."""
    if _as_bytes(value):
        raise NotRead("it has a time, which the server says")


def _map_of(reader: Reader) -> _Many:
    def entry(body: Any) -> Json:
        found = dict(_fields(_as_bytes(body)))
        return {_text(found.get(1, b"")): reader(found.get(2, b""))}

    return _Many(entry, is_map=True)


def _list_of(reader: Reader) -> _Many:
    return _Many(reader, is_map=False)


_UNKNOWN: Fields = {
    1: ("typeMeta", _message({1: ("apiVersion", _text), 2: ("kind", _text)})),
    2: ("raw", _as_bytes),
    3: ("contentEncoding", _text),
    4: ("contentType", _text),
}
_METADATA: Fields = {
    1: ("name", _text),
    2: ("generateName", _text),
    3: ("namespace", _text),
    4: ("selfLink", _text),
    5: ("uid", _text),
    6: ("resourceVersion", _text),
    7: ("generation", lambda number: number or None),
    8: ("creationTimestamp", _no_time),
    11: ("labels", _map_of(_text)),
    12: ("annotations", _map_of(_text)),
    14: ("finalizers", _list_of(_text)),
}
_OBJECT: Fields = {1: ("metadata", _message(_METADATA))}
_NAMED = _message({1: ("name", _text)})
KINDS: Mapping[tuple[str, str], Fields] = {
    ("v1", "Secret"): {
        **_OBJECT,
        2: ("data", _map_of(_base64)),
        3: ("type", _text),
        4: ("stringData", _map_of(_text)),
        5: ("immutable", _boolean),
    },
    ("v1", "ConfigMap"): {
        **_OBJECT,
        2: ("data", _map_of(_text)),
        3: ("binaryData", _map_of(_base64)),
        4: ("immutable", _boolean),
    },
    ("v1", "Namespace"): {
        **_OBJECT,
        2: ("spec", _message({1: ("finalizers", _list_of(_text))})),
        3: ("status", _message({1: ("phase", _text)})),
    },
    ("v1", "ServiceAccount"): {
        **_OBJECT,
        3: ("imagePullSecrets", _list_of(_NAMED)),
        4: ("automountServiceAccountToken", _boolean),
    },
}
"""apiVersion and kind → its fields."""
