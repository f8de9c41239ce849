"""Which request heads are taken. Pure.

The parser refuses what is not HTTP. These rules refuse what is HTTP but could mean one thing to a proxy in front of a
server and another to the server itself: that is what requests are smuggled with.
"""

import re
from collections.abc import Sequence

from fairlead_protocol.http.framing import MAX_LENGTH_DIGITS, Fault

Header = tuple[bytes, bytes]
"""Name in lower case, and value."""

VERSIONS = frozenset({"1.0", "1.1"})
_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")


class BadRequest(Exception):
    """A request is refused: the fault, and for an invalid one a sentence about it."""

    def __init__(self, fault: Fault, sentence: str = "") -> None:
        super().__init__(fault, sentence)
        self.fault = fault
        self.sentence = sentence


def check_head(version: str, target: bytes, headers: Sequence[Header], *, max_bytes: int) -> None:
    """Raises BadRequest where something is wrong with a request's head. `target` is as it stands in the request line.
    `max_bytes`: of the target and the headers together."""
    if len(target) + sum(len(name) + len(value) for name, value in headers) > max_bytes:
        raise BadRequest(Fault.HEAD)
    problem = _version(version) or _target(target) or _host(version, headers) or _framing(version, headers)
    if problem:
        raise BadRequest(Fault.INVALID, problem)


def framing(headers: Sequence[Header]) -> Header | None:
    """The header that says how long the body is; None = there is no body."""
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
