"""The FastAPI application: which path leads where.

Control endpoints are FastAPI's path operations. Endpoints with bodies or streams are raw ASGI on msgspec's schemas, at
about half the processor time. `Answering` around both makes errors, counts and logs uniform.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from operator import attrgetter
from typing import Any

import msgspec
from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route

from fairlead_common.http.cross_origin import CrossOrigin, origins_of
from fairlead_common.http.pages import DOCUMENT_FOLDER, HEADERS, Page, read_pages
from fairlead_common.openai.translate import TRANSLATED_PATHS, ollama, ollama_answers
from fairlead_common.openai.translate.compactions import COMPACT_PATH
from fairlead_common.openai.translate.invocations import INVOCATIONS_PATH, Invocation
from fairlead_common.openai.translate.messages import (
    COUNT_TOKENS_PATH,
    CountTokensRequest,
    DialectErrorReply,
    InputTokens,
)
from fairlead_common.openai.translate.messages_answers import MESSAGES_PATH, MessagesRequest
from fairlead_common.openai.translate.ollama_answers import NDJSON, OllamaError
from fairlead_common.openai.translate.ollama_models import MODEL_QUESTIONS
from fairlead_common.openai.translate.responses import INPUT_TOKENS_PATH, RESPONSES_PATH, ResponsesRequest
from fairlead_common.openai.translate.responses_answers import ResponseInputTokens
from fairlead_common.wire import messages
from fairlead_engine.api import generate_endpoints, model_endpoints, prompt_endpoints, schemas
from fairlead_engine.api.service import Endpoint, Service
from fairlead_engine.host.exchange import Answering, Exchange, Handler, RawEndpoint, refuse
from fairlead_engine.host.refusals import ErrorReply
from fairlead_engine.server import control_endpoints
from fairlead_engine.version import __version__

Schema = type[msgspec.Struct]
_REFERENCE = "#/components/schemas/{name}"
_JSON, _EVENTS = "application/json", "text/event-stream"


class TranslatedEndpoint(Endpoint):
    """Requests in other dialects (`fairlead_common.openai.translate`), answered by the endpoints of their paths in the
    OpenAI form."""

    def __init__(self, service: Service, handlers: Mapping[str, Handler]) -> None:
        """`handlers`: by path."""
        super().__init__(service)
        self._handlers = handlers

    async def __call__(self, exchange: Exchange) -> None:
        self._service.lifecycle.check_accepting()
        body = await exchange.body()
        await self._service.pacer.pace(len(body))
        path = exchange.translate(body, self._service.unknown_fields)
        del body  # answers may take long
        await self._handlers[path](exchange)


@dataclass(frozen=True, slots=True)
class RawOperation:
    """An operation on raw ASGI, which FastAPI cannot describe."""

    path: str
    name: str
    """The operation's id, snake_case."""
    summary: str
    request: Schema | None = None
    """Schema of the body; None = no body."""
    reply: Schema | None = None
    """None = an object of OpenAI's API, described there."""
    _: KW_ONLY
    method: str = "POST"
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Required parameters with descriptions: names in braces in `path` are in the path, the rest in the query."""
    reply_type: str = _JSON
    """Content type of the reply; `NDJSON` = a `reply` on each line."""
    refusal: Schema = ErrorReply
    streams: str | None = None
    """Content type of the answer to `stream: true`; None = no streams."""
    tag: str = "inference"

    def description(self) -> dict[str, Any]:
        """The operation as OpenAPI's operation object."""
        content = _json(self.reply, self.reply_type) if self.reply else {_JSON: {"schema": {"type": "object"}}}
        if self.streams:
            content[self.streams] = {}  # a schema would be of each event to some readers, of the whole text to others
        described: dict[str, Any] = {
            "tags": [self.tag],
            "summary": self.summary,
            "operationId": self.name,
            "responses": {
                "200": {"description": "Successful Response", "content": content},
                "default": _refused(self.refusal),
            },
        }
        if self.request:
            described["requestBody"] = {"required": True, "content": _json(self.request)}
        if self.parameters:
            described["parameters"] = [
                {
                    "name": name,
                    "in": "path" if f"{{{name}}}" in self.path else "query",
                    "required": True,
                    "description": text,
                    "schema": {"type": "string"},
                }
                for name, text in self.parameters.items()
            ]
        return described


def _json(schema: Schema, content_type: str = _JSON) -> dict[str, Any]:
    return {content_type: {"schema": {"$ref": _REFERENCE.format(name=schema.__name__)}}}


def _refused(schema: Schema) -> dict[str, Any]:
    return {"description": "Refused or failed", "content": _json(schema)}


_RAW = (
    RawOperation("/v1/chat/completions", "chat", "Answer a chat", schemas.ChatRequest, streams=_EVENTS),
    RawOperation("/v1/completions", "complete", "Continue prompts", schemas.CompletionRequest, streams=_EVENTS),
    RawOperation(
        generate_endpoints.PATH_INJECT,
        "inject",
        "Put the result of a tool into an answer while it is streamed",
        generate_endpoints.InjectRequest,
        generate_endpoints.InjectReply,
        parameters={"id": "The answer's, as its stream tells it"},
    ),
    RawOperation("/v1/embeddings", "embed", "Vectors of texts", schemas.EmbeddingRequest),
    RawOperation("/v1/rerank", "rerank", "Documents by how much they have to do with a query", schemas.RerankRequest),
    RawOperation("/v1/score", "score", "How much texts have to do with one another", schemas.ScoreRequest),
    RawOperation("/v1/classify", "classify", "Classes of texts", schemas.ClassifyRequest),
    RawOperation(
        "/tokenize", "tokenize", "The token ids of a text or chat", schemas.TokenizeRequest, model_endpoints.TokensReply
    ),
    RawOperation(
        MESSAGES_PATH,
        "message",
        "Answer a conversation in Anthropic's form",
        MessagesRequest,
        refusal=DialectErrorReply,
        streams=_EVENTS,
    ),
    RawOperation(RESPONSES_PATH, "respond", "Answer a conversation in items", ResponsesRequest, streams=_EVENTS),
    RawOperation(
        COMPACT_PATH, "compact", "The user's messages of a conversation, and a summary of it", ResponsesRequest
    ),
    RawOperation(
        INPUT_TOKENS_PATH,
        "count_input_tokens",
        "How many tokens a conversation in items has",
        ResponsesRequest,
        ResponseInputTokens,
    ),
    RawOperation(
        ollama_answers.CHAT_PATH,
        "ollama_chat",
        "Answer a chat in Ollama's form",
        ollama.OllamaChatRequest,
        refusal=OllamaError,
        streams=NDJSON,
    ),
    RawOperation(
        ollama_answers.GENERATE_PATH,
        "ollama_generate",
        "Answer or continue a prompt in Ollama's form",
        ollama.OllamaGenerateRequest,
        refusal=OllamaError,
        streams=NDJSON,
    ),
    RawOperation(
        ollama_answers.EMBED_PATH,
        "ollama_embed",
        "Vectors of texts in Ollama's form",
        ollama.OllamaEmbedRequest,
        refusal=OllamaError,
    ),
    RawOperation(
        ollama_answers.OLDER_EMBED_PATH,
        "ollama_embeddings",
        "The vector of a text in Ollama's older form",
        ollama.OllamaEmbeddingsRequest,
        refusal=OllamaError,
    ),
    RawOperation(
        INVOCATIONS_PATH,
        "invoke",
        "Whatever the body's fields are for: a chat, a completion, embeddings, ranks or scores",
        Invocation,
        streams=_EVENTS,
    ),
    *(
        RawOperation(
            path,
            question.NAME,
            question.SUMMARY,
            question.REQUEST,
            method=question.METHOD,
            refusal=OllamaError,
            tag="control",
        )
        for path, question in MODEL_QUESTIONS.items()
    ),
    RawOperation(
        COUNT_TOKENS_PATH,
        "count_tokens",
        "How many tokens a conversation in Anthropic's form has",
        CountTokensRequest,
        InputTokens,
        refusal=DialectErrorReply,
    ),
    RawOperation(
        "/detokenize", "detokenize", "The text of token ids", schemas.DetokenizeRequest, model_endpoints.TextReply
    ),
    RawOperation(
        "/v1/load_lora_adapter",
        "load_adapter",
        "Load an adapter from a folder below `--adapter-folder`",
        model_endpoints.LoadAdapterRequest,
        model_endpoints.AdapterReply,
        tag="control",
    ),
    RawOperation(
        "/v1/unload_lora_adapter",
        "unload_adapter",
        "Take no more requests for an adapter",
        model_endpoints.UnloadAdapterRequest,
        model_endpoints.AdapterReply,
        tag="control",
    ),
    RawOperation(
        messages.PATH_KV_EVENTS,
        "kv_events",
        "Changes of the reusable blocks and loads, as they happen",
        reply=messages.StreamLine,
        method="GET",
        parameters={"epoch": "`epoch` of the list of blocks", "seq": "The last change the client has"},
        reply_type=control_endpoints.NDJSON,
        tag="control",
    ),
)


def build_app(service: Service) -> FastAPI:
    """The server's application on `service`. Reading order: this table, then the endpoint that it names."""
    app = EngineApplication(service)
    model, adapters = model_endpoints.ModelEndpoints(service), model_endpoints.AdapterEndpoints(service)
    kv, probe = control_endpoints.KVEndpoints(service.stream, service.model), control_endpoints.ProbeEndpoints(service)
    handlers: dict[str, Handler] = {
        "chat": generate_endpoints.ChatEndpoint(service),
        "complete": generate_endpoints.CompletionEndpoint(service),
        "inject": generate_endpoints.InjectionEndpoint(service),
        "embed": prompt_endpoints.EmbeddingEndpoint(service),
        "rerank": prompt_endpoints.RerankEndpoint(service),
        "score": prompt_endpoints.ScoreEndpoint(service),
        "classify": prompt_endpoints.ClassifyEndpoint(service),
        "tokenize": model.tokenize,
        "detokenize": model.detokenize,
        "load_adapter": adapters.load,
        "unload_adapter": adapters.unload,
        "kv_events": kv.kv_events,
    }
    translated = TranslatedEndpoint(service, {each.path: handlers[each.name] for each in _RAW if each.name in handlers})
    handlers |= {each.name: translated for each in _RAW if each.path in TRANSLATED_PATHS}
    handlers |= {each.name: model.question for each in _RAW if each.path in MODEL_QUESTIONS}
    for operation in _RAW:
        app.add_raw(operation, handlers[operation.name])
    for path, page in read_pages(DOCUMENT_FOLDER).items():
        app.add_page(path, page)
    app.add_control("GET", "/v1/models", model.list_models, model_endpoints.ModelList)
    app.add_control("GET", "/v1/models/{id:path}", model.get_model, model_endpoints.ModelCard)
    app.add_control("GET", "/health", probe.health, control_endpoints.Status)
    app.add_control("GET", "/ping", probe.ping, control_endpoints.Status)
    app.add_control("GET", "/version", probe.version, control_endpoints.Version)
    app.add_control("GET", "/load", probe.server_load, control_endpoints.ServerLoad)
    ready = {"parameters": control_endpoints.READY_PARAMETERS}
    app.add_control("GET", "/ready", probe.ready, control_endpoints.Status, openapi_extra=ready)
    app.add_control("GET", "/metrics", probe.metrics, None, response_class=PlainTextResponse)
    app.add_control("GET", messages.PATH_MODEL, model.protocol_model, messages.ModelInfo)
    app.add_control("GET", messages.PATH_KV_BLOCKS, kv.kv_blocks, messages.KVBlocks)
    app.add_control("POST", messages.PATH_DRAIN, probe.drain, control_endpoints.DrainReply, status_code=202)
    return app


class EngineApplication(FastAPI):
    """FastAPI with raw operations beside its own, both in `/openapi.json`.

    Without FastAPI's own `/docs` and `/redoc`, which load scripts from the internet, and without redirects to another
    slash.
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
        self.add_middleware(Answering, bodies=service.bodies, answered=service.metrics.answered)
        if origins := origins_of(service.config.allowed_origins):
            self.add_middleware(CrossOrigin, origins=origins)
        self._schemas: set[Schema] = {ErrorReply}
        self._raw: dict[str, Any] = {}
        """Descriptions of raw operations, by path."""

    def add_raw(self, operation: RawOperation, handler: Handler) -> None:
        """Adds an operation that `handler` answers on raw ASGI."""
        self.router.routes.append(Route(operation.path, RawEndpoint(handler), methods=[operation.method]))
        self._schemas |= {schema for schema in (operation.request, operation.reply, operation.refusal) if schema}
        self._raw[operation.path] = {operation.method.lower(): operation.description()}

    def add_page(self, path: str, page: Page) -> None:
        """Adds a file for browsers, which the document leaves out."""
        headers = {name.decode(): value.decode() for name, value in HEADERS}
        answer = Response(page.body, headers=headers, media_type=page.content_type.decode())
        self.router.routes.append(Route(path, answer, methods=["GET"]))

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
        """Adds a path operation. `reply`: encoded by the `endpoint`; None = not JSON."""
        responses: dict[int | str, dict[str, Any]] = {}
        if reply is not None:
            self._schemas.add(reply)
            responses[status_code] = {"content": _json(reply)}
        self.add_api_route(
            path,
            endpoint,
            methods=[method],
            status_code=status_code,
            tags=["control"],
            responses=responses | {"default": _refused(ErrorReply)},
            operation_id=endpoint.__name__,
            **options,
        )

    def openapi(self) -> dict[str, Any]:
        """The document of `/openapi.json`, made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            _, schemas = msgspec.json.schema_components(
                sorted(self._schemas, key=attrgetter("__name__")), ref_template=_REFERENCE
            )
            document["paths"] = {**self._raw, **document["paths"]}
            document.setdefault("components", {})["schemas"] = schemas
        assert self.openapi_schema is not None  # FastAPI keeps what it has made
        return self.openapi_schema
