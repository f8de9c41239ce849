"""`s3://`, `gs://`, `az://`: a folder of a bucket or of an Azure container, or of a compatible server.

obstore takes credentials and addresses from the services' variables: AWS_… (also AWS_ENDPOINT_URL for MinIO, Ceph and
others, AWS_SKIP_SIGNATURE for public buckets), GOOGLE_…, AZURE_…. Buckets have no reliable digests; a `SHA256SUMS` in
the folder is checked, as for `https://`. Reading by ETag prevents a mix of two versions of a file.

Messages of obstore are not repeated, as they may quote signed addresses.
"""

import os
import re
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fairlead_common.wire.model_sources import Source
from fairlead_engine.sources import remote
from fairlead_engine.sources.certificates import PUT_CERTIFICATE
from fairlead_engine.sources.limits import paced

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

EXTRA = "fairlead-engine[buckets]"
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "GOOGLE_BASE_URL", "AZURE_ENDPOINT")
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "GOOGLE_SERVICE_ACCOUNT_KEY or GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true",
    "az": "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or "
    "AZURE_SKIP_SIGNATURE=true for a public container",
}
_PLACES = {
    "s3": "AWS_REGION and AWS_ENDPOINT_URL",
    "gs": "GOOGLE_BASE_URL",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_ENDPOINT",
}
_CONNECT = timedelta(seconds=10)
_SILENCE = timedelta(seconds=60)
_WHOLE = timedelta(days=7)
"""For one file: silence ends a request, not its length."""
_CHUNK_BYTES = 64 << 10
"""Size of obstore's chunks; an incomplete chunk is lost when a connection breaks."""
_MOST_OBJECTS = 10_000
"""Bound below the named folder: a model has some tens of objects, a whole bucket has no end."""
_STATUS = re.compile(r"status code: ([1-5][0-9]{2})\b")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_OF_THE_MACHINE = re.compile(r"169\.254\.169\.254|/latest/(api/token|meta-data)|computeMetadata|metadata/identity")
"""In messages about credentials looked for on the machine, as the environment has none."""
_NOT_SET_UP = re.compile(r"must be specified|[Mm]issing|[Ii]nvalid .*(key|url|credential)|[Uu]nable to parse|decod")
_NOT_TRUSTED = "InvalidCertificate("
"""In the library's debug text."""
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


class BucketRemote:
    def __init__(self, source: Source) -> None:
        self._scheme = source.scheme
        self._name = f"{source.scheme}://{source.authority}/{source.path}"
        self._prefix = source.path
        self._store = self._opened(source)
        self._keys: dict[str, str] = {}
        """Of objects, by path below the folder."""
        self._etags: dict[str, str] = {}

    async def open(self) -> remote.SourceListing:
        objects = await self._objects()
        files = [file for each in objects if (file := self._file(each)) is not None]
        if not files:
            raise remote.not_found(
                f"there is nothing at {self._name}: name the folder that has config.json and the weights"
            )
        listed = next((file for file in files if file.path == remote.SUMS), None)
        sums = remote.read_sums(await self._text(listed)) if listed is not None else {}
        found = tuple(remote.RemoteFile(file.path, file.size, sums.get(file.path)) for file in files)
        return remote.SourceListing(remote.revision_of(found, self._etags), found)

    async def read(self, file: remote.RemoteFile, start: int) -> AsyncIterator[bytes]:
        import obstore

        options: Any = {"range": {"offset": start}} if start else {}
        if etag := self._etags.get(file.path):
            options["if_match"] = etag
        try:
            answer = await obstore.get_async(self._store, self._keys[file.path], options=options)
            if answer.meta["size"] != file.size:
                raise remote.Changed
            async for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
                yield bytes(chunk)
        except (remote.Changed, GeneratorExit):
            raise
        except Exception as error:
            raise self._failure(error, f"{self._name}/{file.path}") from None

    async def close(self) -> None:
        """obstore's connections need no closing."""

    async def _objects(self) -> list[Mapping[str, Any]]:
        """Raises DownloadError, Interrupted."""
        found: list[Mapping[str, Any]] = []
        try:
            async for page in self._store.list(self._prefix):
                found += page
                if len(found) > _MOST_OBJECTS:
                    break
        except Exception as error:
            raise self._failure(error, self._name) from None
        if len(found) > _MOST_OBJECTS:
            problem = f"{self._name} has more than {_MOST_OBJECTS} objects: name the folder that has config.json"
            raise remote.unsupported(problem)
        return found

    async def _text(self, file: remote.RemoteFile) -> str:
        """Of a small file. Raises DownloadError, Interrupted."""
        if (file.size or 0) > remote.LARGEST_LIST:
            raise remote.unsupported(f"{self._name}/{file.path} is too long for a list of files")
        content = bytearray()
        async for chunk in paced(self.read(file, 0)):
            content += chunk
            if len(content) > remote.LARGEST_LIST:
                raise remote.Changed
        return content.decode(errors="replace")

    def _opened(self, source: Source) -> "S3Store | GCSStore | AzureStore":
        """Raises DownloadError if the environment does not suffice."""
        try:
            from obstore.store import AzureStore, GCSStore, S3Store
        except ImportError:
            raise remote.unsupported(
                f"{source.scheme}:// needs a library that is not installed here: pip install '{EXTRA}'"
            ) from None
        kind: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[source.scheme]
        plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
        client = {"timeout": _WHOLE, "connect_timeout": _CONNECT, "read_timeout": _SILENCE, "allow_http": plain}
        # The downloader tries again itself, and knows what is there already.
        retries = {"max_retries": 0, "retry_timeout": _CONNECT}
        try:
            store: S3Store | GCSStore | AzureStore = kind(source.authority, client_options=client, retry_config=retries)
        except Exception:  # of any type, for wrong variables
            raise self._not_set_up() from None
        return store

    def _file(self, told: Mapping[str, Any]) -> remote.RemoteFile | None:
        """None = the folder, which some programs store as an object."""
        path = told["path"].removeprefix(self._prefix).strip("/")
        if not path:
            return None
        self._keys[path] = told["path"]
        if etag := told.get("e_tag"):
            self._etags[path] = etag if etag.startswith(('"', "W/")) else f'"{etag}"'  # as Azure lists them
        return remote.RemoteFile(path, told["size"])

    def _failure(self, error: Exception, what: str) -> Exception:
        from obstore.exceptions import (
            InvalidPathError,
            PermissionDeniedError,
            PreconditionError,
            UnauthenticatedError,
        )

        text = str(error).partition("Debug source")[0]
        found, code = _STATUS.search(text), _CODE.search(text)
        status = int(found[1]) if found else 0
        if _OF_THE_MACHINE.search(text):
            return self._denied(what, "there are no credentials in the environment, and the machine has none either")
        if isinstance(error, InvalidPathError):
            problem = "has a key that is no path below a folder ('..', '//', a control character): rename it, or name"
            return remote.unsupported(f"{self._name} {problem} another folder")
        if isinstance(error, PreconditionError) or status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return remote.Changed()
        if isinstance(error, FileNotFoundError) or status == HTTPStatus.NOT_FOUND:
            why = "no such bucket" if code and "Bucket" in code[1] else "nothing by that name"
            return remote.not_found(f"there is no {what} ({why}): check the spelling")
        is_denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        if is_denied or status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return self._denied(what, f"{code[1] if code else f'HTTP {status}'}")
        if status in _TRANSIENT:
            return remote.Interrupted(f"HTTP {status}")
        if status:
            told = f"HTTP {status}{f' ({code[1]})' if code else ''}"
            check = f"check {_PLACES[self._scheme]}"
            return remote.unreachable(f"the answer for {what} is {told}: {check}")
        if _NOT_TRUSTED in str(error):
            problem = f"the certificate of what answers for {what} is not trusted: {PUT_CERTIFICATE}"
            return remote.unreachable(problem)
        if _NOT_SET_UP.search(text):
            return self._not_set_up()
        return remote.Interrupted("no answer")

    def _denied(self, what: str, why: str) -> remote.DownloadError:
        give = f"give {_CREDENTIALS[self._scheme]}"
        return remote.denied(f"{what} may not be read ({why}): {give}")

    def _not_set_up(self) -> remote.DownloadError:
        return self._denied(self._name, f"the variables for {self._scheme}:// are not complete, or cannot be read")
