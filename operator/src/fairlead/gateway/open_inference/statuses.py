"""Errors of the gateway → statuses of gRPC. Pure."""

from collections.abc import Iterable
from urllib.parse import quote

import grpc

from fairlead.gateway.openai.errors import Header, OpenAIError

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_MOST_DETAILS = 4000
"""Bytes of a sentence on the wire, with all but ASCII quoted: clients take some 8 KB of metadata."""
_OF_HTTP = frozenset(
    {b"content-type", b"content-length", b"connection", b"cache-control", b"x-accel-buffering", b"www-authenticate"}
)
"""Headers of answers without meaning over gRPC."""
_NOT_OF_CLIENTS = frozenset({"content-type", "content-length", "content-encoding", "te", "expect", "host"})
"""Metadata with another meaning as HTTP headers."""

Metadata = tuple[tuple[str, str], ...]


def code_of(status: int) -> grpc.StatusCode:
    """Of an HTTP status from 400 on. 502 is INTERNAL, which clients do not retry."""
    return _CODES.get(status, grpc.StatusCode.INTERNAL if status >= 500 else grpc.StatusCode.INVALID_ARGUMENT)


def details_of(error: OpenAIError) -> str:
    """The sentence, as long as metadata may be."""
    if len(quote(error.message)) <= _MOST_DETAILS:
        return error.message
    return error.message[: _MOST_DETAILS // len(quote("😀"))] + "…"


def headers_of(metadata: Iterable[tuple[str, str | bytes]]) -> list[Header]:
    """The client's metadata as headers; names are in lower case already."""
    pairs = ((name, value) for name, value in metadata if name not in _NOT_OF_CLIENTS and isinstance(value, str))
    return [(name.encode(), value.encode("latin-1", "replace")) for name, value in pairs]


def metadata_of(headers: Iterable[Header]) -> Metadata:
    """An answer's headers for the client, with `retry-after` also as gRPC's own pushback (gRFC A6)."""
    told = {name: value.decode("latin-1") for name, value in headers if name not in _OF_HTTP}
    found = [(name.decode("latin-1"), value) for name, value in told.items()]
    if told.get(b"x-should-retry") == "false":
        found.append(("grpc-retry-pushback-ms", "-1"))
    elif (seconds := told.get(b"retry-after", "")).isdecimal():
        found.append(("grpc-retry-pushback-ms", str(1000 * int(seconds))))
    return tuple(found)
