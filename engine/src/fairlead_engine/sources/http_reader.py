"""GET and HEAD over HTTPS for remotes: redirects without credentials for other origins, and transient failures.

Proxies and certificates come from the environment (HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE). Messages never quote a
redirect's path or query, which may be signed.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from http import HTTPStatus

import aiohttp
from yarl import URL

from fairlead_engine.sources.certificates import PUT_CERTIFICATE
from fairlead_engine.sources.limits import ANSWER_SECONDS, Pace, in_time
from fairlead_engine.sources.remote import Changed, Interrupted, unreachable

_MAX_REDIRECTS = 10
_CONNECT_SECONDS = 10.0
"""For the look-up of a name, the connection and TLS together."""
_SILENCE_SECONDS = 60.0
_CHUNK_BYTES = 1 << 20
_SMALL_CHUNK_BYTES = 1 << 16
_GOODBYE_SECONDS = 0.25
"""Time for TLS connections to end after their session is closed, by aiohttp's documentation."""
_LONGEST_PATIENCE_SECONDS = 120.0
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


class HttpReader:
    """One session. `authorization`: value of the header, sent to the first origin only."""

    def __init__(self, authorization: str | None = None) -> None:
        self.authorization = authorization
        self._session: aiohttp.ClientSession | None = None
        self._has_tls = False

    @asynccontextmanager
    async def request(
        self, method: str, url: str, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer at the end of all redirects, with any lasting status. Raises Interrupted, and DownloadError for an
        untrusted certificate."""
        target = origin = URL(url, encoded=True)
        try:
            for _ in range(_MAX_REDIRECTS):
                self._has_tls |= target.scheme == "https"
                sent = dict(headers or {})
                if self.authorization and target.origin() == origin.origin():
                    sent["Authorization"] = self.authorization
                async with AsyncExitStack() as stack:
                    asked = self._opened().request(method, target, headers=sent, allow_redirects=False)
                    answer = await in_time(partial(stack.enter_async_context, asked), ANSWER_SECONDS, target.host or "")
                    location = answer.headers.get("Location")
                    if not (HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST and location):
                        if answer.status in _TRANSIENT:
                            after = answer.headers.get("Retry-After", "")
                            seconds = min(float(after), _LONGEST_PATIENCE_SECONDS) if after.isdigit() else 0.0
                            raise Interrupted(f"{target.host} answers HTTP {answer.status}", after_seconds=seconds)
                        yield answer
                        return
                target = target.join(URL(location, encoded=True))
                if target.scheme != "https" and origin.scheme == "https":
                    raise Interrupted(f"{origin.host} redirects to an address without TLS")
        except aiohttp.ClientConnectorCertificateError:
            raise unreachable(f"the certificate of {target.host} is not trusted: {PUT_CERTIFICATE}") from None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Interrupted(f"{target.host}: {_kind(error)}") from None
        raise Interrupted(f"{origin.host} redirects without end")

    async def whole(
        self, url: str, limit: int, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes | None]:
        """Status, headers (in lower case) and content of a small answer; None = more than `limit` bytes. Raises as
        `request`, and Interrupted if it is slow."""
        async with self.request("GET", url, headers) as answer:
            content, pace = bytearray(), Pace()
            async for chunk in answer.content.iter_chunked(_SMALL_CHUNK_BYTES):
                content += chunk
                pace.came(len(chunk))
                if len(content) > limit:
                    break
            told = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, told, bytes(content) if len(content) <= limit else None

    async def read(
        self, url: str, start: int, *, etag: str | None = None, size: int | None = None
    ) -> AsyncIterator[bytes]:
        """Bytes of a file from `start` on, with an empty chunk for skipped bytes. Raises Changed if `etag` or `size`
        differ from the listed file's, Interrupted, and HttpRefused."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        if start and etag and not etag.startswith("W/"):
            headers["If-Range"] = etag
        async with self.request("GET", url, headers) as answer:
            if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise Changed
            if answer.status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                raise HttpRefused(answer.status, dict(answer.headers))
            if etag and answer.headers.get("ETag", etag) != etag:
                raise Changed
            begins = _first_byte(answer)
            if begins is None or begins > start:
                raise Changed
            whole = None if answer.content_length is None else begins + answer.content_length
            if size is not None and whole is not None and whole != size:
                raise Changed
            skip, pace = start - begins, Pace()  # a server that knows no ranges sends all of it
            async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                if skip >= len(chunk):
                    skip -= len(chunk)
                    pace.came(len(chunk))
                    yield b""
                    continue
                yield chunk[skip:] if skip else chunk
                skip = 0

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            if self._has_tls:
                await asyncio.sleep(_GOODBYE_SECONDS)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # aiohttp's own context is made when it is imported: SSL_CERT_FILE is to count from here on.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=ssl.create_default_context()),
                timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS),
                headers={"Accept-Encoding": "identity", "User-Agent": "fairlead"},
                auto_decompress=False,
                trust_env=True,
            )
        return self._session


class HttpRefused(Exception):
    """A lasting error status."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}


def _first_byte(answer: aiohttp.ClientResponse) -> int | None:
    """Where the answer's bytes begin in the file; None = not stated."""
    if answer.status == HTTPStatus.OK:
        return 0
    unit, _, span = answer.headers.get("Content-Range", "").partition(" ")
    first = span.partition("-")[0]
    return int(first) if unit == "bytes" and first.isdigit() else None


def _kind(error: Exception) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "no answer"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
