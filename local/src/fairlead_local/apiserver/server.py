"""The HTTP face of the API: verbs of requests, answers, and the port (`serving`).

`ApiServer.app()` is the whole wiring. `access.py` decides on callers, `operations.py` on objects.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from fairlead_local.apiserver import discovery, patches, replies, requests
from fairlead_local.apiserver.access import admit, refuse_web_pages
from fairlead_local.apiserver.metadata import DeleteOptions, parse_options
from fairlead_local.apiserver.operations import Edit, Operations, WriteOptions, Written
from fairlead_local.apiserver.requests import PatchType, ReplyShape, RequestTarget
from fairlead_local.apiserver.resources import ResourceType
from fairlead_local.apiserver.selectors import FieldSelector, LabelSelector, parse_fields, parse_labels
from fairlead_local.apiserver.status import (
    Json,
    StatusError,
    bad_request,
    expired,
    method_not_allowed,
    no_such_path,
    unsupported_media_type,
)
from fairlead_local.apiserver.subresources import LogSource, edit_scale, read_scale, stream_log
from fairlead_local.apiserver.watching import (
    BOOKMARK_SECONDS,
    DEFAULT_TIMEOUT_SECONDS,
    WatchRequest,
    parse_version,
    watch,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HOST = "127.0.0.1"
MAX_BODY_BYTES = 3 * 1024 * 1024
_HEALTH = ("/livez", "/readyz", "/healthz")
_SHUTDOWN_SECONDS = 0.1
"""Watches never end by themselves: a wait would be in vain."""


class ApiServer:
    """Serves `operations` to bearers of `token`, on loopback names only. `logs`: None = there is no kubelet."""

    def __init__(self, operations: Operations, token: str, logs: LogSource | None = None) -> None:
        self._operations = operations
        self._token = token
        self._logs = logs

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._route)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every refusal and failure is a Status."""
        try:
            return await handler(request)
        except StatusError as error:
            failure = error
        except web.HTTPRequestEntityTooLarge:
            text = f"Request entity too large: limit is {MAX_BODY_BYTES}"
            failure = StatusError(413, "RequestEntityTooLarge", text)
        return replies.reply(failure.body(), failure.code, failure.warnings)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        refuse_web_pages(request)
        if request.path in _HEALTH:
            return web.Response(text="ok")
        parts = admit(request, self._token)
        if parts == ["openapi", "v2"]:
            return web.Response(content_type=discovery.OPENAPI_V2_TYPE)
        document = self._document(request, parts)
        if document is not None:
            if request.method != "GET":
                raise method_not_allowed()
            return replies.reply(document)
        if not parts or parts[0] not in ("api", "apis"):
            raise no_such_path()
        return await self._serve(ApiCall(request, requests.parse_target(self._operations.registry, parts)))

    def _document(self, request: web.Request, parts: list[str]) -> Json | None:
        """The document at a path of discovery; None = another path."""
        registry = self._operations.registry
        match parts:
            case ["version"]:
                return dict(discovery.VERSION)
            case ["api"]:
                return discovery.core_versions(request.host)
            case ["apis"]:
                return discovery.groups(registry)
            case ["apis", group]:
                return discovery.group(registry, group)
            case ["api", version]:
                return discovery.resources(registry, "", version)
            case ["apis", group, version]:
                return discovery.resources(registry, group, version)
            case ["openapi", "v3"]:
                return discovery.openapi_index(registry)
            case ["openapi", "v3", "api", version]:
                return discovery.openapi(registry, "", version)
            case ["openapi", "v3", "apis", group, version]:
                return discovery.openapi(registry, group, version)
        return None

    async def _serve(self, call: "ApiCall") -> web.StreamResponse:
        operations, target = self._operations, call.target
        if target.subresource == "log":
            return await stream_log(call.http, operations, self._logs, target)
        if target.subresource == "scale":
            return await self._scale(call)
        if not target.name:
            return await self._serve_collection(call)
        match call.http.method:
            case "GET" | "HEAD":
                return call.reply(operations.get(*call.key))
            case "PUT":
                return call.reply_written(operations.update(*call.key, await call.body(), call.options))
            case "PATCH":
                return await self._patch(call)
            case "DELETE" if not target.subresource:
                return call.reply(operations.delete(*call.key, await call.delete_options()))
        raise method_not_allowed()

    async def _serve_collection(self, call: "ApiCall") -> web.StreamResponse:
        operations, (resource, namespace, _) = self._operations, call.key
        match call.http.method:
            case "GET" | "HEAD":
                return await self._watch(call) if requests.is_true(call.http.query, "watch") else self._list(call)
            case "POST" if namespace or not resource.namespaced:
                return call.reply_written(operations.create(resource, namespace, await call.body(), call.options))
            case "DELETE" if namespace or not resource.namespaced:
                options = await call.delete_options()
                gone = operations.delete_collection(resource, namespace, *call.selectors, options)
                return replies.reply(replies.many(resource, gone, self._list_metadata(), ReplyShape.OBJECT, ""))
        raise method_not_allowed()

    def _list(self, call: "ApiCall") -> web.Response:
        (resource, namespace, _), selectors, query = call.key, call.selectors, call.http.query
        # Lists are always of now, which is at least as new as any version given out.
        if (version := parse_version(query.get("resourceVersion", ""))) > self._operations.store.version:
            raise expired(f"too new resource version: {version} ({self._operations.store.version})")
        objects = self._operations.list(resource, namespace, *selectors)
        if query.get("continue"):
            raise bad_request("continue: lists are never in parts here; list without it")
        requests.positive_int(query, "limit")  # which a server may exceed
        return replies.reply(replies.many(resource, objects, self._list_metadata(), *call.shape))

    def _list_metadata(self) -> Json:
        return {"resourceVersion": str(self._operations.store.version)}

    async def _watch(self, call: "ApiCall") -> web.StreamResponse:
        wanted, (shape, include) = call.watched(), call.shape
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(call.http)
        first = True
        async for kind, obj in watch(self._operations.store, wanted):
            await response.write(replies.watch_line(call.target.resource, kind, obj, shape, include, first))
            first = False
        return response

    async def _patch(self, call: "ApiCall") -> web.Response:
        kind, body, options = call.patch_type(), await call.http.read(), call.options
        if kind is PatchType.APPLY:
            config, force = call.applied(body), requests.is_true(call.http.query, "force")
            return call.reply_written(self._operations.apply(*call.key, config, options, force=force))
        edit = _edit(call.target.resource, kind, requests.decode_json(body))
        return call.reply_written(self._operations.edit(*call.key, edit, options))

    async def _scale(self, call: "ApiCall") -> web.Response:
        if call.http.method == "GET":
            return replies.reply(read_scale(self._operations, *call.key))
        edit = await call.scale_edit()
        return replies.reply(edit_scale(self._operations, *call.key, edit, call.options))


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One request for objects."""

    http: web.Request
    target: RequestTarget

    @property
    def key(self) -> tuple[ResourceType, str, str]:
        return self.target.resource, self.target.namespace, self.target.name

    @property
    def options(self) -> WriteOptions:
        subresource = "" if self.target.subresource == "finalize" else self.target.subresource
        return requests.write_options(self.http.query, self.http.headers.get("User-Agent", ""), subresource)

    @property
    def shape(self) -> tuple[ReplyShape, str]:
        query = self.http.query
        return requests.shape(self.http.headers.get("Accept", "")), query.get("includeObject", "Metadata")

    @property
    def selectors(self) -> tuple[LabelSelector, FieldSelector]:
        labels = parse_labels(self.http.query.get("labelSelector"))
        return labels, parse_fields(self.http.query.get("fieldSelector"), self.target.resource.selectable)

    def watched(self) -> WatchRequest:
        query, (labels, fields) = self.http.query, self.selectors
        return WatchRequest(
            resource=self.target.resource,
            namespace=self.target.namespace,
            labels=labels,
            fields=fields,
            since=query.get("resourceVersion", ""),
            bookmarks=requests.is_true(query, "allowWatchBookmarks"),
            initial_events=requests.is_true(query, "sendInitialEvents"),
            timeout_seconds=float(requests.positive_int(query, "timeoutSeconds") or DEFAULT_TIMEOUT_SECONDS),
        )

    async def body(self) -> Json:
        return requests.decode_body(self.http.headers.get("Content-Type", ""), await self.http.read())

    async def delete_options(self) -> DeleteOptions:
        options = await self.body() if await self.http.read() else {}
        query = self.http.query
        if "propagationPolicy" in query:
            options["propagationPolicy"] = query["propagationPolicy"]
        if "orphanDependents" in query:
            options["orphanDependents"] = requests.is_true(query, "orphanDependents")
        if (grace := requests.positive_int(query, "gracePeriodSeconds")) is not None:
            options["gracePeriodSeconds"] = grace
        if requests.dry_run(query):
            options["dryRun"] = ["All"]
        return parse_options(options)

    def patch_type(self) -> PatchType:
        kind = self.http.headers.get("Content-Type", "").partition(";")[0].strip()
        if kind not in list(PatchType):
            accepted = ", ".join(PatchType)
            raise unsupported_media_type(f"the body of the request was in an unknown format - accepted: {accepted}")
        return PatchType(kind)

    def applied(self, body: bytes) -> Json:
        """The configuration of an apply patch. Raises 400."""
        if not self.http.query.get("fieldManager"):
            raise bad_request("metadata.fieldManager: Required value: is required for apply patch")
        config = requests.decode_yaml(body)
        if not isinstance(config, dict):
            raise bad_request("the body of an apply patch is an object")
        if (config.get("metadata") or {}).get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        return config

    async def scale_edit(self) -> Edit:
        """The edit of a Scale by a PUT or PATCH. A Scale has no lists: a strategic merge is a plain merge."""
        if self.http.method == "PUT":
            body = await self.body()
            return lambda _: body
        if self.http.method != "PATCH":
            raise method_not_allowed()
        kind = self.patch_type()
        if kind is PatchType.APPLY:
            raise unsupported_media_type("local mode does not apply to the scale subresource: use a merge patch")
        merge = PatchType.MERGE if kind is PatchType.STRATEGIC else kind
        return _edit(self.target.resource, merge, requests.decode_json(await self.http.read()))

    def reply(self, obj: Json, status: int = 200, warnings: tuple[str, ...] = ()) -> web.Response:
        return replies.reply(replies.one(self.target.resource, obj, *self.shape), status, warnings)

    def reply_written(self, written: Written) -> web.Response:
        return self.reply(written.object, 201 if written.created else 200, written.warnings)


def _edit(resource: ResourceType, kind: PatchType, patch: object) -> Edit:
    if kind is PatchType.JSON:
        return lambda live: patches.json_patch(live, patch)
    if not isinstance(patch, dict):
        raise bad_request("the body of a patch of this type is an object")
    if kind is PatchType.MERGE:
        return lambda live: patches.merge_patch(live, patch)
    if resource.custom:
        accepted = ", ".join(kind for kind in PatchType if kind is not PatchType.STRATEGIC)
        text = "the body of the request was in an unknown format - accepted media types include:"
        raise unsupported_media_type(f"{text} {accepted}")
    return lambda live: patches.strategic_merge(resource.schema, live, patch)


@asynccontextmanager
async def serving(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    """Serves on loopback while the context lasts; yields the base URL. Raises OSError when the port is taken."""
    runner = web.AppRunner(app, shutdown_timeout=_SHUTDOWN_SECONDS, handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, port)
        await site.start()
        yield f"http://{HOST}:{runner.addresses[0][1]}"
    finally:
        await asyncio.wait_for(runner.cleanup(), BOOKMARK_SECONDS)
