"""Exchanges over kept connections with servers that behave oddly: limits, back-pressure, broken HTTP."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from fairlead_common.http.client import HttpClient, TimeLimits
from fairlead_common.http.client_connection import (
    AnswerTooLarge,
    ConnectionLost,
    ProtocolViolation,
    ServerSilent,
    TransportError,
)
from fairlead_common.http.origin import Origin
from fairlead_testing.http import Handler, listening

LIMITS = TimeLimits(connect=1.0, first_byte=0.5, silence=0.2)
PATIENT = replace(LIMITS, first_byte=10.0)
HEAD = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[Origin]]]:
    """`await serve(handler)`: the origin of a server that does with each connection what `handler` does."""
    async with AsyncExitStack() as stack:

        async def start(handler: Handler) -> Origin:
            return Origin("127.0.0.1", await stack.enter_async_context(listening(handler)))

        yield start


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    made = HttpClient()
    yield made
    made.close()


async def ask(client: HttpClient, origin: Origin, *, body: bytes = b"", limit: int = 10**9) -> tuple[int, bytes]:
    head = HEAD.replace(b"length: 0", b"length: %d" % len(body))
    async with client.exchange(origin, head, body, LIMITS) as response:
        return response.status, await response.read(limit)


def always(answer: bytes) -> Handler:
    """A server that answers every request with the same bytes, and then closes unless there is another."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)

    return handler


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n"


async def test_no_more_connections_are_kept_than_the_limit(serve) -> None:
    client = HttpClient(max_idle=2)
    origin = await serve(always(OK))
    await asyncio.gather(*(ask(client, origin) for _ in range(6)))
    assert len(client._idle[origin]) == 2
    client.keep_only(frozenset())
    assert client._idle == {}


async def test_a_connection_the_server_wants_to_close_is_not_kept(serve, client) -> None:
    origin = await serve(always(OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")))
    assert await ask(client, origin) == (200, b"ok")
    assert not client._idle


async def test_a_body_without_length_ends_with_its_connection(serve, client) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    assert await ask(client, await serve(handler)) == (200, b"all of it")


async def test_an_interim_answer_is_skipped(serve, client) -> None:
    origin = await serve(always(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK))
    assert await ask(client, origin) == (200, b"ok")


@pytest.mark.parametrize(
    ("answer", "kind", "begun"),
    [
        (b"", ConnectionLost, False),
        (b"HTTP/1.1 200 OK\r\ncontent-le", ConnectionLost, True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort", ConnectionLost, True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", ConnectionLost, True),
        (b"SMTP ready\r\n\r\n", ProtocolViolation, True),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, ProtocolViolation, True),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 200, ProtocolViolation, True),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10_000, ProtocolViolation, True),
        (CHUNKED + b"0\r\n" + b"x: y\r\n" * 200, ProtocolViolation, True),
        (CHUNKED + b"0\r\nx: " + b"y" * 200_000, ProtocolViolation, True),
        (CHUNKED + b"5;" + b"y" * 200_000, ProtocolViolation, True),
        (b"HTTP/1.1 600 What\r\ncontent-length: 2\r\n\r\nok", ProtocolViolation, True),
        (b"HTTP/1.1 101 Switch\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", ProtocolViolation, True),
    ],
)
async def test_broken_answers_are_told_apart(
    serve, client, answer: bytes, kind: type[TransportError], begun: bool
) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    origin = await serve(handler)
    with pytest.raises(kind) as caught:
        await ask(client, origin)
    assert caught.value.begun == begun


async def test_trailers_are_no_headers_and_leave_the_connection_usable(serve, client) -> None:
    origin = await serve(always(CHUNKED + b"0\r\nx-fairlead-reason: engine-full\r\n\r\n"))
    for _ in range(2):
        async with client.exchange(origin, HEAD, b"", LIMITS) as response:
            assert await response.read(10) == b"ok"
            assert b"x-fairlead-reason" not in response.headers
    assert len(client._idle[origin]) == 1


async def test_silence_before_and_within_the_answer_is_noticed(serve, client) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"within" in head:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsome")
        await reader.read()

    origin = await serve(handler)
    with pytest.raises(ServerSilent, match=r"0\.5 seconds"):
        await ask(client, origin)
    within = HEAD.replace(b"host: x", b"host: within")
    async with client.exchange(origin, within, b"", PATIENT) as response:
        assert await response.chunk() == b"some"
        with pytest.raises(ServerSilent, match=r"0\.2 seconds"):
            await response.chunk()


async def test_a_server_that_does_not_read_a_large_body_is_given_up(serve, client) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(5)

    origin = await serve(handler)
    with pytest.raises(ServerSilent):
        await ask(client, origin, body=b"x" * 32 * 1024 * 1024)


async def test_a_large_body_arrives_whole(serve, client) -> None:
    body = bytes(range(256)) * 40_000
    received = b""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await reader.readuntil(b"\r\n\r\n")
        received = await reader.readexactly(len(body))
        writer.write(OK)

    assert await ask(client, await serve(handler), body=body) == (200, b"ok")
    assert received == body


async def test_an_answer_before_the_whole_request_was_read_is_taken(serve, client) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await reader.read()

    assert await ask(client, await serve(handler), body=b"x" * 32 * 1024 * 1024) == (413, b"no")


async def test_what_was_not_sent_of_a_request_is_not_made_of_the_next(serve, client) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            num_bytes = int(head.split(b"content-length: ")[1])
            answer = OK if num_bytes < 1000 else b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy"
            writer.write(answer)
            await reader.readexactly(num_bytes)  # keeps the connection for the request behind it

    origin = await serve(handler)
    assert await ask(client, origin, body=b"x" * 32 * 1024 * 1024) == (503, b"busy")
    assert await ask(client, origin, body=b"small") == (200, b"ok")


async def test_an_answer_above_the_limit_is_refused(serve, client) -> None:
    origin = await serve(always(b"HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n" + b"x" * 2000))
    with pytest.raises(AnswerTooLarge, match="1000"):
        await ask(client, origin, limit=1000)


async def test_a_second_answer_that_nobody_asked_for_closes_the_connection(serve, client) -> None:
    origin = await serve(always(OK + OK))
    for _ in range(2):
        async with client.exchange(origin, HEAD, b"", LIMITS, may_repeat=False) as response:
            assert await response.read(10) == b"ok"
