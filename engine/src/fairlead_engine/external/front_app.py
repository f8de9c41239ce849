"""The front's application: which path leads where. The front answers gateways, kubelets and operators itself, as the
engine does, and passes requests for the model on."""

from collections.abc import Mapping
from urllib.parse import parse_qs

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead_common.wire.messages import HEADER_REASON, PATH_DRAIN, PATH_KV_BLOCKS, PATH_KV_EVENTS, PATH_MODEL
from fairlead_common.wire.own_paths import OWN_PATHS
from fairlead_engine.external.front_proxy import FrontProxy
from fairlead_engine.external.front_service import FrontService
from fairlead_engine.host.exchange import EXCHANGE, Answering, Exchange, Handler
from fairlead_engine.host.refusals import NotFound, method_not_allowed
from fairlead_engine.server.control_endpoints import MAX_WAIT_SECONDS, DrainReply, KVEndpoints, Status, wait_seconds

INFERENCE_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/classify",
)
_RELAYED_POSTS = ("/tokenize", "/detokenize")
_RELAYED_GETS = ("/v1/models", "/version", "/metrics")


def build_front_app(service: FrontService, proxy: FrontProxy) -> ASGIApp:
    return Answering(_FrontApp(service, proxy), service.bodies, service.metrics.answered)


class _FrontApp:
    """The front's endpoints, and the table of paths and methods."""

    def __init__(self, service: FrontService, proxy: FrontProxy) -> None:
        self._service = service
        self._kv = KVEndpoints(service.stream, service.model)
        self._inference = (*INFERENCE_PATHS, *OWN_PATHS[service.config.engine])
        self._paths: Mapping[str, tuple[str, Handler]] = {
            **dict.fromkeys(self._inference, ("POST", proxy.infer)),
            **dict.fromkeys(_RELAYED_POSTS, ("POST", proxy.relay)),
            **dict.fromkeys(_RELAYED_GETS, ("GET", proxy.relay)),
            "/health": ("GET", self._health),
            "/ready": ("GET", self._ready),
            PATH_MODEL: ("GET", self._model),
            PATH_KV_BLOCKS: ("GET", self._kv_blocks),
            PATH_KV_EVENTS: ("GET", self._kv.kv_events),
            PATH_DRAIN: ("POST", self._drain),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._paths.get(scope["path"])
        if found is None:
            served = f"this engine takes requests at {', '.join(self._inference)}"
            raise NotFound(None, f"there is nothing at {scope['path']}; {served}", "not_found")
        method, handler = found
        if scope["method"] != method:
            raise method_not_allowed(scope["method"], "GET, HEAD" if method == "GET" else method)
        await handler(scope[EXCHANGE])

    async def _health(self, exchange: Exchange) -> None:
        """A front that answers is well: the kubelet asks the server on its own."""
        await _send(exchange, Status("ok"))

    async def _ready(self, exchange: Exchange) -> None:
        """200 while the server serves and no drain has begun, else 503."""
        text = parse_qs(exchange.scope["query_string"].decode("latin-1")).get("wait", ["0"])[-1]
        if wait := wait_seconds(text, f"from 0 to {MAX_WAIT_SECONDS:g}"):
            await self._service.lifecycle.loaded(wait)
        problem = self._service.readiness_problem()
        if problem is None:
            await _send(exchange, Status("ready"))
        else:
            reason, message = problem
            await _send(exchange, Status(reason, message), status=503, headers={HEADER_REASON: reason})

    async def _model(self, exchange: Exchange) -> None:
        await _send(exchange, self._service.model_info())

    async def _kv_blocks(self, exchange: Exchange) -> None:
        response = await self._kv.kv_blocks()
        await exchange.send_json(bytes(response.body), status=response.status_code)

    async def _drain(self, exchange: Exchange) -> None:
        """Begins to drain, as SIGTERM does; answers at once."""
        self._service.drain()
        lifecycle = self._service.lifecycle
        await _send(exchange, DrainReply(lifecycle.phase, lifecycle.num_running), status=202)


async def _send(
    exchange: Exchange, struct: msgspec.Struct, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    await exchange.send_json(msgspec.json.encode(struct), status=status, headers=headers)
