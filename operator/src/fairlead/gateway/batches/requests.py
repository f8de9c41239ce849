"""`/v1/batches`: what clients ask."""

import re
import secrets
import time
from typing import Annotated, Literal

import msgspec

from fairlead.gateway.batches.batch import ENDED, ENDPOINTS, BatchApi, BatchRow, BatchStatus, shown
from fairlead.gateway.batches.runner import BatchRunner
from fairlead.gateway.files.keeper import unreachable
from fairlead.gateway.files.requests import MAX_EXPIRY_SECONDS, MIN_EXPIRY_SECONDS, PURPOSE
from fairlead.gateway.openai.errors import OpenAIError, bad_request, method_not_allowed
from fairlead.gateway.openai.parse import UNREADABLE
from fairlead.gateway.openai.query import page_json, page_of
from fairlead.gateway.request_client import Client
from fairlead.gateway.stored.errors import Json, NotStored, StoreError

BATCHES_PATH = "/v1/batches"
MAX_PAGE = 100
MAX_ACTIVE = 100
"""Batches of one owner that have not ended; one more is answered 429."""
MAX_WINDOW_SECONDS = 7 * 86400
_WINDOW = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Name = Annotated[str, msgspec.Meta(max_length=64)]
Value = Annotated[str, msgspec.Meta(max_length=512)]


class _Expiry(msgspec.Struct):
    anchor: Literal["created_at"]
    seconds: Annotated[int, msgspec.Meta(ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS)]


class _Asked(msgspec.Struct):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Annotated[dict[Name, Value], msgspec.Meta(max_length=16)] | None = None
    output_expires_after: _Expiry | None = None


async def answer(runner: BatchRunner, method: str, rest: str, query: str, body: bytes, client: Client) -> None:
    """`rest`: the path below `/v1/batches`, without a slash before it. Raises OpenAIError."""
    batch_id, _, action = rest.partition("/")
    owner = client.name or ""
    try:
        if batch_id and not batch_id.startswith(BatchApi.OPENAI):
            raise NotStored(batch_id)
        match method, bool(batch_id), action:
            case "POST", False, "":
                told: Json = shown(await _create(runner, owner, body))
            case "GET", False, "":
                told = await _listed(runner, owner, query)
            case "GET", True, "":
                told = shown(await runner.table.get(owner, batch_id))
            case "POST", True, "cancel":
                told = shown(await _cancel(runner, owner, batch_id))
            case _:
                allowed = ("POST" if action == "cancel" else "GET") if batch_id else "GET, POST"
                raise method_not_allowed(method, f"{BATCHES_PATH}/{rest}".rstrip("/"), allowed)
    except NotStored as error:
        message = f"No batch found with id {error.id!r}."
        raise OpenAIError(404, message, param="batch_id", code="batch_not_found") from error
    except StoreError as error:
        raise unreachable(error) from error
    await client.reply(200, msgspec.json.encode(told))


async def _create(runner: BatchRunner, owner: str, body: bytes) -> BatchRow:
    asked = _read(body)
    if asked.endpoint not in ENDPOINTS:
        raise bad_request(f"endpoint: must be one of {', '.join(ENDPOINTS)}", param="endpoint")
    found = _WINDOW.fullmatch(asked.completion_window)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 0 < seconds <= MAX_WINDOW_SECONDS:
        raise bad_request("completion_window: must be a time such as '24h', at most '7d'", param="completion_window")
    try:
        file = await runner.files.table.get(owner, asked.input_file_id)
    except NotStored as error:
        raise bad_request(f"input_file_id: there is no file {error.id!r}", param="input_file_id") from error
    if file.purpose != PURPOSE:
        raise bad_request(f"input_file_id: the file is for {file.purpose!r}, not {PURPOSE!r}", param="input_file_id")
    now, expiry = time.time(), asked.output_expires_after
    row = BatchRow(
        id=f"{BatchApi.OPENAI}{secrets.token_hex(16)}",
        owner=owner,
        endpoint=asked.endpoint,
        input_file_id=file.id,
        completion_window=asked.completion_window,
        metadata=None if asked.metadata is None else msgspec.json.encode(asked.metadata).decode(),
        output_seconds=None if expiry is None else float(expiry.seconds),
        created_at=now,
        expires_at=now + seconds,
    )
    await runner.files.table.keep([file.id], row.expires_at + 86400)
    await create(runner, row)
    return row


async def create(runner: BatchRunner, row: BatchRow) -> None:
    """Begins it. Raises OpenAIError where the owner has too many, and StoreError."""
    if not await runner.table.create(row, MAX_ACTIVE):
        message = f"{MAX_ACTIVE} batches of yours have not ended; wait for one, or cancel one."
        raise OpenAIError(429, message, code="too_many_batches", retry_after=30)
    runner.nudge()


def _read(body: bytes) -> _Asked:
    try:
        return msgspec.json.decode(body, type=_Asked)
    except msgspec.ValidationError as error:
        message = str(error)
        found = re.search(r"field `(\w+)`|`\$\.(\w+)", message)
        param = (found[1] or found[2]) if found else None
        raise bad_request(f"{param or 'body'}: {message}", param=param) from error
    except UNREADABLE as error:
        raise bad_request(f"The request body is not valid JSON: {error}.", code="invalid_json") from error


async def _listed(runner: BatchRunner, owner: str, query: str) -> Json:
    page = page_of(query, default_limit=20, max_limit=MAX_PAGE)
    try:
        rows = await runner.table.page(owner, BatchApi.OPENAI, page)
    except NotStored as error:
        raise bad_request(f"after: there is no batch {error.id!r}", param="after") from error
    return page_json([shown(row) for row in rows[: page.limit]], has_more=len(rows) > page.limit)


async def _cancel(runner: BatchRunner, owner: str, batch_id: str) -> BatchRow:
    row = await runner.table.cancel(owner, batch_id)
    if row.status in ENDED or row.status == BatchStatus.FINALIZING:
        message = f"Cannot cancel a batch with status '{row.status}'."
        raise OpenAIError(409, message, code="batch_not_cancellable")
    runner.nudge()
    return row
