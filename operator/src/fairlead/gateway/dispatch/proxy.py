"""The proxy: one attempt at one replica, and its answer on to the client.

Before the client's first byte, another replica may make good a failure. Later, a broken stream ends with an error
event: never in silence, never with a made-up end. Unstreamed answers are read whole first.
"""

import asyncio
from collections.abc import AsyncIterator

from fairlead.gateway.dispatch.ticket import Attempt
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.observation import Observation
from fairlead.gateway.openai.errors import (
    Header,
    OpenAIError,
    RequestOutcome,
    answer_too_large,
    upstream_failed,
    upstream_timed_out,
)
from fairlead.gateway.openai.parse import InferenceRequest
from fairlead.gateway.openai.sse import UsageFilter, error_code_of, usage_of
from fairlead.gateway.request_client import JSON, Client
from fairlead.routing.books import Failure
from fairlead.routing.replica import Decision, Replica
from fairlead_common.http.addresses import authority
from fairlead_common.http.client import HttpClient, TimeLimits
from fairlead_common.http.client_connection import (
    AnswerTooLarge,
    ConnectFailed,
    Connection,
    ServerSilent,
    TransportError,
)
from fairlead_common.http.loop_shares import LoopShares
from fairlead_common.http.origin import Origin
from fairlead_common.wire.messages import (
    CODE_ENGINE_DEAD,
    HEADER_CACHED_TOKENS,
    HEADER_DISPATCH,
    HEADER_PREDICTED_CACHED_TOKENS,
    HEADER_PREDICTED_TTFT_MS,
    HEADER_QUEUE_MS,
    HEADER_REASON,
    HEADER_REPLICA,
    REASON_DRAINING,
    REASON_ENGINE_DEAD,
    REASON_ENGINE_FULL,
)

LARGE_BYTES = 2**20
"""Smaller answers are not counted here."""
MAX_BYTES = 64 * 2**20
"""Of all large answers of a model together, but for the oldest."""


class ReplyRoom:
    """Memory for one model's large answers: beyond MAX_BYTES later answers, and their engines, wait for earlier
    answers."""

    def __init__(self) -> None:
        self._held: dict[object, int] = {}
        """Bytes of each, the oldest first."""
        self._left = asyncio.Event()
        """Set, and replaced, when an answer has gone."""

    async def grow(self, holder: object, num_bytes: int) -> None:
        """This answer has so many bytes; returns when it may have more."""
        self._held[holder] = num_bytes
        while sum(self._held.values()) > MAX_BYTES and next(iter(self._held)) is not holder:
            await self._left.wait()

    def leave(self, holder: object) -> None:
        """The answer was delivered or dropped."""
        if self._held.pop(holder, None) is not None:
            self._left.set()
            self._left = asyncio.Event()


PIECE_BYTES = 8 * 1024
"""Bytes of a stream processed without a pause: a hundred events with usage, some 0.3 ms."""
_EVENT_STREAM = b"text/event-stream"
_REASON = HEADER_REASON.encode()
_REPLICA = HEADER_REPLICA.encode()
_REFUSALS = {
    REASON_ENGINE_FULL.encode(): None,
    REASON_DRAINING.encode(): Failure.DRAINING,
    REASON_ENGINE_DEAD.encode(): Failure.DEAD,
}
_PASSED_HEADERS = frozenset({b"content-type", b"retry-after", HEADER_CACHED_TOKENS.encode()})
"""What clients get of an engine's headers; everything else is between engine and gateway."""
_STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
"""Keep proxies in front of the gateway from buffering."""


class ReplicaFailed(Exception):
    """A replica did not serve the request.

    `failure`: the replica's fault (None: its queue is full), `retryable`: whether another replica may be asked,
    `error`: the client's answer when no attempt follows.
    """

    def __init__(self, failure: Failure | None, error: OpenAIError, *, retryable: bool) -> None:
        super().__init__(error.message)
        self.failure = failure
        self.error = error
        self.retryable = retryable


class Proxy:
    """Speaks the replicas' protocol and the client's; does not choose replicas and does not queue."""

    def __init__(self, upstream: HttpClient, settings: GatewaySettings, gateway_id: str) -> None:
        """`gateway_id`: what engines count this gateway's requests under."""
        self._upstream = upstream
        self._settings = settings
        self._gateway_id = gateway_id
        self._shares = LoopShares()
        self._rooms: dict[str, ReplyRoom] = {}
        """By `namespace/name`, of models with answers above LARGE_BYTES."""
        connect, silence = settings.connect_timeout, settings.idle_timeout
        self._limits = {
            is_stream: TimeLimits(connect=connect, first_byte=first_byte, silence=silence)
            for is_stream, first_byte in ((True, settings.first_byte_timeout), (False, settings.response_timeout))
        }

    async def stream(
        self,
        attempt: Attempt,
        request: InferenceRequest,
        served_name: str,
        client: Client,
        seen: Observation,
    ) -> None:
        """Serves `request` from the chosen replica to the end of the answer, even of an error.

        `served_name`: of the model, for replicas that have not told their own. Raises ReplicaFailed.
        """
        decision, replica = attempt.decision, attempt.decision.replica
        tokens = attempt.ticket.prompt.tokens_field(replica.digest)
        body = request.upstream_body(replica.served_name or served_name, tokens)
        start = (
            f"POST {request.path} HTTP/1.1\r\nhost: {authority(replica.host, replica.port)}\r\n"
            f"x-request-id: {request.request_id}\r\ncontent-type: {request.content_type}\r\n"
            f"content-length: {len(body)}\r\n"
            f"{HEADER_DISPATCH}: {self._gateway_id}:{decision.dispatch}\r\n"
        )
        head = b"".join([start.encode(), *(b"%b: %b\r\n" % header for header in request.headers), b"\r\n"])
        origin, limits = Origin(replica.host, replica.port), self._limits[request.stream]
        try:
            async with self._upstream.exchange(origin, head, body, limits) as response:
                del body, tokens  # streams are long, and prompts may be
                _raise_if_refused(replica, response)
                if response.status < 500:
                    attempt.accepted()
                if response.headers.get(b"content-type", b"").startswith(_EVENT_STREAM):
                    await self._pass_events(attempt, response, request, client, seen)
                else:
                    try:
                        await self._pass_whole(attempt, response, client, seen)
                    finally:
                        if (room := self._rooms.get(seen.model)) is not None:
                            room.leave(response)
        except AnswerTooLarge as error:
            raise answer_too_large(str(error)) from error
        except TransportError as error:
            raise _failed(replica, error, begun=client.started) from error

    async def _pass_events(
        self, attempt: Attempt, response: Connection, request: InferenceRequest, client: Client, seen: Observation
    ) -> None:
        """Event by event as they come. The client gets its headers with the first: until then a retry is possible, and
        an error with an HTTP status is an answer with this status."""
        events = UsageFilter(hide_usage=not request.wants_usage)
        try:
            async for passed in self._fed(events, response):
                if events.token_seen and seen.ttft_seconds is None:
                    seen.first_token()
                    attempt.first_token()
                if events.failed and not client.started and (status := events.error_status) is not None:
                    await client.reply(status, events.error, [(_REPLICA, attempt.decision.replica.name.encode())])
                    break
                if passed := client.events(passed):
                    if not client.started:
                        attempt.begun()
                        await client.start_events(
                            response.status, [*_headers(attempt.decision, response, seen), *_STREAM_HEADERS]
                        )
                    await client.write(passed)
                    if events.done and not events.failed:
                        seen.outcome = RequestOutcome.COMPLETED  # the client may leave now: it has everything
        except TransportError:
            if not events.done:
                raise
        finally:
            seen.usage, seen.num_passed_tokens = events.usage, events.num_tokens
            if events.usage is not None:
                attempt.generated(events.usage.completion_tokens)
                seen.num_generated = attempt.sent.num_generated
        if not (events.done or events.failed):
            raise TransportError("the stream ended without saying that it is complete", begun=True)
        if events.failed:
            seen.outcome = RequestOutcome.CLIENT_ERROR if events.blames_client else RequestOutcome.ENGINE_ERROR
        if events.error_code == CODE_ENGINE_DEAD:
            attempt.failed(Failure.DIED)
            seen.attempt_failed(Failure.DIED, "Its engine died in the middle of the answer.", again=False)
        if not client.finished:
            await client.finish()

    async def _read(self, response: Connection, model: str) -> bytes:
        body = bytearray()
        while chunk := await response.chunk():
            body += chunk
            if len(body) > self._settings.max_reply_bytes:
                raise AnswerTooLarge(f"more than {self._settings.max_reply_bytes} bytes")
            if len(body) > LARGE_BYTES:
                await self._rooms.setdefault(model, ReplyRoom()).grow(response, len(body))
        return bytes(body)

    async def _fed(self, events: UsageFilter, response: Connection) -> AsyncIterator[bytes]:
        """The bytes for the client, as they come. Large chunks, as from an engine that answers without end, are cut
        into pieces, and other tasks run between pieces."""
        share = None
        while chunk := await response.chunk():
            if len(chunk) <= PIECE_BYTES:
                yield events.feed(chunk)
                continue
            share = share or self._shares.stream()
            for start in range(0, len(chunk), PIECE_BYTES):
                share.begin()
                passed = events.feed(chunk[start : start + PIECE_BYTES])
                await share.rest()
                yield passed

    async def _pass_whole(self, attempt: Attempt, response: Connection, client: Client, seen: Observation) -> None:
        """The whole answer at once."""
        replica = attempt.decision.replica
        body = await self._read(response, seen.model)
        status = response.status
        if status >= 500 and error_code_of(body) == CODE_ENGINE_DEAD:
            error = upstream_failed(f"The engine of the replica {replica.name} has died.", status=503)
            raise ReplicaFailed(Failure.DIED, error, retryable=True)
        usage = usage_of(body) if status < 400 else None
        status, body = client.translated(status, body)
        if status < 400:
            seen.usage = usage
            if seen.usage is not None:
                attempt.generated(seen.usage.completion_tokens)
            seen.first_token()
            attempt.first_token(whole=not seen.shows_ttft)
            seen.outcome = RequestOutcome.COMPLETED
        else:
            seen.outcome = RequestOutcome.CLIENT_ERROR if status < 500 else RequestOutcome.ENGINE_ERROR
            if not response.headers.get(b"content-type", b"").startswith(JSON):
                error = upstream_failed(f"The replica {replica.name} answered with HTTP {status}.", status=status)
                await client.reply(status, error.body(), [(_REPLICA, replica.name.encode())])
                return
        length = (b"content-length", str(len(body)).encode())
        await client.start(status, [*_headers(attempt.decision, response, seen), length])
        await client.finish(body)


def _raise_if_refused(replica: Replica, response: Connection) -> None:
    """Raises ReplicaFailed for an answer that computed nothing: the replica is full, draining, dead or unavailable."""
    reason = response.headers.get(_REASON)
    if reason in _REFUSALS:
        failure = _REFUSALS[reason]
    elif response.status == 503:
        failure = Failure.UNAVAILABLE
    else:
        return
    error = upstream_failed(f"The replica {replica.name} does not take requests at the moment.", status=503)
    raise ReplicaFailed(failure, error, retryable=True)


def _failed(replica: Replica, error: Exception, *, begun: bool) -> ReplicaFailed:
    """What a broken exchange means. Silence is not retried: the same prompt might silence the next replica too."""
    where = " in the middle of its answer" if begun else ""
    message = f"The replica {replica.name} failed{where}: {error}."
    if isinstance(error, ServerSilent):
        return ReplicaFailed(Failure.TIMED_OUT, upstream_timed_out(message), retryable=False)
    failure = Failure.UNREACHABLE if isinstance(error, ConnectFailed) else Failure.DIED
    return ReplicaFailed(failure, upstream_failed(message, status=502 if begun else 503), retryable=not begun)


def _headers(decision: Decision, response: Connection, seen: Observation) -> list[Header]:
    """The engine's public headers, then replica, queueing time and predictions."""
    own = {HEADER_REPLICA: decision.replica.name, HEADER_QUEUE_MS: f"{1000 * seen.queue_seconds:.1f}"}
    if decision.cached_tokens is not None:
        own[HEADER_PREDICTED_CACHED_TOKENS] = str(decision.cached_tokens)
    if seen.predicted_ttft_seconds is not None:
        own[HEADER_PREDICTED_TTFT_MS] = f"{1000 * seen.predicted_ttft_seconds:.1f}"
    passed = [header for header in response.headers.items() if header[0] in _PASSED_HEADERS]
    return [(name.encode(), value.encode()) for name, value in own.items()] + passed
