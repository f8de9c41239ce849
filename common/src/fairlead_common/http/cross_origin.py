"""Cross-origin requests (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol): which web pages may read answers.

ASGI middleware around a whole application, in gateways and engines. Without cookies: keys are headers, which pages set.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Message]], Send], Awaitable[None]]

_EXPOSED = (b"access-control-expose-headers", b"*")
_ALLOWED_SECONDS = b"600"
"""How long browsers may remember the answer to a preflight."""


def origins_of(setting: str) -> frozenset[str]:
    """The origins in `https://a.example,https://b.example`; `*` is every one."""
    return frozenset(origin.strip().rstrip("/").lower() for origin in setting.split(",") if origin.strip())


class CrossOrigin:
    """Adds the headers that let pages of some origins read answers, and answers their preflights."""

    def __init__(self, app: App, origins: frozenset[str]) -> None:
        """`origins`: as of `origins_of`."""
        self._app = app
        self._origins = origins

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Message]], send: Send
    ) -> None:
        headers: dict[bytes, bytes] = dict(scope.get("headers", ()))
        origin = headers.get(b"origin")
        if origin is None or not self._is_allowed(origin):
            await self._app(scope, receive, send)
            return
        allow = [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            asked = headers.get(b"access-control-request-headers", b"")
            allow.append((b"access-control-allow-methods", b"GET, HEAD, POST, DELETE"))
            allow.append((b"access-control-allow-headers", asked))
            allow.append((b"access-control-max-age", _ALLOWED_SECONDS))
            await send({"type": "http.response.start", "status": 204, "headers": allow})
            await send({"type": "http.response.body", "body": b""})
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *allow, _EXPOSED]}
            await send(message)

        await self._app(scope, receive, with_headers)

    def _is_allowed(self, origin: bytes) -> bool:
        return "*" in self._origins or origin.decode("latin-1").lower() in self._origins
