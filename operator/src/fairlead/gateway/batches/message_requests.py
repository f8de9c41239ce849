"""`/v1/messages/batches`: what Anthropic's clients ask. A message batch is a stored batch whose lines come in the
request's body; the results are one file."""

import re
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from urllib.parse import parse_qs

import msgspec

from fairlead.gateway.batches.batch import ENDED, BatchApi, BatchRow, BatchStatus
from fairlead.gateway.batches.lines import LineError, RawLine, read_line
from fairlead.gateway.batches.request_cutter import RequestCutter
from fairlead.gateway.batches.requests import create
from fairlead.gateway.batches.runner import BatchRunner
from fairlead.gateway.files.blobs import BlobError
from fairlead.gateway.files.keeper import unreachable
from fairlead.gateway.files.requests import PURPOSE, send
from fairlead.gateway.openai.errors import OpenAIError, bad_request, body_refusal, method_not_allowed
from fairlead.gateway.openai.parse import UNREADABLE
from fairlead.gateway.openai.query import ListQuery, number_in
from fairlead.gateway.request_client import Client, ClientGone
from fairlead.gateway.stored.errors import Json, NotStored, StoreError
from fairlead_common.http.bodies import BodyFault, BodyReader, HeldBody
from fairlead_common.openai.translate.messages import MESSAGE_BATCHES_PATH
from fairlead_common.openai.translate.messages_answers import MESSAGES_PATH

MAX_REQUESTS = 100_000
MAX_BYTES = 256 * 2**20
"""Of all requests of a batch; a smaller `max_file_bytes` goes before."""
MAX_PAGE = 1000
WINDOW_SECONDS = 86400.0
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAME_BYTES = 150
"""Memory of one custom_id, about."""
_METHODS = {"": "GET, DELETE", "results": "GET", "cancel": "POST"}


class _Request(msgspec.Struct):
    custom_id: str
    params: msgspec.Raw


_requests = msgspec.json.Decoder(_Request)


class Upload:
    """The body of a new batch, from the client."""

    def __init__(self, headers: Mapping[bytes, bytes], client: Client, bodies: BodyReader, held: HeldBody) -> None:
        """`bodies`: says the most bytes of a request, and the longest wait for more. `held`: counts this body's
        memory."""
        self._headers, self._client, self._bodies, self._held = headers, client, bodies, held
        self._names: set[str] = set()

    @property
    def num_requests(self) -> int:
        """That have come."""
        return len(self._names)

    async def lines(self, room: int) -> AsyncGenerator[bytes]:
        """A line of a batch's file for each request. `room`: their bytes at most. Raises OpenAIError and ClientGone."""
        declared = self._headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > room:
            raise _too_large(room)
        cutter, num_bytes = RequestCutter(self._bodies.limit), 0
        try:
            async for piece in self._client.pieces(self._headers, self._bodies.timeout):
                for request in cutter.feed(piece):
                    line = self._line(request)
                    num_bytes += len(line)
                    if num_bytes > room:
                        raise _too_large(room)
                    yield line
                self._held.grown(cutter.num_bytes + _NAME_BYTES * len(self._names))
                if self._bodies.is_full:
                    raise body_refusal(BodyFault.TOO_MANY, self._bodies)
            cutter.close()
        except ValueError as error:
            raise bad_request(str(error)) from error

    def _line(self, data: bytes) -> bytes:
        """Raises OpenAIError."""
        place = f"requests.{len(self._names)}"
        if len(self._names) >= MAX_REQUESTS:
            raise bad_request(f"requests: there are more than {MAX_REQUESTS}; send several batches", param="requests")
        try:
            request = _requests.decode(data)
        except UNREADABLE as error:
            raise bad_request(f"{place}: {error}; send custom_id and params", param=place) from error
        name, field = request.custom_id, f"{place}.custom_id"
        if _CUSTOM_ID.fullmatch(name) is None:
            raise bad_request(f"{field}: must have 1 to 64 letters, digits, '_' or '-'", param=field)
        if name in self._names:
            raise bad_request(f"{field}: {name!r} is that of another request; name each once", param=field)
        params = bytes(request.params).replace(b"\n", b" ").replace(b"\r", b" ")  # line ends are between values alone
        asked = {"custom_id": name, "method": "POST", "url": MESSAGES_PATH, "body": msgspec.Raw(params)}
        line = msgspec.json.encode(asked)
        most = self._bodies.limit
        try:
            read_line(RawLine(0, line if len(line) <= most else None), MESSAGES_PATH, most)
        except LineError as error:
            field = f"{place}.{(error.param or 'body').replace('body', 'params', 1)}"
            problem = error.message.removeprefix(f"{error.param}: ")
            raise bad_request(f"{field}: {problem}", param=field) from error
        self._names.add(name)
        return line + b"\n"


async def answer(runner: BatchRunner, method: str, rest: str, query: str, upload: Upload, client: Client) -> None:
    """`rest`: the path below `/v1/messages/batches`, without a slash before it. Raises OpenAIError."""
    batch_id, _, action = rest.partition("/")
    owner = client.name or ""
    try:
        if batch_id and not batch_id.startswith(BatchApi.MESSAGES):
            raise NotStored(batch_id)
        match method, bool(batch_id), action:
            case "POST", False, "":
                with suppress(ClientGone):
                    await _reply(client, shown(await _create(runner, owner, upload)))
            case "GET", False, "":
                await _reply(client, await _listed(runner, owner, query))
            case "GET", True, "":
                await _reply(client, shown(await runner.table.get(owner, batch_id)))
            case "POST", True, "cancel":
                await _reply(client, shown(await _cancel(runner, owner, batch_id)))
            case "GET", True, "results":
                await _results(runner, await runner.table.get(owner, batch_id), client)
            case "DELETE", True, "":
                await _delete(runner, await runner.table.get(owner, batch_id))
                await _reply(client, {"id": batch_id, "type": "message_batch_deleted"})
            case _:
                allowed = _METHODS.get(action, "GET, POST, DELETE") if batch_id else "GET, POST"
                raise method_not_allowed(method, f"{MESSAGE_BATCHES_PATH}/{rest}".rstrip("/"), allowed)
    except NotStored as error:
        raise OpenAIError(404, f"No message batch found with id {error.id!r}.") from error
    except (StoreError, BlobError) as error:
        raise unreachable(error) from error


def shown(row: BatchRow) -> Json:
    """The batch as Anthropic's clients know a batch. `results_url` is a path: clients put the address before the path
    where they send their key."""
    has_ended, unanswered = row.status in ENDED, row.total - row.completed - row.failed
    is_cancelled = row.status == BatchStatus.CANCELLED
    counts = {
        "processing": 0,
        "succeeded": row.completed,
        "errored": row.failed,
        "canceled": unanswered if is_cancelled else 0,
        "expired": 0 if is_cancelled else unanswered,
    }
    before = dict.fromkeys(counts, 0) | {"processing": row.total}
    ended_at = row.completed_at or row.expired_at or row.cancelled_at or row.failed_at
    status = "ended" if has_ended else "canceling" if row.status == BatchStatus.CANCELLING else "in_progress"
    return {
        "id": row.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": counts if has_ended else before,
        "created_at": _time(row.created_at),
        "expires_at": _time(row.expires_at),
        "ended_at": _time(ended_at),
        "cancel_initiated_at": _time(row.cancelling_at),
        "archived_at": None,
        "results_url": f"{MESSAGE_BATCHES_PATH}/{row.id}/results" if has_ended else None,
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


async def _reply(client: Client, told: Json) -> None:
    await client.reply(200, msgspec.json.encode(told))


async def _create(runner: BatchRunner, owner: str, upload: Upload) -> BatchRow:
    batch_id = f"{BatchApi.MESSAGES}{secrets.token_hex(16)}"
    room = min(await runner.files.room(owner), MAX_BYTES)
    async with aclosing(upload.lines(room)) as lines:
        file = await runner.files.put(owner, PURPOSE, f"{batch_id}_requests.jsonl", lines)
    try:
        await runner.files.publish(file)
        now = time.time()
        row = BatchRow(
            id=batch_id,
            owner=owner,
            endpoint=MESSAGES_PATH,
            input_file_id=file.id,
            completion_window="24h",
            metadata=None,
            output_seconds=None,
            created_at=now,
            expires_at=now + WINDOW_SECONDS,
            status=BatchStatus.IN_PROGRESS,
            total=upload.num_requests,
            in_progress_at=now,
        )
        await runner.files.table.keep([file.id], row.expires_at + 86400)
        await create(runner, row)
    except OpenAIError:
        await runner.files.drop(file.id)
        raise
    return row


async def _listed(runner: BatchRunner, owner: str, query: str) -> Json:
    asked = parse_qs(query)
    limit = number_in(asked, "limit", 20, lambda number: 1 <= number <= MAX_PAGE, f"from 1 to {MAX_PAGE}")
    after, before = (asked.get(name, [None])[-1] for name in ("after_id", "before_id"))
    if after is not None and before is not None:
        raise bad_request("before_id: leave it out, or leave out after_id", param="before_id")
    page = ListQuery(limit, is_newest_first=True, after=after, before=before)
    try:
        rows = await runner.table.page(owner, BatchApi.MESSAGES, page)
    except NotStored as error:
        field = "before_id" if after is None else "after_id"
        raise bad_request(f"{field}: there is no message batch {error.id!r}", param=field) from error
    data = [shown(row) for row in rows[:limit]]
    if before is not None:
        data.reverse()
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"data": data, **ends, "has_more": len(rows) > limit}


async def _cancel(runner: BatchRunner, owner: str, batch_id: str) -> BatchRow:
    row = await runner.table.cancel(owner, batch_id)
    if row.status in ENDED:
        raise bad_request(f"The message batch {batch_id} has ended; it cannot be canceled.")
    runner.nudge()
    return row


async def _results(runner: BatchRunner, row: BatchRow, client: Client) -> None:
    if row.status not in ENDED:
        raise OpenAIError(404, f"The message batch {row.id} has not ended; it has results then.")
    try:
        file = await runner.files.table.get(row.owner, row.output_file_id or "")
    except NotStored as error:
        raise OpenAIError(404, f"The results of {row.id} were deleted, or are too old.") from error
    await send(runner.files.blobs, file, client, b"application/x-jsonl")


async def _delete(runner: BatchRunner, row: BatchRow) -> None:
    """Files first, so that a client can try again."""
    if row.status not in ENDED:
        raise bad_request(f"The message batch {row.id} has not ended; cancel it first.")
    for file_id in (row.input_file_id, row.output_file_id):
        if file_id is not None:
            await runner.files.drop(file_id)
    await runner.table.delete(row.owner, row.id)


def _too_large(room: int) -> OpenAIError:
    message = f"requests: they are larger than the {room} bytes that this gateway takes; send several batches"
    return OpenAIError(413, message, param="requests", code="request_too_large")
