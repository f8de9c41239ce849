"""The HTTP client against real servers: TLS, proxies, kept connections, time limits, and what it refuses to say."""

import asyncio
import hashlib
import os
import shutil
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import uvloop
from cluster import pki

from fairlead_common.http.client import HttpClient, TimeLimits
from fairlead_common.http.client_connection import (
    HIGH_WATER_BYTES,
    ConnectFailed,
    ConnectionLost,
    ServerSilent,
    cause_of,
    request_head,
)
from fairlead_common.http.origin import Origin, parse
from fairlead_testing.harm import kinds_left_behind
from fairlead_testing.http import Handler, listening

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
LIMITS = TimeLimits(connect=5.0, first_byte=5.0, silence=5.0)
BODY = os.urandom(3_000_000)
Heads = list[tuple[str, dict[str, str]]]
"""Request lines and headers, as servers saw them."""


async def read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = dict(field.split(": ", 1) for field in fields)
    await reader.readexactly(int(headers.get("content-length", 0)))
    return line, headers


def answering(body: bytes = b"ok", heads: Heads | None = None) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            if heads is not None:
                heads.append(head)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()

    return handler


def tunnelling(heads: Heads) -> Handler:
    """A proxy that opens every way that it is asked for."""

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await read_head(reader))
        _, port = heads[-1][0].split()[1].rsplit(":", 1)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        there = await asyncio.open_connection("127.0.0.1", int(port))
        await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer), return_exceptions=True)

    return handler


async def get(client: HttpClient, origin: Origin, target: str = "/", *, method: str = "GET", **more: Any) -> bytes:
    async with client.request(origin, method, target, more.pop("limits", LIMITS), **more) as response:
        assert response.status == 200
        return await response.read(10**9)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> pki.Authority:
    made = pki.Authority(tmp_path_factory.mktemp("pki"))
    made.create()
    made.server("server", "server", ["127.0.0.1"], ["api.test"])
    return made


def served_by(authority: pki.Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.folder / "server.crt", authority.folder / "server.key")
    return context


def trusting(authority: pki.Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.certificate))


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a test on this kind of event loop: the command line's and the gateway's."""

    def runs(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if request.param == "uvloop" else None) as runner:
            runner.run(main)

    return runs


@needs_openssl
def test_tls_is_verified_and_its_connections_are_kept(run: Any, authority: pki.Authority) -> None:
    names: list[str | None] = []
    tls = served_by(authority)
    tls.sni_callback = lambda _, name, __: names.append(name)

    async def main() -> None:
        client = HttpClient()
        async with listening(answering(BODY), tls) as port:
            origin = Origin("127.0.0.1", port, trusting(authority), "api.test")
            for _ in range(3):
                assert hashlib.sha256(await get(client, origin)).digest() == hashlib.sha256(BODY).digest()
            client.close()

    run(main())
    assert names == ["api.test"]


@needs_openssl
@pytest.mark.parametrize("has_tls", [False, True])
def test_a_reader_that_falls_behind_pauses_the_server(run: Any, has_tls: bool, authority: pki.Authority) -> None:
    sent, total = 0, 64 * 2**20

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while sent < total:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    async def main() -> None:
        client = HttpClient(max_idle=0)
        async with listening(handler, served_by(authority) if has_tls else None) as port:
            origin = Origin("127.0.0.1", port, trusting(authority) if has_tls else None)
            async with client.request(origin, "GET", "/", LIMITS) as response:
                before = -1
                while sent != before:  # until the server is stuck
                    before = sent
                    await asyncio.sleep(0.1)
                assert sent < total
                received = 0
                while chunk := await response.chunk():
                    assert len(chunk) <= HIGH_WATER_BYTES + 2**20
                    received += len(chunk)
                assert received == total

    run(main())


@needs_openssl
def test_a_certificate_of_somebody_else_is_not_trusted(run: Any, authority: pki.Authority) -> None:
    async def main() -> None:
        async with listening(answering(), served_by(authority)) as port:
            for origin in (
                Origin("127.0.0.1", port, trusting(authority), "other.test"),
                Origin("127.0.0.1", port, ssl.create_default_context()),
            ):
                with pytest.raises(
                    ConnectFailed, match=rf"^127\.0\.0\.1:{port} has a certificate that is not trusted: "
                ):
                    await get(HttpClient(), origin)

    run(main())


def test_tls_to_a_server_without_it_is_a_failed_connection(run: Any) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await reader.read()

    async def main() -> None:
        async with listening(handler) as port:
            with pytest.raises(ConnectFailed, match=rf"^cannot connect to 127\.0\.0\.1:{port}: .*WRONG_VERSION_NUMBER"):
                await get(HttpClient(), Origin("127.0.0.1", port, ssl.create_default_context()))

    run(main())


@needs_openssl
def test_tls_goes_through_a_proxy(run: Any, authority: pki.Authority) -> None:
    heads: Heads = []

    async def main() -> None:
        client = HttpClient()
        async with listening(answering(BODY), served_by(authority)) as port, listening(tunnelling(heads)) as proxy:
            url = f"http://me:p%40ss@127.0.0.1:{proxy}"
            origin = Origin("api.test", port, trusting(authority), None, url)
            for _ in range(2):
                assert await get(client, origin) == BODY
            client.close()
            (line, headers), *others = heads
            assert line == f"CONNECT api.test:{port} HTTP/1.1" and not others
            assert headers == {"host": f"api.test:{port}", "proxy-authorization": "Basic bWU6cEBzcw=="}
            with pytest.raises(ConnectFailed, match=f"^other.test:{port} has a certificate that is not trusted"):
                await get(client, origin._replace(host="other.test"))

    run(main())


@needs_openssl
def test_the_way_to_a_proxy_may_be_by_tls_itself(
    run: Any, authority: pki.Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))  # what the system trusts

    async def main() -> None:
        client, tls = HttpClient(max_idle=0), served_by(authority)
        async with listening(answering(BODY), tls) as port, listening(tunnelling([]), tls) as proxy:
            origin = Origin("api.test", port, trusting(authority), proxy=f"https://127.0.0.1:{proxy}")
            assert await get(client, origin) == BODY

    run(main())


@needs_openssl
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 407 Who are you\r\ncontent-length: 0\r\n\r\n", "its proxy does not open the way: HTTP 407"),
        (b"", "its proxy does not open the way: the connection was lost"),
        (b"SSH-2.0\r\n", "its proxy does not open the way: not HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\nsurprise", "its proxy does not open the way: it answered in the server's place"),
        (None, "no answer within 0.2 seconds"),
    ],
)
async def test_a_proxy_that_does_not_open_the_way_is_told(
    authority: pki.Authority, answer: bytes | None, words: str
) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(answer or b"")
        if answer is None:
            await reader.read()

    async with listening(handler) as proxy:
        origin = Origin("api.test", 443, trusting(authority), proxy=f"http://127.0.0.1:{proxy}")
        with pytest.raises(ConnectFailed, match=f"^cannot connect to api.test:443: {words}"):
            await get(HttpClient(), origin, limits=replace(LIMITS, connect=0.2))
    with pytest.raises(ConnectFailed, match=f"^cannot connect to 127.0.0.1:{proxy}: Connection refused$"):
        await get(HttpClient(), origin)


async def test_a_proxy_is_asked_for_whole_urls_of_plain_http() -> None:
    heads: Heads = []
    async with listening(answering(heads=heads)) as proxy:
        origin = Origin("api.invalid", 8000, proxy=f"http://me@127.0.0.1:{proxy}")
        assert await get(HttpClient(max_idle=0), origin, "/a", params={"b": "c"}) == b"ok"
    ((line, headers),) = heads
    assert line == "GET http://api.invalid:8000/a?b=c HTTP/1.1"
    assert (headers["host"], headers["proxy-authorization"]) == ("api.invalid:8000", "Basic bWU6")


async def test_a_request_is_written_as_it_should_be() -> None:
    heads: Heads = []
    async with listening(answering(heads=heads)) as port:
        origin, client = Origin("127.0.0.1", port), HttpClient(max_idle=0)
        await get(client, origin, "/a%20b", params={"in": "a in (b,c)", "è": "&"})
        await get(client, origin, method="POST", headers={"accept": "x/y"}, body=b"four")
    (line, headers), (second_line, second) = heads
    assert line == "GET /a%20b?in=a+in+%28b%2Cc%29&%C3%A8=%26 HTTP/1.1"
    assert headers == {
        "host": f"127.0.0.1:{port}",
        "user-agent": "fairlead",
        "accept-encoding": "identity",
        "connection": "close",
    }
    assert second_line == "POST / HTTP/1.1"
    assert second == headers | {"accept": "x/y", "content-length": "4"}


@pytest.mark.parametrize(
    "target", ["/a b", "/a\r\nx: y", "/a\nb", "/a\0b", "/é", "", "/a HTTP/1.1\r\nhost: evil\r\n\r\n", "/a\x7f"]
)
async def test_a_path_that_would_be_more_than_a_path_is_not_sent(target: str) -> None:
    with pytest.raises(ValueError, match="cannot be asked for"):
        await get(HttpClient(), Origin("127.0.0.1", 1), target)


@pytest.mark.parametrize(
    "header",
    [
        ("x", "secret\r\ny: z"),
        ("x", "secret\n"),
        ("x", "secret\0"),
        ("x", "secret✓"),
        ("x y", ""),
        ("x:", ""),
        ("", ""),
    ],
)
async def test_a_header_that_would_be_more_than_one_is_not_sent(header: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot be sent") as refused:
        await get(HttpClient(), Origin("127.0.0.1", 1), headers=dict([header]))
    assert "secret" not in str(refused.value)
    with pytest.raises(ValueError, match="cannot be"):
        request_head("GET /", "/", {})
    with pytest.raises(ValueError, match="cannot be sent"):
        await get(HttpClient(), Origin("a\r\nb", 1))


@pytest.mark.parametrize(("method", "is_repeated"), [("GET", True), ("PUT", False), ("POST", False)])
async def test_what_a_closed_connection_swallowed_is_repeated_once_where_that_is_harmless(
    method: str, is_repeated: bool
) -> None:
    """The server closes a kept connection at the very moment of the next request."""
    heads: Heads = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await read_head(reader))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        heads.append(await read_head(reader))

    async with listening(handler) as port:
        client, origin = HttpClient(), Origin("127.0.0.1", port)
        await get(client, origin)
        if is_repeated:
            assert await get(client, origin, method=method) == b"ok"
        else:
            with pytest.raises(ConnectionLost):
                await get(client, origin, method=method, body=b"")
        client.close()
    assert [line.split()[0] for line, _ in heads] == ["GET", *[method] * (2 if is_repeated else 1)]


async def test_a_connection_that_was_closed_while_idle_is_not_used() -> None:
    heads: Heads = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await read_head(reader))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with listening(handler) as port:
        client, origin = HttpClient(), Origin("127.0.0.1", port)
        for _ in range(3):
            assert await get(client, origin, method="POST") == b"ok"
            while not client._idle[origin][0].closed:
                await asyncio.sleep(0.001)
    assert len(heads) == 3


async def test_a_connection_is_kept_for_so_long_and_no_longer() -> None:
    num_connections = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        await answering()(reader, writer)

    async with listening(handler) as port:
        for seconds, expected in ((60.0, 1), (0.0, 1 + 3)):
            client = HttpClient(idle_seconds=seconds)
            for _ in range(3):
                await get(client, Origin("127.0.0.1", port))
            client.close()
            assert num_connections == expected


def test_a_connection_that_has_ended_leaves_no_circle(run: Any) -> None:
    """Whichever side ends it, and whatever was left unread."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, _ = await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsome")
        if "silent" in line:
            await reader.read()

    async def main() -> None:
        async with listening(handler) as port:
            client, origin = HttpClient(), Origin("127.0.0.1", port)

            async def ask() -> None:
                async with client.request(origin, "GET", "/silent", LIMITS) as response:
                    assert await response.chunk() == b"some"
                with suppress(ConnectionLost):
                    await get(client, origin)
                await asyncio.sleep(0.01)

            found = await kinds_left_behind(ask)
        assert "Connection" not in found, found

    run(main())


async def test_no_more_requests_run_at_once_than_may() -> None:
    running = most = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        await read_head(reader)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with listening(handler) as port:
        client = HttpClient(max_idle=0, max_requests=2)
        await asyncio.gather(*(get(client, Origin("127.0.0.1", port)) for _ in range(7)))
    assert most == 2


async def test_silence_and_slowness_end_a_request() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, _ = await read_head(reader)
        if "silent" not in line:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(b"drop")
                await writer.drain()
                await asyncio.sleep(0.01)
        await reader.read()

    async with listening(handler) as port:
        client, origin = HttpClient(), Origin("127.0.0.1", port)
        with pytest.raises(ServerSilent) as silent:
            await get(client, origin, "/silent", limits=replace(LIMITS, first_byte=0.1))
        with pytest.raises(TimeoutError) as slow:
            await get(client, origin, "/slow", limits=replace(LIMITS, whole=0.1))
    assert cause_of(silent.value) == cause_of(slow.value) == "no answer in time"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nobody_there_is_said_in_the_systems_words(run: Any, host: str) -> None:
    async def main() -> None:
        with pytest.raises(ConnectFailed, match=f"^cannot connect to {host}:1: Connection refused$"):
            await get(HttpClient(), Origin(host, 1))
        with pytest.raises(ConnectFailed, match=r"^cannot connect to nowhere\.invalid:1: \S"):
            await get(HttpClient(), Origin("nowhere.invalid", 1))

    run(main())


async def test_ipv6_is_spoken() -> None:
    heads: Heads = []
    try:
        async with listening(answering(heads=heads), host="::1") as port:
            assert await get(HttpClient(max_idle=0), parse(f"http://[::1]:{port}/")[0]) == b"ok"
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    assert heads[0][1]["host"] == f"[::1]:{port}"


def test_urls_are_origins_and_targets() -> None:
    assert parse("http://a.b/c?d=e") == (Origin("a.b", 80), "/c?d=e")
    assert parse("http://[::1]:8080") == (Origin("::1", 8080), "")
    assert parse("http://[fe80::1%25eth0]") == parse("http://[fe80::1%eth0]") == (Origin("fe80::1%eth0", 80), "")
    context = ssl.create_default_context()
    assert parse("https://a/x", context) == (Origin("a", 443, context), "/x")
    assert parse("https://a")[0].tls is not None
    hosts = {
        "http://a": "a",
        "http://a:443": "a:443",
        "https://a:443": "a",
        "https://[::1]": "[::1]",
        "http://[fe80::1%25eth0]:8080": "[fe80::1]:8080",
        "http://ü": "xn--tda",
    }
    assert {url: parse(url)[0].host_header for url in hosts} == hosts
    for wrong in ("ftp://a", "a:80", "http://", "http://a:port"):
        with pytest.raises(ValueError):
            parse(wrong)
