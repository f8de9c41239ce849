"""`/v1/files`: uploads, lists, contents."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from urllib.parse import parse_qs

import msgspec

from fairlead.gateway.files.blobs import BlobError, Blobs
from fairlead.gateway.files.file_row import FileRow
from fairlead.gateway.files.form_stream import FormStream, PartBegin, PartEnd
from fairlead.gateway.files.keeper import FileKeeper, file_not_found, unreachable
from fairlead.gateway.openai.errors import OpenAIError, bad_request, method_not_allowed
from fairlead.gateway.openai.query import page_json, page_of
from fairlead.gateway.request_client import Client, ClientGone
from fairlead.gateway.stored.errors import Json, NotStored, StoreError

logger = logging.getLogger(__name__)

FILES_PATH = "/v1/files"
PURPOSE = "batch"
"""Of what clients upload."""
MAX_PAGE = 10_000
MAX_FILENAME_LENGTH = 255
MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS = 3600, 30 * 86400
_MAX_FIELD_BYTES = 4096
_FORM_BYTES = 64 * 1024
"""Of a form besides its file, at most."""

Events = AsyncIterator[PartBegin | bytes | PartEnd]


async def answer(
    keeper: FileKeeper,
    method: str,
    rest: str,
    query: str,
    headers: Mapping[bytes, bytes],
    client: Client,
    body_timeout: float,
) -> None:
    """`rest`: the path below `/v1/files`, without a slash before it. `body_timeout`: longest wait for more of an
    upload. Raises OpenAIError."""
    file_id, _, action = rest.partition("/")
    owner = client.name or ""
    try:
        match method, bool(file_id), action:
            case "POST", False, "":
                with suppress(ClientGone):
                    row = await _upload(keeper, owner, headers, client, body_timeout)
                    await client.reply(200, msgspec.json.encode(shown(row)))
            case "GET", False, "":
                await client.reply(200, msgspec.json.encode(await _listed(keeper, owner, query)))
            case "GET", True, "":
                await client.reply(200, msgspec.json.encode(shown(await keeper.table.get(owner, file_id))))
            case "GET", True, "content":
                await send(keeper.blobs, await keeper.table.get(owner, file_id), client)
            case "DELETE", True, "":
                await keeper.delete(owner, file_id)
                await client.reply(200, msgspec.json.encode({"id": file_id, "object": "file", "deleted": True}))
            case _:
                allowed = {(True, "content"): "GET", (True, ""): "GET, DELETE"}.get(
                    (bool(file_id), action), "GET, POST"
                )
                raise method_not_allowed(method, f"{FILES_PATH}/{rest}".rstrip("/"), allowed)
    except NotStored as error:
        raise file_not_found(error) from error
    except (StoreError, BlobError) as error:
        raise unreachable(error) from error


def shown(row: FileRow) -> Json:
    """The file as clients know it."""
    return {
        "id": row.id, "object": "file", "bytes": row.num_bytes, "created_at": int(row.created_at),
        "expires_at": int(row.expires_at), "filename": row.filename, "purpose": row.purpose, "status": "processed",
        "status_details": None,
    }  # fmt: skip


async def _listed(keeper: FileKeeper, owner: str, query: str) -> Json:
    page = page_of(query, default_limit=MAX_PAGE, max_limit=MAX_PAGE)
    purpose = parse_qs(query).get("purpose", [None])[-1]
    try:
        rows = await keeper.table.page(owner, page, purpose)
    except NotStored as error:
        raise bad_request(f"after: there is no file {error.id!r}", param="after") from error
    return page_json([shown(row) for row in rows[: page.limit]], has_more=len(rows) > page.limit)


async def send(blobs: Blobs, row: FileRow, client: Client, content_type: bytes = b"application/octet-stream") -> None:
    """A file's bytes as the answer. Raises BlobError where nothing was sent yet."""
    await client.read_nothing()
    with suppress(ClientGone):
        async with client.watch, aclosing(blobs.read(row.id)) as pieces:
            first = await anext(pieces, b"")  # an error is told while it can be
            length = str(row.num_bytes).encode()
            await client.start(200, [(b"content-type", content_type), (b"content-length", length)])
            try:
                await client.write(first)
                async for piece in pieces:
                    await client.write(piece)
            except BlobError as error:  # which only a cut connection can tell now
                logger.warning("the file %s is cut off: %s", row.id, error)
                raise ClientGone from error
            await client.finish()


async def _upload(
    keeper: FileKeeper, owner: str, headers: Mapping[bytes, bytes], client: Client, timeout: float
) -> FileRow:
    """Raises OpenAIError, ClientGone, StoreError and BlobError."""
    room = await keeper.room(owner)
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > room + _FORM_BYTES:
        raise _too_large(room)
    row, fields = None, {}
    try:
        form = FormStream(headers.get(b"content-type", b"").decode("latin-1"))
        async with aclosing(_events(form, client.pieces(headers, timeout))) as events:
            async for event in events:
                match event:
                    case PartBegin(name="file", filename=str(filename)) if row is None:
                        if not 0 < len(filename) <= MAX_FILENAME_LENGTH:
                            limits = f"1 to {MAX_FILENAME_LENGTH} characters"
                            raise bad_request(f"file: its name must have {limits}", param="file")
                        row = await keeper.put(owner, PURPOSE, filename, _file(events, room))
                    case PartBegin(name=name):
                        fields[name] = await _value(name, events)
        purpose, seconds = fields.get("purpose"), _expiry(fields)
        if purpose != PURPOSE:
            given = "it is missing" if purpose is None else f"not {purpose[:40]!r}"
            raise bad_request(f"purpose: must be {PURPOSE!r}, {given}", param="purpose")
        if row is None:
            raise bad_request("file: the form has no file by this name; send one with a filename", param="file")
        if seconds is not None:
            row = replace(row, expires_at=row.created_at + seconds)
        await keeper.publish(row)
        return row
    except BaseException as error:
        if row is not None:
            await keeper.drop(row.id)
        if isinstance(error, ValueError):
            message = str(error)
            raise bad_request(f"{message[:1].upper()}{message[1:]}.", code="invalid_form") from error
        raise


async def _events(form: FormStream, pieces: AsyncIterator[bytes]) -> AsyncGenerator[PartBegin | bytes | PartEnd]:
    async for piece in pieces:
        for event in form.feed(piece):
            yield event
    form.close()


async def _file(events: Events, room: int) -> AsyncIterator[bytes]:
    """The bytes of the field that has begun. Raises OpenAIError above `room` of them."""
    num_bytes = 0
    async for event in events:
        if not isinstance(event, bytes):
            break
        num_bytes += len(event)
        if num_bytes > room:
            raise _too_large(room)
        yield event
    if not num_bytes:
        raise bad_request("file: it is empty; send a line for each request", param="file")


async def _value(name: str, events: Events) -> str:
    value = b""
    async for event in events:
        if not isinstance(event, bytes):
            break
        value += event
        if len(value) > _MAX_FIELD_BYTES:
            raise bad_request(f"{name[:40]}: it has more than {_MAX_FIELD_BYTES} bytes", param=name[:40])
    return value.decode("utf-8", "replace")


def _expiry(fields: Mapping[str, str]) -> float | None:
    """Seconds; None = the form does not say."""
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise bad_request("expires_after.anchor: must be 'created_at'", param="expires_after.anchor")
    if seconds is None or not seconds.isdigit() or not MIN_EXPIRY_SECONDS <= int(seconds) <= MAX_EXPIRY_SECONDS:
        limits = f"from {MIN_EXPIRY_SECONDS} to {MAX_EXPIRY_SECONDS}"
        raise bad_request(f"expires_after.seconds: must be a number {limits}", param="expires_after.seconds")
    return float(seconds)


def _too_large(room: int) -> OpenAIError:
    message = f"file: it is larger than the {room} bytes that this gateway takes; split it"
    return OpenAIError(413, message, param="file", code="file_too_large")
