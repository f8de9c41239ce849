"""The body of a message batch, `{"requests": […]}`, cut into its requests as it comes. Pure.

In memory are one request that has not ended, and the body without requests, which is decoded at the end.
"""

import re
from collections.abc import Iterator

import msgspec

from fairlead.gateway.openai.parse import UNREADABLE

MAX_AROUND_BYTES = 4 * 2**20
"""Of the body without its requests: commas, spaces, other fields."""
_FLAT = re.compile(rb'(?:[^"{}\[\]]++|"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+")*+')
"""What is neither a bracket nor a string that goes on."""
_STRING = re.compile(rb'[^"\\]*+(?:\\[\s\S][^"\\]*+)*+')
"""The rest of a string, without its end."""
_LIST = re.compile(rb'"requests"\s*:\s*\Z')
_TAIL_BYTES = 256


class _Cut(msgspec.Struct):
    """In the place of a request."""


class _Around(msgspec.Struct):
    requests: list[_Cut]


class RequestCutter:
    """`feed` with pieces of the body, and `close` at the end. Both raise ValueError, with a sentence."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of one request."""
        self._max_bytes = max_bytes
        self._around, self._request = bytearray(), bytearray()
        self._split = b""
        """Half of an escape sequence."""
        self._depth = 0
        """Brackets that are open: 2 in the list of requests."""
        self._is_in_string = self._is_in_list = self._is_in_request = False
        self._has_list = False
        self.num_requests = 0
        """That were cut out."""

    @property
    def num_bytes(self) -> int:
        """What is kept."""
        return len(self._around) + len(self._request)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Requests that have become whole, as they were written."""
        data, self._split, start = self._split + data, b"", 0
        for at in self._brackets(data):
            bracket = data[at : at + 1]
            if self._is_in_list and self._depth == 2 and bracket == b"{":
                start = self._kept(data, start, at)
                self._is_in_request = True
            self._depth += 1 if bracket in b"{[" else -1
            if self._depth < 0:
                raise ValueError("The request body is not valid JSON: it closes a bracket that is not open")
            if self._is_in_request and self._depth == 2:
                start = self._kept(data, start, at + 1)
                self._is_in_request = False
                self._around += b"{}"
                self.num_requests += 1
                yield bytes(self._request)
                self._request.clear()
            elif self._depth == 2 and bracket == b"[":
                start = self._kept(data, start, at)
                self._begin_list()
            elif self._depth < 2:
                self._is_in_list = False
        self._kept(data, start, len(data) - len(self._split))

    def close(self) -> None:
        """The body is whole."""
        try:
            msgspec.json.decode(self._around, type=_Around)
        except UNREADABLE as error:
            if isinstance(error, msgspec.ValidationError):
                raise ValueError(f"requests: {error}; send a list of custom_id and params") from error
            raise ValueError(f"The request body is not valid JSON: {error}") from error
        if not self.num_requests:
            raise ValueError("requests: the list is empty; send at least one")

    def _begin_list(self) -> None:
        self._is_in_list = _LIST.search(self._around[-_TAIL_BYTES:]) is not None
        if self._is_in_list and self._has_list:
            raise ValueError("requests: it is there twice; send one list")
        self._has_list |= self._is_in_list

    def _brackets(self, data: bytes) -> Iterator[int]:
        """Where brackets are outside of strings."""
        at = 0
        while at < len(data):
            found = (_STRING if self._is_in_string else _FLAT).match(data, at)
            assert found is not None, "both match nothing, too"
            at = found.end()
            match data[at : at + 1]:
                case b"\\":
                    self._split = data[at:]
                    return
                case b'"':
                    self._is_in_string = not self._is_in_string
                case b"{" | b"[" | b"}" | b"]":
                    yield at
            at += 1

    def _kept(self, data: bytes, start: int, end: int) -> int:
        """The end."""
        if self._is_in_request:
            self._request += data[start:end]
            if len(self._request) > self._max_bytes:
                most = f"the {self._max_bytes} bytes that this gateway takes"
                raise ValueError(f"requests.{self.num_requests}: it has more than {most}")
        else:
            self._around += data[start:end]
            if len(self._around) > MAX_AROUND_BYTES:
                raise ValueError(f"The request body has more than {MAX_AROUND_BYTES} bytes beside its requests")
        return end
