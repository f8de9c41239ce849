"""Client connections as bytes: what cannot be one request only is refused, and what is unwanted is bounded."""

import asyncio
import contextlib
import json
import random
import socket
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_common.http.bodies import BodyReader
from fairlead_common.http.framing import BadRequest, check_head
from fairlead_common.http.intake import MAX_AHEAD
from fairlead_common.http.lanes import Pacer

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
BODY = json.dumps(CHAT).encode()
LENGTH = b"content-length: %d\r\n" % len(BODY)
START = b"POST /v1/chat/completions HTTP/1.1\r\n"
HEAD = START + b"host: gateway\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nhost: gateway\r\n\r\n"


async def one_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of an answer that says its length."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
    return head, await reader.readexactly(int(length.partition(b": ")[2]))


AMBIGUOUS = {
    "two equal lengths": HEAD + LENGTH + LENGTH + b"\r\n" + BODY,
    "two lengths": HEAD + LENGTH + b"content-length: 3\r\n\r\n" + BODY,
    "a list of lengths": HEAD + b"content-length: %d, %d\r\n\r\n" % (len(BODY), len(BODY)) + BODY,
    "a length with a sign": HEAD + b"content-length: +%d\r\n\r\n" % len(BODY) + BODY,
    "a negative length": HEAD + b"content-length: -1\r\n\r\n" + BODY,
    "a length in hex": HEAD + b"content-length: 0x10\r\n\r\n" + BODY,
    "a length beyond all numbers": HEAD + b"content-length: 99999999999999999999999\r\n\r\n" + BODY,
    "an empty length": HEAD + b"content-length: \r\n\r\n" + BODY,
    "chunks, then a length": HEAD + b"transfer-encoding: chunked\r\n" + LENGTH + b"\r\n0\r\n\r\n" + SMUGGLED,
    "a length, then chunks": HEAD + LENGTH + CHUNKED,
    "chunks twice": HEAD + b"transfer-encoding: chunked\r\n" + CHUNKED,
    "chunks, then identity": HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "another coding": HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a coding that is not undone": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST /v1/completions HTTP/1.0\r\nhost: gateway\r\n" + CHUNKED,
    "a space before the colon": HEAD + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    "a length in the trailers": HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\ncontent-length: 3\r\n\r\n",
    "a chunk size in 0x": HEAD + b"transfer-encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    "a chunk size beyond all numbers": HEAD + b"transfer-encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
    "a folded header": HEAD + b"x-note: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY,
    "a folded first header": START + b" host: gateway\r\n" + LENGTH + b"\r\n" + BODY,
    "bare line feeds": HEAD.replace(b"\r\n", b"\n") + LENGTH + b"\r\n" + BODY,
    "a bare carriage return": HEAD + b"x-note: a\rx-more: b\r\n" + LENGTH + b"\r\n" + BODY,
    "a zero byte": HEAD + b"x-note: a\0b\r\n" + LENGTH + b"\r\n" + BODY,
    "a header without a name": HEAD + b": a\r\n" + LENGTH + b"\r\n" + BODY,
    "no host": START + LENGTH + b"\r\n" + BODY,
    "two hosts": HEAD + b"host: other\r\n" + LENGTH + b"\r\n" + BODY,
    "a host with a path": START + b"host: gateway/v1\r\n" + LENGTH + b"\r\n" + BODY,
    "a host with a user": START + b"host: a@gateway\r\n" + LENGTH + b"\r\n" + BODY,
    "two hosts in one": START + b"host: gateway other\r\n" + LENGTH + b"\r\n" + BODY,
    "an address as the target": HEAD.replace(b" /v1", b" http://other/v1") + LENGTH + b"\r\n" + BODY,
    "a tunnel": b"CONNECT 10.0.0.1:8000 HTTP/1.1\r\nhost: 10.0.0.1:8000\r\n\r\n",
    "a path that is none": HEAD.replace(b" /v1", b" v1") + LENGTH + b"\r\n" + BODY,
    "a control character in the path": HEAD.replace(b" /v1", b" /\x01v1") + LENGTH + b"\r\n" + BODY,
    "HTTP/2.0 in words": b"GET /v1/models HTTP/2.0\r\nhost: gateway\r\n\r\n",
    "HTTP/2.0 in bytes": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.2": b"GET /v1/models HTTP/1.2\r\nhost: gateway\r\n\r\n",
    "no HTTP": b"HELO gateway\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_what_could_be_read_in_two_ways_is_400_and_ends_the_connection(start, name: str) -> None:
    setup = await start()
    answer = await setup.answers(AMBIGUOUS[name] + SMUGGLED)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 "), answer
    assert b"\r\nconnection: close" in head
    error = json.loads(body)["error"]  # exactly one answer, in OpenAI's shape
    assert (error["code"], error.keys()) == ("invalid_http", {"message", "type", "param", "code"})
    assert setup.engines[0].requests == []


@pytest.mark.parametrize(
    "request_",
    [
        HEAD + LENGTH + b"\r\n" + BODY,
        HEAD + CHUNKED,
        HEAD + CHUNKED.replace(b"\r\n{", b";name=value\r\n{"),
        START + b"HOST: gateway.fairlead-system.svc:8080\r\n" + LENGTH + b"\r\n" + BODY,
        START + b"host: [::1]:8080\r\n" + LENGTH + b"\r\n" + BODY,
        START + b"host:\r\n" + LENGTH + b"\r\n" + BODY,
        HEAD.replace(b"1.1", b"1.0") + LENGTH + b"\r\n" + BODY,
        b"\r\n" + HEAD + LENGTH + b"\r\n" + BODY,
        HEAD + b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n" + CHUNKED,
        HEAD + b"connection: upgrade\r\nupgrade: websocket\r\n" + LENGTH + b"\r\n" + BODY,
    ],
)
async def test_whatever_can_be_read_in_one_way_only_is_served(start, request_: bytes) -> None:
    setup = await start()
    async with setup.connected() as (reader, writer):
        writer.write(request_)
        head, body = await one_answer(reader)
    assert head.startswith(b"HTTP/1.1 200 "), body
    assert [request.json()["messages"] for request in setup.engines[0].requests] == [CHAT["messages"]]


async def test_who_would_rather_speak_http2_is_served_in_http1_request_after_request(start) -> None:
    """Java's client asks for an upgrade with every first request, and sends its body all the same."""
    setup = await start()
    upgrade = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    async with setup.connected() as (reader, writer):
        for begin, rest in ((HEAD + upgrade + LENGTH + b"\r\n", BODY), (HEAD + LENGTH + b"\r\n" + BODY, b"")):
            writer.write(begin)
            await asyncio.sleep(0.05)
            writer.write(rest)
            assert (await one_answer(reader))[0].startswith(b"HTTP/1.1 200 ")
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: gateway\r\n" + upgrade + b"\r\n" + SMUGGLED)
        for _ in range(2):
            assert (await one_answer(reader))[0].startswith(b"HTTP/1.1 200 ")
    assert len(setup.engines[0].requests) == 2


UPGRADE = b"connection: upgrade\r\nupgrade: h2c\r\n"
UPGRADED = HEAD + UPGRADE + LENGTH + b"\r\n" + BODY
PLAIN = HEAD + LENGTH + b"\r\n" + BODY


@pytest.mark.parametrize("first", [PLAIN, HEAD + CHUNKED, UPGRADED], ids=["plain", "chunked", "upgraded"])
async def test_requests_mean_the_same_however_their_bytes_arrive(start, first: bytes) -> None:
    setup = await start()
    both, num_cuts = first + PLAIN, 0
    for cut in range(1, len(both), 11):
        async with setup.connected() as (reader, writer):
            writer.write(both[:cut])
            await asyncio.sleep(0.002)
            writer.write(both[cut:])
            for _ in range(2):
                head, body = await one_answer(reader)
                assert head.startswith(b"HTTP/1.1 200 "), (cut, body)
        num_cuts += 1
    sent = [request.json()["messages"] for request in setup.engines[0].requests]
    assert sent == [CHAT["messages"]] * (2 * num_cuts)


async def test_what_is_no_request_after_a_good_one_does_not_spoil_its_answer(start) -> None:
    setup = await start()
    may_go = asyncio.Event()
    setup.engines[0].pace = lambda index: asyncio.sleep(0) if index == 0 else may_go.wait()
    async with setup.connected() as (reader, writer):
        body = json.dumps({**CHAT, "stream": True}).encode()
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        await reader.readuntil(b"Hello")
        writer.write(b"no HTTP\r\n\r\n")
        await asyncio.sleep(0.05)
        may_go.set()
        answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert b"invalid_http" not in answer


@pytest.mark.parametrize(
    "bad",
    [
        HEAD + b"transfer-encoding: chunked\r\n\r\nnonsense\r\n",
        b"GET /%b HTTP/1.1\r\nhost: a\r\n\r\n" % (b"a" * 70_000),
    ],
    ids=["a body that is none", "a path that is none"],
)
async def test_a_bad_request_behind_a_good_one_is_not_answered_in_its_place(start, bad: bytes) -> None:
    setup = await start(max_header_bytes=200_000)
    engine = setup.engines[0]
    engine.gate.clear()
    async with setup.connected() as (reader, writer):
        writer.write(PLAIN + bad)
        await setup.until(lambda: engine.num_running == 1)
        await asyncio.sleep(0.05)
        engine.gate.set()
        answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert len(engine.requests) == 1


async def test_a_client_that_leaves_with_requests_under_way_is_no_defect_of_ours(start) -> None:
    """It has sent the second before it got its first answer."""
    setup = await start()
    engine = setup.engines[0]
    engine.gate.clear()
    async with setup.connected() as (_, writer):
        writer.write(PLAIN + PLAIN)
        await setup.until(lambda: engine.num_running == 1)
    await setup.until(lambda: engine.num_cancelled == 1)
    assert 'outcome="internal_error"' not in await setup.metrics()
    assert 'outcome="disconnected",status="0"} 1.0' in await setup.metrics()


async def test_a_body_that_breaks_off_into_nonsense_is_answered_once(start) -> None:
    setup = await start()
    async with setup.connected() as (reader, writer):
        writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await asyncio.sleep(0.05)
        writer.write(b"nonsense\r\n")
        answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_more_headers_than_the_limit_are_431(start) -> None:
    setup = await start(max_headers=10)
    many = b"".join(b"x-%d: 1\r\n" % number for number in range(20))
    answer = await setup.answers(b"GET /v1/models HTTP/1.1\r\nhost: gateway\r\n" + many + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"more than the 10 headers and trailers" in answer


@pytest.mark.parametrize("once_used", [False, True])
async def test_the_request_line_counts_among_the_bytes_of_the_head(start, once_used: bool) -> None:
    setup = await start(max_header_bytes=1000)
    async with setup.connected() as (reader, writer):
        if once_used:
            writer.write(SMUGGLED)
            await one_answer(reader)
        writer.write(b"GET /%b HTTP/1.1\r\nhost: gateway\r\n\r\n" % (b"a" * 1000))
        assert (await one_answer(reader))[0].startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("request_", [SMUGGLED, SMUGGLED.replace(b"\r\n\r\n", b"\r\n" + UPGRADE + b"\r\n")])
async def test_requests_far_ahead_of_their_turn_end_the_connection(start, request_: bytes) -> None:
    setup = await start()
    answer = await setup.answers(request_ * 1000)
    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 ") == MAX_AHEAD + 1


async def test_connections_above_the_limit_are_told_so_and_probes_are_not_among_them(start) -> None:
    setup = await start(max_connections=2)
    async with setup.connected(), setup.connected():
        await asyncio.sleep(0.05)
        answer = await setup.answers(SMUGGLED)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in answer
        assert b'"too_many_connections"' in answer
        assert "fairlead_gateway_ready 1.0" in await setup.metrics()


async def test_headers_that_trickle_are_cut_however_steadily(start) -> None:
    setup = await start(header_timeout=0.3)

    async def trickle(writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: gateway\r\n")
        while True:
            await asyncio.sleep(0.05)
            writer.write(b"x-a: 1\r\n")

    async with setup.connected() as (reader, writer):
        trickling = asyncio.create_task(trickle(writer))
        try:
            assert await asyncio.wait_for(reader.read(), 20) == b""
        except ConnectionError:
            pass  # it was in the middle of a line
        finally:
            trickling.cancel()


@pytest.mark.parametrize(
    ("setting", "noise"),
    [
        ({"keep_alive_timeout": 1.0}, b""),
        ({"keep_alive_timeout": 1.0}, b"\r\n"),
        ({"header_timeout": 0.2}, b"GET /v1/models"),
    ],
    ids=["nothing", "mumbling", "half a head"],
)
async def test_a_connection_without_another_request_is_closed(start, setting: dict[str, float], noise: bytes) -> None:
    setup = await start(**setting)
    async with setup.connected() as (reader, writer):
        writer.write(SMUGGLED)
        await one_answer(reader)
        writer.write(noise)
        assert await asyncio.wait_for(reader.read(), 20) == b""


ECHOED = b"GET /%b HTTP/1.1\r\nhost: gateway\r\n" % (b"a" * 40_000)
"""Its refusal quotes the beginning: ninety of them are more than the sockets between us hold."""


@pytest.mark.parametrize(
    "requests",
    [90 * (ECHOED + b"\r\n") + ECHOED + b"connection: close\r\n\r\n", 90 * (ECHOED + b"\r\n")],
    ids=["the last answers", "many answers"],
)
async def test_answers_that_nobody_reads_do_not_hold_the_connection(start, requests: bytes) -> None:
    setup = await start(client_stall_timeout=0.5)
    connections, loop = setup.gateway._server.server_state.connections, asyncio.get_running_loop()
    setup.gateway._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", setup.gateway.port))
        sending = asyncio.create_task(loop.sock_sendall(client, requests))
        await setup.until(lambda: bool(connections))
        await asyncio.sleep(0.2)
        assert connections, "it has its time"
        async with asyncio.timeout(10):
            await setup.until(lambda: not connections)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


# The rules alone.

names = st.sampled_from([b"host", b"content-length", b"transfer-encoding", b"x-note"])
values = st.sampled_from([b"gateway", b"chunked", b"gzip, chunked", b"5", b"", b"a b", b"a/b"])
heads = st.lists(st.tuples(names, values), max_size=8)


@given(st.sampled_from(["0.9", "1.0", "1.1", "2.0"]), st.binary(max_size=20), heads)
def test_a_head_that_is_taken_has_one_host_one_path_and_at_most_one_plain_coding(version, target, headers) -> None:
    try:
        check_head(version, target, headers, max_bytes=1000)
    except BadRequest:
        return
    hosts = [value for name, value in headers if name == b"host"]
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    assert version in ("1.0", "1.1")
    assert target[:1] in (b"/", b"*")
    assert len(hosts) == 1 or (not hosts and version == "1.0")
    assert all(value in (b"gateway", b"chunked", b"5", b"") or b"," in value for value in hosts)
    assert codings in ([], [b"chunked"])


# Bodies.


async def test_bodies_that_come_slowly_cannot_fill_the_memory(start) -> None:
    setup = await start(max_body_bytes=50_000, max_partial_body_bytes=50_000)
    announced = HEAD + b"content-length: 45000\r\n\r\n"
    async with setup.connected() as (_, slow), setup.connected() as (reader, writer):
        slow.write(announced + b"x" * 40_000)
        await setup.until(lambda: setup.gateway.app._bodies.num_bytes >= 40_000)
        writer.write(announced + b"x" * 40_000)
        head, body = await one_answer(reader)
        assert head.startswith(b"HTTP/1.1 503 ")
        assert json.loads(body)["error"]["code"] == "overloaded"
        assert (await setup.post(CHAT))[0] == 200, "a body that is whole at once is never too much"
        slow.close()
        await setup.until(lambda: setup.gateway.app._bodies.num_bytes == 0)


async def test_bodies_that_are_whole_count_until_their_prompts_are_read(start) -> None:
    """Decoding and tokenising take longer than sending does."""
    size, read = 300_000, asyncio.Event()
    setup = await start(max_body_bytes=size, max_partial_body_bytes=3 * size)

    async def pace(self: Pacer, num_bytes: int) -> None:
        if num_bytes > size // 2:
            await read.wait()

    body = json.dumps({**CHAT, "user": "x" * (size - 200)}).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pacer, "pace", pace)
        waiting = [asyncio.create_task(setup.post(body)) for _ in range(2)]
        await setup.until(lambda: setup.gateway.app._bodies.num_bytes >= 2 * len(body))
        refused = [asyncio.create_task(setup.post(body)) for _ in range(6)]
        await setup.until(lambda: sum(task.done() for task in refused) >= 5)
        assert {task.result()[0] for task in refused if task.done()} == {503}
        assert (await setup.post(CHAT))[0] == 200
        read.set()
        assert {status for status, _, _ in await asyncio.gather(*waiting)} == {200}
    await asyncio.gather(*refused)
    await setup.until(lambda: setup.gateway.app._bodies.num_bytes == 0)


async def test_bodies_count_with_the_memory_that_they_take() -> None:
    """One that grows has room for more, of which its length tells nothing."""
    bodies = BodyReader(limit=2**20, timeout=60.0, total_limit=2**30)
    part, noted_here = b"x" * 1500, 40_000
    uncounted = list[int]()

    async def receive() -> dict[str, Any]:
        uncounted.append(tracemalloc.get_traced_memory()[0] - before - bodies.num_bytes)
        return {"type": "http.request", "body": part, "more_body": len(uncounted) < 500}

    with bodies.held() as held:
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            body = await bodies.read(b"", receive, held)
        finally:
            tracemalloc.stop()
        assert max(uncounted) < noted_here
        assert bodies.num_bytes >= len(body) == 500 * len(part)
    assert bodies.num_bytes == 0


# Anything at all.


def mangled(rng: random.Random) -> bytes:
    """A few requests in a row, with up to four mistakes."""
    data = bytearray(
        b"".join(rng.choice((PLAIN, HEAD + CHUNKED, UPGRADED, SMUGGLED)) for _ in range(rng.randint(1, 3)))
    )
    for _ in range(rng.randint(0, 4)):
        place = rng.randrange(len(data))
        match rng.randrange(3):
            case 0:
                data[place] = rng.randrange(256)
            case 1:
                del data[place : place + rng.randint(1, 20)]
            case 2:
                data[place:place] = rng.randbytes(rng.randint(1, 5))
    return bytes(data)


async def test_nothing_that_is_sent_breaks_the_gateway_or_stays_in_it(start, caplog) -> None:
    setup = await start(header_timeout=1.0, body_timeout=1.0)

    async def send(rng: random.Random) -> None:
        data = mangled(rng)
        cut = rng.randrange(len(data))
        async with setup.connected() as (reader, writer):
            writer.write(data[:cut])
            await asyncio.sleep(0.001)
            writer.write(data[cut:])
            with contextlib.suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(reader.read(rng.choice((1, 100_000))), rng.choice((0.01, 0.2)))

    for batch in range(15):
        await asyncio.gather(*(send(random.Random(f"{batch}-{number}")) for number in range(20)))
    await setup.until(lambda: not setup.gateway._server.server_state.connections)
    assert (setup.gateway.app._bodies.num_bytes, setup.engines[0].num_running) == (0, 0)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    assert (await setup.post(CHAT))[0] == 200
