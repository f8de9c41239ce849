"""Around every request, whoever answers it: one exchange, one answer in OpenAI's shape, one count, one log line.

The outermost layer of the application. What an endpoint raises becomes an answer here and nowhere else.
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Protocol

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead_engine.server.exchange import Exchange
from fairlead_engine.server.refusals import MethodNotAllowed, NotFound, Outcome
from fairlead_protocol.http.bodies import BodyReader

Handler = Callable[[Exchange], Awaitable[None]]
EXCHANGE = "fairlead_engine.exchange"
"""Where an ASGI scope has it."""
_QUIET_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Asked every few seconds by machines: not worth a log line while they succeed."""


class Counts(Protocol):
    """Counts requests."""

    def answered(self, outcome: Outcome) -> None:
        """One more ended so."""
        ...


class Answered(Protocol):
    """What requests are answered for."""

    @property
    def bodies(self) -> BodyReader: ...

    @property
    def metrics(self) -> Counts: ...


class Answering:
    """ASGI middleware that gives every request its `Exchange`. A HEAD is routed as the GET it stands for."""

    def __init__(self, app: ASGIApp, service: Answered) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self._service.bodies)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        routed = {**scope, "method": method, EXCHANGE: exchange}
        try:
            await exchange.answer(self._app(routed, receive, exchange.send))
        finally:
            exchange.held.release()
            self._service.metrics.answered(exchange.outcome)
            if exchange.outcome is not Outcome.OK or scope["path"] not in _QUIET_PATHS:
                exchange.log_line()


class RawEndpoint:
    """A handler as an ASGI application. It answers through the exchange, past the layers FastAPI has in between."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope[EXCHANGE])


async def refuse(request: Request, error: Exception) -> Response:
    """FastAPI's handler of the errors its router raises: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    if error.status_code != HTTPStatus.METHOD_NOT_ALLOWED:
        problem = f"there is nothing at {request.scope['path']}; /openapi.json lists what there is, such as "
        raise NotFound(None, problem + "/v1/chat/completions", "not_found")
    allowed = (error.headers or {})["Allow"]
    raise MethodNotAllowed(request.method, "GET, HEAD" if "GET" in allowed else allowed)
