"""The gateway's ASGI application: bytes in, a route, an answer out. Raw ASGI, since this is the data path.

Called by uvicorn. Has requests read (`request_client.py`), turns every error into OpenAI's shape, and observes every
request once. The director decides where requests go.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from fairlead.api.signals_message import PATH_SIGNALS
from fairlead.gateway.access import Access
from fairlead.gateway.batches import message_requests
from fairlead.gateway.batches import requests as batch_requests
from fairlead.gateway.batches.batch_run import ServedAnswer
from fairlead.gateway.batches.requests import BATCHES_PATH
from fairlead.gateway.batches.runner import BatchRunner
from fairlead.gateway.director import Director
from fairlead.gateway.dispatch.injector import Injector, is_injection
from fairlead.gateway.dispatch.pools import Pools
from fairlead.gateway.files import requests as file_requests
from fairlead.gateway.files.requests import FILES_PATH
from fairlead.gateway.gateway_metrics import CONTENT_TYPE, GatewayMetrics
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.model_history import ModelDetail, ModelHistories
from fairlead.gateway.model_states import PATH_STATES, model_states
from fairlead.gateway.observation import Observation, OnDispatched, Refusals, log_request
from fairlead.gateway.openai import errors, routes
from fairlead.gateway.openai.errors import OpenAIError, RequestOutcome
from fairlead.gateway.openai.parse import (
    InferenceRequest,
    check_cost,
    parse,
    parse_form,
    request_id_from,
    translated,
)
from fairlead.gateway.openai.routes import PATH_DOCUMENT, document
from fairlead.gateway.recent_requests import NUM_KEPT, PATH_REQUESTS, RecentRequests, RequestRecord
from fairlead.gateway.request_client import AbsentClient, Client, ClientGone, Receive, Send
from fairlead.gateway.signals_stream import SignalsStream
from fairlead.gateway.storage import Storage
from fairlead.gateway.stored import requests as stored_requests
from fairlead.gateway.stored.keeper import Keeper, StoredTurn
from fairlead_common.http.bodies import BodyReader, HeldBody
from fairlead_common.http.lanes import Pacer
from fairlead_common.http.loop_shares import Scrapes
from fairlead_common.http.pages import DOCUMENT_FOLDER, HEADERS, read_pages
from fairlead_common.openai.translate import translation_of
from fairlead_common.openai.translate.compactions import COMPACT_PATH, Compact
from fairlead_common.openai.translate.messages import MESSAGE_BATCHES_PATH
from fairlead_common.openai.translate.messages_models import MODELS_PATH
from fairlead_common.openai.translate.ollama_models import MODEL_QUESTIONS
from fairlead_common.openai.translate.responses import RESPONSES_PATH
from fairlead_common.openai.unknown_fields import UnknownFields
from fairlead_common.wire.messages import HEADER_REQUEST_ID
from fairlead_common.wire.own_paths import FORM_PATHS

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Headers = dict[bytes, bytes]

_PAGES_FOLDER = Path(__file__).parent.parent / "web"
_REQUEST_ID = HEADER_REQUEST_ID.encode()
_EXPECT = b"expect"
"""Clients with this header wait for 100 Continue. After a refusal the body looks like the next request, so the
connection ends."""


@dataclass(eq=False)
class GatewayApp:
    """`draining` is set by the server: `/ready` then fails, while requests are still served."""

    pools: Pools
    director: Director
    metrics: GatewayMetrics
    refusals: Refusals
    pacer: Pacer
    settings: GatewaySettings
    access: Access
    injector: Injector
    storage: Storage | None
    """None = nothing is stored."""

    def __post_init__(self) -> None:
        limit, timeout = self.settings.max_body_bytes, self.settings.body_timeout
        self._bodies = BodyReader(limit=limit, timeout=timeout, total_limit=self.settings.max_partial_body_bytes)
        self.keeper = None if self.storage is None else self.storage.responses
        self._unknown = UnknownFields(self.settings.unknown_fields)
        self._pages = read_pages(DOCUMENT_FOLDER, _PAGES_FOLDER) if self.settings.pages else {}
        self.histories = ModelHistories(self.pools)
        self._recent = RecentRequests()
        self.draining = False

    @property
    def ready(self) -> bool:
        """Whether clients should be sent here."""
        return self.pools.fleet.synced and not self.draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = dict(scope["headers"])
        client = Client(
            receive,
            send,
            request_id=request_id_from(headers.get(_REQUEST_ID)) or secrets.token_hex(16),
            stall_timeout=self.settings.client_stall_timeout,
            closing=self.draining or _EXPECT in headers,
            translation=translation_of(scope["path"], headers, scope["query_string"]),
        )
        try:
            await self._route(scope, headers, client)
        except OpenAIError as error:
            self.refusals.refused(error, scope["path"], request_id=client.request_id, client=client.name)
            await client.refuse(error)
        finally:
            client.close()

    async def _route(self, scope: Scope, headers: Headers, client: Client) -> None:
        """By path. Probes and pages first: answered without keys, and before the models are known."""
        method, path = scope["method"], scope["path"]
        if path in routes.PROBES:
            _require(method, path, "GET", "HEAD")
            await answer_probe(path, self.ready, client)
            return
        if (page := self._pages.get(path)) is not None:
            _require(method, path, "GET", "HEAD")
            await client.reply(200, page.body, HEADERS, content_type=page.content_type)
            return
        client.name = self.access.client(scope["headers"])  # 401 here, before any of the body is read
        target = routes.find_target(path, headers.get(b"host", b"").decode("latin-1"), self.pools.fleet.directory)
        if target.path in routes.FORWARDED_PATHS:
            _require(method, path, "POST")
            await self._infer(target, headers, client)
        elif is_injection(target.path):
            _require(method, path, "POST")
            await self._inject(target, headers, client)
        elif target.path.startswith(f"{RESPONSES_PATH}/"):
            if self.keeper is None:
                raise errors.not_stored(path)
            rest, query = target.path.removeprefix(f"{RESPONSES_PATH}/"), scope["query_string"].decode("latin-1")
            await stored_requests.answer(self.keeper, method, rest, query, client)
        elif f"{target.path}/".startswith(f"{FILES_PATH}/"):
            if self.storage is None or self.storage.files is None:
                raise errors.no_files(path)
            rest, query = target.path.removeprefix(FILES_PATH).strip("/"), scope["query_string"].decode("latin-1")
            timeout = self.settings.body_timeout
            await file_requests.answer(self.storage.files, method, rest, query, headers, client, timeout)
        elif f"{target.path}/".startswith((f"{BATCHES_PATH}/", f"{MESSAGE_BATCHES_PATH}/")):
            if self.storage is None or self.storage.batches is None:
                raise errors.no_files(path)
            query = scope["query_string"].decode("latin-1")
            await self._batches(self.storage.batches, method, target.path, query, headers, client)
        elif target.path == MODELS_PATH or target.path.startswith(f"{MODELS_PATH}/"):
            _require(method, path, "GET", "HEAD")
            await self._models(target, client)
        elif path == PATH_STATES:
            _require(method, path, "GET", "HEAD")
            self._require_synced()
            await client.reply(200, msgspec.json.encode(model_states(self.pools)))
        elif path.startswith((f"{PATH_STATES}/", f"{PATH_REQUESTS}/")):
            _require(method, path, "GET", "HEAD")
            await client.reply(200, msgspec.json.encode(self._looked_up(path, client.name)))
        elif (question := MODEL_QUESTIONS.get(target.path)) is not None:
            _require(method, path, *(("GET", "HEAD") if question.METHOD == "GET" else (question.METHOD,)))
            await self._question(target, headers, client)
        elif path == PATH_DOCUMENT:
            _require(method, path, "GET", "HEAD")
            await client.reply(200, await document())
        else:
            in_a_browser = ", or / in a browser" if self._pages and method == "GET" else ""
            raise errors.unknown_path(method, path, f"in {PATH_DOCUMENT}, such as /v1/chat/completions{in_a_browser}")

    async def _batches(
        self, runner: BatchRunner, method: str, path: str, query: str, headers: Headers, client: Client
    ) -> None:
        with suppress(ClientGone), self._bodies.held() as held:
            if path.startswith(MESSAGE_BATCHES_PATH):
                rest = path.removeprefix(MESSAGE_BATCHES_PATH).strip("/")
                upload = message_requests.Upload(headers, client, self._bodies, held)
                await message_requests.answer(runner, method, rest, query, upload, client)
                return
            rest = path.removeprefix(BATCHES_PATH).strip("/")
            body = await client.read(self._bodies, headers, held)
            check_cost(body)
            await batch_requests.answer(runner, method, rest, query, body, client)

    async def serve_line(
        self,
        path: str,
        body: bytes,
        owner: str,
        request_id: str,
        on_dispatched: Callable[[], object],
        *,
        is_suspect: bool,
    ) -> ServedAnswer:
        """A line of a batch, as if its client had sent it: queued behind everybody else, and counted."""
        absent = AbsentClient()
        client = Client(
            absent.receive,
            absent.send,
            request_id=request_id,
            stall_timeout=absent.STALL_SECONDS,
            translation=translation_of(path),
        )
        client.name = owner or None
        observers = self.metrics, self._recent, OnDispatched(on_dispatched)
        seen = Observation(request_id, path, observers=observers, client=client.name, is_spare=True)
        try:
            work = self._serve_body(routes.Target(path, None), body, client, seen, is_suspect=is_suspect)
            await self._observed(client, seen, work)
        finally:
            client.close()
        return ServedAnswer(absent.status, absent.body, seen.num_deaths)

    async def _serve_body(
        self, target: routes.Target, body: bytes, client: Client, seen: Observation, *, is_suspect: bool
    ) -> bool:
        """True. Refusals become the answer."""
        try:
            request, turn = await self._parsed(target, body, {}, client, seen)
            request.is_spare, request.is_suspect = True, is_suspect
            seen.parsed(request)
            if turn is not None and self.keeper is not None:
                return await self._serve_turn(self.keeper, turn, request, client, seen)
        except OpenAIError as error:
            await _refuse(error, client, seen)
            return True
        return await self._direct(request, client, seen)

    def _looked_up(self, path: str, client: str | None) -> ModelDetail | RequestRecord:
        """One model's last hour, or one request. Raises OpenAIError (404)."""
        if path.startswith(PATH_STATES):
            self._require_synced()
            key = path.removeprefix(f"{PATH_STATES}/")
            live = next((live for live in self.pools if live.model.key == key), None)
            if live is None:
                raise errors.model_not_found(key, [live.model.key for live in self.pools])
            return self.histories.detail(live)
        request_id = path.removeprefix(f"{PATH_REQUESTS}/")
        record = self._recent.find(request_id, client)
        if record is None:
            raise errors.request_not_kept(request_id, NUM_KEPT)
        return record

    async def _infer(self, target: routes.Target, headers: Headers, client: Client) -> None:
        """A request for an engine."""
        seen = Observation(client.request_id, target.path, observers=(self.metrics, self._recent), client=client.name)
        with self._bodies.held() as held:
            await self._observed(client, seen, self._serve(target, headers, client, seen, held))

    async def _observed(self, client: Client, seen: Observation, work: Awaitable[bool]) -> None:
        """Every request once. `work`: whether the request is over with it."""
        is_over = True
        try:
            is_over = await work
        except ClientGone:
            if seen.outcome != RequestOutcome.COMPLETED:
                seen.outcome = RequestOutcome.DISCONNECTED
        except (asyncio.CancelledError, Exception) as error:
            await _refuse(_failure(error, f"request {client.request_id} failed in the gateway"), client, seen)
        finally:
            if is_over:
                seen.ended(client.status)
                log_request(seen)

    async def _serve(
        self, target: routes.Target, headers: Headers, client: Client, seen: Observation, held: HeldBody
    ) -> bool:
        """Reads the request and has it directed; refusals become the answer. False where it goes on in the background.
        Raises ClientGone."""
        turn = None
        try:
            body = await client.read(self._bodies, headers, held)
            client.closing = self.draining  # whatever comes next on this connection is another request
            if target.path in FORM_PATHS:
                request = parse_form(target.path, body, headers, request_id=seen.request_id, chosen=target.chosen)
            else:
                request, turn = await self._parsed(target, body, headers, client, seen)
            del body  # what is needed of it is in the request
            request.on_read = held.release
            seen.parsed(request)
            if turn is not None and self.keeper is not None:
                return await self._serve_turn(self.keeper, turn, request, client, seen)
        except OpenAIError as error:
            await _refuse(error, client, seen)
            return True
        return await self._direct(request, client, seen)

    async def _serve_turn(
        self, keeper: Keeper, turn: StoredTurn, request: InferenceRequest, client: Client, seen: Observation
    ) -> bool:
        """A response that is stored. False where it goes on in the background. Raises OpenAIError and ClientGone."""
        if not turn.is_in_background:
            async with keeper.foreground(turn, client):
                return await self._direct(request, client, seen)
        begun = await keeper.background(
            turn, lambda unread: self._observed(unread, seen, self._direct(request, unread, seen))
        )
        client.translation = None  # it speaks of the response itself
        if turn.is_streamed:
            async with client.watch:
                await stored_requests.stream(keeper, client.name or "", turn.id, client)
        else:
            await client.reply(200, msgspec.json.encode(begun))
        return False

    async def _direct(self, request: InferenceRequest, client: Client, seen: Observation) -> bool:
        """To an engine and back. True. Raises ClientGone."""
        async with client.watch:
            try:
                await self.director.handle(request, client, seen)
            except OpenAIError as error:
                await _refuse(error, client, seen)
        return True

    async def _parsed(
        self, target: routes.Target, body: bytes, headers: Headers, client: Client, seen: Observation
    ) -> tuple[InferenceRequest, StoredTurn | None]:
        """The request, and how its response is stored; None = it is not. Raises OpenAIError."""
        turn = None
        await self.pacer.pace(len(body))
        check_cost(body)
        await self.pacer.pace(len(body))
        if self.keeper is not None and target.path == RESPONSES_PATH:
            turn, body = await self.keeper.turn(body, client.name or "")
            client.translation = client.translation if turn is None else turn.translation
        elif self.keeper is not None and target.path == COMPACT_PATH:
            kept, body = await self.keeper.compacted(body, client.name or "")
            client.translation = Compact(kept)
        if client.translation is not None:
            await self.pacer.pace(len(body))
        path, body = translated(target.path, body, client.translation, self._unknown)
        return parse(path, body, headers.items(), request_id=seen.request_id, chosen=target.chosen), turn

    async def _inject(self, target: routes.Target, headers: Headers, client: Client) -> None:
        """An injection into a streamed answer, perhaps through another gateway; counted and logged once."""
        status, began = 0, time.monotonic()
        try:
            with self._bodies.held() as held:
                body = await client.read(self._bodies, headers, held)
                check_cost(body)
                async with client.watch:
                    status = await self.injector.pass_on(target.path, target.chosen, body, headers, client)
        except ClientGone:
            pass
        except OpenAIError as error:
            status = error.status
            raise
        except (asyncio.CancelledError, Exception) as error:
            failure = _failure(error, f"what came for an answer failed in the gateway: {client.request_id}")
            status = failure.status
            await client.refuse(failure)
        finally:
            self.metrics.injected(status)
            fields = {"request_id": client.request_id, "client": client.name, "path": target.path, "status": status}
            logger.info("injection", extra={**fields, "duration_seconds": round(time.monotonic() - began, 6)})

    async def _question(self, target: routes.Target, headers: Headers, client: Client) -> None:
        """A question about models in another dialect."""
        with suppress(ClientGone):
            with self._bodies.held() as held:
                body = await client.read(self._bodies, headers, held)
                check_cost(body)
                asked, _ = translated(target.path, body, client.translation, self._unknown)
            await self._models(replace(target, path=asked), client)

    async def _models(self, target: routes.Target, client: Client) -> None:
        self._require_synced()
        directory, name = self.pools.fleet.directory, target.path.removeprefix(MODELS_PATH).removeprefix("/")
        answer = (
            routes.find_model(directory, name, target.chosen) if name else routes.list_models(directory, target.chosen)
        )
        if answer is None:
            raise errors.model_not_found(name, directory.served_names)
        await client.reply(200, msgspec.json.encode(answer))

    def _require_synced(self) -> None:
        if not self.pools.fleet.synced:
            raise errors.not_synced()


class ControlApp:
    """The control port: metrics, signals and probes. Not for clients of models."""

    def __init__(self, app: GatewayApp, metrics: GatewayMetrics, signals: SignalsStream) -> None:
        self._app = app
        self._scrapes = Scrapes(metrics.exposition)
        self._signals = signals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        client = Client(receive, send, request_id=secrets.token_hex(16), stall_timeout=60.0)
        try:
            if path not in routes.CONTROL_PATHS:
                raise errors.unknown_path(method, path, f"of this port: {', '.join(sorted(routes.CONTROL_PATHS))}")
            if path == PATH_SIGNALS:
                _require(method, path, "GET")
                await self._signals.serve(receive, send, client.request_id)
                return
            _require(method, path, "GET", "HEAD")
            if path == "/metrics":
                await client.reply(200, await self._scrapes.text(), content_type=CONTENT_TYPE)
            else:
                await answer_probe(path, self._app.ready, client)
        except OpenAIError as error:
            await client.refuse(error)
        finally:
            client.close()


async def answer_probe(path: str, ready: bool, client: Client) -> None:
    """One of routes.PROBES."""
    well = ready or path != "/ready"
    await client.reply(200 if well else 503, b'{"status":"ok"}' if well else b'{"status":"not ready"}')


def _failure(error: BaseException, message: str) -> OpenAIError:
    """The answer to a request without one: cut, as the server shuts down and waits no longer, or failed by a defect."""
    if isinstance(error, asyncio.CancelledError):
        return errors.shutting_down()
    logger.error(message, exc_info=error)
    return errors.internal_error()


async def _refuse(error: OpenAIError, client: Client, seen: Observation) -> None:
    seen.outcome = error.outcome
    await client.refuse(error)


def _require(method: str, path: str, *allowed: str) -> None:
    if method not in allowed:
        raise errors.method_not_allowed(method, path, ", ".join(allowed))
