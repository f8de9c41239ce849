"""API servers with something missing, for tests of who asks: one that says only what it serves and what one may do, and
local mode's with rights that end at namespaces, as in a cluster from which a namespace was deleted: nothing in it may
be read any more, since its Roles are gone too."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aiohttp import web

from fairlead.kube.client import KubeClient
from fairlead.kube.kubeconfig import KubeConfig
from fairlead.kube.resources import ACCESS_REVIEWS, NETWORK_POLICIES, Resource
from fairlead_local.apiserver.access import new_token, write_kubeconfig
from fairlead_local.apiserver.operations import Operations
from fairlead_local.apiserver.resources import Registry
from fairlead_local.apiserver.server import ApiServer, Handler, serving
from fairlead_local.apiserver.store import Store

Denied = Collection[tuple[str, str, str]]
"""Verb, plural and namespace (empty = all) of each right that one does not have."""
_NAMESPACE = re.compile(r"/namespaces/([^/]+)/")


@asynccontextmanager
async def answering(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The URL of a server on loopback that answers every request by this."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def discovering(
    *served: Resource,
    denied: Denied = (),
    knows_rights: bool = True,
    fail_with: int = 0,
    fail_reviews_with: int = 0,
    review_seconds: float = 0.0,
    lists: Mapping[str, int] = MappingProxyType({}),
    asked: list[str] | None = None,
) -> AsyncIterator[KubeClient]:
    """A client of a server that serves these kinds. `knows_rights`: whether it answers questions about them.
    `fail_with`, `fail_reviews_with`: the status of every answer, or of those about rights; 0 = it does what it should.
    `review_seconds`: how long the latter take. `lists`: the status of a list in each namespace. `asked`: gets the verbs
    that were asked about."""
    kinds = (*served, ACCESS_REVIEWS) if knows_rights else served

    async def answer(request: web.Request) -> web.Response:
        if request.path == ACCESS_REVIEWS.path():
            return await review(request)
        if fail_with:
            return web.json_response({"kind": "Status", "message": "no", "code": fail_with}, status=fail_with)
        if namespace := _NAMESPACE.search(request.path):
            code = lists.get(namespace[1], 200)
            return web.json_response({"kind": "List", "items": [], "code": code}, status=code)
        version = request.path.removeprefix("/apis/").removeprefix("/api/")
        entries = [{"name": kind.plural} for kind in kinds if kind.api_version == version]
        if not entries:
            return web.Response(text="404 page not found", status=404)
        return web.json_response({"kind": "APIResourceList", "resources": entries})

    async def review(request: web.Request) -> web.Response:
        await asyncio.sleep(review_seconds)
        question: dict[str, Any] = (await request.json())["spec"]["resourceAttributes"]
        if asked is not None:
            asked.append(question["verb"])
        if not knows_rights:
            return web.Response(text="404 page not found", status=404)
        if fail_reviews_with:
            status = {"kind": "Status", "message": "nobody may ask", "code": fail_reviews_with}
            return web.json_response(status, status=fail_reviews_with)
        right = (question["verb"], question["resource"], question.get("namespace", ""))
        return web.json_response({"status": {"allowed": right not in denied}}, status=201)

    async with answering(answer) as server, KubeClient(KubeConfig(server=server), timeout=5) as client:
        yield client


class Refusals:
    """What is refused; may be changed at any time. Watches that are open are cut when their namespace is lost."""

    def __init__(self, reviews: int = 201) -> None:
        """`reviews`: the status of answers to questions about rights; 404 = they are not served."""
        self.reviews = reviews
        self.num_looks = 0
        """How often somebody has asked whether NetworkPolicies are served, as the operator does at each look."""
        self.num_refused = 0
        """Requests into lost namespaces."""
        self._lost: set[str] = set()
        self._requests: dict[asyncio.Task[Any], str] = {}
        """Those that are being answered, with their namespace."""

    def lose(self, *namespaces: str) -> None:
        """From now on everything in them is answered 403."""
        self._lost |= set(namespaces)
        for request, place in self._requests.items():
            if place in namespaces:
                request.cancel()

    def give_back(self, namespace: str) -> None:
        """As if it had been made anew, with its Roles."""
        self._lost.discard(namespace)

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Stands before the API server."""
        if request.path.endswith(ACCESS_REVIEWS.path()):
            return await self._review(request)
        self.num_looks += request.path.endswith(f"/apis/{NETWORK_POLICIES.api_version}")
        found = _NAMESPACE.search(request.path)
        namespace = found[1] if found else ""
        if namespace in self._lost:
            self.num_refused += 1
            return _status(403, f"{request.path} is forbidden in the namespace {namespace}")
        task = asyncio.current_task()
        assert task is not None
        self._requests[task] = namespace
        try:
            return await handler(request)
        finally:
            del self._requests[task]

    async def _review(self, request: web.Request) -> web.Response:
        if self.reviews == 404:
            return _status(404, "the server could not find the requested resource")
        if self.reviews != 201:
            return _status(self.reviews, "nobody may ask")
        asked = (await request.json())["spec"]["resourceAttributes"]
        allowed = asked.get("namespace") not in self._lost
        return web.json_response({"status": {"allowed": allowed}}, status=201)


@asynccontextmanager
async def refusing_api_server(folder: Path, refusals: Refusals, *namespaces: str) -> AsyncIterator[Path]:
    """An API with these namespaces and no controller; the kubeconfig, which is written to `folder`."""
    operations, token, path = Operations(Store(), Registry()), new_token(), folder / "kubeconfig"
    operations.ensure_namespaces(*namespaces)
    app = ApiServer(operations, token).app()
    app.middlewares.append(refusals.guard)
    async with serving(app) as url:
        write_kubeconfig(path, url, token)
        yield path


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "message": message, "code": code}, status=code)
