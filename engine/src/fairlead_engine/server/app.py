"""The FastAPI application: which path leads where.

Control endpoints are FastAPI's path operations. What reads a body or streams is raw ASGI on msgspec's schemas, at about
half the processor time. `Answering` is around both, so that errors, counts and logs are the same everywhere.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route

from fairlead_engine.server.adapter_endpoints import (
    AdapterEndpoints,
    AdapterReply,
    LoadAdapterRequest,
    UnloadAdapterRequest,
)
from fairlead_engine.server.answering import Answering, Handler, RawEndpoint, refuse
from fairlead_engine.server.generate_endpoints import ChatEndpoint, CompletionEndpoint
from fairlead_engine.server.injection_endpoint import PATH_INJECT, InjectionEndpoint, InjectReply, InjectRequest
from fairlead_engine.server.kv_endpoints import KVEndpoints
from fairlead_engine.server.model_endpoints import ModelCard, ModelEndpoints, ModelList, TextReply, TokensReply
from fairlead_engine.server.openapi import NDJSON, Documentation, RawOperation, Schema
from fairlead_engine.server.probe_endpoints import READY_PARAMETERS, DrainReply, ProbeEndpoints, Status
from fairlead_engine.server.reading_endpoint import EmbeddingEndpoint
from fairlead_engine.server.schemas import (
    ChatRequest,
    ClassifyRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
)
from fairlead_engine.server.scoring_endpoints import ClassifyEndpoint, RerankEndpoint, ScoreEndpoint
from fairlead_engine.server.service import Service
from fairlead_engine.version import __version__
from fairlead_protocol.messages import (
    PATH_DRAIN,
    PATH_KV_BLOCKS,
    PATH_KV_EVENTS,
    PATH_MODEL,
    KVBlocks,
    ModelInfo,
    StreamLine,
)
from fairlead_protocol.translate.messages import COUNT_TOKENS_PATH, CountTokensRequest, DialectErrorReply, InputTokens

_CHAT = RawOperation(
    path="/v1/chat/completions", name="chat", summary="Answer a chat", request=ChatRequest, streams=True
)
_COMPLETION = RawOperation(
    path="/v1/completions", name="complete", summary="Continue prompts", request=CompletionRequest, streams=True
)
_EMBEDDING = RawOperation(path="/v1/embeddings", name="embed", summary="Vectors of texts", request=EmbeddingRequest)
_RERANK = RawOperation(
    path="/v1/rerank", name="rerank", summary="Documents by how much they have to do with a query",
    request=RerankRequest,
)  # fmt: skip
_SCORE = RawOperation(
    path="/v1/score", name="score", summary="How much texts have to do with one another", request=ScoreRequest
)
_CLASSIFY = RawOperation(path="/v1/classify", name="classify", summary="Classes of texts", request=ClassifyRequest)
_TOKENIZE = RawOperation(
    path="/tokenize",
    name="tokenize",
    summary="The token ids of a text or chat",
    request=TokenizeRequest,
    reply=TokensReply,
)
_COUNT_TOKENS = RawOperation(
    path=COUNT_TOKENS_PATH,
    name="count_tokens",
    summary="How many tokens a conversation in Anthropic's form has",
    request=CountTokensRequest,
    reply=InputTokens,
    refusal=DialectErrorReply,
)
_DETOKENIZE = RawOperation(
    path="/detokenize", name="detokenize", summary="The text of token ids", request=DetokenizeRequest, reply=TextReply
)
_LOAD_ADAPTER = RawOperation(
    path="/v1/load_lora_adapter",
    name="load_adapter",
    summary="Load an adapter from a folder below `--adapter-folder`",
    request=LoadAdapterRequest,
    reply=AdapterReply,
    tag="control",
)
_UNLOAD_ADAPTER = RawOperation(
    path="/v1/unload_lora_adapter",
    name="unload_adapter",
    summary="Take no more requests for an adapter",
    request=UnloadAdapterRequest,
    reply=AdapterReply,
    tag="control",
)
_INJECT = RawOperation(
    path=PATH_INJECT,
    name="inject",
    summary="Put the result of a tool into an answer while it is streamed",
    request=InjectRequest,
    parameters={"id": "The answer's, as its stream tells it"},
    reply=InjectReply,
)
_KV_EVENTS = RawOperation(
    path=PATH_KV_EVENTS,
    name="kv_events",
    method="GET",
    summary="Changes of the reusable blocks and loads, as they happen",
    parameters={"epoch": "`epoch` of the list of blocks", "seq": "The last change the client has"},
    reply=StreamLine,
    reply_type=NDJSON,
    tag="control",
)


def build_app(service: Service) -> FastAPI:
    """The server's application on `service`. Reading order: this table, then the endpoint it names."""
    app = EngineApplication(service)
    model, kv, probe = ModelEndpoints(service), KVEndpoints(service), ProbeEndpoints(service)
    adapters = AdapterEndpoints(service)
    app.add_raw(_CHAT, ChatEndpoint(service))
    app.add_raw(_COMPLETION, CompletionEndpoint(service))
    app.add_raw(_INJECT, InjectionEndpoint(service))
    app.add_raw(_EMBEDDING, EmbeddingEndpoint(service))
    app.add_raw(_RERANK, RerankEndpoint(service))
    app.add_raw(_SCORE, ScoreEndpoint(service))
    app.add_raw(_CLASSIFY, ClassifyEndpoint(service))
    app.add_raw(_TOKENIZE, model.tokenize)
    app.add_raw(_COUNT_TOKENS, model.count_tokens)
    app.add_raw(_DETOKENIZE, model.detokenize)
    app.add_raw(_LOAD_ADAPTER, adapters.load)
    app.add_raw(_UNLOAD_ADAPTER, adapters.unload)
    app.add_control("GET", "/v1/models", model.list_models, ModelList)
    app.add_control("GET", "/v1/models/{id:path}", model.get_model, ModelCard)
    app.add_control("GET", "/health", probe.health, Status)
    app.add_control("GET", "/ready", probe.ready, Status, openapi_extra={"parameters": READY_PARAMETERS})
    app.add_control("GET", "/metrics", probe.metrics, None, response_class=PlainTextResponse)
    app.add_control("GET", PATH_MODEL, model.protocol_model, ModelInfo)
    app.add_control("GET", PATH_KV_BLOCKS, kv.kv_blocks, KVBlocks)
    app.add_raw(_KV_EVENTS, kv.kv_events)
    app.add_control("POST", PATH_DRAIN, probe.drain, DrainReply, status_code=202)
    return app


class EngineApplication(FastAPI):
    """FastAPI with raw operations beside its own, both in `/openapi.json`.

    Without `/docs` and `/redoc`, which load scripts from the internet, and without redirects to another slash.
    """

    def __init__(self, service: Service) -> None:
        super().__init__(
            title="Fairlead engine",
            version=__version__,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            exception_handlers={HTTPException: refuse},
        )
        self.add_middleware(Answering, service=service)
        self._documentation = Documentation()

    def add_raw(self, operation: RawOperation, handler: Handler) -> None:
        """Adds an operation that `handler` answers on raw ASGI."""
        self.router.routes.append(Route(operation.path, RawEndpoint(handler), methods=[operation.method]))
        self._documentation.add(operation)

    def add_control(
        self,
        method: str,
        path: str,
        endpoint: Callable[..., Awaitable[Response]],
        reply: Schema | None,
        *,
        status_code: int = 200,
        **options: Any,
    ) -> None:
        """Adds a path operation whose `endpoint` encodes its `reply` itself; None = not JSON."""
        responses = self._documentation.responses(reply, status_code)
        self.add_api_route(
            path,
            endpoint,
            methods=[method],
            status_code=status_code,
            tags=["control"],
            responses=responses,
            operation_id=endpoint.__name__,
            **options,
        )

    def openapi(self) -> dict[str, Any]:
        """The document of `/openapi.json`, made once."""
        if self.openapi_schema is None:
            self._documentation.complete(super().openapi())
        assert self.openapi_schema is not None  # FastAPI keeps what it has made
        return self.openapi_schema
