"""One client connection: the HTTP protocol of uvicorn, with limits.

Limits bound connections, size and time of headers, unwanted bodies, requests ahead of their turn, and unread answers.
Ambiguous requests are refused, and a draining server breaks no request on a kept connection.

The modules of uvicorn used here are private: the version is capped, and tests/common/test_uvicorn.py tries the
members in use.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from fairlead_common.http.connections import Countdown, CutReason
from fairlead_common.http.framing import (
    STILL_THERE,
    STILL_THERE_SECONDS,
    BadRequest,
    Fault,
    Header,
    RequestMeter,
    check_head,
    framing,
)
from fairlead_common.http.intake import MAX_AHEAD, Ahead, Inlet, Intake
from fairlead_common.http.server import STREAM_WRITER, StreamWriter

LINGER_SECONDS = 1.0
"""How long a drained server that stops keeps a connection after the last answer: keep-alive promised the client another
request, which may be on the way. Also how long a refused client may go on sending: after an immediate cut the client
might never see the refusal."""
MAX_SURPLUS_CONNECTIONS = 100
"""Connections above the limit that get a refusal. Further connections are cut without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What clients may take of a server. Times are seconds, sizes bytes."""

    max_connections: int
    max_header_bytes: int = 64 * 1024
    """Of the request line and headers together; also of the framing of a body beyond the size of the body."""
    max_headers: int = 128
    """Headers and trailers of a request together."""
    header_timeout: float = 20.0
    """From a request's first byte, or a connection's beginning, until its headers are whole."""
    max_skipped_bytes: int = 16 * 2**20
    """Of a body whose request is answered already; more end the connection."""
    skip_timeout: float = 30.0
    """For the rest of such a body."""
    unread_timeout: float
    """How long a client may leave an answer unread."""
    exempt_paths: tuple[bytes, ...] = ()
    """Targets with these beginnings are answered at any number of connections."""


class WholeAnswer(NamedTuple):
    """The answer to a client whose request reaches no application: JSON."""

    status: int
    headers: Sequence[Header]
    """Headers besides the framing of the body and the end of the connection."""
    body: bytes


Refuse = Callable[[Fault, str, str], WholeAnswer]
"""Called once for each request that reaches no application, with the reason, a sentence for an invalid request, and the
target as far as received. Returns the answer for the client, sent if possible."""
OnCut = Callable[[CutReason], object]
"""Told why a connection was ended without an answer."""


def make_protocol(limits: HttpLimits, refuse: Refuse, on_cut: OnCut) -> "type[LimitedProtocol]":
    """The protocol class for one server of uvicorn, which makes instances without further arguments."""

    class Protocol(LimitedProtocol):
        pass

    Protocol.limits = limits
    Protocol.refuse = staticmethod(refuse)
    Protocol.on_cut = staticmethod(on_cut)
    Protocol.intake = Intake()
    Protocol.ahead = Ahead()
    return Protocol


class LimitedProtocol(HttpToolsProtocol):
    """One client connection. From the first byte of a request, the headers must be complete in time and within size;
    once the request is answered, so must the rest of the body. Clients must read in time."""

    limits: HttpLimits
    refuse: Refuse
    on_cut: OnCut
    intake: Intake
    ahead: Ahead
    linger_seconds = 0.0
    """`LINGER_SECONDS` once the server drains; 0 = connections end with their answer, or at once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.url = b""
        self._inlet: Inlet | None = None
        self._meter = RequestMeter(max_bytes=self.limits.max_header_bytes, max_fields=self.limits.max_headers)
        self._head_begun = False
        self._skipped_bytes = 0
        """Of a body whose request is answered already."""
        self._deadline = Countdown(self.loop)
        """Deadline of the head or of a skipped body; after the end of input, the next check that the client is still
        connected."""
        self._unread = Countdown(self.loop)
        """Deadline for the client to read the bytes written so far."""
        self._problem: BadRequest | None = None
        """Why a callback of the parser has stopped it."""
        self._deaf = False
        """Whether input is ignored because the connection is about to end."""
        self._is_replaying = False
        """The parser is being told a head that was read before."""
        self._quiet_since = self.loop.time()
        """When it was opened or last answered."""
        self._answering: RequestResponseCycle | None = None
        """The request in progress, or answered last. `cycle` is the newest request received: the two differ for a
        client that sends requests without waiting for answers."""

    # What asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections + MAX_SURPLUS_CONNECTIONS:
            self._cut(CutReason.TOO_MANY)
            return
        self._inlet = self.intake.open(transport, self)
        self.flow = FlowControl(self._inlet)  # type: ignore[arg-type]  # of a transport it only needs what this has
        self._start_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inlet is not None:
            self._inlet.close()
        self.pipeline.clear()
        self._tell_ahead()
        self._deadline.stop()
        self._unread.stop()
        _disconnect(self._answering)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        self._meter.packet(len(data))
        self._feed(data)
        self._tell_ahead()
        if self._deaf or self.transport.is_closing():
            return
        if fault := self._meter.check():
            self._refuse(BadRequest(fault))
        elif self.pipeline and self.ahead.is_full:
            self._refuse(BadRequest(Fault.AHEAD))
        elif self._is_skipping:
            self._skipped_bytes += len(data)
            if self._skipped_bytes > self.limits.max_skipped_bytes:
                self._cut(CutReason.UNWANTED_BODY)
        elif not (self._is_answering or self._meter.in_head) and self.timeout_keep_alive_task is None:
            # It is idle, though bytes have come that begin no request.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. Complete requests are still answered where a disconnect, which looks the same on
        the socket, can be noticed: not once the answer has begun, and not in HTTP/1.0, which has no interim answers."""
        last = self._hear_no_more()
        now = self._answering
        has_begun = now is not None and now.response_started and not now.response_complete
        if last is None or last.scope["http_version"] == "1.0" or has_begun:
            return False
        self._look_for_client(STILL_THERE_SECONDS)
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._unread.stop()

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._is_replaying:
            return
        super().on_message_begin()
        if not self._meter.in_head:
            self._start_head()
        self._head_begun = True

    def on_url(self, url: bytes) -> None:
        if not self._is_replaying:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_replaying:
            return
        self._meter.field()
        if self._meter.excess:
            raise BadRequest(self._meter.excess)
        if self._meter.in_head:  # a trailer is counted and dropped: nothing that comes behind the body is a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_replaying:
            return
        try:
            self._check_head()
        except BadRequest as problem:
            self._problem = problem
            raise
        super().on_headers_complete()  # raises for a target that is none
        self._deadline.stop()
        self._meter.begin_body()
        self._head_begun = False

    def on_body(self, body: bytes) -> None:
        self._meter.content(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade() and framing(self.headers) is not None:
            return  # the parser believes that something else than a body follows
        self._meter.end()
        super().on_message_complete()
        if self.cycle.response_complete:
            self._deadline.stop()

    # What uvicorn calls.

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        self._tell_ahead()
        extensions = cast(dict[str, Any], cycle.scope.setdefault("extensions", {}))
        extensions[STREAM_WRITER] = StreamWriter(self.transport, self.flow)
        self.intake.begin(partial(super()._start_asgi_task, cycle, app))

    def on_response_complete(self) -> None:
        self._quiet_since = self.loop.time()
        super().on_response_complete()
        if self.transport.is_closing():
            self._await_reader()
        elif self._is_skipping:
            self._skipped_bytes = 0
            self._deadline.start(self.limits.skip_timeout, self._cut, CutReason.UNWANTED_BODY)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._await_reader()

    def shutdown(self) -> None:
        """The server stops. Requests within the linger are answered, with `connection: close`."""
        if not self.linger_seconds:
            super().shutdown()
        elif self._is_answering:
            self.timeout_keep_alive = self.linger_seconds  # type: ignore[assignment]  # uvicorn only adds it to a time
        else:
            left = self._quiet_since + self.linger_seconds - self.loop.time()
            self.loop.call_later(max(0.0, left), self._leave)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_skipping(self) -> bool:
        """Whether a body still comes though its request is answered."""
        return self._meter.in_body and not self._is_answering

    def _check_head(self) -> None:
        """Raises BadRequest where the head that was just read is wrong, or the request exceeds a limit."""
        limits = self.limits
        check_head(self.parser.get_http_version(), self.url, self.headers, max_bytes=limits.max_header_bytes)
        if len(self.connections) > limits.max_connections and not self.url.startswith(limits.exempt_paths):
            raise BadRequest(Fault.CONNECTIONS)
        if self._is_answering:
            self._tell_ahead()
            if len(self.pipeline) >= MAX_AHEAD or self.ahead.is_full:
                raise BadRequest(Fault.AHEAD)

    def _tell_ahead(self) -> None:
        self.ahead.tell(self, (cycle.body for cycle, _ in self.pipeline))

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if self._meter.excess:
                self._problem = BadRequest(self._meter.excess)
            self._refuse(self._problem or BadRequest(Fault.INVALID, "The request is not valid HTTP."))

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Goes on in HTTP/1.1, which a server may always do. The parser of an upgraded request cannot: a new parser
        takes over, and is fed the framing of the head to know of the body."""
        self.parser = httptools.HttpRequestParser(self)
        header = framing(self.headers)
        if header is not None:
            self._is_replaying = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%b: %b\r\n\r\n" % header)
            self._is_replaying = False
        if rest:
            self._feed(rest)

    def _leave(self) -> None:
        """Ends the connection of a server that stops, unless a request is on its way."""
        if self._is_answering or self.transport.is_closing():
            return
        if self._head_begun:
            self.loop.call_later(self.linger_seconds, self._leave)
        else:
            self.transport.close()

    def _start_head(self) -> None:
        self._meter.begin_head()
        self._deadline.start(self.limits.header_timeout, self._cut, CutReason.SLOW_HEAD)

    def _cut(self, why: CutReason) -> None:
        """Ends the connection without an answer."""
        self._deaf = True
        self.on_cut(why)
        self.transport.abort()

    def _await_reader(self) -> None:
        """Cuts the connection unless the client reads in time: closing would wait for the reader for ever."""
        if not self._unread.runs:
            self._unread.start(self.limits.unread_timeout, self._cut, CutReason.UNREAD_ANSWER)

    def _refuse(self, problem: BadRequest) -> None:
        """Answers outside of ASGI, because no request has begun, and closes. After complete earlier requests, which are
        answered first, the refusal is not sent."""
        answer = self.refuse(problem.fault, problem.sentence, self.url.decode("latin-1"))
        if self._hear_no_more() is not None:
            return
        _disconnect(self._answering)  # nobody is to be answered twice
        if not self._meter.in_body or (self._answering is not None and not self._answering.response_started):
            self.transport.write(_encoded(answer))
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)
        self._await_reader()

    def _hear_no_more(self) -> RequestResponseCycle | None:
        """Ignores all further input. Returns the last complete request without an answer, which ends the connection;
        None = every request is answered."""
        if not self._deaf and self._meter.in_body and self.pipeline:
            self.pipeline.popleft()  # the newest, whose body is not going to be whole
        self._deaf = True
        self._deadline.stop()
        last = self.pipeline[0][0] if self.pipeline else self._answering
        if last is None or last.response_complete or (last is self.cycle and self._meter.in_body):
            return None
        last.keep_alive = False
        return last

    def _look_for_client(self, again_after: float) -> None:
        """Makes the connection fail if the client has left. An answer in progress notices by itself."""
        if self._answering is not None and not (self._answering.response_started or self.transport.is_closing()):
            self.transport.write(STILL_THERE)
        if not self.transport.is_closing():
            self._deadline.start(again_after, self._look_for_client, again_after * 2)


def _disconnect(cycle: RequestResponseCycle | None) -> None:
    """Nothing more is read from its client, or written to it."""
    if cycle is not None and not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()


def _encoded(answer: WholeAnswer) -> bytes:
    lines = [b"content-type: application/json", b"content-length: %d" % len(answer.body), b"connection: close"]
    lines += [b"%b: %b" % header for header in answer.headers if header[0] != b"connection"]
    return STATUS_LINE[answer.status] + b"\r\n".join([*lines, b"", b""]) + answer.body
