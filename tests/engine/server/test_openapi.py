"""`/openapi.json` describes every path, every field of every request, and the one shape of errors."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from fairlead_common.openai.translate.messages import CountTokensRequest
from fairlead_common.openai.translate.messages_answers import MessagesRequest
from fairlead_common.openai.translate.ollama import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from fairlead_common.openai.translate.responses import ResponsesRequest
from fairlead_engine.api.model_endpoints import LoadAdapterRequest, UnloadAdapterRequest
from fairlead_engine.api.schemas import (
    ChatRequest,
    ClassifyRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
)

REQUESTS = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/rerank": RerankRequest,
    "/v1/score": ScoreRequest,
    "/v1/classify": ClassifyRequest,
    "/tokenize": TokenizeRequest,
    "/v1/messages": MessagesRequest,
    "/api/chat": OllamaChatRequest,
    "/api/generate": OllamaGenerateRequest,
    "/api/embed": OllamaEmbedRequest,
    "/api/embeddings": OllamaEmbeddingsRequest,
    "/api/show": OllamaShowRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/responses/compact": ResponsesRequest,
    "/v1/responses/input_tokens": ResponsesRequest,
    "/v1/messages/count_tokens": CountTokensRequest,
    "/detokenize": DetokenizeRequest,
    "/v1/load_lora_adapter": LoadAdapterRequest,
    "/v1/unload_lora_adapter": UnloadAdapterRequest,
}
PATHS = {("post", path) for path in REQUESTS} | {
    ("post", "/v1/chat/completions/{id}/inject"),
    ("post", "/fairlead/v1/drain"),
    ("post", "/invocations"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{id}"),
    *(("get", f"/api/{name}") for name in ("tags", "ps", "version")),
    ("get", "/health"),
    ("get", "/ready"),
    *(("get", f"/{name}") for name in ("ping", "version", "load")),
    ("get", "/metrics"),
    ("get", "/fairlead/v1/model"),
    ("get", "/fairlead/v1/kv/blocks"),
    ("get", "/fairlead/v1/kv/events"),
}


@pytest.fixture
async def document(start_app: Any) -> dict[str, Any]:
    response = await start_app(ready=False).http.get("/openapi.json")
    assert response.status_code == 200
    assert response.headers["x-request-id"]
    return dict(response.json())


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method, path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"]
        for each in part.values():
            yield from references(each)
    elif isinstance(part, list):
        for each in part:
            yield from references(each)


def schema_of(document: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    name = content["application/json"]["schema"]["$ref"].removeprefix("#/components/schemas/")
    return dict(document["components"]["schemas"][name])


async def test_every_path_is_described_and_no_other(document: dict[str, Any]) -> None:
    assert set(operations(document)) == PATHS


async def test_the_document_is_valid(document: dict[str, Any]) -> None:
    from fastapi.openapi.models import OpenAPI

    OpenAPI.model_validate(document)
    names = set(references(document))
    assert names <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert len(names) >= len(REQUESTS)
    ids = [operation["operationId"] for operation in operations(document).values()]
    assert len(set(ids)) == len(ids)
    assert "HTTPValidationError" not in json.dumps(document)


@pytest.mark.parametrize(("path", "request_schema"), REQUESTS.items())
async def test_every_field_of_a_request_appears(
    document: dict[str, Any], path: str, request_schema: type[msgspec.Struct]
) -> None:
    schema = schema_of(document, operations(document)["post", path]["requestBody"]["content"])
    assert set(schema["properties"]) == set(request_schema.__struct_fields__)
    required = {field.name for field in msgspec.structs.fields(request_schema) if field.required}
    assert set(schema["required"]) == required
    assert schema["additionalProperties"] is False


async def test_every_operation_says_how_it_refuses(document: dict[str, Any]) -> None:
    for place, operation in operations(document).items():
        error = schema_of(document, operation["responses"]["default"]["content"])
        of_anthropic = ["type", "error", "request_id"]
        assert list(error["properties"]) == (of_anthropic if "/messages" in place[1] else ["error"]), place
    fields = document["components"]["schemas"]["ErrorObject"]["properties"]
    assert set(fields) == {"message", "type", "param", "code"}


async def test_a_reply_matches_its_description(document: dict[str, Any], start_app: Any) -> None:
    app = start_app()
    described = operations(document)
    for path in ("/v1/models", "/v1/models/{id}", "/fairlead/v1/model", "/ready"):
        reply = (await app.http.get(path.replace("{id}", "tiny"))).json()
        schema = schema_of(document, described["get", path]["responses"]["200"]["content"])
        assert set(schema.get("required", [])) <= set(reply) <= set(schema["properties"]), path
    drained = described["post", "/fairlead/v1/drain"]["responses"]
    assert "202" in drained
    assert "200" not in drained


async def test_what_streams_says_so(document: dict[str, Any]) -> None:
    streams = {
        path
        for (_, path), operation in operations(document).items()
        if "text/event-stream" in operation["responses"].get("200", {}).get("content", {})
    }
    assert streams == {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/invocations"}
    for path in ("/api/chat", "/api/generate"):
        content = operations(document)["post", path]["responses"]["200"]["content"]
        assert set(content) == {"application/json", "application/x-ndjson"}
