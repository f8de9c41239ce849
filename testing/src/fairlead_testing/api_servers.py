"""An API server that says what it serves and what one may do, and nothing else: for tests of who asks that."""

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from aiohttp import web

from fairlead.kube.client import KubeClient
from fairlead.kube.kubeconfig import KubeConfig
from fairlead.kube.resources import ACCESS_REVIEWS, Resource

Denied = Collection[tuple[str, str, str]]
"""Verb, plural and namespace (empty = all) of each right that one does not have."""
_NAMESPACE = re.compile(r"/namespaces/([^/]+)/")


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

    async def describe(request: web.Request) -> web.Response:
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

    app = web.Application()
    app.router.add_post(ACCESS_REVIEWS.path(), review)
    app.router.add_get("/{path:.*}", describe)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with KubeClient(KubeConfig(server=server), timeout=5) as client:
            yield client
    finally:
        await runner.cleanup()
