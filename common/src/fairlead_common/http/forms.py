"""Forms as bodies (`multipart/form-data`, RFC 7578): a field is read or replaced, and all other bytes stay. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_PARTS = 256
"""Of a form; forms with a file have a dozen."""
_BOUNDARY = re.compile(r"multipart/form-data\s*;.*?boundary=\"?([0-9A-Za-z'()+_,./:=?-]{1,70})", re.IGNORECASE)
_NAME = re.compile(rb'^content-disposition:\s*form-data\s*;.*?\bname="?([^";\r\n]*)', re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Form:
    """A body, and what stands between its parts."""

    body: bytes
    boundary: str

    @classmethod
    def of(cls, content_type: str, body: bytes) -> "Form":
        """Raises ValueError, with a sentence, where it is none."""
        found = _BOUNDARY.match(content_type)
        if found is None:
            raise ValueError("the request's content-type must be multipart/form-data with a boundary; send a form")
        form = cls(body, found[1])
        if sum(1 for _ in form._parts()) > MAX_PARTS:
            raise ValueError(f"the form has more than {MAX_PARTS} fields; send fewer")
        return form

    @property
    def content_type(self) -> str:
        return f'multipart/form-data; boundary="{self.boundary}"'

    def value(self, name: str) -> bytes | None:
        """The field's value; None = there is no such field."""
        place = self._place(name)
        return None if place is None else self.body[place[0] : place[1]]

    def with_value(self, name: str, value: bytes) -> bytes:
        """The body with the value of the field; a missing field becomes the first."""
        place = self._place(name)
        if place is not None:
            return b"".join((self.body[: place[0]], value, self.body[place[1] :]))
        head = f'--{self.boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n'
        return b"".join((head.encode(), value, b"\r\n", self.body))

    def _place(self, name: str) -> tuple[int, int] | None:
        """Where the value begins and ends."""
        return next((place for found, place in self._parts() if found == name.encode()), None)

    def _parts(self) -> Iterator[tuple[bytes, tuple[int, int]]]:
        """Names of the fields, each with the place of its value; at most one more than `MAX_PARTS`."""
        mark = f"--{self.boundary}".encode()
        start = self.body.find(mark)
        for _ in range(MAX_PARTS + 1):
            begin, end = self.body.find(b"\r\n\r\n", start), self.body.find(b"\r\n" + mark, start + 1)
            if start < 0 or not 0 <= begin <= end:
                return
            name = _NAME.search(self.body[start:begin].replace(b"\r\n", b"\n"))
            yield (b"" if name is None else name[1], (begin + 4, max(begin + 4, end)))
            start = end + 2
