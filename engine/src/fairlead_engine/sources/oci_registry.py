"""`oci://`: models in registries of container images, as ORAS and ModelPack pack them, or in an image's file system.

Two requests: a manifest of a tag or a digest, perhaps through an index, and the blobs. Files are layers with a name
(`org.opencontainers.image.title`, or ModelPack's `org.cncf.model.filepath`); tars without a name are unpacked.
Everything is checked against the digest in the request. Without TLS are reached: this machine, and the hosts listed in
OCI_INSECURE_REGISTRIES, separated by commas. Credentials: `registry_login.py`.

Sources: https://github.com/opencontainers/distribution-spec, https://github.com/opencontainers/image-spec,
https://github.com/modelpack/model-spec, https://oras.land/docs.
"""

import hashlib
import ipaddress
import os
import platform
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import msgspec

from fairlead_common.wire.downloads import DownloadFailure
from fairlead_common.wire.model_sources import Source
from fairlead_engine.sources import archive, remote
from fairlead_engine.sources.http_reader import HttpReader, HttpRefused
from fairlead_engine.sources.registry_login import CONFIG, PASSWORD, USERNAME, RegistryLogin
from fairlead_engine.sources.selection import model_folder

INSECURE = "OCI_INSECURE_REGISTRIES"
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_LARGEST_MANIFEST = 4 << 20
"""Bytes, by the specification."""
_MOST_INDEXES = 3
"""Longest chain of indexes."""
_DEFAULT_TAG = "latest"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_TITLES = ("org.opencontainers.image.title", "org.cncf.model.filepath", "org.cnai.model.filepath")
_UNPACK = "io.deis.oras.content.unpack"
"""ORAS's mark of a tar of the folder in the title."""
_TAR = re.compile(r"[.+](tar|tar[.+]gzip|tar[.+]gz|tar[.+]zstd|tar[.+]zst)(\.nondistributable)?")
_OTHER_TAR = re.compile(r"[.+]tar[.+](bz2|xz)")
_IMAGE_LAYERS = ("application/vnd.oci.image.layer.", "application/vnd.docker.image.rootfs.")
_NO_MODEL = re.compile(r"\.(docs?|code|dataset)\.v[0-9]")
"""In types of ModelPack's and KitOps' files beside a model."""


class _Descriptor(msgspec.Struct, rename="camel"):
    digest: str
    size: int
    media_type: str = ""
    annotations: dict[str, str] | None = None
    platform: dict[str, Any] | None = None


class _Manifest(msgspec.Struct, rename="camel"):
    """An image's, or an index."""

    layers: list[_Descriptor] | None = None
    manifests: list[_Descriptor] | None = None


class OciRemote:
    def __init__(self, source: Source) -> None:
        host, repository = source.authority, source.path
        self._name = f"oci://{host}/{repository}"
        self._reference = source.revision or _DEFAULT_TAG
        self._host = host
        if host == "docker.io":  # which is a name, and no registry
            host, repository = "registry-1.docker.io", repository if "/" in repository else f"library/{repository}"
        self._base = f"{'http' if may_be_plain(host) else 'https'}://{host}/v2/{repository}"
        self._http = HttpReader()
        self._login = RegistryLogin(self._host, repository, may_be_plain)
        self._digests: dict[str, str] = {}
        """Of blobs, by path."""

    async def open(self) -> remote.SourceListing:
        digest, manifest = await self._manifest(self._reference)
        revision = digest
        for _ in range(_MOST_INDEXES):
            if manifest.manifests is None:
                break
            digest, manifest = await self._manifest(self._chosen(manifest.manifests).digest)
        if manifest.layers is None:
            raise self._unfit("has a manifest without layers: push the model's files with ORAS, modctl or as an image")
        return remote.SourceListing(revision, self._files(manifest.layers))

    async def read(self, file: remote.RemoteFile, start: int) -> AsyncIterator[bytes]:
        url = f"{self._base}/blobs/{self._digests[file.path]}"
        for is_last in (False, True):
            try:
                async for chunk in self._http.read(url, start, size=file.size):
                    start += len(chunk)
                    yield chunk
                return
            except HttpRefused as refused:  # also of a token that has run out
                if is_last or refused.status != HTTPStatus.UNAUTHORIZED:
                    raise self._refusal(refused.status, "", f"its layer {file.path}") from None
                await self._log_in(refused.headers.get("www-authenticate", ""))

    async def close(self) -> None:
        await self._http.close()

    async def _manifest(self, reference: str) -> tuple[str, _Manifest]:
        """With its digest. Raises DownloadError, Interrupted."""
        status, headers, content = await self._asked(reference)
        if status == HTTPStatus.UNAUTHORIZED:
            await self._log_in(headers.get("www-authenticate", ""))
            status, headers, content = await self._asked(reference)
        if status != HTTPStatus.OK:
            raise self._refusal(status, _code(content), f"revision {reference!r}")
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        told = headers.get("docker-content-digest", digest)
        expected = reference if _DIGEST.fullmatch(reference) else told if _DIGEST.fullmatch(told) else digest
        if digest != expected:
            raise remote.mismatch(
                f"the manifest of {self._name} has the digest {digest}, not {expected}: it is damaged in the registry "
                "or on the way"
            )
        try:
            return digest, msgspec.json.decode(content, type=_Manifest)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise remote.Interrupted(f"{self._host} answers with something else than a manifest: {error}") from None

    async def _asked(self, reference: str) -> tuple[int, dict[str, str], bytes]:
        url = f"{self._base}/manifests/{reference}"
        status, headers, content = await self._http.whole(url, _LARGEST_MANIFEST, {"Accept": ", ".join(_MANIFESTS)})
        if content is None:
            raise self._unfit(f"has a manifest of more than {_LARGEST_MANIFEST} bytes")
        return status, headers, content

    async def _log_in(self, challenge: str) -> None:
        authorization = await self._login.authorization(challenge)
        if authorization is None:
            raise self._denied()
        self._http.authorization = authorization

    def _chosen(self, manifests: list[_Descriptor]) -> _Descriptor:
        """An index's manifest for this machine; else any image, without attestations, as a model suits all machines."""
        architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
        known = [each for each in manifests if (each.platform or {}).get("os") != "unknown"]
        ours = [each for each in known if (each.platform or {}).get("architecture") == architecture]
        if not known:
            raise self._unfit("has an index that names no image")
        return (ours or known)[0]

    def _files(self, layers: list[_Descriptor]) -> tuple[remote.RemoteFile, ...]:
        found = {file.path: file for layer in layers if (file := self._file(layer)) is not None}
        if any(file.packing is not None for file in found.values()):
            return tuple(found.values())
        top = model_folder(found)  # of a folder that was pushed by its path
        below = {path.removeprefix(top): file for path, file in found.items() if path.startswith(top)}
        self._digests = {path: self._digests[file.path] for path, file in below.items()}
        return tuple(replace(file, path=path) for path, file in below.items())

    def _file(self, layer: _Descriptor) -> remote.RemoteFile | None:
        """None = no part of a model. Raises DownloadError."""
        notes = layer.annotations or {}
        kind = layer.media_type.partition(";")[0]
        title = next((notes[key] for key in _TITLES if notes.get(key)), "").removeprefix("./")
        if _NO_MODEL.search(kind):
            return None
        if (match := _DIGEST.fullmatch(layer.digest)) is None:
            raise self._unfit(f"has a layer with the digest {layer.digest[:20]!r}: push it with sha256")
        is_image = kind.startswith(_IMAGE_LAYERS)
        # ORAS calls every file of unknown type an image's layer; tars have no name.
        is_named = bool(title) and not title.endswith(archive.SUFFIXES) and notes.get(_UNPACK) != "true"
        packing = None
        if not is_named or not is_image:
            if _OTHER_TAR.search(kind):
                raise self._unfit(
                    f"has a layer of type {kind}, which cannot be unpacked: push it as tar, tar+gzip or tar+zstd"
                )
            if title.endswith(archive.SUFFIXES) or notes.get(_UNPACK) == "true" or _TAR.search(kind):
                packing = remote.Packing.LAYER if is_image and not title else remote.Packing.ARCHIVE
        if packing is not None:
            path = f"sha256-{match[1]}"
        elif title:
            path = title
        elif "gguf" in kind:
            path = "model.gguf"
        else:
            return None
        self._digests[path] = layer.digest
        return remote.RemoteFile(path, layer.size, match[1], packing=packing)

    def _refusal(self, status: int, code: str, what: str) -> remote.DownloadError:
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return self._denied()
        if status == HTTPStatus.NOT_FOUND and code == "NAME_UNKNOWN":
            return remote.not_found(f"{self._host} has no {self._name.removeprefix('oci://')}; check the spelling")
        if status == HTTPStatus.NOT_FOUND:
            reason = DownloadFailure.REVISION_NOT_FOUND
            return remote.DownloadError(reason, f"{self._name} has not {what}: name a tag or a digest that it has")
        return remote.unreachable(f"{self._host} answers HTTP {status} for {what} of {self._name}")

    def _denied(self) -> remote.DownloadError:
        give = f"{USERNAME} and {PASSWORD}, or a docker configuration in {CONFIG}"
        if self._login.basic is not None:
            problem = f"does not let these credentials read {self._name}: give such as may, in {give}"
        else:
            problem = f"lets nobody without credentials read {self._name}, or it does not exist: give {give}"
        return remote.denied(f"{self._host} {problem}")

    def _unfit(self, problem: str) -> remote.DownloadError:
        return remote.unsupported(f"{self._name} {problem}")


def may_be_plain(host: str) -> bool:
    """Whether a host, with or without a port, is spoken to without TLS."""
    if host in {each.strip() for each in os.environ.get(INSECURE, "").split(",") if each.strip()}:
        return True
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    try:
        return name == "localhost" or ipaddress.ip_address(name if name else host).is_loopback
    except ValueError:
        return host == "::1"


def _code(content: bytes) -> str:
    """An error's code, by the specification."""
    try:
        return str(msgspec.json.decode(content)["errors"][0]["code"])
    except (msgspec.MsgspecError, RecursionError, LookupError, TypeError):
        return ""
