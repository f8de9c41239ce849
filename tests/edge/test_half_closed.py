"""Clients that end their sending and still want the answer, and clients that have left, which looks the same."""

import asyncio
import json

import pytest

BODY = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}).encode()
START = b"POST /v1/chat/completions HTTP/1.1\r\nhost: server\r\n"
PLAIN = START + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
STREAMED = json.dumps({**json.loads(BODY), "stream": True}).encode()
STREAM = START + b"content-length: %d\r\n\r\n" % len(STREAMED) + STREAMED
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


async def half_closed(program, data: bytes, *, hold: bool) -> bytes:
    """All that comes back for `data` and then the end of sending; with `hold`, the answer takes its time."""
    if hold:
        program.hold()
    async with program.connected() as (reader, writer):
        writer.write(data)
        writer.write_eof()
        if hold:
            await program.until(program.num_running)
            await asyncio.sleep(0.3)
            program.release()
        return await asyncio.wait_for(reader.read(), 20)


@pytest.mark.parametrize("hold", [False, True])
async def test_a_whole_request_is_answered_whatever_the_client_can_still_send(program, hold: bool) -> None:
    answer = (await half_closed(program, PLAIN, hold=hold)).replace(INTERIM, b"")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"]


async def test_a_stream_comes_to_its_end(program) -> None:
    answer = (await half_closed(program, STREAM, hold=True)).replace(INTERIM, b"")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_all_that_came_whole_is_answered_in_turn(program) -> None:
    answer = (await half_closed(program, PLAIN * 3 + PLAIN[:-5], hold=True)).replace(INTERIM, b"")
    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 ") == 3


@pytest.mark.parametrize("data", [b"", START, PLAIN[:-5], START + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n"])
async def test_what_is_not_whole_ends_with_the_connection(program, data: bytes) -> None:
    assert await half_closed(program, data, hold=False) in (b"", INTERIM)
    await program.until(lambda: not program.connections())


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_who_has_left_is_noticed_while_nothing_is_sent(program, version: bytes) -> None:
    program.hold()
    async with program.connected() as (_, writer):
        writer.write(PLAIN.replace(b"HTTP/1.1", b"HTTP/" + version))
        await program.until(program.num_running)
    async with asyncio.timeout(2):
        await program.until(lambda: not program.num_running())
    await program.until(lambda: not program.connections())


async def test_who_leaves_some_time_after_it_has_ended_its_sending_is_noticed(program) -> None:
    program.hold()
    async with program.connected() as (_, writer):
        writer.write(PLAIN)
        writer.write_eof()
        await program.until(program.num_running)
        await asyncio.sleep(0.5)
        assert program.num_running() == 1
    await program.until(lambda: not program.num_running())
