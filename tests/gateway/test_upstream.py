"""The upstream client against servers that behave oddly: limits, back-pressure, kept connections, broken HTTP."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.upstream.connection import (
    HIGH_WATER_BYTES,
    AnswerTooLarge,
    ConnectFailed,
    ConnectionLost,
    ProtocolViolation,
    UpstreamError,
    UpstreamSilent,
)
from fairlead.gateway.upstream.upstream import Address, Upstream

HEAD = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
Raw = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Raw], Awaitable[Address]]]:
    """`await serve(handler)`: the address of a server that does with each connection what `handler` does."""
    async with AsyncExitStack() as stack:

        async def start(handler: Raw) -> Address:
            async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                try:
                    await handler(reader, writer)
                except (ConnectionError, asyncio.IncompleteReadError):
                    pass
                finally:
                    writer.close()

            server = await asyncio.start_server(guarded, "127.0.0.1", 0)
            stack.callback(server.close)
            host, port = server.sockets[0].getsockname()[:2]
            return host, port

        yield start


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    made = Upstream(GatewaySettings(idle_timeout=0.2, connect_timeout=1.0))
    yield made
    made.close()


async def ask(upstream: Upstream, address: Address, *, body: bytes = b"", limit: int = 10**9) -> tuple[int, bytes]:
    head = HEAD.replace(b"length: 0", b"length: %d" % len(body))
    async with upstream.exchange(address, head, body, first_byte_timeout=0.5) as response:
        return response.status, await response.read(limit)


def always(answer: bytes) -> Raw:
    """A server that answers every request with the same bytes, and then closes unless there is another."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)

    return handler


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n"


async def test_connections_are_kept_and_used_again(serve, upstream) -> None:
    num_connections = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        await always(OK)(reader, writer)

    address = await serve(handler)
    for _ in range(5):
        assert await ask(upstream, address) == (200, b"ok")
    assert num_connections == 1


async def test_no_more_connections_are_kept_than_the_limit(serve) -> None:
    upstream = Upstream(GatewaySettings(max_idle_connections=2))
    address = await serve(always(OK))
    await asyncio.gather(*(ask(upstream, address) for _ in range(6)))
    assert len(upstream._idle[address]) == 2
    upstream.keep_only(frozenset())
    assert upstream._idle == {}


async def test_a_connection_the_server_wants_to_close_is_not_kept(serve, upstream) -> None:
    address = await serve(always(OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")))
    assert await ask(upstream, address) == (200, b"ok")
    assert not upstream._idle[address]


async def test_a_body_without_length_ends_with_its_connection(serve, upstream) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    assert await ask(upstream, await serve(handler)) == (200, b"all of it")


async def test_an_interim_answer_is_skipped(serve, upstream) -> None:
    address = await serve(always(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK))
    assert await ask(upstream, address) == (200, b"ok")


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
    ],
)
async def test_broken_answers_are_told_apart(
    serve, upstream, answer: bytes, kind: type[UpstreamError], begun: bool
) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    address = await serve(handler)
    with pytest.raises(kind) as caught:
        await ask(upstream, address)
    assert caught.value.begun == begun


async def test_trailers_are_no_headers_and_leave_the_connection_usable(serve, upstream) -> None:
    address = await serve(always(CHUNKED + b"0\r\nx-fairlead-reason: engine-full\r\n\r\n"))
    for _ in range(2):
        async with upstream.exchange(address, HEAD, b"", first_byte_timeout=0.5) as response:
            assert await response.read(10) == b"ok"
            assert b"x-fairlead-reason" not in response.headers
    assert len(upstream._idle[address]) == 1


async def test_silence_before_and_within_the_answer_is_noticed(serve, upstream) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"within" in head:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsome")
        await reader.read()

    address = await serve(handler)
    with pytest.raises(UpstreamSilent, match=r"0\.5 seconds"):
        await ask(upstream, address)
    within = HEAD.replace(b"host: x", b"host: within")
    async with upstream.exchange(address, within, b"", first_byte_timeout=10.0) as response:
        assert await response.chunk() == b"some"
        with pytest.raises(UpstreamSilent, match=r"0\.2 seconds"):
            await response.chunk()


async def test_a_reader_that_falls_behind_pauses_the_server(serve, upstream) -> None:
    sent, total = 0, 64 * 1024 * 1024

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while sent < total:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    async with upstream.exchange(await serve(handler), HEAD, b"", first_byte_timeout=5.0) as response:
        before = -1
        while sent != before:  # until the server is stuck
            before = sent
            await asyncio.sleep(0.1)
        assert sent < total
        received = 0
        while chunk := await response.chunk():
            assert len(chunk) <= HIGH_WATER_BYTES + 1024 * 1024
            received += len(chunk)
        assert received == total


async def test_a_server_that_does_not_read_a_large_body_is_given_up(serve, upstream) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(5)

    address = await serve(handler)
    with pytest.raises(UpstreamSilent):
        await ask(upstream, address, body=b"x" * 32 * 1024 * 1024)


async def test_a_large_body_arrives_whole(serve, upstream) -> None:
    body = bytes(range(256)) * 40_000
    received = b""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await reader.readuntil(b"\r\n\r\n")
        received = await reader.readexactly(len(body))
        writer.write(OK)

    assert await ask(upstream, await serve(handler), body=body) == (200, b"ok")
    assert received == body


async def test_an_answer_before_the_whole_request_was_read_is_taken(serve, upstream) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await reader.read()

    assert await ask(upstream, await serve(handler), body=b"x" * 32 * 1024 * 1024) == (413, b"no")


async def test_an_answer_above_the_limit_is_refused(serve, upstream) -> None:
    address = await serve(always(b"HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n" + b"x" * 2000))
    with pytest.raises(AnswerTooLarge, match="1000"):
        await ask(upstream, address, limit=1000)


async def test_nobody_listening_is_a_failed_connection(serve, upstream) -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()[:2]
    server.close()
    with pytest.raises(ConnectFailed):
        await ask(upstream, address)


async def test_a_second_answer_that_nobody_asked_for_closes_the_connection(serve, upstream) -> None:
    address = await serve(always(OK + OK))
    assert await ask(upstream, address) == (200, b"ok")
    assert await ask(upstream, address) == (200, b"ok")
