"""`/openapi.json`: what FastAPI knows of the path operations, completed by what it cannot know.

Bodies here are msgspec's structs, so their schemas come from msgspec. Knows documents, not how requests are answered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlead_engine.server.refusals import ErrorReply

Schema = type[msgspec.Struct]
_REFERENCE = "#/components/schemas/{name}"
_JSON = "application/json"
NDJSON = "application/x-ndjson"
"""One JSON object a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawOperation:
    """An operation that FastAPI does not answer and so cannot describe."""

    path: str
    name: str
    """The operation's id, snake_case."""
    summary: str
    method: str = "POST"
    request: Schema | None = None
    """What its body is; None = it has none."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Required parameters and what they mean: those that `path` names in braces, others of the query."""
    reply: Schema | None = None
    """None = an object of OpenAI's API, described there."""
    reply_type: str = _JSON
    """The content type of `reply`; of `NDJSON` each line is one."""
    refusal: Schema = ErrorReply
    """The body of its refusals."""
    streams: bool = False
    """Whether `stream: true` answers with server-sent events instead."""
    tag: str = "inference"

    def description(self) -> dict[str, Any]:
        """The operation as OpenAPI's operation object."""
        content = _json(self.reply, self.reply_type) if self.reply else {_JSON: {"schema": {"type": "object"}}}
        if self.streams:
            content["text/event-stream"] = {"schema": {"type": "string"}}
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


class Documentation:
    """Collects, while the application is built, what FastAPI's own document will lack."""

    def __init__(self) -> None:
        self._schemas: set[Schema] = {ErrorReply}
        self._paths: dict[str, Any] = {}

    def add(self, operation: RawOperation) -> None:
        """Describes a raw operation."""
        self._schemas |= {schema for schema in (operation.request, operation.reply, operation.refusal) if schema}
        self._paths[operation.path] = {operation.method.lower(): operation.description()}

    def responses(self, reply: Schema | None, status: int) -> dict[int | str, dict[str, Any]]:
        """FastAPI's `responses` of an operation that answers with `reply`; None = with something else than JSON."""
        if reply is None:
            return {"default": _ERROR}
        self._schemas.add(reply)
        return {status: {"content": _json(reply)}, "default": _ERROR}

    def complete(self, document: dict[str, Any]) -> None:
        """Adds the raw operations and all schemas to FastAPI's document."""
        _, schemas = msgspec.json.schema_components(sorted(self._schemas, key=_name), ref_template=_REFERENCE)
        document["paths"] = {**self._paths, **document["paths"]}
        document.setdefault("components", {})["schemas"] = schemas


def _name(schema: Schema) -> str:
    return schema.__name__


def _json(schema: Schema, content_type: str = _JSON) -> dict[str, Any]:
    return {content_type: {"schema": {"$ref": _REFERENCE.format(name=_name(schema))}}}


def _refused(schema: Schema) -> dict[str, Any]:
    return {"description": "Refused or failed, in OpenAI's error shape", "content": _json(schema)}


_ERROR = _refused(ErrorReply)
