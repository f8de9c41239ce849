"""Connections to an engine as bytes: headers that are too large, too slow, or no HTTP."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn

from fairlead_common.http.connections import CutReason
from fairlead_common.http.intake import MAX_AHEAD
from fairlead_engine.host.http_server import engine_limits, engine_protocol

REQUEST = b"GET / HTTP/1.1\r\nhost: engine\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def application(scope: Any, receive: Any, send: Any) -> None:
    body = b"x" * 2**26 if scope["path"] == "/large" else b"ok"
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def on_cut() -> Mock:
    return Mock()


@pytest.fixture
async def port(on_cut: Mock) -> AsyncIterator[int]:
    """Of a server that gives headers 0.3 seconds."""
    protocol = engine_protocol(replace(engine_limits(1000), header_timeout=0.3, unread_timeout=0.3), Mock(), on_cut)
    options: Any = {"lifespan": "off", "log_config": None, "server_header": False, "date_header": False}
    server = uvicorn.Server(uvicorn.Config(application, http=protocol, ws="none", **options))
    server.install_signal_handlers = lambda: None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server._serve([listener]))
        yield int(listener.getsockname()[1])
        server.should_exit = True
        await serving


async def talk(port: int, *parts: bytes, pause: float = 0.0) -> bytes:
    """Everything that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(pause)
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_who_reads_nothing_cannot_hold_a_connection_by_a_request_that_is_refused(port: int, on_cut: Mock) -> None:
    """Its answers fill what the system takes; the refusal behind them, and so the end, would wait for them for ever."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, b"GET /large HTTP/1.1\r\nhost: engine\r\n\r\n")
        await asyncio.sleep(0.1)
        await loop.sock_sendall(client, b"\x00 no HTTP\r\n\r\n")
        async with asyncio.timeout(20):
            while not on_cut.called:
                await asyncio.sleep(0.01)
    on_cut.assert_called_once_with(CutReason.UNREAD_ANSWER)


async def test_headers_that_do_not_come_are_not_waited_for(port: int) -> None:
    assert await talk(port) == b""
    assert await talk(port, REQUEST[:10]) == b""
    assert await talk(port, REQUEST[:-2], *[b"x: 1\r\n"] * 20, pause=0.05) == b""


async def test_a_kept_connection_may_idle_but_its_next_headers_have_their_time(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        writer.write(REQUEST)
        assert await reader.readexactly(len(ANSWER)) == ANSWER
        await asyncio.sleep(0.5)
    writer.write(REQUEST[:10])
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()


@pytest.mark.parametrize("ending", [b"\r\n\r\n", b""])
async def test_headers_above_the_limit_are_431(port: int, ending: bytes) -> None:
    answer = await talk(port, b"GET / HTTP/1.1\r\nx-much: " + b"x" * 300_000 + ending)
    assert answer.startswith(b"HTTP/1.1 431 ") or answer == b"", "a client that still sends may be cut"
    slowly = await talk(port, b"GET / HTTP/1.1\r\n", *[b"x-%d: " % n + b"x" * 8000 + b"\r\n" for n in range(9)])
    assert slowly.startswith(b"HTTP/1.1 431 ")


async def test_what_is_not_http_is_400_in_openai_shape(port: int) -> None:
    answer = await talk(port, b"HELO engine\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


async def test_requests_far_ahead_of_their_turn_end_the_connection(port: int) -> None:
    assert (await talk(port, REQUEST * MAX_AHEAD, pause=0.1)).count(ANSWER) == 100
    answer = await talk(port, REQUEST * 1000)
    assert 0 < answer.count(ANSWER[:15]) <= MAX_AHEAD + 1, "what was taken is answered, and no more of the flood"
    assert answer.endswith(b"connection: close\r\n\r\nok")
