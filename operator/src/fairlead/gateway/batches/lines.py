"""Lines of an input file: cut, read, checked. Nearly pure: bytes come from an iterator.

A file is never whole in memory, but a line is. A line is named by its number in the file, from 1, which never changes.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from fairlead.gateway.openai.parse import UNREADABLE
from fairlead.gateway.stored.errors import Json

MAX_LINES = 50_000
MAX_CUSTOM_ID_LENGTH = 512
MAX_TOLD = 100
"""Problems of a file that are told; the rest is like them."""


@dataclass(frozen=True, slots=True)
class RawLine:
    """A line that is not blank."""

    number: int
    data: bytes | None
    """None = it is too long, and was not kept."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request."""

    number: int
    custom_id: str
    body: bytes
    """JSON object."""


class LineError(Exception):
    """What is wrong with a line or with the file."""

    def __init__(self, message: str, *, code: str, line: int | None, param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.code, self.line, self.param = message, code, line, param

    def shown(self) -> Json:
        """An entry of the batch's `errors`."""
        return {"code": self.code, "line": self.line, "message": self.message, "param": self.param}


class _Written(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    stream: bool | None = None
    background: bool | None = None


_lines = msgspec.json.Decoder(_Written)
_bodies = msgspec.json.Decoder(_Body)


async def raw_lines(pieces: AsyncGenerator[bytes], max_bytes: int) -> AsyncGenerator[RawLine]:
    """`max_bytes`: of a line."""
    pending, number, is_too_long = bytearray(), 1, False
    async with aclosing(pieces):
        async for piece in pieces:
            start = 0
            while (end := piece.find(b"\n", start)) >= 0:
                pending += piece[start:end]
                if is_too_long or len(pending) > max_bytes:
                    yield RawLine(number, None)
                elif pending.strip():
                    yield RawLine(number, bytes(pending))
                pending.clear()
                number, start, is_too_long = number + 1, end + 1, False
            pending += piece[start:]
            if len(pending) > max_bytes:
                is_too_long = True
                pending.clear()
    if is_too_long:
        yield RawLine(number, None)
    elif pending.strip():
        yield RawLine(number, bytes(pending))


def read_line(raw: RawLine, endpoint: str, max_bytes: int) -> BatchLine:
    """Raises LineError. `endpoint`: of the batch."""
    if raw.data is None:
        raise LineError(f"The line has more than {max_bytes} bytes.", code="line_too_long", line=raw.number)
    try:
        if not raw.data.isascii():
            raw.data.decode()
        written = _lines.decode(raw.data)
    except msgspec.ValidationError as error:
        message = f"The line is not a request: {error}; send custom_id, method, url and body."
        raise LineError(message, code="invalid_request", line=raw.number) from error
    except UNREADABLE as error:
        raise LineError(f"The line is not valid JSON: {error}.", code="invalid_json_line", line=raw.number) from error

    def wrong(name: str, problem: str) -> LineError:
        return LineError(f"{name}: {problem}", code="invalid_request", line=raw.number, param=name)

    if not 0 < len(written.custom_id) <= MAX_CUSTOM_ID_LENGTH:
        raise wrong("custom_id", f"must have 1 to {MAX_CUSTOM_ID_LENGTH} characters")
    if written.method != "POST":
        raise wrong("method", f"must be 'POST', not {written.method[:40]!r}")
    if written.url != endpoint:
        raise wrong("url", f"must be the batch's endpoint {endpoint!r}, not {written.url[:80]!r}")
    try:
        body = _bodies.decode(written.body)
    except UNREADABLE as error:
        raise wrong("body", f"must be a JSON object: {error}") from error
    for name in ("stream", "background"):
        if getattr(body, name):
            raise wrong(f"body.{name}", "must be left out: answers of a batch come when it has ended")
    return BatchLine(raw.number, written.custom_id, bytes(written.body))


@dataclass(slots=True)
class Checked:
    """A file that was read to its end, or to its last allowed line."""

    num_lines: int = 0
    errors: list[LineError] = field(default_factory=list)


async def check(lines: AsyncIterator[RawLine], endpoint: str, max_bytes: int) -> Checked:
    """Whether every line is right, and named once."""
    found, seen = Checked(), dict[str, int]()
    async for raw in lines:
        found.num_lines += 1
        if found.num_lines > MAX_LINES:
            message = f"The file has more than {MAX_LINES} lines; split it."
            found.errors.append(LineError(message, code="too_many_lines", line=raw.number))
            return found
        try:
            line = read_line(raw, endpoint, max_bytes)
            first = seen.setdefault(line.custom_id, line.number)
            if first != line.number:
                message = f"custom_id: {line.custom_id[:80]!r} is that of line {first} already; name each line once"
                raise LineError(message, code="duplicate_custom_id", line=line.number, param="custom_id")
        except LineError as error:
            found.errors.append(error)
            if len(found.errors) >= MAX_TOLD:
                return found
    if not found.num_lines:
        found.errors.append(
            LineError("The file has no lines; send one for each request.", code="empty_file", line=None)
        )
    return found
