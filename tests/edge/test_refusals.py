"""Requests that are refused before any model is known: each counts and is told. And a gauge of open connections."""

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest

REFUSED = {
    "garbage": (400, b"no HTTP\r\n\r\n"),
    "headers": (431, b"GET / HTTP/1.1\r\nhost: server\r\n" + b"x: y\r\n" * 200 + b"\r\n"),
    "a path": (404, b"GET /nothing HTTP/1.1\r\nhost: server\r\n\r\n"),
    "a method": (405, b"GET /v1/chat/completions HTTP/1.1\r\nhost: server\r\n\r\n"),
    "a model's path": (
        404,
        b"POST /no/model/v1/chat/completions HTTP/1.1\r\nhost: server\r\ncontent-length: 0\r\n\r\n",
    ),
}


async def answer(program, request: bytes) -> bytes:
    async with program.connected() as (reader, writer):
        writer.write(request)
        return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)


@pytest.mark.parametrize("name", REFUSED)
async def test_every_refusal_counts(program, name: str) -> None:
    status, request = REFUSED[name]
    assert (await answer(program, request)).startswith(b"HTTP/1.1 %d " % status)
    if program.name == "gateway":
        assert program.total("fairlead_gateway_requests_total", f'"client_error",status="{status}"') == 1
    else:
        assert program.total("fairlead_engine_http_requests_total") == 1


async def test_refusals_have_lines_and_a_flood_of_them_does_not_fill_the_log(program, caplog) -> None:
    if program.name == "engine":
        pytest.skip("engines are for gateways, whose garbage is only counted")
    caplog.set_level(logging.INFO, logger="fairlead.gateway.requests")
    for status, request in REFUSED.values():
        await answer(program, request)
        line = caplog.records[-1]
        assert (line.status, line.outcome) == (status, "client_error")
        assert line.error
    for _ in range(60):
        await answer(program, REFUSED["garbage"][1])
    assert len(caplog.records) < 40
    assert program.total("fairlead_gateway_requests_total") == 65


async def test_open_connections_are_a_gauge(program) -> None:
    name, label = f"fairlead_{program.name}_open_connections", '"clients"' if program.name == "gateway" else ""
    assert program.total(name, label) == 0
    async with AsyncExitStack() as idle:
        for _ in range(20):
            await idle.enter_async_context(program.connected())
        await program.until(lambda: program.total(name, label) == 20)
    await program.until(lambda: program.total(name, label) == 0)
