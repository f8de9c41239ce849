"""A bound on open connections: who comes above it is told, far above it cut, counted and told in a bounded log."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

MAX_CONNECTIONS, SURPLUS = 300, 100
"""What `program` is set to, and what is told so above it."""
LISTING = b"GET /v1/models HTTP/1.1\r\nhost: server\r\n\r\n"
PROBE = b"GET /health HTTP/1.1\r\nhost: server\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def open_connections(program) -> AsyncIterator[Callable[[int], Awaitable[list[Streams]]]]:
    """Opens so many; what is still open in the end is closed."""
    ours: list[Streams] = []

    async def more(number: int) -> list[Streams]:
        ours.extend([await asyncio.open_connection("127.0.0.1", program.port) for _ in range(number)])
        return ours[-number:]

    yield more
    for _, writer in ours:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for _, writer in ours), return_exceptions=True)


async def answer(connection: Streams, request: bytes) -> bytes:
    reader, writer = connection
    writer.write(request)
    return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)


async def test_who_comes_above_the_bound_is_told_and_probes_pass(program, open_connections) -> None:
    idle = await open_connections(MAX_CONNECTIONS)
    await program.until(lambda: program.connections() == MAX_CONNECTIONS)
    (late,) = await open_connections(1)
    refused = await answer(late, LISTING)
    assert refused.startswith(b"HTTP/1.1 503 " if program.name == "gateway" else b"HTTP/1.1 429 ")
    assert b"retry-after: 1" in refused.lower()
    assert b"connection: close" in refused.lower()
    if program.name == "engine":  # a gateway's probes have a port of their own
        (prober,) = await open_connections(1)
        assert (await answer(prober, PROBE)).startswith(b"HTTP/1.1 200 ")
    for _, writer in idle:
        writer.close()
    await program.until(lambda: program.connections() < 10)
    (again,) = await open_connections(1)
    assert (await answer(again, LISTING)).startswith(b"HTTP/1.1 200 ")


async def test_far_above_the_bound_connections_are_cut_counted_and_told(
    program, open_connections, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="fairlead_common.http.connections")
    cut = f"fairlead_{program.name}_connections_cut_total"
    await open_connections(MAX_CONNECTIONS + SURPLUS + 60)
    await program.until(lambda: program.total(cut, "too-many-connections") >= 60)
    assert program.connections() <= MAX_CONNECTIONS + SURPLUS
    lines = [record for record in caplog.records if record.name == "fairlead_common.http.connections"]
    assert 0 < len(lines) < 40, "who opens connections must not fill the log"
    assert lines[0].reason == "too-many-connections"
