"""The gateways' Service: connections spread over ready pods, and bytes and endings pass unchanged."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fairlead_local.service import Address, Endpoints, listening, service

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def backend(handler: Handler) -> AsyncIterator[Address]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()


def naming(name: bytes) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(name + b":" + await reader.readline())
        await writer.drain()
        writer.close()

    return handle


async def ask(port: int, text: bytes = b"hello\n") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    answer = await reader.read()
    writer.close()
    return answer


@asynccontextmanager
async def serving(endpoints: Endpoints) -> AsyncIterator[int]:
    """The Service of `endpoints`; yields its port."""
    listener = listening("127.0.0.1", 0)
    port = listener.getsockname()[1]
    async with service(endpoints, listener):
        yield port


async def test_connections_go_to_each_endpoint_in_turn_and_bytes_pass() -> None:
    async with (
        backend(naming(b"a")) as a,
        backend(naming(b"b")) as b,
        serving(lambda: [a, b]) as port,
    ):
        answers = [await ask(port) for _ in range(4)]
    assert answers == [b"a:hello\n", b"b:hello\n", b"a:hello\n", b"b:hello\n"]


async def test_an_endpoint_that_left_gets_no_new_connection_but_keeps_what_it_has() -> None:
    async with backend(naming(b"a")) as a, backend(naming(b"b")) as b:
        endpoints = [a]
        async with serving(lambda: endpoints) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"begun ")
            while not await connected(writer):
                await asyncio.sleep(0)
            assert await ask(port) == b"a:hello\n"
            endpoints[:] = [b]
            assert await ask(port) == b"b:hello\n"
            writer.write(b"ended\n")
            assert await reader.read() == b"a:begun ended\n"
            writer.close()


async def connected(writer: asyncio.StreamWriter) -> bool:
    await writer.drain()
    return True


async def test_an_endpoint_that_refuses_is_passed_over() -> None:
    async with backend(naming(b"gone")) as gone:
        pass
    async with backend(naming(b"a")) as a, serving(lambda: [gone, a]) as port:
        assert [await ask(port) for _ in range(3)] == [b"a:hello\n"] * 3


async def test_without_an_endpoint_the_client_is_let_go() -> None:
    async with serving(list) as port:
        try:
            answer = await ask(port)
        except ConnectionError:
            answer = b""
    assert answer == b""


async def test_a_client_that_leaves_is_noticed_behind_and_large_answers_arrive_whole() -> None:
    left = asyncio.Event()
    size = 8 * 1024 * 1024

    async def large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readline() == b"large\n":
            writer.write(b"x" * size)
            await writer.drain()
        elif not await reader.read():
            left.set()
        writer.close()

    async with backend(large) as a, serving(lambda: [a]) as port:
        assert len(await ask(port, b"large\n")) == size
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"wait\n")
        await writer.drain()
        writer.close()
        await left.wait()


async def test_a_broken_answer_does_not_end_like_a_whole_one() -> None:
    async def dying(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"half an ans")
        await writer.drain()
        reset = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()

    async with backend(dying) as a, serving(lambda: [a]) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello\n")
        try:
            await reader.read()
            ended = "cleanly"
        except ConnectionResetError:
            ended = "broken"
        writer.close()
    assert ended == "broken"
