"""The keeper: which responses are stored, where earlier turns come from, and the running ones.

A response in the foreground is stored before its client has the end of it; a background response runs as a task of this
gateway, which renews its claim every few seconds (`ResponseStore.touch`) and hears of cancelling there.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from fairlead.gateway.openai.errors import OpenAIError, RequestOutcome, bad_request
from fairlead.gateway.request_client import Client, Message
from fairlead.gateway.stored.errors import RUNNING, Json, NotStored, StoreError
from fairlead.gateway.stored.event_log import EventLog
from fairlead_common.openai.budget import MAX_MESSAGES
from fairlead_common.openai.translate.responses import Kept, behind_summary
from fairlead_common.openai.translate.responses_answers import Responses

if TYPE_CHECKING:
    from fairlead.gateway.stored.store import ResponseStore

logger = logging.getLogger(__name__)

TOUCH_SECONDS = 5.0
EXPIRE_SECONDS = 600.0
MAX_BACKGROUND = 1000
"""Responses in the background of one gateway; one more is answered 429."""
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_MAX_ID_LENGTH = 200
_STALL_SECONDS = 3600.0
"""No limit: nobody reads what is written in the background."""


class StorableRequest(msgspec.Struct):
    """What of a request decides whether and how it is stored."""

    input: str | list[Json] | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    previous_response_id: str | None = None


class StoredTurn:
    """A stored response, or a response to a stored conversation."""

    def __init__(
        self, store: "ResponseStore", owner: str, asked: StorableRequest, kept: Kept, given: list[Json]
    ) -> None:
        self._store, self._owner, self._given = store, owner, given
        self._kept = kept
        self._asked = asked
        self.translation = Responses(kept)
        self._is_stored = False
        """Whether the response has a row with a running state."""

    @property
    def id(self) -> str:
        return self._kept.id

    @property
    def is_in_background(self) -> bool:
        return bool(self._asked.background)

    @property
    def is_streamed(self) -> bool:
        return bool(self._asked.stream)

    async def begin(self, status: str) -> Json:
        """The response as it begins. `status`: in_progress or queued. Raises OpenAIError where it has to be stored and
        cannot be."""
        begun = self.translation.begun() | {"status": status}
        if not self._kept.is_stored:
            return begun
        try:
            is_logged = self.is_in_background and self.is_streamed
            await self._store.begin(self._owner, begun, self._given, is_logged=is_logged)
            self._is_stored = True
        except StoreError as error:
            if self._asked.store or self._asked.background:
                raise unreachable(error) from error
            logger.warning("a response is not stored: %s", error)
            self._kept.is_stored = False  # nobody asked for it by name
        except NotStored as error:
            raise previous_not_found(error.id) from error
        return begun

    async def keep(self) -> None:
        """Called before each write to the client: stores the response when it has ended."""
        if self._is_stored and (ended := self.translation.ended) is not None:
            self._is_stored = False
            await self._end(ended)

    async def left(self, error: Json | None, *, begun: bool) -> None:
        """There is no end of it. `error`: why it failed; None = it was cancelled. `begun`: whether anybody knows its
        id; otherwise nothing stays."""
        if not self._is_stored:
            return
        self._is_stored = False
        if begun:
            status = "cancelled" if error is None else "failed"
            await self._end(self.translation.begun() | {"status": status, "error": error})
            return
        try:
            await self._store.delete(self._owner, self.id)
        except (StoreError, NotStored) as problem:
            logger.warning("the response %s stays in the store: %s", self.id, problem)

    async def _end(self, response: Json) -> None:
        try:
            await self._store.end(response)
        except StoreError as error:
            logger.error("the response %s was not stored: %s", self.id, error)


class Keeper:
    """Of one gateway."""

    def __init__(self, store: "ResponseStore", max_bytes: int) -> None:
        """`max_bytes`: of JSON of the turns before a request."""
        self.store = store
        self._max_bytes = max_bytes
        self._running: dict[str, asyncio.Task[None]] = {}
        """Responses in the background, by id."""
        self._logs: dict[str, EventLog] = {}
        """Of those that are streamed."""
        self._foreground: set[str] = set()

    async def turn(self, body: bytes, owner: str) -> tuple[StoredTurn | None, bytes]:
        """How a request is stored, and its body with what it refers to. None = not at all, or the translation refuses
        it. Raises OpenAIError."""
        try:
            asked = msgspec.json.decode(body, type=StorableRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None, body
        if asked.background and asked.store is False:
            raise bad_request("background: needs store; leave store out", param="background")
        if asked.store is False and asked.previous_response_id is None:
            return None, body
        try:
            given, is_changed = await self._given(asked.input, owner)
            before: list[Json] = []
            if asked.previous_response_id is not None:
                before = await self._before(asked.previous_response_id, owner)
        except StoreError as error:
            if asked.store is None and not asked.background and asked.previous_response_id is None:
                return None, body
            raise unreachable(error) from error
        kept = Kept(f"resp_{secrets.token_hex(24)}", before, is_stored=asked.store is not False)
        turn = StoredTurn(self.store, owner, asked, kept, given)
        return turn, _with_input(body, given) if is_changed else body

    async def compacted(self, body: bytes, owner: str) -> tuple[Kept | None, bytes]:
        """The stored part of the conversation to compact, and the request's body with the items of its references.
        None = the translation refuses it. Raises OpenAIError."""
        try:
            asked = msgspec.json.decode(body, type=StorableRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None, body
        try:
            given, is_changed = await self._given(asked.input, owner)
            previous = asked.previous_response_id
            kept = Kept("", [] if previous is None else await self._before(previous, owner), is_stored=False)
        except StoreError as error:
            raise unreachable(error) from error
        return kept, _with_input(body, given) if is_changed else body

    async def _given(self, asked: str | list[Json] | None, owner: str) -> tuple[list[Json], bool]:
        """The request's items, each with an id, and whether some were references."""
        if asked is None:
            return [], False
        if isinstance(asked, str):
            return [_as_stored({"id": _new_id("message"), "role": "user", "content": asked})], False
        wanted = {index: item.get("id") for index, item in enumerate(asked) if item.get("type") == "item_reference"}
        found = await self.store.referenced(owner, {str(each) for each in wanted.values()}) if wanted else {}
        given = []
        for index, item in enumerate(asked):
            if index in wanted:
                if (stored := found.get(str(wanted[index]))) is None:
                    raise bad_request(f"Item with id '{wanted[index]}' not found.", param=f"input[{index}].id")
                given.append(stored)
                continue
            item_id = item.get("id") or _new_id(str(item.get("type", "message")))
            if not isinstance(item_id, str) or len(item_id) > _MAX_ID_LENGTH:
                at_most = f"must be a text of at most {_MAX_ID_LENGTH} characters"
                raise bad_request(f"input[{index}].id {at_most}", param=f"input[{index}].id")
            given.append(_as_stored(item | {"id": item_id}))
        return given, bool(wanted)

    async def _before(self, previous: str, owner: str) -> list[Json]:
        field = "previous_response_id"
        try:
            if (status := (await self.store.get(owner, previous))["status"]) in RUNNING:
                raise bad_request(f"{field}: the response is still {status}; wait for its end", param=field)
            items = await self.store.history(owner, previous, with_output=True, max_bytes=self._max_bytes)
            items = behind_summary(items)
        except NotStored as error:
            raise previous_not_found(error.id) from error
        except OverflowError:
            items = [{}] * (MAX_MESSAGES + 1)
        if len(items) > MAX_MESSAGES:
            limits = f"{self._max_bytes} bytes or {MAX_MESSAGES} items"
            raise bad_request(f"{field}: the conversation has more than {limits}; begin a new one", param=field)
        return items

    @asynccontextmanager
    async def foreground(self, turn: StoredTurn, client: Client) -> AsyncIterator[None]:
        """While it is served: the client has the end of it when it is stored. Raises OpenAIError."""
        await turn.begin("in_progress")
        self._foreground.add(turn.id)
        client.before_write = turn.keep
        try:
            yield
        finally:
            client.before_write = None
            self._foreground.discard(turn.id)
            await asyncio.shield(turn.left(None, begun=client.started and client.status < 400))

    async def background(self, turn: StoredTurn, serve: Callable[[Client], Awaitable[None]]) -> Json:
        """Begins it, and returns the response as it is now. Raises OpenAIError."""
        if len(self._running) >= MAX_BACKGROUND:
            message = f"This gateway has {MAX_BACKGROUND} responses in the background; send this one later."
            raise OpenAIError(429, message, code="too_many_requests", retry_after=10)
        begun = await turn.begin("queued")
        task = asyncio.create_task(self._run(turn, serve), name=f"response {turn.id}")
        self._running[turn.id] = task
        task.add_done_callback(lambda _: self._running.pop(turn.id, None))
        return begun

    async def news(self, response_id: str, seconds: float) -> None:
        """Waits until more events of a response are stored here, but at most so long: other gateways' come unseen."""
        log = self._logs.get(response_id)
        if log is None:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(log.grown.wait(), seconds)

    async def history(self, owner: str, response_id: str) -> list[Json]:
        """Items that a response was made of. Raises NotStored, StoreError, and OpenAIError where there are too many."""
        try:
            return await self.store.history(owner, response_id, with_output=False, max_bytes=2 * self._max_bytes)
        except OverflowError:
            raise bad_request(f"The items are more than {2 * self._max_bytes} bytes.") from None

    async def cancel(self, owner: str, response_id: str) -> Json:
        """The response, ended if it ran in the background, here or at another gateway. Raises OpenAIError, NotStored
        and StoreError."""
        if not (await self.store.get(owner, response_id))["background"]:
            raise bad_request("Only responses that were created with background: true can be cancelled.")
        response = await self.store.cancel(owner, response_id)
        if (task := self._running.get(response_id)) is not None:
            task.cancel()
        return response

    async def run(self) -> None:
        """Prepares the database, and then says what runs here and deletes what is old, for ever."""
        while not await self._tried("is not ready", self.store.database.start):
            await asyncio.sleep(TOUCH_SECONDS)
        expired = 0.0
        while True:
            if running := self._foreground | set(self._running):
                await self._tried("does not hear what runs here", lambda: self._touch(running))
            if time.monotonic() - expired > EXPIRE_SECONDS:
                expired = time.monotonic()
                await self._tried("keeps what is old", self._expire)
            await asyncio.sleep(TOUCH_SECONDS)

    async def close(self, seconds: float) -> None:
        """Lets what is in the background take so long, and ends the rest as failed."""
        if self._running:
            logger.info("%d responses in the background may take %.0f more seconds", len(self._running), seconds)
            _, late = await asyncio.wait(self._running.values(), timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _touch(self, running: Collection[str]) -> None:
        for response_id in await self.store.touch(running):
            if (task := self._running.get(response_id)) is not None:
                task.cancel()  # cancelled or deleted at another gateway

    async def _expire(self) -> None:
        while await self.store.expire():
            pass

    async def _tried(self, problem: str, work: Callable[[], Awaitable[object]]) -> bool:
        try:
            await work()
        except StoreError as error:
            logger.warning("the store of responses %s: %s", problem, error)
            return False
        return True

    async def _run(self, turn: StoredTurn, serve: Callable[[Client], Awaitable[None]]) -> None:
        log = EventLog(self.store, turn.id) if turn.is_streamed else None
        unread = _Unread(log)
        client = Client(
            unread.receive, unread.send, request_id=turn.id, stall_timeout=_STALL_SECONDS, translation=turn.translation
        )
        client.before_write = turn.keep
        logging_ = None
        if log is not None:
            self._logs[turn.id] = log
            logging_ = asyncio.create_task(log.run(), name=f"events of {turn.id}")
        try:
            await serve(client)
        finally:
            client.close()
            if log is not None and logging_ is not None:
                logging_.cancel()
                await asyncio.shield(log.flush())
                self._logs.pop(turn.id, None)
            await asyncio.shield(turn.left(unread.error, begun=True))


class _Unread:
    """The connection of a client that is not there: never leaves, and reads a refusal alone."""

    def __init__(self, log: EventLog | None) -> None:
        """`log`: gets the events of a stream."""
        self._log = log
        self._status = 0
        self._body = b""

    async def receive(self) -> Message:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def send(self, message: Message) -> None:
        self._status = message.get("status", self._status)
        if self._status >= 400:
            self._body += message.get("body", b"")
        elif self._log is not None:
            self._log.add(message.get("body", b""))

    @property
    def error(self) -> Json:
        """Of a response that has failed."""
        message = "The answer broke off."
        with suppress(msgspec.DecodeError, KeyError, TypeError):
            message = str(msgspec.json.decode(self._body)["error"]["message"])
        codes = {429: "rate_limit_exceeded", 400: "invalid_prompt"}
        return {"code": codes.get(self._status, "server_error"), "message": message}


def _with_input(body: bytes, given: list[Json]) -> bytes:
    """A request's body with other items."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(fields | {"input": msgspec.Raw(msgspec.json.encode(given))})


def previous_not_found(response_id: str) -> OpenAIError:
    """400, as OpenAI answers."""
    message = f"Previous response with id '{response_id}' not found."
    return bad_request(message, param="previous_response_id", code="previous_response_not_found")


def unreachable(error: StoreError) -> OpenAIError:
    """503."""
    logger.warning("the store of responses does not answer: %s", error)
    message = "The store of responses does not answer; send store: false and the whole conversation, or try again."
    return OpenAIError(503, message, code="store_unavailable", retry_after=5, outcome=RequestOutcome.OVERLOADED)


def _as_stored(item: Json) -> Json:
    """A message in its long form, which listings have; other items as they are."""
    if item.get("type", "message") != "message":
        return item
    content = item.get("content")
    if isinstance(content, str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        content = [{"type": kind, "text": content}]
    return {"type": "message", "status": "completed"} | item | {"content": content}


def _new_id(kind: str) -> str:
    return f"{_PREFIXES.get(kind, 'item')}_{secrets.token_hex(24)}"
