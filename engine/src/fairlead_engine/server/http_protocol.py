"""uvicorn's HTTP protocol with limits that it lacks: on the size of a request's headers, the time to send them, what
frames its body, bodies that nobody wants, and requests ahead of their turn.

Engines are for gateways alone, but whoever reaches the port must not be able to hold its connections for nothing.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from fairlead_engine.errors import QueueFull
from fairlead_engine.server.refusals import Outcome, Refusal, refusal
from fairlead_protocol.ahead import MAX_REQUESTS, Ahead
from fairlead_protocol.connections import CutReason
from fairlead_protocol.framing import MAX_LENGTH_DIGITS, STILL_THERE, STILL_THERE_SECONDS, Excess, RequestMeter
from fairlead_protocol.intake import Inlet, Intake

MAX_HEADER_BYTES = 64 * 1024
"""Largest request line and headers together, and most bytes that frame a body beyond the body's own size."""
MAX_HEADERS = 128
"""Most headers and trailers of a request together."""
HEADER_TIMEOUT_SECONDS = 20.0
"""Longest time from a request's first byte, or a connection's beginning, until its headers are whole."""
MAX_SKIPPED_BYTES = 16 * 2**20
"""Most bytes of a body whose request is answered already; more end the connection."""
SKIP_TIMEOUT_SECONDS = 30.0
"""Longest time for the rest of such a body."""
LINGER_SECONDS = 1.0
"""How long a refused client may go on sending: cut at once, it might never see the refusal."""
MAX_SURPLUS_CONNECTIONS = 100
"""Connections above the limit that are told so. Still more are cut without a word."""
PROBES = (b"/health", b"/ready", b"/metrics")
"""Answered however many connections there are: who only looks must not take an engine that is full for a dead one."""

_TOO_MUCH = {
    Excess.FIELDS: (431, f"the request has more than the {MAX_HEADERS} headers and trailers that are taken"),
    Excess.HEAD: (431, f"the request's headers are larger than the {MAX_HEADER_BYTES} bytes that are taken"),
    Excess.FRAMING: (
        400,
        f"more than {MAX_HEADER_BYTES} bytes of chunk sizes, chunk extensions and trailers came with the request's "
        "body, beyond its own size; send it in larger chunks, or whole with a Content-Length",
    ),
}


def make_protocol(
    on_refused: Callable[[Outcome], object], on_cut: Callable[[CutReason], object], max_connections: int
) -> "type[LimitedProtocol]":
    """The protocol class for uvicorn, which makes its instances itself; `on_refused` is told of requests that no
    application hears of, `on_cut` why a connection was ended without an answer."""

    class Protocol(LimitedProtocol):
        pass

    Protocol.on_refused = staticmethod(on_refused)
    Protocol.on_cut = staticmethod(on_cut)
    Protocol.intake = Intake()
    Protocol.ahead = Ahead()
    Protocol.max_connections = max_connections
    return Protocol


class LimitedProtocol(HttpToolsProtocol):
    """One connection. A head that is too large is answered with 431, one that is too slow is cut."""

    on_refused: Callable[[Outcome], object]
    on_cut: Callable[[CutReason], object]
    intake: Intake
    ahead: Ahead
    max_connections: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._inlet: Inlet | None = None
        self._meter = RequestMeter(max_bytes=MAX_HEADER_BYTES, max_fields=MAX_HEADERS)
        self._skipped_bytes = 0
        """Of a body whose request is answered already."""
        self._deadline: asyncio.TimerHandle | None = None
        """When the head, or a body that is skipped, must have come; once nothing can come, the next look at whether the
        client is still there."""
        self._deaf = False
        """What still comes is ignored: the connection is about to end."""
        self._is_surplus = False
        """It came when there were enough, and asks for work."""
        self._answering: RequestResponseCycle | None = None
        """The request that is being answered, or was last; `cycle` is the last that came."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections + MAX_SURPLUS_CONNECTIONS:
            self._cut(CutReason.TOO_MANY)
            return
        self._inlet = self.intake.open(transport, self)
        self.flow = FlowControl(self._inlet)  # type: ignore[arg-type]  # of a transport it only needs what this has
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inlet is not None:
            self._inlet.close()
        self.pipeline.clear()
        self._tell_ahead()
        self._stop_timer()
        self._disconnect()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._meter.packet(len(data))
        super().data_received(data)
        self._tell_ahead()
        if self._deaf or self.transport.is_closing():
            return
        if excess := self._meter.check():
            self._refuse(*_TOO_MUCH[excess])
        elif self.pipeline and self.ahead.is_full:
            self._refuse(400, "too many requests came before those in front of them were answered")
        elif self._is_skipping:
            self._skipped_bytes += len(data)
            if self._skipped_bytes > MAX_SKIPPED_BYTES:
                self._cut(CutReason.UNWANTED_BODY)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. What it has sent whole is answered, where it can be noticed that it has left, which
        looks the same: not once the answer has begun, and not in HTTP/1.0, which knows no interim answers."""
        if self._meter.in_body and self.pipeline and not self._deaf:
            self.pipeline.popleft()  # the newest, whose body is not going to be whole
        self._deaf = True
        self._stop_timer()
        last = self.pipeline[0][0] if self.pipeline else self._answering
        if last is None or last.response_complete or (last is self.cycle and self._meter.in_body):
            return False
        if last.scope["http_version"] == "1.0" or self._has_begun:
            return False
        last.keep_alive = False
        self._look_for_client(STILL_THERE_SECONDS)
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._meter.in_head:
            self._begin_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._meter.field()
        if self._meter.excess:
            raise ValueError("too many headers")  # to the parser, which stops and has us refuse
        if self._meter.in_head:  # a trailer is counted and dropped: nothing that comes behind the body is a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        if any(name == b"content-length" and len(value) > MAX_LENGTH_DIGITS for name, value in self.headers):
            raise ValueError("a length that no body has")
        self._is_surplus = len(self.connections) > self.max_connections and not self.url.startswith(PROBES)
        if self._is_surplus:
            raise ValueError("too many connections")
        if self.cycle is not None and not self.cycle.response_complete:
            self._tell_ahead()
            if len(self.pipeline) >= MAX_REQUESTS or self.ahead.is_full:
                raise ValueError("too many requests ahead of their turn")
        super().on_headers_complete()
        self._meter.begin_body()

    def on_body(self, body: bytes) -> None:
        self._meter.content(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._meter.end()
        super().on_message_complete()
        if self.cycle.response_complete:
            self._stop_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_skipping and not self.transport.is_closing():
            self._skipped_bytes = 0
            self._start_timer(SKIP_TIMEOUT_SECONDS, CutReason.UNWANTED_BODY)

    def send_400_response(self, msg: str) -> None:
        """uvicorn's own refusal of what is not HTTP."""
        excess = self._meter.excess
        if self._is_surplus:
            message = f"this engine has more than the {self.max_connections} connections that it takes at once"
            self._answer_and_close(refusal(QueueFull(message)))
            return
        self._refuse(*(_TOO_MUCH[excess] if excess else (400, "the request is not valid HTTP")))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        self._tell_ahead()
        self.intake.begin(partial(super()._start_asgi_task, cycle, app))

    @property
    def _has_begun(self) -> bool:
        """Whether a part of an answer is sent, and not all."""
        cycle = self._answering
        return cycle is not None and cycle.response_started and not cycle.response_complete

    @property
    def _is_skipping(self) -> bool:
        """Whether a body still comes though its request is answered."""
        return self._meter.in_body and self.cycle.response_complete

    def _tell_ahead(self) -> None:
        self.ahead.tell(self, (cycle.body for cycle, _ in self.pipeline))

    def _begin_head(self) -> None:
        self._meter.begin_head()
        self._start_timer(HEADER_TIMEOUT_SECONDS, CutReason.SLOW_HEAD)

    def _start_timer(self, seconds: float, why: CutReason) -> None:
        self._stop_timer()
        self._deadline = self.loop.call_later(seconds, self._cut, why)

    def _cut(self, why: CutReason) -> None:
        """Ends the connection without an answer."""
        self._deaf = True
        self.on_cut(why)
        self.transport.abort()

    def _stop_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: int, message: str) -> None:
        """Answers outside of ASGI, because there is no request yet, and closes. An answer that has begun is cut; one
        that is whole is not followed by another to the same request."""
        self._answer_and_close(Refusal(status, Outcome.INVALID, "invalid_request_error", message))

    def _answer_and_close(self, answer: Refusal) -> None:
        self.on_refused(answer.outcome)
        self._deaf = True
        self._stop_timer()
        if not (self._has_begun or self._is_skipping):
            body = answer.body()
            fields = {"content-type": "application/json", "content-length": len(body), "connection": "close"}
            lines = [f"{name}: {value}\r\n" for name, value in {**fields, **answer.headers}.items()]
            self.transport.write(STATUS_LINE[answer.status] + "".join(lines).encode() + b"\r\n" + body)
        self._disconnect()
        self.transport.write_eof()
        self._deadline = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _look_for_client(self, again_after: float) -> None:
        """Has the connection fail if the client is not there. An answer that has begun does so by itself."""
        if self._answering is not None and not (self._answering.response_started or self.transport.is_closing()):
            self.transport.write(STILL_THERE)
        if not self.transport.is_closing():
            self._deadline = self.loop.call_later(again_after, self._look_for_client, again_after * 2)

    def _disconnect(self) -> None:
        """Nothing more is written to who is being answered, whatever else has come behind that request."""
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
