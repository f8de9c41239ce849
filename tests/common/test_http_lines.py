"""Bytes of a stream → lines."""

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_common.http.client import LineTooLong, lines
from fairlead_common.http.client_connection import Connection


@given(st.lists(st.binary(max_size=8).map(lambda line: line.replace(b"\n", b"."))), st.data())
def test_lines_are_the_same_however_the_stream_is_cut(sent: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in sent) + b"rest"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    async def found(*more: bytes) -> list[bytes]:
        return [line async for line in lines(_stream(*pieces, *more))]

    whole = [stripped for line in sent if (stripped := line.strip())]
    assert asyncio.run(found()) == whole
    assert asyncio.run(found(b"\n")) == [*whole, b"rest"]


async def test_a_line_without_end_is_refused() -> None:
    read = lines(_stream(b"0123456789\n0123456789", b"\n0123456789", b"x"), limit=10)
    assert await anext(read) == b"0123456789"
    assert await anext(read) == b"0123456789"
    with pytest.raises(LineTooLong):
        await anext(read)


async def test_a_body_is_read_line_by_line_without_blank_ones() -> None:
    body = _stream(b'{"a": 1}\r\n\r\n \n{"b"', b": 2}\n", b"no end")
    assert [line async for line in lines(body)] == [b'{"a": 1}', b'{"b": 2}']


async def test_a_body_whose_line_has_no_end_is_given_up() -> None:
    body = _stream(b"one\n", b"0123456", b"7890")
    with pytest.raises(LineTooLong, match="more than 10 bytes"):
        assert [line async for line in lines(body, limit=10)]


def _stream(*pieces: bytes) -> Connection:
    """An answer whose body comes in these very pieces."""
    left = deque(piece for piece in pieces if piece)

    async def chunk() -> bytes:
        return left.popleft() if left else b""

    return cast(Connection, SimpleNamespace(chunk=chunk))
