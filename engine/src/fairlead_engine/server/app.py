"""The ASGI application: which path leads where, and what `/openapi.json` says about it.

Control endpoints answer as Starlette's do. What reads a body or streams is raw ASGI. Both are on msgspec's schemas, and
`Answering` is around both, so that errors, counts and logs are the same everywhere. Not FastAPI: an engine that starts
beside a busy one would wait half a second of processor time longer for its classes.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fairlead_engine import __version__
from fairlead_engine.server.answering import Answering, Handler, RawEndpoint, refuse
from fairlead_engine.server.generate_endpoints import ChatEndpoint, CompletionEndpoint
from fairlead_engine.server.kv_endpoints import KVEndpoints
from fairlead_engine.server.model_endpoints import ModelCard, ModelEndpoints, ModelList, TextReply, TokensReply
from fairlead_engine.server.openapi import JSON, NDJSON, PLAIN_TEXT, Documentation, Operation, Schema
from fairlead_engine.server.probe_endpoints import DrainReply, ProbeEndpoints, Status
from fairlead_engine.server.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from fairlead_engine.server.service import Service
from fairlead_protocol.messages import (
    PATH_DRAIN,
    PATH_KV_BLOCKS,
    PATH_KV_EVENTS,
    PATH_MODEL,
    KVBlocks,
    ModelInfo,
    StreamLine,
)

_CHAT = Operation(path="/v1/chat/completions", name="chat", summary="Answer a chat", request=ChatRequest, streams=True)
_COMPLETION = Operation(
    path="/v1/completions", name="complete", summary="Continue prompts", request=CompletionRequest, streams=True
)
_TOKENIZE = Operation(
    path="/tokenize",
    name="tokenize",
    summary="The token ids of a text or chat",
    request=TokenizeRequest,
    reply=TokensReply,
)
_DETOKENIZE = Operation(
    path="/detokenize", name="detokenize", summary="The text of token ids", request=DetokenizeRequest, reply=TextReply
)
_KV_EVENTS = Operation(
    path=PATH_KV_EVENTS,
    name="kv_events",
    method="GET",
    summary="Changes of the reusable blocks and loads, as they happen",
    required={"epoch": "`epoch` of the list of blocks", "seq": "The last change the client has"},
    reply=StreamLine,
    reply_type=NDJSON,
    tag="control",
)


def build_app(service: Service) -> "EngineApplication":
    """The server's application on `service`. Reading order: this table, then the endpoint it names."""
    app = EngineApplication(service)
    model, kv, probe = ModelEndpoints(service), KVEndpoints(service), ProbeEndpoints(service)
    app.add_raw(_CHAT, ChatEndpoint(service))
    app.add_raw(_COMPLETION, CompletionEndpoint(service))
    app.add_raw(_TOKENIZE, model.tokenize)
    app.add_raw(_DETOKENIZE, model.detokenize)
    app.add_control("GET", "/v1/models", model.list_models, ModelList)
    app.add_control("GET", "/v1/models/{id:path}", model.get_model, ModelCard)
    app.add_control("GET", "/health", probe.health, Status)
    app.add_control("GET", "/ready", probe.ready, Status, parameters={"wait": "Seconds to wait for readiness, 0 to 10"})
    app.add_control("GET", "/metrics", probe.metrics, None)
    app.add_control("GET", PATH_MODEL, model.protocol_model, ModelInfo)
    app.add_control("GET", PATH_KV_BLOCKS, kv.kv_blocks, KVBlocks)
    app.add_raw(_KV_EVENTS, kv.kv_events)
    app.add_control("POST", PATH_DRAIN, probe.drain, DrainReply, status=202)
    app.add_route("/openapi.json", app.tell_document, methods=["GET"])
    return app


class EngineApplication(Starlette):
    """Starlette with two kinds of operations, both in `/openapi.json`, and without redirects to another slash."""

    def __init__(self, service: Service) -> None:
        super().__init__(
            middleware=[Middleware(Answering, service=service)], exception_handlers={HTTPException: refuse}
        )
        self.router.redirect_slashes = False
        self._documentation = Documentation()

    def add_raw(self, operation: Operation, handler: Handler) -> None:
        """Adds an operation that `handler` answers on raw ASGI."""
        self.router.routes.append(Route(operation.path, RawEndpoint(handler), methods=[operation.method]))
        self._documentation.add(operation)

    def add_control(
        self,
        method: str,
        path: str,
        endpoint: Callable[[Request], Awaitable[Response]],
        reply: Schema | None,
        *,
        status: int = 200,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        """Adds an operation whose `endpoint` encodes its `reply` itself; None = plain text. It may be given
        `parameters`, in the query: name → meaning."""
        self.router.routes.append(Route(path, endpoint, methods=[method]))
        operation = Operation(
            path=path.replace(":path}", "}"),
            name=endpoint.__name__,
            method=method,
            summary=inspect.getdoc(endpoint) or "",
            optional=parameters or {},
            reply=reply,
            reply_type=JSON if reply else PLAIN_TEXT,
            status=status,
            tag="control",
        )
        self._documentation.add(operation)

    def openapi(self) -> dict[str, Any]:
        """The document of `/openapi.json`."""
        return self._documentation.document("Fairlead engine", __version__)

    async def tell_document(self, request: Request) -> Response:
        """What this server answers, in OpenAPI's terms."""
        return JSONResponse(self.openapi())
