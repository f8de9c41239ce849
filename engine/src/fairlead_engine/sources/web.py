"""`https://`: a folder with `config.json`, a file of weights in the folder, or an archive of the folder.

HTTP has no listing: a folder's files are requested by name, and shards come from the index. Files are checked against a
`SHA256SUMS` in the folder, or an archive's `ARCHIVE.sha256`, in sha256sum's format. HTTPS_AUTHORIZATION is the header's
whole value ("Bearer …"), for the source's host alone.
"""

import json
import os
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import PurePosixPath
from urllib.parse import quote

from fairlead_common.wire.model_sources import Source
from fairlead_engine.sources import archive, remote
from fairlead_engine.sources.http_reader import HttpReader, HttpRefused
from fairlead_engine.sources.selection import ADAPTER_WEIGHTS, INDEX_FILE, SETTINGS, SINGLE_FILE

_WEIGHTS = (".safetensors", ".gguf")
_OTHER_WEIGHTS = ("pytorch_model.bin",)
_OTHER_INDEXES = ("pytorch_model.bin.index.json",)


class WebRemote:
    def __init__(self, source: Source) -> None:
        self._url = f"https://{source.authority}/{quote(source.path, safe='/%')}"
        self._path = PurePosixPath(source.path)
        self._http = HttpReader(os.environ.get("HTTPS_AUTHORIZATION") or None)
        self._urls: dict[str, str] = {}
        """Of files, by path."""
        self._etags: dict[str, str] = {}

    async def open(self) -> remote.SourceListing:
        is_archive = self._path.name.endswith(archive.SUFFIXES)
        if is_archive:
            files = [await self._named(self._path.name, self._url, must=True)]
            sums = remote.read_sums(await self._text(f"{self._url}.sha256"))
        else:
            base = self._url.rpartition("/")[0] if self._path.suffix in _WEIGHTS else self._url
            files = [file for file in await self._files_of(base) if file is not None]
            sums = remote.read_sums(await self._text(f"{base}/{remote.SUMS}"))
        found = tuple(
            remote.RemoteFile(
                file.path,
                file.size,
                sums.get(file.path) or sums.get(PurePosixPath(self._urls[file.path]).name),
                packing=remote.Packing.ARCHIVE if is_archive else None,
            )
            for file in files
            if file is not None
        )
        return remote.SourceListing(remote.revision_of(found, self._etags), found)

    async def read(self, file: remote.RemoteFile, start: int) -> AsyncIterator[bytes]:
        url = self._urls[file.path]
        try:
            async for chunk in self._http.read(url, start, etag=self._etags.get(file.path), size=file.size):
                yield chunk
        except HttpRefused as refused:
            raise _refusal(refused.status, url) from None

    async def close(self) -> None:
        await self._http.close()

    async def _files_of(self, base: str) -> list[remote.RemoteFile | None]:
        files = [await self._named(name, f"{base}/{name}") for name in SETTINGS]
        if self._path.suffix in _WEIGHTS:
            path = SINGLE_FILE if self._path.suffix == ".safetensors" else self._path.name
            return [*files, await self._named(path, self._url, must=True)]
        for index, single in ((INDEX_FILE, SINGLE_FILE), *zip(_OTHER_INDEXES, _OTHER_WEIGHTS, strict=True)):
            if (listed := await self._named(index, f"{base}/{index}")) is not None:
                shards = _shards(await self._text(f"{base}/{index}"), f"{base}/{index}")
                return [*files, listed, *[await self._named(each, f"{base}/{each}", must=True) for each in shards]]
            if (weights := await self._named(single, f"{base}/{single}")) is not None:
                return [*files, weights]
        if not any(files):
            raise _refusal(HTTPStatus.NOT_FOUND, f"{base}/config.json")
        return [*files, *[await self._named(name, f"{base}/{name}") for name in ADAPTER_WEIGHTS]]

    async def _named(self, path: str, url: str, *, must: bool = False) -> remote.RemoteFile | None:
        """A file requested by name; None = missing, which is an error with `must`."""
        async with self._http.request("HEAD", url) as answer:
            status, size, headers = answer.status, answer.headers.get("Content-Length", ""), answer.headers
            # Buckets behind a web server answer 403 for missing files to clients without the right to list.
            absent = status == HTTPStatus.NOT_FOUND or (status == HTTPStatus.FORBIDDEN and path != "config.json")
            if absent and not must:
                return None
            if status != HTTPStatus.OK:
                raise _refusal(status, url)
        self._urls[path] = url
        if etag := headers.get("ETag"):
            self._etags[path] = etag
        return remote.RemoteFile(path, int(size) if size.isdigit() else None)

    async def _text(self, url: str) -> str:
        """Text of a small file; empty = no file."""
        status, _, content = await self._http.whole(url, remote.LARGEST_LIST)
        if status != HTTPStatus.OK:
            return ""
        if content is None:
            raise remote.unsupported(f"{url} is too long for a list of files")
        return content.decode(errors="replace")


def _shards(index: str, url: str) -> list[str]:
    try:
        names = set(json.loads(index)["weight_map"].values())
        if all(isinstance(name, str) and PurePosixPath(name).name == name for name in names):
            return sorted(names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise remote.unsupported(f"{url} has no weight_map with names of files beside it: write it again")


def _refusal(status: int, url: str) -> remote.DownloadError:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return remote.denied(
            f"{url} answers HTTP {status}: give the value of the Authorization header in HTTPS_AUTHORIZATION"
        )
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return remote.not_found(
            f"there is no {url}: name a folder with config.json and model.safetensors, a .safetensors file or a tar"
        )
    return remote.unreachable(f"{url} answers HTTP {status}")
