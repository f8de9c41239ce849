"""A local Kubernetes API per test, with or without a node, and a plain HTTP client for it."""

import io
import json
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from fairlead_local.kubelet.environment import Program
from fairlead_testing.local_api import LocalApi, local_api_server

Json = dict[str, Any]

PYTHON_IMAGES = {"test/python": Program((sys.executable,), frozenset({"python"}))}
"""An image whose entrypoint is this Python: a test's containers are small scripts."""

BOATS = "/apis/harbour.test/v1/namespaces/default/boats"


@dataclass(frozen=True)
class Reply:
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def message(self) -> str:
        return str(self.body["message"])


class Http:
    """Requests with the token; bodies are JSON."""

    def __init__(self, api: LocalApi, session: aiohttp.ClientSession) -> None:
        self.api = api
        self.session = session

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        **query: str,
    ) -> Reply:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {
            "Authorization": f"Bearer {self.api.token}",
            **({"Content-Type": type} if data else {}),
            **(headers or {}),
        }
        content = None if data is None else io.BytesIO(data)
        url = self.api.url + path
        async with self.session.request(method, url, data=content, headers=sent, params=query) as reply:
            text = await reply.text()
            return Reply(reply.status, json.loads(text) if text.startswith("{") else text, reply.headers)

    async def merge(self, path: str, patch: Json, **query: str) -> Reply:
        return await self("PATCH", path, patch, type="application/merge-patch+json", **query)

    async def apply(self, path: str, config: Json, manager: str = "tester", **query: str) -> Reply:
        return await self("PATCH", path, config, type="application/apply-patch+yaml", fieldManager=manager, **query)

    async def watch(self, path: str, count: int, **query: str) -> list[Json]:
        """The first `count` events of a watch."""
        events: list[Json] = []
        headers = {"Authorization": f"Bearer {self.api.token}"}
        params = {"watch": "true", "timeoutSeconds": "10", **query}
        async with self.session.get(self.api.url + path, headers=headers, params=params) as reply:
            assert reply.status == 200, await reply.text()
            async for line in reply.content:
                events.append(json.loads(line))
                if len(events) == count:
                    break
        return events


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[LocalApi]:
    """An API server with its controllers and no node."""
    async with local_api_server(tmp_path) as running:
        yield running


@pytest.fixture
async def node_api(tmp_path: Path) -> AsyncIterator[LocalApi]:
    """An API server, controllers, and a node of 4 CPUs that runs `test/python`."""
    resources = {"cpu": "4", "memory": "4Gi", "pods": "20"}
    async with local_api_server(tmp_path, images=PYTHON_IMAGES, resources=resources) as running:
        yield running


@pytest.fixture
async def http(api: LocalApi) -> AsyncIterator[Http]:
    async with aiohttp.ClientSession() as session:
        yield Http(api, session)


@pytest.fixture
async def node_http(node_api: LocalApi) -> AsyncIterator[Http]:
    async with aiohttp.ClientSession() as session:
        yield Http(node_api, session)


@pytest.fixture
def boat_definition() -> Json:
    """A custom kind with every feature a definition can have here."""
    found: Json = yaml.safe_load((Path(__file__).parent / "boats.yaml").read_text())
    return found


@pytest.fixture
async def boats(http: Http, boat_definition: Json) -> str:
    """The path of a custom collection whose definition has been installed."""
    reply = await http("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", boat_definition)
    assert reply.status == 201, reply.body
    return BOATS


@pytest.fixture
def boat() -> Json:
    return {
        "apiVersion": "harbour.test/v1",
        "kind": "Boat",
        "metadata": {"name": "argo", "labels": {"fleet": "greek"}},
        "spec": {"sails": "gaff", "replicas": 1},
    }
