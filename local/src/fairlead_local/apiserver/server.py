"""The HTTP face of the API: verbs of requests, answers, and the port (`serving`).

`ApiServer.app()` is the whole wiring. Who may call is decided in `access.py`, what happens to objects in
`operations.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from aiohttp import web

from fairlead_local.apiserver import discovery, patches, replies, requests, selectors
from fairlead_local.apiserver.access import admit, refuse_web_pages
from fairlead_local.apiserver.metadata import DeleteOptions, parse_options
from fairlead_local.apiserver.operations import Edit, Operations, WriteOptions, Written
from fairlead_local.apiserver.requests import PatchType, ReplyShape, RequestTarget
from fairlead_local.apiserver.resources import ResourceType
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
        return await self._serve(request, requests.parse_target(self._operations.registry, parts))

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

    async def _serve(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        if target.subresource == "log":
            return await stream_log(request, self._operations, self._logs, target)
        if target.subresource == "scale":
            return await self._scale(request, target)
        if not target.name:
            return await self._serve_collection(request, target)
        match request.method:
            case "GET" | "HEAD":
                return self._reply_one(request, target, self._operations.get(*_key(target)))
            case "PUT":
                written = self._operations.update(*_key(target), await _body(request), _options(request, target))
                return self._reply_written(request, target, written)
            case "PATCH":
                return await self._patch(request, target)
            case "DELETE" if not target.subresource:
                options = await _delete_options(request)
                return self._reply_one(request, target, self._operations.delete(*_key(target), options))
        raise method_not_allowed()

    async def _serve_collection(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        match request.method:
            case "GET" | "HEAD":
                if requests.is_true(request.query, "watch"):
                    return await self._watch(request, target)
                return self._list(request, target)
            case "POST" if target.namespace or not target.resource.namespaced:
                body = await _body(request)
                written = self._operations.create(target.resource, target.namespace, body, _options(request, target))
                return self._reply_written(request, target, written)
            case "DELETE" if target.namespace or not target.resource.namespaced:
                options = await _delete_options(request)
                labels, fields = _selectors(request, target)
                operations = self._operations
                gone = operations.delete_collection(target.resource, target.namespace, labels, fields, options)
                return replies.reply(replies.many(target.resource, gone, self._list_metadata(), ReplyShape.OBJECT, ""))
        raise method_not_allowed()

    def _list(self, request: web.Request, target: RequestTarget) -> web.Response:
        labels, fields = _selectors(request, target)
        # Lists are always of now, which is at least as new as any version given out.
        if (version := parse_version(request.query.get("resourceVersion", ""))) > self._operations.store.version:
            raise expired(f"too new resource version: {version} ({self._operations.store.version})")
        objects = self._operations.list(target.resource, target.namespace, labels, fields)
        if request.query.get("continue"):
            raise bad_request("continue: lists are never in parts here; list without it")
        requests.positive_int(request.query, "limit")  # which a server may exceed
        return replies.reply(replies.many(target.resource, objects, self._list_metadata(), *_shape(request)))

    def _list_metadata(self) -> Json:
        return {"resourceVersion": str(self._operations.store.version)}

    async def _watch(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        wanted, (shape, include) = _watch_request(request, target), _shape(request)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        first = True
        async for kind, obj in watch(self._operations.store, wanted):
            await response.write(replies.watch_line(target.resource, kind, obj, shape, include, first))
            first = False
        return response

    async def _patch(self, request: web.Request, target: RequestTarget) -> web.Response:
        kind, body = _patch_type(request), await request.read()
        options = _options(request, target)
        if kind is PatchType.APPLY:
            config, force = _applied(request, body), requests.is_true(request.query, "force")
            written = self._operations.apply(*_key(target), config, options, force=force)
        else:
            edit = _edit(target, kind, requests.decode_json(body))
            written = self._operations.edit(*_key(target), edit, options)
        return self._reply_written(request, target, written)

    async def _scale(self, request: web.Request, target: RequestTarget) -> web.Response:
        if request.method == "GET":
            return replies.reply(read_scale(self._operations, *_key(target)))
        edit = await _scale_edit(request, target)
        return replies.reply(edit_scale(self._operations, *_key(target), edit, _options(request, target)))

    def _reply_written(self, request: web.Request, target: RequestTarget, written: Written) -> web.Response:
        status = 201 if written.created else 200
        return self._reply_one(request, target, written.object, status, written.warnings)

    def _reply_one(
        self, request: web.Request, target: RequestTarget, obj: Json, status: int = 200, warnings: tuple[str, ...] = ()
    ) -> web.Response:
        return replies.reply(replies.one(target.resource, obj, *_shape(request)), status, warnings)


def _key(target: RequestTarget) -> tuple[ResourceType, str, str]:
    return target.resource, target.namespace, target.name


def _options(request: web.Request, target: RequestTarget) -> WriteOptions:
    options = requests.write_options(request.query, request.headers.get("User-Agent", ""), target.subresource)
    return replace(options, subresource="") if target.subresource == "finalize" else options


def _shape(request: web.Request) -> tuple[ReplyShape, str]:
    return requests.shape(request.headers.get("Accept", "")), request.query.get("includeObject", "Metadata")


async def _body(request: web.Request) -> Json:
    return requests.decode_body(request.headers.get("Content-Type", ""), await request.read())


def _applied(request: web.Request, body: bytes) -> Json:
    """The configuration of an apply patch. Raises 400."""
    if not request.query.get("fieldManager"):
        raise bad_request("metadata.fieldManager: Required value: is required for apply patch")
    config = requests.decode_yaml(body)
    if not isinstance(config, dict):
        raise bad_request("the body of an apply patch is an object")
    if (config.get("metadata") or {}).get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    return config


def _selectors(request: web.Request, target: RequestTarget) -> tuple[selectors.LabelSelector, selectors.FieldSelector]:
    labels = selectors.parse_labels(request.query.get("labelSelector"))
    return labels, selectors.parse_fields(request.query.get("fieldSelector"), target.resource.selectable)


def _watch_request(request: web.Request, target: RequestTarget) -> WatchRequest:
    labels, fields = _selectors(request, target)
    return WatchRequest(
        resource=target.resource,
        namespace=target.namespace,
        labels=labels,
        fields=fields,
        since=request.query.get("resourceVersion", ""),
        bookmarks=requests.is_true(request.query, "allowWatchBookmarks"),
        initial_events=requests.is_true(request.query, "sendInitialEvents"),
        timeout_seconds=float(requests.positive_int(request.query, "timeoutSeconds") or DEFAULT_TIMEOUT_SECONDS),
    )


async def _delete_options(request: web.Request) -> DeleteOptions:
    options = await _body(request) if await request.read() else {}
    query = request.query
    if "propagationPolicy" in query:
        options["propagationPolicy"] = query["propagationPolicy"]
    if "orphanDependents" in query:
        options["orphanDependents"] = requests.is_true(query, "orphanDependents")
    if (grace := requests.positive_int(query, "gracePeriodSeconds")) is not None:
        options["gracePeriodSeconds"] = grace
    if requests.dry_run(query):
        options["dryRun"] = ["All"]
    return parse_options(options)


def _patch_type(request: web.Request) -> PatchType:
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip()
    if kind not in list(PatchType):
        accepted = ", ".join(PatchType)
        raise unsupported_media_type(f"the body of the request was in an unknown format - accepted: {accepted}")
    return PatchType(kind)


async def _scale_edit(request: web.Request, target: RequestTarget) -> Edit:
    """The edit of a Scale by a PUT or PATCH. A Scale has no lists: a strategic merge is a plain merge."""
    if request.method == "PUT":
        body = await _body(request)
        return lambda _: body
    if request.method != "PATCH":
        raise method_not_allowed()
    kind = _patch_type(request)
    if kind is PatchType.APPLY:
        raise unsupported_media_type("local mode does not apply to the scale subresource: use a merge patch")
    merge = PatchType.MERGE if kind is PatchType.STRATEGIC else kind
    return _edit(target, merge, requests.decode_json(await request.read()))


def _edit(target: RequestTarget, kind: PatchType, patch: object) -> Edit:
    resource = target.resource
    if kind is PatchType.JSON:
        return lambda live: patches.json_patch(live, patch)
    if not isinstance(patch, dict):
        raise bad_request("the body of a patch of this type is an object")
    if kind is PatchType.MERGE:
        return lambda live: patches.merge_patch(live, patch)
    if resource.custom:
        accepted = ", ".join(kind for kind in PatchType if kind is not PatchType.STRATEGIC)
        raise unsupported_media_type(
            f"the body of the request was in an unknown format - accepted media types include: {accepted}"
        )
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
