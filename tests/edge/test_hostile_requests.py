"""One table of hostile requests for gateway and engine, as bytes: each ends soon, costs little, and stalls nobody."""

import asyncio
import json
import socket
import time
from contextlib import suppress

import psutil
import pytest

BODY = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}).encode()
START = b"POST /v1/chat/completions HTTP/1.1\r\nhost: server\r\n"
PLAIN = START + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = START + b"transfer-encoding: chunked\r\n\r\n"
WHOLE = CHUNKED + b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n"
"""But for its trailers."""
LISTING = b"GET /v1/models HTTP/1.1\r\nhost: server\r\n"
UPGRADE = b"connection: upgrade\r\nupgrade: h2c\r\n"

TRAILERS = b"x: y\r\n" * 2000
FLOODS = {
    "headers": (START, b"x: y\r\n" * 2000),
    "a header": (START + b"x: ", b"y" * 10_000),
    "a request line": (b"GET /", b"a" * 10_000),
    "empty lines": (b"", b"\r\n" * 5000),
    "spaces": (START + b"x:", b" " * 10_000),
    "trailers": (WHOLE, TRAILERS),
    "trailers of a refused request": (CHUNKED.replace(b"completions", b"nothing") + b"0\r\n", TRAILERS),
    "trailers of a request answered at once": (LISTING + b"transfer-encoding: chunked\r\n\r\n0\r\n", TRAILERS),
    "trailers of a request behind another": (PLAIN + WHOLE, TRAILERS),
    "trailers of a request to upgrade": (WHOLE.replace(b"\r\n\r\n", b"\r\n" + UPGRADE + b"\r\n", 1), TRAILERS),
    "a trailer": (WHOLE + b"x: ", b"y" * 10_000),
    "a trailer's name": (WHOLE, b"y" * 10_000),
    "a chunk extension": (CHUNKED + b"1;x=", b"y" * 10_000),
    "an extension for each chunk": (CHUNKED, (b"1;x=" + b"y" * 1000 + b"\r\n \r\n") * 10),
    "zeros before a chunk's size": (CHUNKED, b"0" * 10_000),
    "chunks of one byte": (CHUNKED, b"1\r\n \r\n" * 2000),
    "a body nobody wants": (LISTING + b"content-length: 999999999\r\n\r\n", b" " * 100_000),
}
MAX_GROWTH = 80 * 2**20
MAX_STALL_SECONDS = 1.0
FLOOD_BYTES = 40 * 2**20


def flood(port: int, beginning: bytes, again: bytes) -> bool:
    """Sends until the server ends the connection. Whether it did."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        try:
            client.sendall(beginning)
            for _ in range(FLOOD_BYTES // len(again)):
                client.sendall(again)
            while client.recv(65536):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
    return True


async def longest_stall(work: "asyncio.Future[bool]") -> float:
    """The longest that the loop kept others waiting until `work` was done, in seconds."""
    longest, before = 0.0, time.monotonic()
    while not work.done():
        await asyncio.sleep(0.005)
        now = time.monotonic()
        longest, before = max(longest, now - before), now
    return longest


@pytest.mark.parametrize("name", FLOODS)
async def test_nothing_grows_without_end(program, name: str) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    flooding = asyncio.ensure_future(asyncio.to_thread(flood, program.port, *FLOODS[name]))
    stall = await longest_stall(flooding)
    assert flooding.result(), "the connection was not ended"
    assert process.memory_info().rss - before < MAX_GROWTH
    assert stall < MAX_STALL_SECONDS
    await program.until(lambda: not program.connections() and not program.num_running())


async def answers(program, *parts: bytes, pause: float = 0.0) -> bytes:
    """Everything that comes back until the server closes, or has been silent for a second."""
    got = b""
    async with program.connected() as (reader, writer):
        with suppress(TimeoutError, ConnectionError):
            for part in parts:
                writer.write(part)
                await asyncio.sleep(pause)
            while part := await asyncio.wait_for(reader.read(65536), 1.0 if got else 20.0):
                got += part
    return got


ONE_BYTE_CHUNKS = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY)
REFUSED = {
    "a length of thousands of digits": (400, START + b"content-length: " + b"9" * 5000 + b"\r\n\r\n"),
    "a length behind thousands of zeros": (400, START + b"content-length: " + b"0" * 5000 + b"2\r\n\r\n{}"),
    "200 headers": (431, START + b"x: y\r\n" * 200 + b"content-length: 0\r\n\r\n"),
    "10,000 tiny headers": (431, START + b"x:\r\n" * 10_000 + b"content-length: 0\r\n\r\n"),
    "200 trailers": (431, WHOLE + b"x: y\r\n" * 200 + b"\r\n"),
    "a header line without a colon": (400, START + b"nonsense\r\n\r\n"),
    "a trailer line without a colon": (400, WHOLE + b"nonsense\r\n\r\n"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_can_never_be_served_is_told_so_once(program, name: str) -> None:
    status, request = REFUSED[name]
    answer = await answers(program, request)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "parts",
    [
        (CHUNKED + b"1;x=" + b"y" * 150_000, b"y" * 150_000),
        (WHOLE + b"x: " + b"y" * 150_000, b"y" * 150_000),
        (CHUNKED + b"0" * 150_000, b"0" * 150_000),
        (CHUNKED, b"1;xxxxxxxxx\r\n \r\n" * 15_000, b"1;xxxxxxxxx\r\n \r\n" * 15_000),
    ],
    ids=["an extension", "a trailer", "zeros", "extensions"],
)
async def test_too_much_framing_is_400_and_the_sentence_says_what_to_do(program, parts: tuple[bytes, ...]) -> None:
    answer = await answers(program, *parts, pause=0.2)
    assert answer.startswith(b"HTTP/1.1 400 "), answer[:200]
    assert b"larger chunks, or whole with a Content-Length" in answer


@pytest.mark.parametrize(
    "request_",
    [
        WHOLE + b"x: y\r\n" * 50 + b"\r\n",
        CHUNKED + b"%x;name=value\r\n" % len(BODY) + BODY + b"\r\n0;last\r\n\r\n",
        CHUNKED + b"0" * 100 + b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
        CHUNKED + ONE_BYTE_CHUNKS + b"0\r\n\r\n",
        CHUNKED + b"".join(b"5\r\n     \r\n" for _ in range(100_000)) + ONE_BYTE_CHUNKS + b"0\r\n\r\n",
    ],
    ids=["trailers", "extensions", "zeros", "one-byte chunks", "100,000 chunks of five bytes"],
)
async def test_what_chunks_are_for_still_works(program, request_: bytes) -> None:
    assert (await answers(program, request_)).startswith(b"HTTP/1.1 200 ")


async def test_a_trailer_is_no_header(program) -> None:
    """Else it could say who asks, and whom, after all that was looked at."""
    trailers = b"x-request-id: from-a-trailer\r\nhost: other.default\r\nexpect: 100-continue\r\n\r\n"
    answer = await answers(program, WHOLE + trailers)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"from-a-trailer" not in answer
