"""DNS messages as bytes (RFC 1035, and RFC 6891's OPT record): a query taken apart, an answer put together. Pure."""

import ipaddress
import struct
from dataclasses import dataclass

from cluster.dns_names import Lookup, Outcome

TYPES = {1: "A", 5: "CNAME", 28: "AAAA"}
_CODES = {name: code for code, name in TYPES.items()}
_OPT = 41
_INTERNET = 1
_HEADER = struct.Struct(">HHHHHH")
_QR, _AA, _TC, _RD, _RA = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080
FORMAT_ERROR, SERVER_FAILURE, NOT_IMPLEMENTED = 1, 2, 4
TTL_SECONDS = 5
UDP_LIMIT_BYTES = 512
OWN_UDP_LIMIT_BYTES = 1232


class BadQuery(Exception):
    """A message that cannot be answered but with a response code; `reply` is that answer, None for no answer at all."""

    def __init__(self, reply: bytes | None) -> None:
        super().__init__("not a DNS query")
        self.reply = reply


@dataclass(frozen=True)
class Query:
    """One question: `name` as it was written, without the last dot; `kind` is the type's name, or its number."""

    identity: int
    recursion_desired: bool
    name: str
    kind: str
    question: bytes
    udp_limit: int | None
    """The size of answer that the asker takes by UDP, in bytes; None when it sent no OPT record."""


def parse(message: bytes) -> Query:
    """Takes a query apart; raises BadQuery."""
    if len(message) < _HEADER.size:
        raise BadQuery(None)
    identity, flags, questions, answers, authorities, additionals = _HEADER.unpack_from(message)
    if flags & _QR:
        raise BadQuery(None)  # somebody's answer: to answer it could go on for ever
    if flags & 0x7800:
        raise BadQuery(_refusal(identity, flags, NOT_IMPLEMENTED))
    try:
        if questions != 1:
            raise ValueError
        name, end = _read_name(message, _HEADER.size)
        kind, question_class = struct.unpack_from(">HH", message, end)
        question = message[_HEADER.size : end + 4]
        if question_class != _INTERNET:
            raise BadQuery(_refusal(identity, flags, NOT_IMPLEMENTED))
        limit = _udp_limit(message, end + 4, answers + authorities + additionals)
    except (ValueError, IndexError, struct.error):
        raise BadQuery(_refusal(identity, flags, FORMAT_ERROR)) from None
    return Query(identity, bool(flags & _RD), name, TYPES.get(kind, str(kind)), question, limit)


def _refusal(identity: int, flags: int, code: int) -> bytes:
    return _HEADER.pack(identity, _QR | flags & (0x7800 | _RD) | code, 0, 0, 0, 0)


def _read_name(message: bytes, position: int) -> tuple[str, int]:
    """A name without compression (a query's question comes first, so has nothing to point at), and where it ends."""
    labels = []
    while length := message[position]:
        if length > 63 or position + 1 + length > len(message):
            raise ValueError
        labels.append(message[position + 1 : position + 1 + length].decode("latin-1"))
        position += 1 + length
    return ".".join(labels), position + 1


def _udp_limit(message: bytes, position: int, records: int) -> int | None:
    for _ in range(records):
        _, position = _read_name(message, position)
        kind, size, _, length = struct.unpack_from(">HHIH", message, position)
        if kind == _OPT:
            return max(UDP_LIMIT_BYTES, int(size))
        position += 10 + length
    return None


def answer(query: Query, lookup: Lookup, over_udp: bool) -> bytes:
    """The reply to a query. What does not fit into a datagram is left out, with the flag that says "ask by TCP"."""
    code = lookup.outcome.value
    flags = _QR | _AA | _RA | (_RD if query.recursion_desired else 0) | code
    records = [_record(query, record.owner, record.kind, record.value) for record in lookup.records]
    option = b"" if query.udp_limit is None else b"\0" + struct.pack(">HHIH", _OPT, OWN_UDP_LIMIT_BYTES, 0, 0)
    limit = min(query.udp_limit or UDP_LIMIT_BYTES, OWN_UDP_LIMIT_BYTES) if over_udp else 0xFFFF
    if _HEADER.size + len(query.question) + sum(map(len, records)) + len(option) > limit:
        flags, records = flags | _TC, []
    header = _HEADER.pack(query.identity, flags, 1, len(records), 0, 1 if option else 0)
    return header + query.question + b"".join(records) + option


def failure(query: Query) -> bytes:
    """The reply when the answer is not known."""
    return _HEADER.pack(query.identity, _QR | _RA | SERVER_FAILURE, 1, 0, 0, 0) + query.question


def _record(query: Query, owner: str, kind: str, value: str) -> bytes:
    # The question's name is at byte 12 of every answer: the usual owner is a pointer there, in the asker's own letters.
    name = b"\xc0\x0c" if owner == query.name.lower() else encode_name(owner)
    data = ipaddress.IPv4Address(value).packed if kind == "A" else encode_name(value)
    return name + struct.pack(">HHIH", _CODES[kind], _INTERNET, TTL_SECONDS, len(data)) + data


def encode_name(name: str) -> bytes:
    """A name as labels with their lengths, uncompressed."""
    labels = [label.encode("latin-1") for label in name.split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


__all__ = ["TTL_SECONDS", "BadQuery", "Outcome", "Query", "answer", "encode_name", "failure", "parse"]
