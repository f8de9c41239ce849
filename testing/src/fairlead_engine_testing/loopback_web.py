"""A web server with TLS on this machine: files by path, with ETags and ranges, as any static one has."""

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from fairlead_engine_testing.file_server import Listening, in_a_thread

_PIECE = 64 << 10


@dataclass
class LoopbackWeb:
    """What a test changes counts from the next request on."""

    files: dict[str, bytes] = field(default_factory=dict)
    """By path, without a leading slash."""
    redirects: dict[str, str] = field(default_factory=dict)
    """Path → address."""
    authorization: str | None = None
    """The header that is wanted; None = none."""
    has_ranges: bool = True
    cut_after: int | None = None
    """Bytes after which a connection breaks."""
    missing_status: int = 404
    flipped: set[str] = field(default_factory=set)
    """Names of files of which one byte is another than their sums say."""
    pause_seconds: float = 0.0
    """Before each piece of a file."""
    changes: dict[str, bytes] = field(default_factory=dict)
    """What files become once a connection for them was broken."""
    asked: list[tuple[str, str, int]] = field(default_factory=list)
    """Method, path and first byte of each request."""
    authorized: list[str] = field(default_factory=list)
    """Paths that were asked for with an Authorization."""
    url: str = ""

    @property
    def host(self) -> str:
        """And port, as in `https://HOST/…`."""
        return self.url.partition("://")[2]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        start = (request.http_range.start or 0) if self.has_ranges else 0
        self.asked.append((request.method, path, start))
        if "Authorization" in request.headers:
            self.authorized.append(path)
        if path in self.redirects:
            return web.Response(status=302, headers={"Location": self.redirects[path]})
        if self.authorization is not None and request.headers.get("Authorization") != self.authorization:
            return web.Response(status=401)
        if (content := self.files.get(path)) is None:
            return web.Response(status=self.missing_status)
        headers = {"ETag": f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'}
        if request.headers.get("If-Range", headers["ETag"]) != headers["ETag"]:
            start = 0
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if request.method == "HEAD":
            return web.Response(headers=headers | {"Content-Length": str(len(content))})
        answer = web.StreamResponse(status=206 if start else 200, headers=headers)
        answer.content_length = len(content) - start
        await answer.prepare(request)
        if self.cut_after is not None and len(content) - start > self.cut_after:
            await answer.write(content[start : start + self.cut_after])
            self.files |= {path: self.changes[path]} if path in self.changes else {}
            await asyncio.sleep(0.2)  # what was sent arrives before the end does
            if request.transport is not None:
                request.transport.close()
            return answer
        if path.rpartition("/")[2] in self.flipped:
            middle = len(content) // 2
            content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        try:
            for begin in range(start, len(content), _PIECE):
                if self.pause_seconds:
                    await asyncio.sleep(self.pause_seconds)
                await answer.write(content[begin : begin + _PIECE])
        except ConnectionError:
            pass
        return answer


@contextmanager
def loopback_web(server: LoopbackWeb, listening: Listening) -> Iterator[LoopbackWeb]:
    """Runs the server in a thread. `listening` has a certificate."""
    app = web.Application()
    app.router.add_get("/{path:.*}", server.answer)
    with in_a_thread(server, {"url": app}, listening):
        yield server
