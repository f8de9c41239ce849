"""A registry on this machine: what pulling, and pushing in one piece, take of the distribution specification, with
tokens and blobs elsewhere.

Like the large ones, it sends who asks for a blob to another origin with a signed query, which refuses a token.
"""

import asyncio
import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from fairlead_engine_testing.file_server import HERE, FileServer, Listening, in_a_thread

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
TITLE = "org.opencontainers.image.title"
ORAS_FILE = "application/vnd.oci.image.layer.v1.tar"
"""What ORAS calls any file."""
_SIGNATURE = "sig-77aa"


@dataclass(frozen=True)
class Layer:
    """A blob, and what a manifest says of it."""

    content: bytes
    media_type: str = ORAS_FILE
    annotations: dict[str, str] = field(default_factory=dict)

    def descriptor(self) -> dict[str, Any]:
        told = {"mediaType": self.media_type, "digest": digest_of(self.content), "size": len(self.content)}
        return told | ({"annotations": self.annotations} if self.annotations else {})


@dataclass
class LoopbackRegistry(FileServer):
    """`host` is for `oci://HOST/REPOSITORY`. What a test changes counts from the next request on."""

    login: str = ""
    """"" = nobody needs one; "basic", "bearer": by that challenge."""
    pair: str = "me:hidden-word"
    """Name and password that are valid."""
    uses_of_tokens: int = 1000
    """Requests after which a token has run out."""
    token_pieces: int = 1
    """In which an answer with a token is sent."""
    realm: str | None = None
    """Where it sends who wants a token; None = to its own."""
    manifests: dict[str, dict[str, tuple[str, bytes]]] = field(default_factory=dict)
    """Repository → tag or digest → media type and content."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Digest → what `asked` and `flipped` call it."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Token → uses that are left."""
    pushed: list[str] = field(default_factory=list)
    """Digests of blobs, and references of manifests, that clients have sent."""
    lists_referrers: bool = True
    """Whether it knows what manifests are about."""
    referrers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Digest of a manifest → descriptors of those that are about it."""
    registry: str = ""
    storage: str = ""
    """Addresses."""

    @property
    def host(self) -> str:
        return self.registry.partition("://")[2]

    def push(self, repository: str, tag: str, layers: list[Layer], media_type: str = MANIFEST) -> str:
        """An artifact; returns its digest."""
        for layer in layers:
            self.blobs[digest_of(layer.content)] = layer.content
            self.names[digest_of(layer.content)] = layer.annotations.get(TITLE, digest_of(layer.content))
        told = {"schemaVersion": 2, "mediaType": media_type, "layers": [each.descriptor() for each in layers]}
        told["config"] = Layer(b"{}", "application/vnd.oci.empty.v1+json").descriptor()
        return self.push_manifest(repository, tag, media_type, told)

    def push_manifest(self, repository: str, tag: str, media_type: str, told: dict[str, Any]) -> str:
        """Returns its digest."""
        content = json.dumps(told).encode()
        for reference in (tag, digest_of(content)):
            self.manifests.setdefault(repository, {})[reference] = (media_type, content)
        return digest_of(content)

    def _refusal(self, request: web.Request) -> web.Response | None:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if not self.login:
            return None
        if self.login == "basic":
            if scheme == "Basic" and base64.b64decode(given).decode() == self.pair:
                return None
            challenge = 'Basic realm="registry"'
        else:
            if scheme == "Basic":
                self.problems.append("a password for the registry, which gives tokens for them elsewhere")
            if scheme == "Bearer" and self.tokens.get(given, 0) > 0:
                self.tokens[given] -= 1
                return None
            wanted = "pull" if request.method in ("GET", "HEAD") else "pull,push"
            scope = f"repository:{request.match_info['repository']}:{wanted}"
            realm = f"{self.registry}/token" if self.realm is None else self.realm
            challenge = f'Bearer realm="{realm}",service="loopback",scope="{scope}"'
        return _error(401, "UNAUTHORIZED", {"WWW-Authenticate": challenge})

    async def _token(self, request: web.Request) -> web.StreamResponse:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Basic" or base64.b64decode(given).decode() != self.pair:
            return _error(401, "UNAUTHORIZED")
        if request.query["service"] != "loopback" or not request.query["scope"].endswith((":pull", ":pull,push")):
            return _error(400, "DENIED")
        token = f"token-{len(self.tokens)}-hidden"
        self.tokens[token] = self.uses_of_tokens
        content = json.dumps({"token": token, "expires_in": 60}).encode()
        answer = web.StreamResponse()
        await answer.prepare(request)
        size = -(-len(content) // self.token_pieces)
        for begin in range(0, len(content), size):
            await answer.write(content[begin : begin + size])
            await asyncio.sleep(0.02 if self.token_pieces > 1 else 0)  # each piece arrives alone
        return answer

    async def _manifest(self, request: web.Request) -> web.Response:
        if (answer := self.is_unwell() or self._refusal(request)) is not None:
            return answer
        if (known := self.manifests.get(request.match_info["repository"])) is None:
            return _error(404, "NAME_UNKNOWN")
        if (found := known.get(request.match_info["reference"])) is None:
            return _error(404, "MANIFEST_UNKNOWN")
        media_type, content = found
        if media_type not in request.headers.get("Accept", ""):
            return _error(404, "MANIFEST_UNKNOWN")
        digest = digest_of(content)
        if "manifest" in self.flipped:
            content = content.replace(b"2", b"3", 1)
        headers = {"Content-Type": media_type, "Docker-Content-Digest": digest}
        return web.Response(body=content, headers=headers)

    async def _blob(self, request: web.Request) -> web.Response:
        if (answer := self.is_unwell() or self._refusal(request)) is not None:
            return answer
        digest = request.match_info["digest"]
        if digest not in self.blobs:
            return _error(404, "BLOB_UNKNOWN")
        return web.Response(status=307, headers={"Location": f"{self.storage}/{digest}?signature={_SIGNATURE}"})

    async def _begin(self, request: web.Request) -> web.Response:
        if (answer := self.is_unwell() or self._refusal(request)) is not None:
            return answer
        return web.Response(status=202, headers={"Location": f"{request.path}{len(self.pushed)}?state=a%2Fb"})

    async def _upload(self, request: web.Request) -> web.Response:
        if (answer := self._refusal(request)) is not None:
            return answer
        content, digest = await request.read(), request.query["digest"]
        if digest_of(content) != digest or request.query["state"] != "a/b":
            return _error(400, "DIGEST_INVALID")
        self.blobs[digest] = content
        self.names.setdefault(digest, digest)
        self.pushed.append(digest)
        return web.Response(status=201, headers={"Location": f"/v2/{request.match_info['repository']}/blobs/{digest}"})

    async def _put_manifest(self, request: web.Request) -> web.Response:
        if (answer := self._refusal(request)) is not None:
            return answer
        content, reference = await request.read(), request.match_info["reference"]
        told, digest = json.loads(content), digest_of(content)
        named = [each["digest"] for each in (*filter(None, [told.get("config")]), *told.get("layers", ()))]
        if not set(named) <= self.blobs.keys():
            return _error(400, "MANIFEST_BLOB_UNKNOWN")
        for each in (reference, digest):
            known = self.manifests.setdefault(request.match_info["repository"], {})
            known[each] = (request.content_type, content)
        self.pushed.append(reference)
        headers = {"Docker-Content-Digest": digest}
        if self.lists_referrers and (subject := told.get("subject")) is not None:
            headers["OCI-Subject"] = subject["digest"]
            descriptor = {"mediaType": request.content_type, "digest": digest, "artifactType": told["artifactType"]}
            self.referrers.setdefault(subject["digest"], []).append(descriptor)
        return web.Response(status=201, headers=headers)

    async def _stored(self, request: web.Request) -> web.StreamResponse:
        if "Authorization" in request.headers:
            self.problems.append(f"a token for {request.path}")
            return web.Response(status=400)
        if request.query.get("signature") != _SIGNATURE:
            return web.Response(status=403)
        digest = request.match_info["digest"]
        return await self.send(request, self.names[digest], self.blobs[digest], {})


@contextmanager
def loopback_registry(registry: LoopbackRegistry, listening: Listening = HERE) -> Iterator[LoopbackRegistry]:
    """Runs the registry, its token server and its blob storage in a thread."""
    api, storage = web.Application(client_max_size=1 << 30), web.Application()
    api.router.add_get("/token", registry._token)
    api.router.add_get("/v2/{repository:.+}/manifests/{reference}", registry._manifest)
    api.router.add_get("/v2/{repository:.+}/blobs/{digest}", registry._blob)
    api.router.add_put("/v2/{repository:.+}/manifests/{reference}", registry._put_manifest)
    api.router.add_post("/v2/{repository:.+}/blobs/uploads/", registry._begin)
    api.router.add_put("/v2/{repository:.+}/blobs/uploads/{number}", registry._upload)
    storage.router.add_get("/{digest}", registry._stored)
    with in_a_thread(registry, {"registry": api, "storage": storage}, listening):
        yield registry


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _error(status: int, code: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"errors": [{"code": code, "message": code.lower()}]}, status=status, headers=headers)
