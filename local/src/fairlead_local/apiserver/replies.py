"""Replies as clients asked for them: objects, lists, `meta.k8s.io/v1` Tables, watch lines, errors."""

import json
from collections.abc import Iterable, Sequence

from aiohttp import web

from fairlead_local.apiserver.requests import ReplyShape
from fairlead_local.apiserver.resources import Column, ResourceType
from fairlead_local.apiserver.status import ApiError, Json
from fairlead_local.apiserver.tables import columns_of


def reply(body: Json, status: int = 200, warnings: Sequence[str] = ()) -> web.Response:
    """JSON, with one `Warning` header per sentence (kubectl prints them)."""
    response = web.Response(body=json.dumps(body), status=status, content_type="application/json")
    for warning in warnings:
        quoted = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')
    return response


def failure(error: ApiError) -> web.Response:
    return reply(error.body(), error.code, error.warnings)


def one(resource: ResourceType, obj: Json, shape: ReplyShape, include: str) -> Json:
    """An object in the shape wanted; a `Status` (of a deletion) stays one."""
    if shape is ReplyShape.OBJECT or obj.get("kind") == "Status":
        return obj
    if shape is ReplyShape.PARTIAL:
        return _partial(obj)
    return _table(resource, [obj], {"resourceVersion": obj["metadata"].get("resourceVersion", "")}, include)


def many(resource: ResourceType, objects: Sequence[Json], metadata: Json, shape: ReplyShape, include: str) -> Json:
    """A list in the shape wanted. Items of built-in kinds leave out apiVersion and kind, as a real server's do."""
    if shape is ReplyShape.TABLE:
        return _table(resource, objects, metadata, include)
    if shape is ReplyShape.PARTIAL:
        items = [_partial(obj) for obj in objects]
        kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
    else:
        hidden = () if resource.custom else ("apiVersion", "kind")
        items = [{field: value for field, value in obj.items() if field not in hidden} for obj in objects]
        kind, version = resource.list_name, resource.api_version
    return {"kind": kind, "apiVersion": version, "metadata": metadata, "items": items}


def watch_line(resource: ResourceType, kind: str, obj: Json, shape: ReplyShape, include: str, first: bool) -> bytes:
    """One line of a watch; only the `first` Table of a stream carries column definitions."""
    if shape is ReplyShape.TABLE and kind != "ERROR":
        rows = [] if kind == "BOOKMARK" else [obj]
        metadata = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        obj = _table(resource, rows, metadata, include, headers=first)
    elif shape is ReplyShape.PARTIAL and kind != "ERROR":
        obj = _partial(obj)
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def _table(resource: ResourceType, objects: Iterable[Json], metadata: Json, include: str, headers: bool = True) -> Json:
    """A Table. `include` says what each row carries beside its cells: `Metadata`, `Object` or `None`."""
    columns = columns_of(resource)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [_definition(column) for column in columns] if headers else None,
        "rows": [_row(columns, obj, include) for obj in objects],
    }


def _partial(obj: Json) -> Json:
    """The object's metadata alone, as a PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _definition(column: Column) -> Json:
    kind = "string" if column.type == "date" else column.type
    text = column.description or f"{column.name} of the object."
    form = "name" if column.name == "Name" else "date" if column.type == "date" else ""
    return {"name": column.name, "type": kind, "format": form, "description": text, "priority": column.priority}


def _row(columns: tuple[Column, ...], obj: Json, include: str) -> Json:
    row: Json = {"cells": [column.cell(obj) for column in columns]}
    if include == "Object":
        row["object"] = obj
    elif include != "None":
        row["object"] = _partial(obj)
    return row
