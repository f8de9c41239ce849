"""One HTTP request and its answer on raw ASGI: the body, JSON or an event stream, a client that leaves, one log line.

Raw ASGI keeps a stream's cost per token small; routing and the control endpoints are FastAPI's. `Answering`, the
outermost layer of the application, gives each request its `Exchange`: errors of endpoints become answers here alone.
Knows HTTP, nothing of models.
"""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairlead_common.http.bodies import BodyError, BodyFault, BodyReader, HeldBody
from fairlead_common.http.server import STREAM_WRITER, StreamWriter
from fairlead_common.openai.budget import OverBudget
from fairlead_common.openai.prompts import PromptError
from fairlead_common.openai.translate import translation_of
from fairlead_common.openai.translate.chat_answers import EVENT_STREAM
from fairlead_common.openai.unknown_fields import UnknownFields
from fairlead_common.wire.messages import HEADER_REQUEST_ID
from fairlead_engine.errors import EngineError, QueueFull, RequestError
from fairlead_engine.host import refusals

log = logging.getLogger(__name__)
request_log = logging.getLogger("fairlead_engine.request")

Result = TypeVar("Result")

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_STREAM_HEADERS = {"content-type": EVENT_STREAM, "cache-control": "no-cache"}
_CLIENT_CLOSED_REQUEST = 499
"""Status in the log if the client left before a status was sent."""


class ClientDisconnected(Exception):
    """The client went away before the answer was complete."""


class Events(NamedTuple):
    """Some of an answer's server-sent events, encoded."""

    body: bytes
    are_last: bool = False
    """Whether the answer ends here: its end is then written with the events."""


class Exchange:
    """A request being answered. Handlers add fields of its log line to `facts`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, bodies: BodyReader) -> None:
        self.scope = scope
        self.facts: dict[str, Any] = {}
        self.outcome = refusals.Outcome.OK
        self.started_at = time.perf_counter()
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = self.headers.get(HEADER_REQUEST_ID, "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        self.translation = translation_of(scope["path"], dict(scope["headers"]), scope.get("query_string", b""))
        """Translation of request and answer; None = the client speaks OpenAI's API."""
        self.status: int | None = None
        self._receive = receive
        self._send = send
        self._bodies = bodies
        self.held = HeldBody(bodies)
        """Memory of the request's body, released once its content is counted elsewhere."""
        self.writer: StreamWriter | None = scope.get("extensions", {}).get(STREAM_WRITER)
        """Writes parts of a begun answer past ASGI; None = the server cannot, or events are translated."""
        if self.translation is not None:
            self.writer = None
        self._translated: bytes | None = None
        """The body in the OpenAI form, translated and not asked for yet."""
        self._is_complete = False

    async def body(self) -> bytes:
        """The request body, which counts among all bodies until `held` is released. Raises `StatusError` for a body
        that is compressed, slow, or too large (as early as the headers show it), `QueueFull` if all bodies together are
        too large, and `ClientDisconnected`."""
        if self._translated is not None:
            body, self._translated = self._translated, None
            return body
        encoding = self.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            problem = f"the request body has content-encoding {encoding!r}; send it as plain JSON"
            raise refusals.StatusError(415, problem, "unsupported_content_encoding")
        try:
            return await self._bodies.read(self.headers.get("content-length", ""), self._receive, self.held)
        except BodyError as error:
            match error.fault:
                case BodyFault.CLIENT_GONE:
                    raise ClientDisconnected from error
                case BodyFault.TOO_LARGE:
                    problem, outcome = f"is larger than {self._bodies.limit} bytes", refusals.Outcome.TOO_LARGE
                    raise refusals.StatusError(
                        413, f"the request body {problem}", "request_too_large", outcome=outcome
                    ) from error
                case BodyFault.TOO_SLOW:
                    problem, outcome = f"did not arrive within {self._bodies.timeout:g} s", refusals.Outcome.TOO_SLOW
                    close = {"connection": "close"}  # or the body's rest would be read as a request
                    raise refusals.StatusError(
                        408, f"the request body {problem}", "request_timeout", outcome=outcome, headers=close
                    ) from error
                case BodyFault.TOO_MANY:
                    message = "this engine is receiving more request bodies at once than it has memory for"
                    raise QueueFull(message) from error

    def translate(self, body: bytes, unknown: UnknownFields) -> str:
        """The path of the request in the OpenAI form; the next `body()` is its body in this form. `unknown`: decodes
        `body`. Raises `RequestError`, naming the client's own field."""
        assert self.translation is not None
        try:
            path, self._translated = self.translation.request(body, unknown)
        except PromptError as error:
            raise RequestError(error.field or None, error.message, error.code) from error
        except OverBudget as error:
            raise RequestError(None, str(error), "request_too_complex") from error
        return path

    async def send_json(self, body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Answers with encoded JSON, translated for this client."""
        if self.translation is not None:
            status, body = self.translation.answer(status, body, self.request_id)
            headers = {**self._own_headers(), **(headers or {})}
        await self.send_body(body, "application/json", status=status, headers=headers)

    async def send_body(
        self, body: bytes, content_type: str, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        fields = {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}
        await self._start(status, fields)
        await self._finish(body)

    async def send_events(self, events: AsyncIterable[Events], *, headers: Mapping[str, str] | None = None) -> None:
        """Answers with server-sent events as they come. An error in the middle becomes a last event with OpenAI's error
        object, without `[DONE]`."""
        own = self._own_headers()
        if self.translation is not None:
            own["content-type"] = self.translation.stream_type
        await self._start(200, {**_STREAM_HEADERS, **own, **(headers or {})})
        try:
            async for chunk in events:
                body = self._told(chunk.body)
                if chunk.are_last:
                    await self._finish(body)
                elif body:
                    await self._send({"type": "http.response.body", "body": body, "more_body": True})
        except Exception as error:
            answer = self._refused(error)
            await self._finish(self._told(b"data: " + answer.body() + b"\n\n"))

    async def send_stream(self, chunks: AsyncIterable[bytes], content_type: str) -> None:
        """Answers with chunks as they come, and closes the connection after the last one."""
        await self._start(200, {"content-type": content_type, "cache-control": "no-cache", "connection": "close"})
        async for chunk in chunks:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._finish(b"")

    async def send(self, message: Message) -> None:
        """ASGI's `send` for other answers: notes the status and adds the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            request_id = (HEADER_REQUEST_ID.encode(), self.request_id.encode())
            message = {**message, "headers": [request_id, *message["headers"]]}
        await self._send(message)

    async def while_connected(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`, which is cancelled at once if the client leaves. Call after reading the body."""
        worker = asyncio.ensure_future(work)
        watcher = asyncio.ensure_future(left(self._receive))
        try:
            await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if not worker.done() and not self._is_complete:
                raise ClientDisconnected
            return await worker
        finally:
            for task in (worker, watcher):
                task.cancel()
            await asyncio.gather(worker, watcher, return_exceptions=True)
            # An error, its traceback and its task would hold one another: garbage to look for.
            del worker, watcher, task

    async def answer(self, work: Awaitable[None]) -> None:
        """Awaits `work`, and turns an error into an answer."""
        try:
            await work
        except ClientDisconnected:
            self.outcome = refusals.Outcome.DISCONNECTED
        except Exception as error:
            answer = self._refused(error)
            if self.status is None:
                await self.send_json(answer.body(), status=answer.status, headers=answer.headers)

    def log_line(self) -> None:
        """Writes the request's one line."""
        seconds = time.perf_counter() - self.started_at
        fields = {
            "request_id": self.request_id,
            "method": self.scope["method"],
            "path": self.scope["path"],
            "status": self.status or _CLIENT_CLOSED_REQUEST,
            "outcome": self.outcome,
            "duration_seconds": round(seconds, 6),
            **self.facts,
        }
        request_log.info("request", extra=fields)

    def _refused(self, error: Exception) -> refusals.Refusal:
        answer = refusals.refusal(error)
        self.outcome = answer.outcome
        self.facts["error"] = answer.message
        if not isinstance(error, EngineError):
            log.error("request failed", extra={"request_id": self.request_id}, exc_info=error)
        return answer

    def _own_headers(self) -> dict[str, str]:
        """Of the client's dialect. The id of a request has this name in Anthropic's API."""
        return {} if self.translation is None else {"request-id": self.request_id}

    def _told(self, events: bytes) -> bytes:
        """Events in the client's dialect."""
        return events if self.translation is None else self.translation.events(events)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

    async def _finish(self, body: bytes) -> None:
        self._is_complete = True  # servers report a disconnect after a complete answer as well
        await self._send({"type": "http.response.body", "body": body})


async def left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class StructResponse(Response):
    """JSON of a struct."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


Handler = Callable[[Exchange], Awaitable[None]]
EXCHANGE = "fairlead_engine.exchange"
"""Key of the `Exchange` in an ASGI scope."""
_QUIET_PATHS = frozenset({"/health", "/ping", "/ready", "/metrics"})
"""Polled every few seconds by machines: logged only when refused."""


@dataclass(frozen=True, slots=True)
class Answering:
    """ASGI middleware that gives every request an `Exchange`. A HEAD is routed as a GET."""

    app: ASGIApp
    bodies: BodyReader
    answered: Callable[[refusals.Outcome], object]
    """Called with each request's outcome."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self.bodies)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        routed = {**scope, "method": method, EXCHANGE: exchange}
        try:
            await exchange.answer(self.app(routed, receive, exchange.send))
        finally:
            exchange.held.release()
            self.answered(exchange.outcome)
            if exchange.outcome is not refusals.Outcome.OK or scope["path"] not in _QUIET_PATHS:
                exchange.log_line()


@dataclass(frozen=True, slots=True)
class RawEndpoint:
    """A handler as an ASGI application, which answers through the exchange, past FastAPI's layers."""

    handler: Handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.handler(scope[EXCHANGE])


async def refuse(request: Request, error: Exception) -> Response:
    """FastAPI's handler of its router's errors: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    if error.status_code != HTTPStatus.METHOD_NOT_ALLOWED:
        problem = f"there is nothing at {request.scope['path']}; /openapi.json lists what there is, such as "
        raise refusals.NotFound(None, problem + "/v1/chat/completions", "not_found")
    allowed = (error.headers or {})["Allow"]
    raise refusals.method_not_allowed(request.method, "GET, HEAD" if "GET" in allowed else allowed)
