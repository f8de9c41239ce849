"""Passes requests to the server and answers back, counting both.

The gateway's private fields end here: the request's number, and the prompts' token ids, which predict the server's
cache hits.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from fairlead_common.http.client import HttpClient, TimeLimits
from fairlead_common.http.client_connection import AnswerTooLarge, Connection, TransportError, cause_of, request_head
from fairlead_common.openai.budget import OverBudget, check_json
from fairlead_common.openai.tool_forms import CallForms
from fairlead_common.wire import messages
from fairlead_common.wire.blocks import BlockHash, extra_bytes, hash_blocks, num_cacheable_blocks
from fairlead_common.wire.own_paths import FORM_PATHS
from fairlead_engine.errors import EngineDead, EngineError, RequestError
from fairlead_engine.external.chat_calls import StreamedCalls, as_server_takes, with_calls
from fairlead_engine.external.front_service import FrontService
from fairlead_engine.external.passing_requests import PassingRequest
from fairlead_engine.external.server_refusals import (
    BEST_EFFORT,
    error_of,
    in_envelope,
    refused_wishes,
    with_errors_in_envelope,
)
from fairlead_engine.host.exchange import Events, Exchange
from fairlead_engine.host.lifecycle import Admission

log = logging.getLogger(__name__)

MAX_IDLE = 100
"""Connections to the server kept for later requests."""
IDLE_SECONDS = 4.0
"""Shorter than most servers' 5 s, as a request sent into a closing connection cannot be repeated."""
BYTES_PER_TOKEN = 4
"""For prompts with unknown tokens."""
_CONNECT_SECONDS = 5.0
_SILENT_SECONDS = 86400.0
"""The client decides how long to wait."""
_LIMITS = TimeLimits(connect=_CONNECT_SECONDS, first_byte=_SILENT_SECONDS, silence=_SILENT_SECONDS)
_RELAYED = TimeLimits(connect=_CONNECT_SECONDS, first_byte=30.0, silence=30.0, whole=60.0)
_EVENT_STREAM, _JSON = b"text/event-stream", b"application/json"
_PASSED_HEADERS = ("accept", "traceparent", "tracestate", "baggage", "user-agent")
_DATA, _DONE = b"\ndata:", b"\ndata: [DONE]"
"""At the beginning of a line: line ends in a model's text are escaped."""
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
MAX_EVENT_BYTES = 8 * 2**20
"""The longest event of a stream: an echoed prompt is one event."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Reply(msgspec.Struct):
    usage: _Usage | None = None


class _PassingForm:
    """A form, which is not read: what it costs is not known beforehand."""

    is_streamed = False
    num_prompt_tokens = num_seqs = 1
    calls = CallForms(None, None)

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.chains: list[list[BlockHash]] = []

    def spare(self, refusal: bytes) -> bool:
        """False: a form has no optional fields."""
        return False


class _Passing:
    """The relevant part of a request's body."""

    def __init__(self, body: bytes, service: FrontService) -> None:
        """Raises RequestError."""
        try:
            check_json(body)
            fields = _fields.decode(body)
        except OverBudget as error:
            raise RequestError(None, str(error), "request_too_complex") from None
        except _UNREADABLE as error:
            raise RequestError(None, f"the request body is not a JSON object: {error}") from None
        tokens = fields.get(messages.FIELD_TOKENS)
        for name in [name for name in fields if name.startswith(messages.PRIVATE_FIELD_PREFIX)]:
            del fields[name]
        self._fields, self.calls = as_server_takes(fields)
        self.body = self._encoded()
        self.is_streamed = bytes(fields.get("stream", b"false")).strip() == b"true"
        prompts = _prompts(tokens, service)
        guessed = min(len(body) // BYTES_PER_TOKEN, service.model().max_model_len)  # images are long, and few tokens
        self.num_prompt_tokens = sum(map(len, prompts)) if prompts else guessed
        self.num_seqs = max(1, len(prompts)) * min(max(1, _decoded(fields.get("n"), int) or 1), 1024)
        self.chains = _chains(prompts, fields, service)

    def spare(self, refusal: bytes) -> bool:
        """Leaves out the optional fields that this refusal names; False = there are none."""
        names = refused_wishes(self._fields, refusal)
        for name in names:
            del self._fields[name]
        self.body = self._encoded()
        return bool(names)

    def _encoded(self) -> bytes:
        return msgspec.json.encode({name: value for name, value in self._fields.items() if name != BEST_EFFORT})


def _prompts(raw: msgspec.Raw | None, service: FrontService) -> list[list[int]]:
    """The token ids of each prompt, if the gateway made them with the model's tokenizer."""
    try:
        tokens = None if raw is None else msgspec.json.decode(raw, type=messages.PromptTokens)
    except _UNREADABLE:
        return []
    own = service.tokenizer
    return tokens.prompts if tokens is not None and own is not None and tokens.digest == own.digest else []


def _chains(
    prompts: Sequence[Sequence[int]], fields: Mapping[str, msgspec.Raw], service: FrontService
) -> list[list[BlockHash]]:
    """Cacheable blocks of each prompt."""
    size = service.model().block_size
    salt = _decoded(fields.get("cache_salt"), str)
    extra = extra_bytes(cache_salt=salt)
    try:
        return [hash_blocks(ids[: num_cacheable_blocks(len(ids), size) * size], size, extra=extra) for ids in prompts]
    except (OverflowError, TypeError):  # the server will refuse the ids
        return []


def _decoded(raw: msgspec.Raw | None, kind: type) -> Any:
    """None = missing, or of another type."""
    try:
        return None if raw is None else msgspec.json.decode(raw, type=kind)
    except _UNREADABLE:
        return None


_AnyPassing = _Passing | _PassingForm


@dataclass(slots=True)
class _Passage:
    """One request's way to the server, and of its answer back."""

    exchange: Exchange
    passing: _AnyPassing
    counted: PassingRequest
    admission: Admission
    stopped: EngineError | None = None
    """The error by which the front ended the request; None = not ended here."""


class FrontProxy:
    """Passes requests on. One per process."""

    def __init__(self, service: FrontService) -> None:
        self._service = service
        keeps = service.client.engine.keeps_connections
        self._http = HttpClient(max_idle=MAX_IDLE if keeps else 0, idle_seconds=IDLE_SECONDS)

    def close(self) -> None:
        self._http.close()

    async def infer(self, exchange: Exchange) -> None:
        """Passes a request for the model on."""
        service = self._service
        service.model()
        with (
            service.lifecycle.admitted() as admission,
            service.stream.dispatches.arrived(exchange.headers.get(messages.HEADER_DISPATCH)) as dispatch,
        ):
            body = await exchange.body()
            passing = _PassingForm(body) if _is_form(exchange) else _Passing(body, service)
            with service.client.passing(
                passing.chains,
                passing.num_prompt_tokens,
                num_seqs=passing.num_seqs,
                is_streamed=passing.is_streamed,
            ) as counted:
                number = service.client.num_commands
                service.stream.sent(number, dispatch)
                service.stream.stepped(None, number)
                await exchange.while_connected(self._exchange(_Passage(exchange, passing, counted, admission)))

    async def relay(self, exchange: Exchange) -> None:
        """Passes a cheap request on."""
        method = exchange.scope["method"]
        body = await exchange.body() if method == "POST" else b""
        await exchange.while_connected(self._relay(exchange, "GET" if method == "HEAD" else method, body))

    async def _relay(self, exchange: Exchange, method: str, body: bytes) -> None:
        head = self._head(exchange, method, body)
        try:
            async with (
                asyncio.timeout(_RELAYED.whole),
                self._http.exchange(self._service.config.origin, head, body, _RELAYED) as response,
            ):
                await self._whole(exchange, response, await self._read(response), None)
        except (TransportError, TimeoutError) as error:
            raise EngineDead(f"the server behind this front does not answer: {cause_of(error)}") from error

    async def _exchange(self, passage: _Passage) -> None:
        try:
            while await self._is_spared(passage):
                pass  # asked again without what was refused
        except AnswerTooLarge as error:
            raise EngineError(f"the answer is larger than this front takes: {error}") from error
        except TransportError as error:
            raise passage.stopped or EngineDead(f"the server died: {cause_of(error)}") from error

    async def _is_spared(self, passage: _Passage) -> bool:
        """Asks, and passes the answer on; True = refused, and asked again without the optional fields that the refusal
        names."""
        exchange, passing = passage.exchange, passage.passing
        async with self._asked(passage) as response:
            if _is_stream(response):
                await exchange.send_events(self._events(response, passage))
                return False
            body = await self._read(response)
            if response.status >= HTTPStatus.BAD_REQUEST and passing.spare(body):
                return True
            if num_tokens := await self._whole(exchange, response, body, passing):
                self._service.client.came(passage.counted, passing.chains, num_tokens)
            return False

    @asynccontextmanager
    async def _asked(self, passage: _Passage) -> AsyncIterator[Connection]:
        """The server's answer."""
        body = passage.passing.body
        head = self._head(passage.exchange, "POST", body)
        async with self._http.exchange(self._service.config.origin, head, body, _LIMITS, may_repeat=False) as response:

            def stop(error: EngineError) -> None:
                passage.stopped = passage.stopped or error
                response.close()

            passage.admission.attach(stop)
            yield response

    async def _events(self, response: Connection, passage: _Passage) -> AsyncIterator[Events]:
        """The server's events. Where the first is a refusal of what the request can do without, those of another
        answer."""
        is_first = True
        async for events in self._answered(response, passage):
            if is_first and (error := error_of(events.body)) is not None and passage.passing.spare(error):
                break
            is_first = False
            yield events
        else:
            return
        async with self._asked(passage) as again:
            if not _is_stream(again):
                body = in_envelope(await self._read(again), again.status, passage.exchange.scope["path"])
                yield Events(b"data: " + b" ".join(body.split()) + b"\n\n", are_last=True)
                return
            async for events in self._events(again, passage):
                yield events

    async def _answered(self, response: Connection, passage: _Passage) -> AsyncIterator[Events]:
        """The events of one answer; an incomplete stream is an error."""
        core, path, is_whole, rest = self._service.client, passage.exchange.scope["path"], False, b""
        calls = StreamedCalls(passage.passing.calls)
        try:
            while chunk := await response.chunk():
                rest += chunk
                # Half an event would swallow an error behind.
                end = max((at + len(mark) for mark in _EVENT_ENDS if (at := rest.rfind(mark)) >= 0), default=0)
                events, rest = rest[:end], rest[end:]
                lines = b"\n" + events
                is_failed = error_of(events) is not None
                is_whole = is_whole or is_failed or _DONE in lines
                if not is_failed and (num_events := lines.count(_DATA)):
                    core.came(passage.counted, passage.passing.chains, num_events)
                if events:
                    yield Events(with_errors_in_envelope(events, path) if is_failed else calls.feed(events))
                if len(rest) > MAX_EVENT_BYTES:
                    raise EngineError(f"the server has begun an event of more than {MAX_EVENT_BYTES} bytes")
        except TransportError as error:
            if not is_whole:
                raise passage.stopped or EngineDead(f"the server died: {cause_of(error)}") from error
        if not is_whole:
            raise EngineDead("the server ended the stream without saying that it is complete")
        yield Events(b"", are_last=True)

    async def _read(self, response: Connection) -> bytes:
        return await response.read(self._service.config.max_reply_bytes)

    async def _whole(self, exchange: Exchange, response: Connection, body: bytes, passing: _AnyPassing | None) -> int:
        """Sends the server's whole answer; returns the number of generated tokens, 0 for a refusal."""
        if response.status >= HTTPStatus.BAD_REQUEST:
            body = in_envelope(body, response.status, exchange.scope["path"])
        kind, headers = response.headers.get(b"content-type", _JSON), {}
        num_tokens = int(response.status == HTTPStatus.OK)
        if passing is not None and num_tokens:
            body, usage = with_calls(body, passing.calls), _usage(body)
            if usage is not None:
                num_tokens = usage.completion_tokens or 1
                if usage.prompt_tokens_details is not None:
                    headers[messages.HEADER_CACHED_TOKENS] = str(usage.prompt_tokens_details.cached_tokens or 0)
        if (retry := response.headers.get(b"retry-after")) is not None:
            headers["retry-after"] = retry.decode("latin-1")
        await exchange.send_body(body, kind.decode("latin-1"), status=response.status, headers=headers)
        return num_tokens

    def _head(self, exchange: Exchange, method: str, body: bytes) -> bytes:
        target = exchange.scope["raw_path"].decode("latin-1")
        fields = {
            "host": self._service.config.origin.host_header,
            messages.HEADER_REQUEST_ID: exchange.request_id,
            "accept-encoding": "identity",
            **{name: exchange.headers[name] for name in _PASSED_HEADERS if name in exchange.headers},
        }
        if method == "POST":
            kind = exchange.headers.get("content-type", "") if _is_form(exchange) else "application/json"
            fields |= {"content-type": kind, "content-length": str(len(body))}
        return request_head(method, target, fields)


def _is_form(exchange: Exchange) -> bool:
    return exchange.scope["path"] in FORM_PATHS


def _is_stream(response: Connection) -> bool:
    return response.status == HTTPStatus.OK and response.headers.get(b"content-type", b"").startswith(_EVENT_STREAM)


def _usage(body: bytes) -> _Usage | None:
    try:
        return msgspec.json.decode(body, type=_Reply).usage
    except _UNREADABLE:
        return None
