"""Pushing to a registry, by the OCI distribution specification 1.1: blobs in one piece, manifests, referrers.

Names and passwords are found as the engine finds them for downloads (`registry_login`): OCI_USERNAME and OCI_PASSWORD,
or what `docker login` wrote. Only hosts of this machine are used without TLS.
"""

import ipaddress
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from cluster.commands import ClusterError
from yarl import URL

from fairlead_engine.sources.registry_login import PASSWORD, USERNAME, RegistryLogin
from release.blobs import EMPTY, INDEX, MANIFEST, Artifact, Blob

_TIMES = aiohttp.ClientTimeout(total=None, connect=30.0, sock_read=300.0)
_PIECE = 1 << 20


@dataclass(frozen=True)
class Answer:
    """All of an answer."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Repository:
    """One repository of a registry. Raises ClusterError, with a sentence, for what the registry refuses."""

    def __init__(self, registry: str, name: str) -> None:
        """`registry`: HOST or HOST/FOLDER."""
        self._host, _, folder = registry.strip("/").partition("/")
        self._name = f"{folder}/{name}" if folder else name
        scheme = "http" if is_here(self._host) else "https"
        self._root = URL(f"{scheme}://{self._host}/v2/{self._name}/", encoded=True)
        self._login = RegistryLogin(self._host, self._name, is_here)
        self._authorization: str | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def name(self) -> str:
        """With the registry, as in an image's name."""
        return f"{self._host}/{self._name}"

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=_TIMES, trust_env=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def push(self, artifact: Artifact, tag: str | None = None) -> dict[str, Any]:
        """Pushes what is missing; returns the manifest's descriptor. `tag`: None = by its digest only. What has a
        subject is listed among its referrers."""
        for blob in (artifact.config, *artifact.layers):
            await self._push_blob(blob)
        manifest = artifact.manifest()
        answer = await self._push_manifest(manifest, tag or manifest.digest)
        descriptor = manifest.descriptor()
        if artifact.subject is not None and "OCI-Subject" not in answer.headers:
            await self._list_by_tag(artifact, descriptor)
        return descriptor

    async def digest(self, tag: str) -> str | None:
        """Of the manifest that a tag names; None = there is no such tag."""
        answer = await self._ask("HEAD", self._root / "manifests" / tag, {"Accept": f"{MANIFEST}, {INDEX}"})
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        self._check(answer, f"{self.name}:{tag}", HTTPStatus.OK)
        return answer.headers.get("Docker-Content-Digest")

    async def _push_blob(self, blob: Blob) -> None:
        digest = blob.digest
        there = await self._ask("HEAD", self._root / "blobs" / digest)
        if there.status == HTTPStatus.OK:
            return
        begun = await self._ask("POST", URL(f"{self._root}blobs/uploads/", encoded=True))
        self._check(begun, f"a blob of {self.name}", HTTPStatus.ACCEPTED)
        place = self._root.join(URL(begun.headers["Location"], encoded=True))
        place = URL(f"{place}{'&' if place.query_string else '?'}digest={digest}", encoded=True)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
        answer = await self._ask("PUT", place, headers, lambda: _opened(blob.content))
        self._check(answer, f"a blob of {self.name}", HTTPStatus.CREATED)

    async def _push_manifest(self, manifest: Blob, reference: str) -> Answer:
        headers = {"Content-Type": manifest.media_type}
        answer = await self._ask("PUT", self._root / "manifests" / reference, headers, lambda: manifest.content)
        self._check(answer, f"{self.name}:{reference}", HTTPStatus.CREATED)
        return answer

    async def _list_by_tag(self, artifact: Artifact, descriptor: dict[str, Any]) -> None:
        """Lists referrers where the registry does not: in an index whose tag is the subject's digest."""
        assert artifact.subject is not None
        tag = artifact.subject["digest"].replace(":", "-")
        answer = await self._ask("GET", self._root / "manifests" / tag, {"Accept": INDEX})
        known = json.loads(answer.content)["manifests"] if answer.status == HTTPStatus.OK else []
        told = descriptor | {"artifactType": artifact.artifact_type, "annotations": dict(artifact.annotations)}
        listed = [*(each for each in known if each["digest"] != told["digest"]), told]
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": listed}
        await self._push_manifest(Blob(INDEX, json.dumps(index).encode()), tag)

    async def _ask(
        self, method: str, url: URL, headers: Mapping[str, str] | None = None, body: Callable[[], Any] | None = None
    ) -> Answer:
        """Asks again with credentials where the registry wants them."""
        answer = await self._once(method, url, headers or {}, body)
        if answer.status == HTTPStatus.UNAUTHORIZED and url.origin() == self._root.origin():
            self._authorization = await self._login.authorization(answer.headers.get("WWW-Authenticate", ""))
            if self._authorization is not None:
                answer = await self._once(method, url, headers or {}, body)
        return answer

    async def _once(self, method: str, url: URL, headers: Mapping[str, str], body: Callable[[], Any] | None) -> Answer:
        assert self._session is not None, "a repository is opened with `async with`"
        sent = dict(headers)
        if self._authorization is not None and url.origin() == self._root.origin():
            sent["Authorization"] = self._authorization
        follows = method in ("GET", "HEAD")
        try:
            async with self._session.request(
                method, url, headers=sent, data=body() if body is not None else None, allow_redirects=follows
            ) as answer:
                return Answer(answer.status, answer.headers.copy(), await answer.read())
        except (aiohttp.ClientError, OSError) as error:
            raise ClusterError(
                f"{self._host} cannot be reached ({error}): check REGISTRY and the network, and push again; what is "
                "there already is not sent twice"
            ) from error

    def _check(self, answer: Answer, what: str, wanted: int) -> None:
        if answer.status == wanted:
            return
        told = f"{self._host} answers HTTP {answer.status} for {what}"
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise ClusterError(f"{told}: set {USERNAME} and {PASSWORD} to who may push there, or `docker login`")
        raise ClusterError(f"{told}: {_said(answer.content)}")


def is_here(host: str) -> bool:
    """Whether a host, perhaps with a port, is this machine."""
    name = host.rpartition(":")[0] if host.count(":") == 1 or host.startswith("[") else host
    try:
        return name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def about(subject: Mapping[str, Any], artifact_type: str, content: bytes, title: str) -> Artifact:
    """A document about a manifest, to be listed among its referrers."""
    named = {"org.opencontainers.image.title": title}
    return Artifact(EMPTY, (Blob(artifact_type, content, named),), named, artifact_type, subject)


async def _pieces(path: Path) -> Any:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _opened(content: bytes | Path) -> Any:
    return content if isinstance(content, bytes) else _pieces(content)


def _said(content: bytes) -> str:
    """The registry's own words, as far as it has any."""
    try:
        return "; ".join(f"{each.get('code')} {each.get('message', '')}" for each in json.loads(content)["errors"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return content[:200].decode(errors="replace") or "it says no more"
