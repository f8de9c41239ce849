"""Buckets on this machine: what downloads take of the protocols of S3, of Google's storage (its XML form) and of Azure.

Listings come a few objects at a time. A key, a token or a signature is wanted where a test says so; that signatures
are right is another's business, whose server is named in the tests.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from aiohttp import web

from fairlead_engine_testing.file_server import HERE, FileServer, Listening, in_a_thread

_PAGE = 3


@dataclass
class LoopbackBuckets(FileServer):
    """`endpoint` is for AWS_ENDPOINT_URL, GOOGLE_BASE_URL and AZURE_ENDPOINT."""

    buckets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Bucket → key → content."""
    secret: str | None = None
    """What has to stand in a request's Authorization or query; None = nothing."""
    refusal: int = 403
    changes: dict[str, bytes] = field(default_factory=dict)
    """What objects become once they were asked for."""
    endpoint: str = ""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if (unwell := self.is_unwell()) is not None:
            return unwell
        given = request.headers.get("Authorization", "") + request.query_string
        if self.secret is not None and self.secret not in given:
            return _error(self.refusal, "AccessDenied")
        bucket, _, key = request.match_info["path"].partition("/")
        if (objects := self.buckets.get(bucket)) is None:
            return _error(404, "ContainerNotFound" if "comp" in request.query else "NoSuchBucket")
        if "list-type" in request.query or "comp" in request.query:
            return self._listing(request, objects)
        if (content := objects.get(key)) is None:
            return _error(404, "NoSuchKey")
        if request.headers.get("If-Match", _etag(content)) != _etag(content):
            return _error(412, "PreconditionFailed")
        if key in self.changes:
            objects[key] = self.changes.pop(key)
        headers = {"ETag": _etag(content), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        return await self.send(request, key.rpartition("/")[2], content, headers)

    def _listing(self, request: web.Request, objects: dict[str, bytes]) -> web.Response:
        is_azure = "comp" in request.query
        after = request.query.get("marker" if is_azure else "continuation-token", "")
        fitting = sorted(key for key in objects if key.startswith(request.query.get("prefix", "")) and key > after)
        page, more = fitting[:_PAGE], len(fitting) > _PAGE
        if is_azure:
            found = "".join(
                f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT"
                f"</Last-Modified><Etag>{_etag(objects[key])[1:-1]}</Etag><Content-Length>{len(objects[key])}"
                "</Content-Length><Content-Type>a/b</Content-Type></Properties></Blob>"
                for key in page
            )
            marker = f"<NextMarker>{escape(page[-1])}</NextMarker>" if more else "<NextMarker/>"
            return _xml(f"<EnumerationResults><Blobs>{found}</Blobs>{marker}</EnumerationResults>")
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(objects[key])}</Size><ETag>{escape(_etag(objects[key]))}"
            "</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        return _xml(
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{found}</ListBucketResult>"
        )


@contextmanager
def loopback_buckets(server: LoopbackBuckets, listening: Listening = HERE) -> Iterator[LoopbackBuckets]:
    """Runs the server in a thread."""
    app = web.Application()
    app.router.add_get("/{path:.+}", server._answer)
    with in_a_thread(server, {"endpoint": app}, listening):
        yield server


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _xml(content: str, status: int = 200) -> web.Response:
    return web.Response(text=f'<?xml version="1.0" encoding="utf-8"?>{content}', status=status, content_type="text/xml")


def _error(status: int, code: str) -> web.Response:
    return _xml(f"<Error><Code>{code}</Code><Message>no</Message></Error>", status)
