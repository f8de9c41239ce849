"""Checks of request heads, and bounds of everything in a request besides content: head, chunk framing and trailers.
Pure; the programs answer faults.

The parser refuses invalid HTTP. `check_head` refuses valid HTTP that a proxy and the server could read differently,
against request smuggling. The parser has no bounds, so each connection has a `RequestMeter`, which counts the bytes and
fields reported by the parser; a gateway meters answers of engines, too.
"""

import re
from collections.abc import Sequence
from enum import StrEnum

MAX_LENGTH_DIGITS = 19
"""Most digits of a Content-Length: 64 bits hold the length of any body, and Python parses no number of thousands of
digits."""

STILL_THERE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Written to a client that has ended sending. A client that waits for an answer skips the interim answer; towards a
client that has left, the second write fails at the latest. Only this tells the two apart."""
STILL_THERE_SECONDS = 0.01
"""Time until the next interim answer; doubles each time."""


class Fault(StrEnum):
    """Why a request is refused before any application hears of it."""

    FIELDS = "fields"
    """Too many headers and trailers."""
    HEAD = "head"
    """Too many bytes of the request line and the headers."""
    FRAMING = "framing"
    """Too many bytes of chunk sizes, chunk extensions and trailers."""
    INVALID = "invalid"
    """It is not HTTP, or could be read in two ways."""
    CONNECTIONS = "connections"
    """There are more than are taken at once."""
    AHEAD = "ahead"
    """Too many requests came before those in front of them were answered."""


class RequestMeter:
    """Counts the current request of one connection, from the first byte to the last trailer."""

    def __init__(self, *, max_bytes: int, max_fields: int) -> None:
        """`max_bytes`: of the head; of framing between two bytes of content, or behind the last; and of all framing of
        a body beyond the size of the body, so that bodies in many small chunks pass. `max_fields`: headers and trailers
        together."""
        self._max_bytes = max_bytes
        self._max_fields = max_fields
        self.in_head = True
        """Whether the connection awaits a request or reads the head of one."""
        self.in_body = False
        self.excess: Fault | None = None
        """The first excess found, after which the connection should end."""
        self._num_fields = 0
        self._packet_bytes = 0
        """Bytes of the last packet that may belong to the current head or body."""
        self._head_bytes = 0
        self._content_bytes = 0
        self._content_bytes_before = 0
        """Content bytes of the packets before the last."""
        self._framing_bytes = 0
        self._silent_bytes = 0
        """Framing since the last byte of content."""

    def begin_head(self) -> None:
        """A request begins. Bytes that came together with the end of the previous request are not counted."""
        self.in_head, self.in_body = True, False
        self._num_fields = self._packet_bytes = self._head_bytes = 0

    def begin_body(self) -> None:
        """The head is whole."""
        self.in_head, self.in_body = False, True
        self._packet_bytes = self._content_bytes = self._content_bytes_before = 0
        self._framing_bytes = self._silent_bytes = 0

    def end(self) -> None:
        """The request is whole."""
        self.in_head = self.in_body = False

    def packet(self, num_bytes: int) -> None:
        """Bytes have come that are going to be parsed."""
        self._packet_bytes = num_bytes

    def field(self) -> None:
        """A header, or a trailer, has been read."""
        self._num_fields += 1
        if self._num_fields > self._max_fields:
            self.excess = self.excess or Fault.FIELDS

    def content(self, num_bytes: int) -> None:
        """So much of the body has been read."""
        self._content_bytes += num_bytes

    def check(self) -> Fault | None:
        """The excess, if any, after parsing of the packet; None = within bounds."""
        if self.in_head:
            self._head_bytes += self._packet_bytes
            if self._head_bytes > self._max_bytes:
                self.excess = self.excess or Fault.HEAD
        elif self.in_body:
            self._check_framing()
        return self.excess

    def _check_framing(self) -> None:
        content = self._content_bytes - self._content_bytes_before
        self._content_bytes_before = self._content_bytes
        self._framing_bytes += self._packet_bytes - content if self._packet_bytes else 0
        self._silent_bytes = 0 if content else self._silent_bytes + self._packet_bytes
        allowed = self._max_bytes + self._content_bytes
        if self._silent_bytes > self._max_bytes or self._framing_bytes > allowed:
            self.excess = self.excess or Fault.FRAMING


Header = tuple[bytes, bytes]
"""Name in lower case, and value."""

VERSIONS = frozenset({"1.0", "1.1"})
_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")


class BadRequest(Exception):
    """A request is refused: the fault, and for invalid HTTP a sentence with the problem."""

    def __init__(self, fault: Fault, sentence: str = "") -> None:
        super().__init__(fault, sentence)
        self.fault = fault
        self.sentence = sentence


def check_head(version: str, target: bytes, headers: Sequence[Header], *, max_bytes: int) -> None:
    """Raises BadRequest for a wrong head of a request. `target`: as written in the request line. `max_bytes`: of the
    target and the headers together."""
    if len(target) + sum(len(name) + len(value) for name, value in headers) > max_bytes:
        raise BadRequest(Fault.HEAD)
    problem = _version(version) or _target(target) or _host(version, headers) or _framing(version, headers)
    if problem:
        raise BadRequest(Fault.INVALID, problem)


def framing(headers: Sequence[Header]) -> Header | None:
    """The header with the length of the body; None = the request has no body."""
    return next((header for header in headers if header[0] in (b"content-length", b"transfer-encoding")), None)


def _version(version: str) -> str | None:
    return None if version in VERSIONS else f"HTTP/{version} is not spoken here; use HTTP/1.1."


def _target(target: bytes) -> str | None:
    if target.startswith(b"/") or target == b"*":
        return None
    return "The request line must have the path alone: this server is no proxy for other addresses."


def _host(version: str, headers: Sequence[Header]) -> str | None:
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        return "The request has more than one Host header."
    if not hosts and version != "1.0":
        return "The request has no Host header."
    if hosts and not _HOST.fullmatch(hosts[0]):
        return "The Host header is not the name of a host."
    return None


def _framing(version: str, headers: Sequence[Header]) -> str | None:
    if any(name == b"content-length" and len(value) > MAX_LENGTH_DIGITS for name, value in headers):
        return f"The Content-Length has more than {MAX_LENGTH_DIGITS} digits."
    encodings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if not encodings or (encodings == [b"chunked"] and version != "1.0"):
        return None
    return "The only transfer-encoding that is understood is `chunked`, with HTTP/1.1."
