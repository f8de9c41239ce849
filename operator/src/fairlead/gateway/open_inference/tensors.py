"""Tensors of the protocol ⇄ texts, truth values and numbers. Pure.

A message carries elements in each tensor's `contents`, or all tensors' elements in raw contents. In raw contents an
element of BYTES begins with the element's length.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.gateway.open_inference.messages import Message
from fairlead.gateway.openai.errors import OpenAIError, bad_request
from fairlead_common.openai.budget import MAX_TEXTS

BYTES, BOOL, UINT32 = "BYTES", "BOOL", "UINT32"
_LENGTH = struct.Struct("<I")
_CONTENTS = {BYTES: "bytes_contents", BOOL: "bool_contents", UINT32: "uint_contents"}
"""Data type → the field of `contents`."""
MAX_RANK = 8
"""Sizes in a shape."""
_MOST_NAMED = 64
"""Characters of a tensor's name that are quoted."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's elements in order, and the shape."""

    elements: Sequence[bytes | bool]
    shape: tuple[int, ...]


def read_tensors(request: Message, known: Mapping[str, str]) -> dict[str, Tensor]:
    """The inputs of a ModelInferRequest by name. `known`: name → data type of possible inputs. Raises OpenAIError (400)
    with the tensor's name."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        message = f"raw_input_contents: has {len(raw)} entries for {len(request.inputs)} inputs; send one for each."
        raise bad_request(message, param="raw_input_contents")
    found: dict[str, Tensor] = {}
    for index, given in enumerate(request.inputs):
        name = given.name
        if name not in known:
            there = ", ".join(known)
            raise bad_request(
                f"inputs: {name[:_MOST_NAMED]!r} is no input of a model; there are {there}.", param="inputs"
            )
        if name in found:
            raise _wrong(name, "is there twice; send it once")
        if given.datatype != known[name]:
            raise _wrong(name, f"has the data type {given.datatype[:_MOST_NAMED]!r}; send {known[name]}")
        shape = tuple(given.shape)
        if len(shape) > MAX_RANK or min(shape, default=0) < 0 or math.prod(shape) > MAX_TEXTS:
            advice = f"send at most {MAX_RANK} sizes from 0 on, and at most {MAX_TEXTS:,} elements"
            raise _wrong(name, f"has the shape {list(shape[:MAX_RANK])}; {advice}")
        size = math.prod(shape)
        if not raw:
            elements = getattr(given.contents, _CONTENTS[known[name]])
        elif given.HasField("contents"):
            raise _wrong(name, "has contents beside raw_input_contents; send one of them")
        else:
            elements = _READERS[known[name]](name, raw[index], size)
        if len(elements) != size:
            raise _wrong(name, f"has {len(elements)} elements, and its shape says {size}")
        found[name] = Tensor(elements, shape)
    return found


def _bytes(name: str, data: bytes, size: int) -> list[bytes]:
    """Elements, at most one more than `size`. Raises OpenAIError (400)."""
    elements: list[bytes] = []
    at = 0
    while at < len(data) and len(elements) <= size:
        begin = at + _LENGTH.size
        at = begin + (_LENGTH.unpack_from(data, at)[0] if begin <= len(data) else 0)
        if at > len(data):
            raise _wrong(name, f"its raw contents end within element {len(elements)}; put each one's length before it")
        elements.append(data[begin:at])
    return elements


def _bools(name: str, data: bytes, size: int) -> list[bool]:
    return [each != 0 for each in data]


_READERS = {BYTES: _bytes, BOOL: _bools}


def add_output(
    response: Message, name: str, datatype: str, shape: Sequence[int], elements: Sequence[bytes | int], *, raw: bool
) -> None:
    """Adds a tensor to a ModelInferResponse. `raw`: to its raw contents."""
    output = response.outputs.add(name=name, datatype=datatype, shape=shape)
    if not raw:
        getattr(output.contents, _CONTENTS[datatype]).extend(elements)
        return
    parts = [_LENGTH.pack(each) if isinstance(each, int) else _LENGTH.pack(len(each)) + each for each in elements]
    response.raw_output_contents.append(b"".join(parts))


def _wrong(name: str, problem: str) -> OpenAIError:
    return bad_request(f"{name}: {problem}.", param=name)
