"""The header of a GGUF file of llama.cpp: metadata, place of each tensor, bytes of each type. Every number in a file is
checked against the size of the file. `gguf_tokenizer` reads the tokenizer, the engine reads the weights."""

import mmap
import re
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from fairlead_common.models.load_errors import ModelLoadError, ModelLoadReason

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of values, as `struct` has them."""
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 4
_MOST_ELEMENTS = 2**24
"""Of a list: the longest there are hold a tokenizer's merges."""
_MOST_ALIGNMENT = 2**20
_DEFAULT_ALIGNMENT = 32
_NUM_PARTS, _PART, _NUM_TENSORS = "split.count", "split.no", "split.tensors.count"
"""Of a model in several files: their number, the number of a file (from 0), and the number of all tensors."""
_MOST_PARTS = 1000
GGUF_PART = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf")
"""Name of a part: of all, its number (from 1), the number of parts."""


class StoredSize(NamedTuple):
    """What a type of tensors takes."""

    size: int
    """Numbers in a block; 1 where there are none."""
    num_bytes: int
    """Of a block."""


SIZES = {
    number: StoredSize(*stored)
    for number, stored in {
        0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
        10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
        16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
        23: (256, 136), 29: (256, 56), 34: (256, 54), 35: (256, 66), 39: (32, 17),
    }.items()
}  # fmt: skip
"""Of the readable types, by ggml's number."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Place, type and shape of a tensor."""

    shape: tuple[int, ...]
    """Rows first, as torch has it."""
    kind: int
    """Its type, by ggml's number."""
    offset: int
    """Of its first byte."""


class _GgufPart:
    """A file: metadata, bytes, and tensors with offsets in the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # the latter of an empty file
            self.refuse(f"cannot be read ({error})")
        self._at = 0
        if self._take(4, "its first bytes") != _MAGIC:
            self.refuse("does not begin as GGUF files do")
        version, num_tensors, num_values = (self._number(code, "its header") for code in "IQQ")
        if version not in _VERSIONS:
            self.refuse(f"is of version {version}; supported are {' and '.join(map(str, _VERSIONS))}")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._text("a key")
            if key in self.metadata:  # or a file of zeros would have billions of values
                self.refuse(f"has two values for {key!r}")
            self.metadata[key] = self._value(self._number("I", key), key)
        places: dict[str, GgufTensor] = {}
        for _ in range(num_tensors):
            name, tensor = self._place()
            if name in places:
                self.refuse(f"has two tensors of the name {name!r}")
            places[name] = tensor
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= _MOST_ALIGNMENT:
            self.refuse(f"has a general.alignment of {alignment!r}")
        begin = -(-self._at // alignment) * alignment
        self.tensors = {
            name: GgufTensor(tensor.shape, tensor.kind, begin + tensor.offset) for name, tensor in places.items()
        }
        for name, tensor in self.tensors.items():
            self._check_size(name, tensor)

    def __len__(self) -> int:
        """Bytes."""
        return len(self._bytes)

    def refuse(self, problem: str) -> NoReturn:
        """Raises the error that says so."""
        raise ModelLoadError(
            ModelLoadReason.CHECKPOINT_INVALID, f"{self.path} {problem}. It is damaged or incomplete: fetch it again."
        )

    def _check_size(self, name: str, tensor: GgufTensor) -> None:
        if (stored := SIZES.get(tensor.kind)) is None:
            return  # refused by name when it is asked for
        row_bytes = -(-tensor.shape[-1] // stored.size) * stored.num_bytes
        if tensor.offset + prod(tensor.shape[:-1]) * row_bytes > len(self._bytes):
            self.refuse(f"ends within {name}")

    def bytes_at(self, offset: int, size: int, what: str) -> bytes:
        """A part of the file. Raises ModelLoadError beyond the end."""
        if offset + size > len(self._bytes):
            self.refuse(f"ends within {what}")
        return self._bytes[offset : offset + size]

    def _take(self, size: int, what: str) -> bytes:
        taken = self.bytes_at(self._at, size, what)
        self._at += size
        return taken

    def _number(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize("<" + code), what))[0]

    def _text(self, what: str) -> str:
        raw = self._take(self._number("Q", what), what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.refuse(f"has {what} that is no text")

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._text(key)
        if kind == _ARRAY:
            element, count = self._number("I", key), self._number("Q", key)
            if count > _MOST_ELEMENTS:
                self.refuse(f"has a list of {count} elements in {key}")
            if element == _STRING:
                return [self._text(key) for _ in range(count)]
            if element not in _SCALARS:
                self.refuse(f"has a list of type {element} in {key}")
            size = struct.calcsize("<" + _SCALARS[element])
            return list(struct.unpack(f"<{count}{_SCALARS[element]}", self._take(count * size, key)))
        if kind not in _SCALARS:
            self.refuse(f"has a value of type {kind} in {key}")
        return self._number(_SCALARS[kind], key)

    def _place(self) -> tuple[str, GgufTensor]:
        name = self._text("a tensor's name")
        num_dimensions = self._number("I", name)
        if not 0 < num_dimensions <= _MOST_DIMENSIONS:
            self.refuse(f"gives the tensor {name} {num_dimensions} dimensions")
        shape = tuple(self._number("Q", name) for _ in range(num_dimensions))
        if not all(shape):
            self.refuse(f"gives the tensor {name} a dimension of 0")
        return name, GgufTensor(shape[::-1], self._number("I", name), self._number("Q", name))


class GgufFile:
    """A model's file, or the parts that `gguf-split` writes (NAME-00001-of-00003.gguf), named by the first part, the
    holder of the metadata. Headers are read at construction, tensors on request. Raises ModelLoadError, naming file
    and field."""

    def __init__(self, path: Path) -> None:
        self.path = path
        first = _GgufPart(path)
        self.refuse = first.refuse
        self.metadata = first.metadata
        self._parts = [first, *self._others(first)]
        self._starts = list(accumulate(map(len, self._parts), initial=0))
        """First byte of each part in all parts' bytes."""
        self.tensors: dict[str, GgufTensor] = {}
        """Offsets are in all parts' bytes."""
        for start, part in zip(self._starts, self._parts, strict=False):
            for name, tensor in part.tensors.items():
                if name in self.tensors:
                    part.refuse(f"has a tensor {name!r} that another part has, too")
                self.tensors[name] = replace(tensor, offset=start + tensor.offset)
        if (told := self.metadata.get(_NUM_TENSORS, len(self.tensors))) != len(self.tensors):
            self.refuse(f"and its other parts have {len(self.tensors)} tensors; {_NUM_TENSORS} is {told!r:.100}")

    @property
    def paths(self) -> list[Path]:
        """All parts."""
        return [part.path for part in self._parts]

    def bytes_at(self, offset: int, size: int, what: str) -> bytes:
        """Bytes of one part. Raises ModelLoadError beyond its end."""
        index = min(bisect_right(self._starts, offset), len(self._parts)) - 1
        return self._parts[index].bytes_at(offset - self._starts[index], size, what)

    def _others(self, first: _GgufPart) -> Iterator[_GgufPart]:
        count, index = (first.metadata.get(key, default) for key, default in ((_NUM_PARTS, 1), (_PART, 0)))
        if count == 1:
            return
        if not isinstance(count, int) or not 1 < count <= _MOST_PARTS:
            self.refuse(f"has a {_NUM_PARTS} of {count!r:.100}")
        if index != 0 or (found := GGUF_PART.fullmatch(self.path.name)) is None:
            self.refuse(f"is one of {count} parts: name the first of them, NAME-00001-of-{count:05}.gguf")
        for number in range(1, count):
            part = _GgufPart(self.path.with_name(f"{found[1]}-{number + 1:05}-of-{count:05}.gguf"))
            if part.metadata.get(_PART) != number:
                part.refuse(f"has a {_PART} of {part.metadata.get(_PART)!r:.100}")
            yield part
