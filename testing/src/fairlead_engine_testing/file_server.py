"""What servers of files on this machine have in common: ranges, notes of what was asked, and misbehaviour on demand."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from fairlead_engine_testing.certificates import Certificate

_PIECE = 64 << 10


@dataclass
class Asked:
    """One request for a file's content."""

    path: str
    start: int
    sent: int
    """Bytes that were sent, which the client may not all have read."""


@dataclass(kw_only=True)
class FileServer:
    """What a test changes counts from the next request on."""

    asked: list[Asked] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What no client may do, such as sending a token to the CDN."""
    flipped: set[str] = field(default_factory=set)
    """Files of which one byte is another than the server says."""
    cut_after: int | None = None
    """Bytes of a file after which a connection breaks."""
    unwell: int = 0
    """Answers that are HTTP 503 before any other."""
    pause_seconds: float = 0.0
    """Before each piece of a file."""
    active: int = 0
    """Files that are being sent."""

    def behave(self) -> None:
        """Forgets what was asked, and all misbehaviour."""
        self.asked, self.problems, self.flipped = [], [], set()
        self.cut_after, self.unwell, self.pause_seconds = None, 0, 0.0

    def file_bytes(self, path: str) -> int:
        """That were sent of a file, in all requests."""
        return sum(asked.sent for asked in self.asked if asked.path == path)

    async def send(
        self, request: web.Request, path: str, content: bytes, headers: dict[str, str]
    ) -> web.StreamResponse:
        """A file, from where the request wants it."""
        start = request.http_range.start or 0
        if start >= len(content) > 0:
            return web.Response(status=416)
        if request.method == "HEAD":
            return web.Response(headers=headers | {"Content-Length": str(len(content))})
        if path in self.flipped:
            middle = len(content) // 2
            content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        answer = web.StreamResponse(status=206 if request.http_range.start else 200, headers=headers)
        if answer.status == 206:
            answer.headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        answer.content_length = len(content) - start
        await answer.prepare(request)
        asked = Asked(path, start, 0)
        self.asked.append(asked)  # before the client has the last of it, and looks
        self.active += 1
        try:
            for begin in range(start, len(content), _PIECE):
                piece = content[begin : begin + _PIECE]
                if self.pause_seconds:
                    await asyncio.sleep(self.pause_seconds)
                if self.cut_after is not None and asked.sent + len(piece) > self.cut_after:
                    await asyncio.sleep(0.02)  # what was sent arrives before the end does
                    if request.transport is not None:
                        request.transport.close()
                    break
                await answer.write(piece)
                asked.sent += len(piece)
        except ConnectionError:
            pass
        finally:
            self.active -= 1
        return answer

    def is_unwell(self) -> web.Response | None:
        """The answer, where the server has no other."""
        if self.unwell <= 0:
            return None
        self.unwell -= 1
        return web.Response(status=503, headers={"Retry-After": "0"})


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where a server listens, and how it is called."""

    host: str = "127.0.0.1"
    port: int = 0
    """Of the first application; others get ports of their own."""
    address: str = "127.0.0.1"
    certificate: Certificate | None = None
    """None = without TLS."""


HERE = Listening()


@contextmanager
def in_a_thread(server: object, apps: Mapping[str, web.Application], listening: Listening = HERE) -> Iterator[None]:
    """Runs each application on a port of its own; its URL becomes the attribute that it is named after."""
    loop, ready, stopping = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        runners: list[web.AppRunner] = []
        tls = None if listening.certificate is None else listening.certificate.context()
        for name, app in apps.items():
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            port = 0 if runners else listening.port
            await web.TCPSite(runner, listening.host, port, ssl_context=tls).start()
            scheme = "http" if tls is None else "https"
            setattr(server, name, f"{scheme}://{listening.address}:{runner.addresses[0][1]}")
            runners.append(runner)
        ready.set()
        await stopping.wait()
        for runner in runners:
            await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
        loop.close()
