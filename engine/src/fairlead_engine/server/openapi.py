"""`/openapi.json`: what the engine answers, in OpenAPI's terms.

Bodies here are msgspec's structs, so their schemas come from msgspec. Knows documents, not how requests are answered.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlead_engine.server.refusals import ErrorReply

Schema = type[msgspec.Struct]
_REFERENCE = "#/components/schemas/{name}"
JSON = "application/json"
NDJSON = "application/x-ndjson"
"""One JSON object a line."""
PLAIN_TEXT = "text/plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    path: str
    """With the names of its parts in braces."""
    name: str
    """The operation's id, snake_case."""
    summary: str
    method: str = "POST"
    request: Schema | None = None
    """What its body is; None = it has none."""
    required: Mapping[str, str] = field(default_factory=dict)
    """Required query parameters and what they mean."""
    optional: Mapping[str, str] = field(default_factory=dict)
    """Those that may be absent."""
    reply: Schema | None = None
    """None = an object of OpenAI's API, described there, or no JSON."""
    reply_type: str = JSON
    """The content type of the reply; of `NDJSON` each line is one."""
    status: int = 200
    """When it goes well."""
    streams: bool = False
    """Whether `stream: true` answers with server-sent events instead."""
    tag: str = "inference"

    def description(self) -> dict[str, Any]:
        """The operation as OpenAPI's operation object."""
        anything: dict[str, Any] = {"type": "object" if self.reply_type == JSON else "string"}
        content = _content(self.reply, self.reply_type) if self.reply else {self.reply_type: {"schema": anything}}
        if self.streams:
            content["text/event-stream"] = {"schema": {"type": "string"}}
        described: dict[str, Any] = {
            "tags": [self.tag],
            "summary": self.summary,
            "operationId": self.name,
            "responses": {str(self.status): {"description": "Success", "content": content}, "default": _ERROR},
        }
        if self.request:
            described["requestBody"] = {"required": True, "content": _content(self.request)}
        parts = [_parameter(name, "path", "", required=True) for name in re.findall(r"{(\w+)}", self.path)]
        parts += [_parameter(name, "query", text, required=True) for name, text in self.required.items()]
        parts += [_parameter(name, "query", text, required=False) for name, text in self.optional.items()]
        if parts:
            described["parameters"] = parts
        return described


class Documentation:
    """Collects operations while the application is built."""

    def __init__(self) -> None:
        self._schemas: set[Schema] = {ErrorReply}
        self._paths: dict[str, dict[str, Any]] = {}

    def add(self, operation: Operation) -> None:
        """Describes an operation."""
        self._schemas |= {schema for schema in (operation.request, operation.reply) if schema}
        self._paths.setdefault(operation.path, {})[operation.method.lower()] = operation.description()

    def document(self, title: str, version: str) -> dict[str, Any]:
        """Everything that was added, as one OpenAPI document."""
        _, schemas = msgspec.json.schema_components(sorted(self._schemas, key=_name), ref_template=_REFERENCE)
        return {
            "openapi": "3.1.0",
            "info": {"title": title, "version": version},
            "paths": self._paths,
            "components": {"schemas": schemas},
        }


def _name(schema: Schema) -> str:
    return schema.__name__


def _parameter(name: str, place: str, text: str, *, required: bool) -> dict[str, Any]:
    return {"name": name, "in": place, "required": required, "description": text, "schema": {"type": "string"}}


def _content(schema: Schema, content_type: str = JSON) -> dict[str, Any]:
    return {content_type: {"schema": {"$ref": _REFERENCE.format(name=_name(schema))}}}


_ERROR = {"description": "Refused or failed, in OpenAI's error shape", "content": _content(ErrorReply)}
