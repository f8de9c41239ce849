"""Requests that are refused before any model is known: each counts and is told. And a gauge of open connections."""

import asyncio
import logging

import pytest

LISTING = b"GET /v1/models HTTP/1.1\r\nhost: server\r\n\r\n"
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


async def answer(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    finally:
        writer.close()


def total(metrics: str, name: str, label: str = "") -> float:
    lines = (line for line in metrics.splitlines() if line.startswith(name) and label in line)
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@pytest.mark.parametrize("name", REFUSED)
async def test_every_refusal_counts(program, name: str) -> None:
    status, request = REFUSED[name]
    assert (await answer(program.port, request)).startswith(b"HTTP/1.1 %d " % status)
    if program.name == "gateway":
        assert total(program.metrics(), "fairlead_gateway_requests_total", f'"client_error",status="{status}"') == 1
    else:
        assert total(program.metrics(), "fairlead_engine_http_requests_total") == 1


async def test_refusals_have_lines_and_a_flood_of_them_does_not_fill_the_log(program, caplog) -> None:
    if program.name == "engine":
        pytest.skip("engines are for gateways, whose garbage is only counted")
    caplog.set_level(logging.INFO, logger="fairlead.gateway.requests")
    for status, request in REFUSED.values():
        await answer(program.port, request)
        line = caplog.records[-1]
        assert (line.status, line.outcome) == (status, "client_error")
        assert line.error
    for _ in range(60):
        await answer(program.port, REFUSED["garbage"][1])
    assert len(caplog.records) < 40
    assert total(program.metrics(), "fairlead_gateway_requests_total") == 65


async def test_open_connections_are_a_gauge(program) -> None:
    name, label = f"fairlead_{program.name}_open_connections", '"clients"' if program.name == "gateway" else ""
    assert total(program.metrics(), name, label) == 0
    idle = [await asyncio.open_connection("127.0.0.1", program.port) for _ in range(20)]
    async with asyncio.timeout(20):
        while total(program.metrics(), name, label) < 20:
            await asyncio.sleep(0.01)
    for _, writer in idle:
        writer.close()
    async with asyncio.timeout(20):
        while total(program.metrics(), name, label):
            await asyncio.sleep(0.01)
