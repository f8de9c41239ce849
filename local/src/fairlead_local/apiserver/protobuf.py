"""Kubernetes' protobuf, as far as typed commands such as `kubectl create secret generic` send it: a few kinds, to JSON.

The numbers of fields are those of `generated.proto` in the API of Kubernetes, which never change.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fairlead_local.apiserver.status import Json

MAGIC = b"k8s\0"
_VARINT, _BYTES = 0, 2
_WIDTHS = {1: 8, 5: 4}
"""Bytes of a value by its wire type, where that fixes them."""
_MOST_VARINT_BYTES = 10


class NotRead(ValueError):
    """The body is no message, or has a kind or a field that is not read here."""


Fields = Mapping[int, str]
"""Number → name in JSON and type: a scalar or a message; `[]` before the type repeats it, `{}` maps texts to it."""

_OBJECT = {1: "metadata ObjectMeta"}
KINDS: Mapping[tuple[str, str], Fields] = {
    ("v1", "Secret"): _OBJECT | {2: "data {}base64", 3: "type text", 4: "stringData {}text", 5: "immutable boolean"},
    ("v1", "ConfigMap"): _OBJECT | {2: "data {}text", 3: "binaryData {}base64", 4: "immutable boolean"},
    ("v1", "Namespace"): _OBJECT | {2: "spec NamespaceSpec", 3: "status NamespaceStatus"},
    ("v1", "ServiceAccount"): _OBJECT
    | {3: "imagePullSecrets []LocalObjectReference", 4: "automountServiceAccountToken boolean"},
}
"""apiVersion and kind → fields."""
_MESSAGES: Mapping[str, Fields] = {
    "Unknown": {1: "typeMeta TypeMeta", 2: "raw bytes", 3: "contentEncoding text", 4: "contentType text"},
    "TypeMeta": {1: "apiVersion text", 2: "kind text"},
    "LocalObjectReference": {1: "name text"},
    "NamespaceSpec": {1: "finalizers []text"},
    "NamespaceStatus": {1: "phase text"},
    "ObjectMeta": {
        1: "name text", 2: "generateName text", 3: "namespace text", 4: "selfLink text", 5: "uid text",
        6: "resourceVersion text", 7: "generation count", 8: "creationTimestamp no-time", 11: "labels {}text",
        12: "annotations {}text", 14: "finalizers []text",
    },
}  # fmt: skip


def decode(body: bytes) -> Json:
    """The object in a message. Raises NotRead."""
    if not body.startswith(MAGIC):
        raise NotRead("it does not begin as a message of Kubernetes does")
    outer = _message(_MESSAGES["Unknown"], body[len(MAGIC) :])
    kind = outer.get("typeMeta") or {}
    found = KINDS.get((kind.get("apiVersion", ""), kind.get("kind", "")))
    if found is None:
        raise NotRead(f"{kind.get('kind') or 'an object without a kind'} is not among them")
    return {"apiVersion": kind["apiVersion"], "kind": kind["kind"], **_message(found, outer.get("raw", b""))}


def _message(fields: Fields, body: Any) -> Json:
    found: Json = {}
    for number, value in _fields(_as_bytes(body)):
        if number not in fields:
            raise NotRead(f"it has the field number {number}, which is not read")
        name, kind = fields[number].split()
        if kind.startswith("{}"):
            entry = dict(_fields(_as_bytes(value)))
            key = _text(entry.get(1, b""))
            found.setdefault(name, {})[key] = _value(kind[2:], entry.get(2, b""))
        elif kind.startswith("[]"):
            found.setdefault(name, []).append(_value(kind[2:], value))
        else:
            found[name] = _value(kind, value)
    return {name: value for name, value in found.items() if value not in ("", None)}


def _value(kind: str, value: Any) -> Any:
    return _SCALARS[kind](value) if kind in _SCALARS else _message(_MESSAGES[kind], value)


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


def _as_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise NotRead("it has a number where there should be text")
    return value


def _text(value: Any) -> str:
    try:
        return _as_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise NotRead("it has a text that is not UTF-8") from error


def _no_time(value: Any) -> None:
    """An object that is yet to be made has none; clients write an empty one."""
    if _as_bytes(value):
        raise NotRead("it has a time, which the server says")


_SCALARS: Mapping[str, Callable[[Any], Any]] = {
    "text": _text,
    "bytes": _as_bytes,
    "base64": lambda value: base64.b64encode(_as_bytes(value)).decode(),
    "boolean": bool,
    "count": lambda number: number or None,
    "no-time": _no_time,
}
