"""Hundreds of clients that send all at once: read in turn, they hold nobody up, and what waits takes little memory."""

import asyncio
from contextlib import suppress

import pytest

from fairlead_common.http import intake
from fairlead_testing.harm import flood, measured_harm

NUM_CONNECTIONS = 250
SECONDS = 3.0
GENEROUS_STALL_SECONDS = 0.25
GENEROUS_GROWTH_BYTES = 100 * 2**20
PACKET_BYTES = 240_000

HOST = b" HTTP/1.1\r\nhost: server\r\n"
LISTING = b"GET /v1/models" + HOST + b"\r\n"
POST = b"POST /v1/chat/completions" + HOST
BODY = b"content-length: 2000\r\n\r\n" + b"x" * 2000
SENT = {
    "listings in a row": LISTING * 90,
    "far more of them than are kept": LISTING * (PACKET_BYTES // len(LISTING)),
    "what is no JSON, in a row": (POST + BODY) * 90,
    "bodies in chunks of one byte": POST + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * (PACKET_BYTES // 6),
}


@pytest.mark.slow
@pytest.mark.parametrize("sent", SENT)
async def test_who_sends_on_many_connections_at_once_holds_nobody_up(program, sent: str) -> None:
    async with measured_harm() as harm:
        await flood(program.port, SENT[sent], num_connections=NUM_CONNECTIONS, seconds=SECONDS)
    assert harm.stalled_seconds < GENEROUS_STALL_SECONDS
    assert harm.grown_bytes < GENEROUS_GROWTH_BYTES


async def read_for(reader: asyncio.StreamReader, seconds: float) -> bytes:
    """What comes within this time."""
    came = bytearray()
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(seconds):
            while part := await reader.read(65536):
                came += part
    return bytes(came)


@pytest.mark.slow
async def test_requests_ahead_of_their_turn_are_bounded_on_all_connections_together(
    program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MAX_AHEAD_BYTES", 40 * intake.REQUEST_BYTES)
    chat = b'{"model":"fake","messages":[{"role":"user","content":"ahoy"}],"max_tokens":1}'
    program.hold()
    connections = [await asyncio.open_connection("127.0.0.1", program.port) for _ in range(4)]
    for _, writer in connections:
        writer.write(POST + b"content-length: %d\r\n\r\n" % len(chat) + chat + LISTING * 30)
        await asyncio.sleep(0.3)
    program.release()
    answers = await asyncio.gather(*(read_for(reader, 3.0) for reader, _ in connections))
    assert [each.count(b"HTTP/1.1 200 ") for each in answers[:1]] == [31], "the first fill it"
    assert sum(each.count(b"HTTP/1.1 200 ") for each in answers) <= 40 + len(answers)
    fresh = await asyncio.open_connection("127.0.0.1", program.port)
    for reader, writer in (connections[0], fresh):
        writer.write(LISTING * 3)
        assert (await read_for(reader, 1.0)).count(b"HTTP/1.1 200 ") == 3, "what was answered is not counted any more"
    for _, writer in [*connections, fresh]:
        writer.close()
