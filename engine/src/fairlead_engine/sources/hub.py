"""`hf://`: models of the Hugging Face Hub, or of a mirror with the same API (HF_ENDPOINT). The token is HF_TOKEN's.

Two requests: the listing of a revision with sizes and digests, and a file of a commit. Source: the hub's HTTP API, as
huggingface_hub 2.4 uses it (https://huggingface.co/docs/hub/api).
"""

import os
from collections.abc import AsyncIterator
from http import HTTPStatus
from urllib.parse import quote

import msgspec
from yarl import URL

from fairlead_common.wire.downloads import DownloadFailure
from fairlead_common.wire.model_sources import Source
from fairlead_engine.sources import remote
from fairlead_engine.sources.http_reader import HttpReader, HttpRefused

_PUBLIC = "https://huggingface.co"
_DEFAULT_REVISION = "main"
_LARGEST_LISTING = 16 << 20
"""Bytes: some 300 for each file."""


class _LargeFile(msgspec.Struct):
    sha256: str
    size: int


class _Sibling(msgspec.Struct):
    rfilename: str
    size: int | None = None
    blob_id: str | None = msgspec.field(name="blobId", default=None)
    lfs: _LargeFile | None = None


class _HubModel(msgspec.Struct):
    sha: str
    siblings: list[_Sibling]


class HubRemote:
    def __init__(self, source: Source) -> None:
        self._id = source.model_id
        self._revision = source.revision or _DEFAULT_REVISION
        self._commit = ""
        self._endpoint = (os.environ.get("HF_ENDPOINT") or _PUBLIC).rstrip("/")
        try:
            self._shown = str(URL(self._endpoint, encoded=True).with_user(None))  # without a password
        except ValueError:
            self._shown = "the address in HF_ENDPOINT"
        self._token = os.environ.get("HF_TOKEN", "").strip()
        self._http = HttpReader(f"Bearer {self._token}" if self._token else None)

    async def open(self) -> remote.SourceListing:
        url = f"{self._endpoint}/api/models/{self._id}/revision/{quote(self._revision, safe='')}?blobs=true"
        status, headers, text = await self._http.whole(url, _LARGEST_LISTING)
        if status != HTTPStatus.OK:
            raise self._refusal(HttpRefused(status, headers))
        if text is None:
            problem = f"{self._shown} lists hf://{self._id} in more than {_LARGEST_LISTING} bytes: it is no model"
            raise remote.unsupported(problem)
        try:
            model = msgspec.json.decode(text, type=_HubModel)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise remote.Interrupted(f"{self._shown} answers with something else than a model: {error}") from None
        self._commit = model.sha
        files = (
            remote.RemoteFile(each.rfilename, each.lfs.size, each.lfs.sha256)
            if each.lfs is not None
            else remote.RemoteFile(each.rfilename, each.size, git_blob=each.blob_id)
            for each in model.siblings
        )
        return remote.SourceListing(model.sha, tuple(files))

    async def read(self, file: remote.RemoteFile, start: int) -> AsyncIterator[bytes]:
        url = f"{self._endpoint}/{self._id}/resolve/{self._commit}/{quote(file.path)}"
        try:
            async for chunk in self._http.read(url, start, size=file.size):
                yield chunk
        except HttpRefused as refused:
            raise self._refusal(refused, file) from None

    async def close(self) -> None:
        await self._http.close()

    def _refusal(self, refused: HttpRefused, file: remote.RemoteFile | None = None) -> remote.DownloadError:
        """The hub's refusal by code, as the status is 401 also for unknown models."""
        code, name = refused.headers.get("x-error-code"), f"hf://{self._id}"
        invalid = "invalid" in refused.headers.get("x-error-message", "").lower()
        if code == "GatedRepo":
            return remote.DownloadError(
                DownloadFailure.SOURCE_GATED,
                f"{name} is gated: accept its terms on {self._shown}/{self._id}, and give the token of the account "
                "that did in HF_TOKEN",
            )
        if code == "RevisionNotFound":
            return remote.DownloadError(
                DownloadFailure.REVISION_NOT_FOUND,
                f"{name} has no revision {self._revision!r}: write a branch, tag or commit that it has after '@'",
            )
        if self._token and (invalid or (refused.status == HTTPStatus.UNAUTHORIZED and code != "RepoNotFound")):
            return remote.denied(f"{self._shown} refuses the token in HF_TOKEN: give one that is valid")
        if file is not None and refused.status == HTTPStatus.NOT_FOUND:
            return remote.not_found(f"{name} lists {file.path}, but {self._shown} does not have it")
        if code == "RepoNotFound" or refused.status == HTTPStatus.NOT_FOUND:
            whether = "the token in HF_TOKEN may not read it" if self._token else "it is private: give HF_TOKEN"
            return remote.not_found(f"{self._shown} has no model {self._id}; check the spelling, or {whether}")
        if refused.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            may = "does not let the token in HF_TOKEN" if self._token else "lets nobody without HF_TOKEN"
            return remote.denied(f"{self._shown} {may} read {name}")
        return remote.unreachable(f"{self._shown} answers HTTP {refused.status} for {name}")
