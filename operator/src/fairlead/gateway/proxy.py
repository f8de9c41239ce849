"""The proxy: one attempt at one replica, and its answer on to the client.

Before the client has a byte, a replica's failure may be made good by another replica. After that, a stream that
breaks ends with an error event: never in silence, never with a made-up end. Answers that are not streamed are read
whole first.
"""

from fairlead.gateway.admission import Turn
from fairlead.gateway.client import JSON, Client
from fairlead.gateway.connection import ConnectFailed, UpstreamError, UpstreamSilent
from fairlead.gateway.observe import Observation
from fairlead.gateway.openai_errors import Header, OpenAIError, upstream_failed, upstream_timed_out
from fairlead.gateway.outcomes import RequestOutcome
from fairlead.gateway.parse import InferenceRequest
from fairlead.gateway.settings import GatewaySettings
from fairlead.gateway.sse import ENGINE_DEAD, EventTooLarge, UsageFilter, error_code_of, usage_of
from fairlead.gateway.upstream import Upstream, UpstreamResponse
from fairlead.routing.health import Failure
from fairlead.routing.replica import Replica
from fairlead_protocol.messages import HEADER_REASON, HEADER_REPLICA, REASON_DRAINING, REASON_ENGINE_FULL

_EVENT_STREAM = b"text/event-stream"
_REASON = HEADER_REASON.encode()
_REPLICA = HEADER_REPLICA.encode()
_REFUSALS = {REASON_ENGINE_FULL.encode(): None, REASON_DRAINING.encode(): Failure.DRAINING}
_PASSED_HEADERS = frozenset({b"content-type", b"retry-after"})
_PASSED_PREFIX = b"x-fairlead-"
_STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
"""So that proxies in front of the gateway hold nothing back either."""


class ReplicaFailed(Exception):
    """A replica did not serve the request.

    `failure` is what is wrong with the replica (None: nothing, its queue is full), `retryable` whether another may be
    asked, and `error` what the client gets when none is.
    """

    def __init__(self, failure: Failure | None, error: OpenAIError, *, retryable: bool) -> None:
        super().__init__(error.message)
        self.failure = failure
        self.error = error
        self.retryable = retryable


class Proxy:
    """Knows the replicas' protocol and the client's; not the queue, nor which replica would be better."""

    def __init__(self, upstream: Upstream, settings: GatewaySettings) -> None:
        self._upstream = upstream
        self._settings = settings

    async def stream(
        self,
        turn: Turn,
        request: InferenceRequest,
        served_name: str,
        client: Client,
        seen: Observation,
    ) -> None:
        """Serves `request` from the replica whose turn it is, to the end of its answer, even if that is an error.

        `served_name`: of the model, where the replica has not told its own. Raises ReplicaFailed.
        """
        replica = turn.decision.replica
        body = request.upstream_body(replica.served_name or served_name)
        limit = self._settings.first_byte_timeout if request.stream else self._settings.response_timeout
        try:
            async with self._upstream.exchange(
                (replica.host, replica.port), _head(replica, request, len(body)), body, first_byte_timeout=limit
            ) as response:
                _raise_if_refused(replica, response)
                if response.status < 500:
                    turn.accepted()
                if response.headers.get(b"content-type", b"").startswith(_EVENT_STREAM):
                    await self._pass_events(turn, response, request, client, seen)
                else:
                    await self._pass_whole(replica, response, client, seen)
        except (UpstreamError, EventTooLarge) as error:
            raise _failed(replica, error, begun=client.started) from error

    async def _pass_events(
        self, turn: Turn, response: UpstreamResponse, request: InferenceRequest, client: Client, seen: Observation
    ) -> None:
        """Event by event as they come. The client gets its headers with the first: until then a retry is possible."""
        replica, events = turn.decision.replica, UsageFilter(hide_usage=not request.wants_usage)
        try:
            while chunk := await response.chunk():
                passed = events.feed(chunk)
                if events.token_seen and seen.ttft_seconds is None:
                    seen.first_token()
                if passed:
                    if not client.started:
                        await client.start(response.status, [*_headers(replica, response), *_STREAM_HEADERS])
                    await client.write(passed)
        finally:
            seen.usage = events.usage
        if not (events.done or events.failed):
            raise UpstreamError("the stream ended without saying that it is complete", begun=True)
        if events.error_code == ENGINE_DEAD:
            turn.failed(Failure.DIED)
        seen.outcome = RequestOutcome.ENGINE_ERROR if events.failed else RequestOutcome.COMPLETED
        await client.finish()

    async def _pass_whole(
        self, replica: Replica, response: UpstreamResponse, client: Client, seen: Observation
    ) -> None:
        """The whole answer at once."""
        body = await response.read(self._settings.max_reply_bytes)
        status = response.status
        if status >= 500 and error_code_of(body) == ENGINE_DEAD:
            error = upstream_failed(f"The engine of the replica {replica.name} has died.", status=503)
            raise ReplicaFailed(Failure.DIED, error, retryable=True)
        if status < 400:
            seen.first_token()
            seen.usage = usage_of(body)
            seen.outcome = RequestOutcome.COMPLETED
        else:
            seen.outcome = RequestOutcome.CLIENT_ERROR if status < 500 else RequestOutcome.ENGINE_ERROR
            if not response.headers.get(b"content-type", b"").startswith(JSON):
                error = upstream_failed(f"The replica {replica.name} answered with HTTP {status}.", status=status)
                await client.reply(status, error.body(), [(_REPLICA, replica.name.encode())])
                return
        length = (b"content-length", str(len(body)).encode())
        await client.start(status, [*_headers(replica, response), length])
        await client.finish(body)


def _raise_if_refused(replica: Replica, response: UpstreamResponse) -> None:
    """Raises ReplicaFailed for an answer that says "not me": nothing was computed, or nothing can be."""
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
    if isinstance(error, UpstreamSilent):
        return ReplicaFailed(Failure.TIMED_OUT, upstream_timed_out(message), retryable=False)
    failure = Failure.UNREACHABLE if isinstance(error, ConnectFailed) else Failure.DIED
    return ReplicaFailed(failure, upstream_failed(message, status=502 if begun else 503), retryable=not begun)


def _head(replica: Replica, request: InferenceRequest, num_bytes: int) -> bytes:
    """The request line and headers for the engine."""
    host = f"[{replica.host}]" if ":" in replica.host else replica.host
    lines = [
        f"POST {request.path} HTTP/1.1\r\nhost: {host}:{replica.port}\r\nx-request-id: {request.request_id}\r\n"
        f"content-type: application/json\r\ncontent-length: {num_bytes}\r\n".encode()
    ]
    lines += [b"%b: %b\r\n" % header for header in request.headers]
    lines.append(b"\r\n")
    return b"".join(lines)


def _headers(replica: Replica, response: UpstreamResponse) -> list[Header]:
    """The engine's headers that clients get, and which replica it was."""
    passed = [
        (name, value)
        for name, value in response.headers.items()
        if name in _PASSED_HEADERS or (name.startswith(_PASSED_PREFIX) and name != _REPLICA)
    ]
    return [(_REPLICA, replica.name.encode()), *passed]
