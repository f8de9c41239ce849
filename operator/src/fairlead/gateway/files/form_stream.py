"""A form with a file (`multipart/form-data`, RFC 7578), read as it comes. Pure.

What is kept of the stream is shorter than a head of a part, or than a boundary: files of any length pass through.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

MAX_PARTS = 32
MAX_HEAD_BYTES = 8 * 1024
"""Of one part's headers."""
_BOUNDARY = re.compile(r"multipart/form-data\s*;.*?boundary=\"?([0-9A-Za-z'()+_,./:=?-]{1,70})", re.IGNORECASE)
_PARAMETER = re.compile(r";\s*(name|filename)=(?:\"((?:[^\"\\]|\\.)*)\"|([^;\s]*))", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PartBegin:
    """A field of the form; its bytes follow, and then a PartEnd."""

    name: str
    filename: str | None
    """None = the field is no file. Bytes that come with a type and without a name are named as their field is."""


@dataclass(frozen=True, slots=True)
class PartEnd:
    """The field is whole."""


class _State(Enum):
    PREAMBLE = auto()
    DELIMITER = auto()
    """Behind one: another part follows, or nothing."""
    HEAD = auto()
    DATA = auto()
    OVER = auto()


class FormStream:
    """`feed` it with what comes, and `close` it at the end."""

    def __init__(self, content_type: str) -> None:
        """Raises ValueError, with a sentence, where it is no form."""
        found = _BOUNDARY.match(content_type)
        if found is None:
            raise ValueError("the request's content-type must be multipart/form-data with a boundary; send a form")
        self._mark = b"\r\n--" + found[1].encode()
        self._data = bytearray(b"\r\n")  # the first boundary has no line before it
        self._state = _State.PREAMBLE
        self._num_parts = 0

    def feed(self, data: bytes) -> Iterator[PartBegin | bytes | PartEnd]:
        """What has become known. Raises ValueError, with a sentence."""
        self._data += data
        while True:
            match self._state:
                case _State.PREAMBLE | _State.DATA:
                    end = self._data.find(self._mark)
                    num_bytes = end if end >= 0 else max(0, len(self._data) - len(self._mark) + 1)
                    if num_bytes and self._state is _State.DATA:
                        yield bytes(self._data[:num_bytes])
                    if end < 0:
                        del self._data[:num_bytes]
                        return
                    del self._data[: end + len(self._mark)]
                    if self._state is _State.DATA:
                        yield PartEnd()
                    self._state = _State.DELIMITER
                case _State.DELIMITER:
                    if len(self._data) < 2:
                        return
                    is_last = self._data.startswith(b"--")
                    if not is_last and not self._data.startswith(b"\r\n"):
                        raise ValueError("the form is broken: a boundary is followed by neither '--' nor a new line")
                    self._state = _State.OVER if is_last else _State.HEAD
                case _State.HEAD:
                    end = self._data.find(b"\r\n\r\n")
                    if end < 0 and len(self._data) <= MAX_HEAD_BYTES:
                        return
                    if not 0 <= end <= MAX_HEAD_BYTES:
                        raise ValueError(f"the form has a field with more than {MAX_HEAD_BYTES} bytes of headers")
                    yield self._begun(bytes(self._data[:end]))
                    del self._data[: end + 4]
                    self._state = _State.DATA
                case _State.OVER:
                    self._data.clear()
                    return

    def close(self) -> None:
        """Raises ValueError where the form has not ended."""
        if self._state is not _State.OVER:
            raise ValueError("the form is cut off: its last boundary is missing")

    def _begun(self, head: bytes) -> PartBegin:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise ValueError(f"the form has more than {MAX_PARTS} fields; send fewer")
        lines = (line.partition(":") for line in head.decode("utf-8", "replace").split("\r\n"))
        headers = {name.strip().lower(): value.strip() for name, _, value in lines}
        parameters = _PARAMETER.findall(headers.get("content-disposition", ""))
        found = {key.lower(): quoted or plain for key, quoted, plain in parameters}
        is_text = headers.get("content-type", "text/plain").lower().startswith("text/plain")
        name = found.get("name", "")
        return PartBegin(name, found.get("filename", None if is_text else name))
