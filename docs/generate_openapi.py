"""Writes the gateway's `/openapi.json`, of the engine's: what a gateway passes on is what engines understand.

`make reference` calls it, and `tests/test_reference.py` compares, so that neither a path nor a field can be in one and
not in the other. The gateway has the file as data: it needs no framework to describe itself.
"""

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import msgspec

from fairlead import __version__
from fairlead.gateway.batches.batch import ENDPOINTS
from fairlead.gateway.batches.message_requests import MAX_PAGE as MAX_MESSAGE_BATCHES
from fairlead.gateway.batches.message_requests import MAX_REQUESTS
from fairlead.gateway.batches.requests import BATCHES_PATH
from fairlead.gateway.batches.requests import MAX_PAGE as MAX_BATCHES
from fairlead.gateway.files.requests import FILES_PATH, MAX_PAGE, PURPOSE
from fairlead.gateway.model_history import ModelDetail
from fairlead.gateway.model_states import PATH_STATES, ModelStates
from fairlead.gateway.openai.routes import FILE, INFERENCE_PATHS, INJECT_PATH, PATH_DOCUMENT, PROBES
from fairlead.gateway.recent_requests import PATH_REQUESTS, RequestRecord
from fairlead.gateway.stored.requests import MAX_ITEMS
from fairlead_common.openai.translate.messages import MESSAGE_BATCHES_PATH
from fairlead_common.openai.translate.messages_answers import MESSAGES_PATH
from fairlead_common.openai.translate.messages_models import MODELS_PATH
from fairlead_common.openai.translate.ollama_models import MODEL_QUESTIONS
from fairlead_common.openai.translate.responses import RESPONSES_PATH
from fairlead_common.wire.messages import (
    HEADER_CACHED_TOKENS,
    HEADER_PREDICTED_CACHED_TOKENS,
    HEADER_PREDICTED_TTFT_MS,
    HEADER_QUEUE_MS,
    HEADER_REPLICA,
    HEADER_REQUEST_ID,
)
from fairlead_common.wire.own_paths import ALL_OWN_PATHS, FORM_PATHS, OWN_PATHS
from fairlead_engine.api.service import Service
from fairlead_engine.config import ServerConfig
from fairlead_engine.server.app import build_app
from fairlead_engine_testing.scripted_engine import ScriptedEngine

Document = dict[str, Any]

ERRORS = {
    400: "The request is not HTTP, not JSON, or asks for what the engine refuses; `param` names the field",
    401: "No API key, or one that is not valid, where the gateway asks for keys",
    404: "There is no such model or adapter, or no such path",
    405: "The path takes another method; `Allow` says which",
    408: "The body did not arrive in time",
    413: "The body is larger than the gateway takes",
    415: "The body is compressed",
    429: "Later: a line is full, or the request waited too long in it",
    431: "The headers are larger than the gateway takes",
    500: "A defect of the gateway or an engine",
    502: "The replica broke down on it",
    503: "Nothing can serve it now: no replica became ready, or the gateway begins or ends",
    504: "A replica took it and then kept silent",
}
"""Status → when."""
CONFLICTS = {409: "It has ended, or something reads it"}
"""Of batches and their files."""
OF_LISTS = (400, 401, 404, 405, 429, 431, 500, 503)
"""Those of requests without a body that no engine answers."""
RETRYING = (429, 503)
"""These say when to come again."""
HEADERS = {
    HEADER_REQUEST_ID: ("The client's own id of the request, or one that was made for it", "string"),
    "retry-after": ("Seconds after which to come again", "integer"),
    "www-authenticate": ("`Bearer`", "string"),
    "allow": ("The methods that the path takes", "string"),
    HEADER_REPLICA: ("The replica that answers", "string"),
    HEADER_QUEUE_MS: ("How long it waited in the gateway, in milliseconds", "number"),
    HEADER_CACHED_TOKENS: ("Prompt tokens that the engine found in its cache; answers that do not stream", "integer"),
    HEADER_PREDICTED_CACHED_TOKENS: ("How many of them the gateway had foreseen", "integer"),
    HEADER_PREDICTED_TTFT_MS: ("The time to first token that the gateway had foreseen, in milliseconds", "number"),
}
"""Of answers: what each says, and its type."""
OF_ANSWERS = (
    HEADER_REPLICA, HEADER_QUEUE_MS, HEADER_CACHED_TOKENS, HEADER_PREDICTED_CACHED_TOKENS, HEADER_PREDICTED_TTFT_MS,
)  # fmt: skip
MODEL: Document = {
    "type": "object",
    "description": "One name that requests may ask for.",
    "required": ["id", "object", "created", "owned_by", "state"],
    "properties": {
        "id": {"type": "string", "description": "What to write in `model`."},
        "object": {"const": "model"},
        "created": {"type": "integer", "description": "When its LLMDeployment was, in seconds since 1970."},
        "owned_by": {"type": "string", "description": "Its namespace."},
        "state": {"enum": ["ready", "starting", "asleep", "stopped"], "description": "Whether it is served at once."},
        "root": {"type": "string", "description": "What it is another name for."},
        "parent": {"type": "string", "description": "Of an adapter: the model that it belongs to."},
        "max_model_len": {"type": "integer", "description": "Tokens of prompt and answer; absent while none is ready."},
        "capabilities": {
            "type": "array",
            "items": {"type": "string"},
            "description": "`completion`, `embedding`, `tools`, `thinking`, `vision`; absent where no engine has told.",
        },
    },
    "additionalProperties": False,
}
MODEL_LIST: Document = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {
        "object": {"const": "list"},
        "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}},
    },
    "additionalProperties": False,
}


def main() -> None:
    """Writes the file into the package."""
    FILE.write_text(text(), encoding="utf-8")


def text() -> str:
    """The document as it is kept."""
    return json.dumps(document(), indent=1, sort_keys=True) + "\n"


def document() -> Document:
    """The gateway's document."""
    engine = build_app(Service("model", ScriptedEngine(), ServerConfig())).openapi()
    paths = {
        path: {"post": _inference(engine["paths"][path]["post"])} for path in sorted({*INFERENCE_PATHS, INJECT_PATH})
    }
    paths |= {path: {"post": _own(path)} for path in ALL_OWN_PATHS}
    for path, question in MODEL_QUESTIONS.items():
        method = question.METHOD.lower()
        paths[path] = {method: _question(engine["paths"][path][method])}
    paths[MODELS_PATH] = {"get": _read("list_models", "The models that can be asked for", "Models")}
    one = _read("get_model", "One of them, by any of its names", "Model")
    paths[f"{MODELS_PATH}/{{id}}"] = {"get": _with_names(one, "id")}
    paths[PATH_STATES] = {"get": _read("model_states", "How every model stands, those at zero too", "ModelStates")}
    detail = _read("model_detail", "One model now and in the last hour", "ModelDetail")
    paths[f"{PATH_STATES}/{{namespace}}/{{name}}"] = {"get": _with_names(detail, "namespace", "name")}
    request = _read(
        "recent_request", "One of the last requests of this gateway: where it went, and why", "RequestRecord"
    )
    paths[f"{PATH_REQUESTS}/{{id}}"] = {"get": _with_names(request, "id")}
    paths |= {path: {"get": _probe(path, says)} for path, says in PROBES.items()}
    [refusal] = _names(engine["paths"][MESSAGES_PATH]["post"]["responses"]["default"])
    paths |= _stored() | _files() | _batches() | _message_batches(refusal)
    described = _read("openapi", "This document", None)
    paths[PATH_DOCUMENT] = {"get": described}
    _, states = msgspec.json.schema_components(
        [ModelStates, ModelDetail, RequestRecord], ref_template="#/components/schemas/{name}"
    )
    schemas = {"Model": MODEL, "Models": MODEL_LIST, "Probe": _PROBE, **states}
    return {
        "openapi": engine["openapi"],
        "info": {
            "title": "Fairlead gateway",
            "version": __version__,
            "description": "OpenAI's API for all models of a fleet. `model` chooses one, or "
            "`/{namespace}/{name}` of its LLMDeployment before the path, or its Host; where neither of these does, a "
            "request without `model` is refused.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas | _referenced(paths, engine["components"]["schemas"]),
            "headers": {key: {"description": says, "schema": {"type": kind}} for key, (says, kind) in HEADERS.items()},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _stored() -> Document:
    """Paths below `/v1/responses`, where responses are stored."""

    def operation(operation_id: str, summary: str, done: Document, *parameters: Document) -> Document:
        return _operation("responses", operation_id, summary, done, _NAME, *parameters)

    whole = _answer("Successful Response", {"type": "object"}, HEADER_REQUEST_ID)
    one = f"{RESPONSES_PATH}/{{id}}"
    streamed = whole | {"content": whole["content"] | {"text/event-stream": {}}}
    return {
        one: {
            "get": operation(
                "get_response", "A stored response", streamed,
                _query("stream", "Its events, once it has ended", type="boolean"),
                _query("starting_after", "The number of the last event that is not wanted", type="integer"),
            ),
            "delete": operation("delete_response", "Deletes a stored response", whole),
        },
        f"{one}/cancel": {"post": operation("cancel_response", "Ends a response in the background", whole)},
        f"{one}/input_items": {
            "get": operation(
                "list_input_items", "Items that a response was made of, earlier turns included", whole,
                _query("limit", "How many", type="integer", minimum=1, maximum=MAX_ITEMS, default=20),
                _query("order", "By age", enum=["asc", "desc"], default="desc"),
                _query("after", "The id of the last item of the page before", type="string"),
            )
        },
    }  # fmt: skip


def _operation(tag: str, operation_id: str, summary: str, done: Document, *parameters: Document) -> Document:
    """One that no engine answers."""
    common = _common(tag, {"200": done, **_refusals(OF_LISTS)})
    return {"summary": summary, "operationId": operation_id, **common, "parameters": [_ID, *parameters]}


def _query(name: str, says: str, **kind: Any) -> Document:
    return {"name": name, "in": "query", "required": False, "description": says, "schema": kind}


def _page(what: str, default: int, most: int) -> list[Document]:
    return [
        _query("limit", "How many", type="integer", minimum=1, maximum=most, default=default),
        _query("after", f"The id of the last {what} of the page before", type="string"),
    ]


_NAME = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_OBJECT: Document = {"type": "object"}


def _files() -> Document:
    """`/v1/files`, where files are kept."""
    one, page = f"{FILES_PATH}/{{id}}", _page("file", MAX_PAGE, MAX_PAGE)
    whole = _answer("Successful Response", _OBJECT, HEADER_REQUEST_ID)
    content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    upload = {
        "type": "object",
        "required": ["purpose", "file"],
        "properties": {"purpose": {"const": PURPOSE}, "file": {"type": "string", "format": "binary"}},
    }
    create = _operation("files", "create_file", "Uploads a file", whole)
    create |= {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": upload}}}}
    create["responses"] |= _refusals((408, 413, 415))
    delete = _operation("files", "delete_file", "Deletes a file", whole, _NAME)
    delete["responses"] |= _refusals((409,))
    return {
        FILES_PATH: {
            "get": _operation(
                "files", "list_files", "Files of this key", whole, *page,
                _query("order", "By age", enum=["asc", "desc"], default="desc"),
                _query("purpose", "Only files for this", type="string"),
            ),
            "post": create,
        },
        one: {
            "get": _operation("files", "get_file", "A file, without its bytes", whole, _NAME),
            "delete": delete,
        },
        f"{one}/content": {
            "get": _operation("files", "get_file_content", "Its bytes", whole | {"content": content}, _NAME),
        },
    }  # fmt: skip


def _batches() -> Document:
    """`/v1/batches`, where files are kept."""
    one = f"{BATCHES_PATH}/{{id}}"
    whole = _answer("Successful Response", _OBJECT, HEADER_REQUEST_ID)
    asked = {
        "type": "object",
        "required": ["input_file_id", "endpoint", "completion_window"],
        "properties": {
            "input_file_id": {"type": "string", "description": "Of a file with a line for each request."},
            "endpoint": {"enum": list(ENDPOINTS), "description": "What every line asks for."},
            "completion_window": {"type": "string", "description": "Such as `24h`; what is not run then expires."},
            "metadata": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
            "output_expires_after": {"type": ["object", "null"], "description": "As of files."},
        },
    }
    create = _operation("batches", "create_batch", "Begins a batch", whole)
    create |= {"requestBody": {"required": True, "content": {"application/json": {"schema": asked}}}}
    create["responses"] |= _refusals((408, 413, 415))
    cancel = _operation("batches", "cancel_batch", "Ends a batch; answers that came are kept", whole, _NAME)
    cancel["responses"] |= _refusals((408, 409, 413, 415))
    listed = _operation("batches", "list_batches", "Batches of this key", whole, *_page("batch", 20, MAX_BATCHES))
    return {
        BATCHES_PATH: {"get": listed, "post": create},
        one: {"get": _operation("batches", "get_batch", "A batch, and how far it is", whole, _NAME)},
        f"{one}/cancel": {"post": cancel},
    }


def _message_batches(refusal: str) -> Document:
    """`/v1/messages/batches`, where files are kept. `refusal`: the schema of Anthropic's errors."""
    one = f"{MESSAGE_BATCHES_PATH}/{{id}}"
    whole = _answer("Successful Response", _OBJECT, HEADER_REQUEST_ID)
    results = whole | {"content": {"application/x-jsonl": {}}}
    request = {
        "type": "object",
        "required": ["custom_id", "params"],
        "properties": {
            "custom_id": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$", "description": "Unique in the batch."},
            "params": {"type": "object", "description": "The body of a request to `/v1/messages`, without `stream`."},
        },
    }
    listed = {"type": "array", "minItems": 1, "maxItems": MAX_REQUESTS, "items": request}
    asked = {"type": "object", "required": ["requests"], "properties": {"requests": listed}}

    def operation(operation_id: str, summary: str, done: Document, *parameters: Document) -> Document:
        told = _operation("message batches", operation_id, summary, done, *parameters)
        return told | {"responses": {"200": done, **_refusals(OF_LISTS, refusal)}}

    create = operation("create_message_batch", "Begins a message batch", whole)
    create |= {"requestBody": {"required": True, "content": {"application/json": {"schema": asked}}}}
    create["responses"] |= _refusals((408, 413, 415), refusal)
    page = (
        _query("limit", "How many", type="integer", minimum=1, maximum=MAX_MESSAGE_BATCHES, default=20),
        _query("after_id", "The id of the last batch of the page before", type="string"),
        _query("before_id", "The id of the first batch of the page after", type="string"),
    )
    return {
        MESSAGE_BATCHES_PATH: {
            "get": operation("list_message_batches", "Message batches of this key", whole, *page), "post": create,
        },
        one: {
            "get": operation("get_message_batch", "A message batch, and how far it is", whole, _NAME),
            "delete": operation("delete_message_batch", "Deletes one that has ended, with its results", whole, _NAME),
        },
        f"{one}/cancel": {
            "post": operation("cancel_message_batch", "Ends a message batch; results that came are kept", whole, _NAME)
        },
        f"{one}/results": {"get": operation("get_message_batch_results", "A result per line", results, _NAME)},
    }  # fmt: skip


_PROBE: Document = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"enum": ["ok", "not ready"]}},
    "additionalProperties": False,
}
_ID = {
    "name": HEADER_REQUEST_ID, "in": "header", "required": False, "schema": {"type": "string"},
    "description": "The client's id of the request, for logs on both sides",
}  # fmt: skip


def _inference(engine: Document) -> Document:
    """What engines say of a path of theirs, with what the gateway adds."""
    done = engine["responses"]["200"] | {"headers": _headers(HEADER_REQUEST_ID, *OF_ANSWERS)}
    kept = {key: engine[key] for key in ("summary", "operationId", "requestBody")}
    [refusal] = _names(engine["responses"]["default"])
    return kept | _common("inference", {"200": done, **_refusals(ERRORS, refusal)})


def _own(path: str) -> Document:
    """A path that only some servers have, whose makers describe its bodies."""
    name, kind = path.strip("/").replace("/", "_"), "multipart/form-data" if path in FORM_PATHS else "application/json"
    done = {"description": "As the server answers", "headers": _headers(HEADER_REQUEST_ID, *OF_ANSWERS)}
    return {
        "summary": own_summary(path), "operationId": name,
        "requestBody": {"required": True, "content": {kind: {"schema": {"type": "object"}}}},
        **_common("inference", {"200": done, **_refusals(ERRORS)}),
    }  # fmt: skip


def own_summary(path: str) -> str:
    """Which servers have the path."""
    kinds = ", ".join(kind for kind, paths in OWN_PATHS.items() if path in paths)
    return f"Passed on as it is to servers that have it: {kinds}"


def _question(engine: Document) -> Document:
    """What engines say of a question about models, which the gateway answers itself."""
    done = engine["responses"]["200"] | {"headers": _headers(HEADER_REQUEST_ID)}
    kept = {key: engine[key] for key in ("summary", "operationId", "requestBody") if key in engine}
    [refusal] = _names(engine["responses"]["default"])
    statuses = tuple(ERRORS) if "requestBody" in engine else OF_LISTS
    return kept | _common("models", {"200": done, **_refusals(statuses, refusal)})


def _read(operation: str, summary: str, schema: str | None) -> Document:
    found = {"type": "object"} if schema is None else {"$ref": f"#/components/schemas/{schema}"}
    done = _answer("Successful Response", found, HEADER_REQUEST_ID)
    return {"summary": summary, "operationId": operation, **_common("models", {"200": done, **_refusals(OF_LISTS)})}


def _with_names(operation: Document, *names: str) -> Document:
    """With parameters of the path."""
    made = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in names
    ]
    return operation | {"parameters": [*made, *operation["parameters"]]}


def _probe(path: str, says: str) -> Document:
    answers = {"200": _answer("Yes", {"$ref": "#/components/schemas/Probe"}, HEADER_REQUEST_ID)}
    if path == "/ready":
        answers["503"] = _answer("No", {"$ref": "#/components/schemas/Probe"}, HEADER_REQUEST_ID)
    return {
        "summary": says, "operationId": path.strip("/"), "tags": ["probes"], "security": [],
        "responses": answers | _refusals((400, 405, 431)),
    }  # fmt: skip


def _common(tag: str, responses: Document) -> Document:
    return {
        "tags": [tag],
        "parameters": [_ID],
        "security": [{}, {"key": []}, {"x-api-key": []}],
        "responses": responses,
    }


def _refusals(statuses: Any, schema: str = "ErrorReply") -> Document:
    special = {401: "www-authenticate", 405: "allow"} | dict.fromkeys(RETRYING, "retry-after")
    reply = {"$ref": f"#/components/schemas/{schema}"}
    return {
        str(status): _answer(
            f"{HTTPStatus(status).phrase}. {(ERRORS | CONFLICTS)[status]}", reply,
            *((HEADER_REQUEST_ID,) if status != 431 else ()), *((special[status],) if status in special else ()),
        )
        for status in statuses
    }  # fmt: skip


def _answer(says: str, schema: Document, *headers: str) -> Document:
    content = {"application/json": {"schema": schema}}
    return {"description": says, "content": content} | ({"headers": _headers(*headers)} if headers else {})


def _headers(*headers: str) -> Document:
    return {header: {"$ref": f"#/components/headers/{header}"} for header in headers}


def _referenced(part: Any, schemas: Document) -> Document:
    """Of the engine's schemas those that are used, and what they use."""
    found: Document = {}
    names = [name for name in _names(part) if name in schemas]
    while names:
        name = names.pop()
        if name not in found:
            found[name] = schemas[name]
            names += _names(schemas[name])
    return found


def _names(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"].rpartition("/")[2]
        for each in part.values():
            yield from _names(each)
    elif isinstance(part, list):
        for each in part:
            yield from _names(each)


if __name__ == "__main__":
    main()
