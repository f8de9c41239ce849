"""A real operator on local mode's API server, and the person and the kubelet that it works with played by a test."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.controller.operator import Operator
from fairlead.kube.client import JsonObject, KubeClient
from fairlead.kube.resources import CHILDREN, CUSTOM_RESOURCE_DEFINITIONS, EVENTS, LLMDEPLOYMENTS, PODS, Resource
from fairlead.operator_settings import OperatorSettings
from fairlead_local.apiserver.access import new_token, write_kubeconfig
from fairlead_local.apiserver.operations import Operations
from fairlead_local.apiserver.resources import Registry
from fairlead_local.apiserver.server import ApiServer, serving
from fairlead_local.apiserver.store import Store
from fairlead_local.system import crd

NAMESPACE = "default"
SETTINGS = OperatorSettings(port=0, lease_namespace=NAMESPACE, lease_duration=300.0, gateway_url="http://gateway")
"""For an operator that shares its process and its one namespace with a test. Nobody else wants its Lease, and it may
renew it as late as a busy machine lets it."""
SHORT_LEASE = replace(SETTINGS, lease_duration=9.0)
"""The same where the Lease is what it is about."""
SCHEDULED = {"type": "PodScheduled", "status": "True"}
READY = {"type": "Ready", "status": "True"}
PATIENCE_SECONDS = 20.0
"""How long a test waits for what must happen."""
MOST_LOOKS = 800
"""How often it looks for that. A look is a request through the loop that all of it shares: where the machine is busy it
takes longer, as does everything else."""


class Fleet:
    """A person at the API, and the kubelet's part where the test plays it. All in `NAMESPACE`."""

    def __init__(self, kubeconfig: Path, client: KubeClient) -> None:
        self.kubeconfig = kubeconfig
        self.client = client

    async def create(self, name: str = "dinghy", **spec: Any) -> JsonObject:
        body = {
            "apiVersion": LLMDEPLOYMENTS.api_version,
            "kind": LLMDEPLOYMENTS.kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"model": {"source": "demo://dinghy"}} | spec,
        }
        return await self.client.create(LLMDEPLOYMENTS, body)

    async def edit(self, name: str = "dinghy", **spec: Any) -> JsonObject:
        return await self.client.patch(LLMDEPLOYMENTS, name, {"spec": spec}, NAMESPACE)

    async def scale(self, replicas: int, name: str = "dinghy") -> None:
        await self.client.patch(LLMDEPLOYMENTS, name, {"spec": {"replicas": replicas}}, NAMESPACE, subresource="scale")

    async def get(self, resource: Resource, name: str) -> JsonObject:
        return await self.client.get(resource, name, NAMESPACE)

    async def names(self, resource: Resource) -> list[str]:
        return sorted(item["metadata"]["name"] for item in (await self.client.list(resource, NAMESPACE))["items"])

    async def pod(self, name: str, *conditions: dict[str, str], owner: str = "dinghy", **engine: Any) -> None:
        """Creates a pod of the fleet, or gives it another status."""
        labels = {"fairlead.dev/llmdeployment": owner, "app.kubernetes.io/component": "engine"}
        spec = {"containers": [{"name": "engine", "image": "fairlead/engine:0"}], "nodeName": "here"}
        pod = {
            "apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        }  # fmt: skip
        if name not in await self.names(PODS):
            await self.client.create(PODS, pod)
        container = {"name": "engine", "image": "fairlead/engine:0", "restartCount": 0, "ready": False} | engine
        status = {"phase": "Running", "conditions": list(conditions), "containerStatuses": [container]}
        await self.client.patch(PODS, name, {"status": status}, NAMESPACE, subresource="status")

    async def warn(self, pod: str, reason: str, message: str) -> None:
        """Records a Warning about a pod, as its kubelet does."""
        subject = {"apiVersion": "v1", "kind": "Pod", "name": pod, "namespace": NAMESPACE}
        event = {
            "apiVersion": EVENTS.api_version, "kind": EVENTS.kind, "type": "Warning", "reason": reason,
            "message": message, "metadata": {"name": f"{pod}.{reason.lower()}", "namespace": NAMESPACE},
            "involvedObject": subject | {"uid": (await self.get(PODS, pod))["metadata"]["uid"]},
        }  # fmt: skip
        await self.client.create(EVENTS, event)

    async def until(self, holds: Callable[[dict[str, Any]], bool], name: str = "dinghy") -> dict[str, Any]:
        """Waits until the status is as wanted; the status."""
        status: dict[str, Any] = {}
        for _ in range(MOST_LOOKS):
            status = (await self.get(LLMDEPLOYMENTS, name)).get("status") or {}
            if status and holds(status):
                return status
            await asyncio.sleep(0.02)
        raise AssertionError(f"never came true: {json.dumps(status, indent=1)}")

    async def until_reason(self, reason: str, kind: str = "Ready", name: str = "dinghy") -> dict[str, Any]:
        """Waits until that condition has that reason; the condition."""
        status = await self.until(
            lambda status: "conditions" in status and condition(status, kind)["reason"] == reason, name
        )
        return condition(status, kind)

    async def at_rest(self) -> str:
        """Waits until nothing is written any more; the API's last version."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            before, quiet = "", 0
            while quiet < 5:
                await asyncio.sleep(0.1)
                now = "/".join([await self._version(resource) for resource in (LLMDEPLOYMENTS, EVENTS, *CHILDREN)])
                quiet, before = (quiet + 1 if now == before else 0), now
        return before

    async def _version(self, resource: Resource) -> str:
        items = (await self.client.list(resource, NAMESPACE))["items"]
        return ",".join(sorted(f"{item['metadata']['name']}={item['metadata']['resourceVersion']}" for item in items))

    async def reasons_of_events(self) -> list[str]:
        return [event["reason"] for event in (await self.client.list(EVENTS, NAMESPACE))["items"]]


@asynccontextmanager
async def bare_api_server(folder: Path) -> AsyncIterator[Path]:
    """An API without any controller, so that a test can play all of them; the kubeconfig, which is written to
    `folder`."""
    operations, token, path = Operations(Store(), Registry()), new_token(), folder / "kubeconfig"
    operations.ensure_namespaces(NAMESPACE)
    async with serving(ApiServer(operations, token).app()) as url:
        write_kubeconfig(path, url, token)
        yield path


@asynccontextmanager
async def fleet_at(kubeconfig: Path) -> AsyncIterator[Fleet]:
    """A fleet at that API, which gets the CRD."""
    async with await KubeClient.from_environment(kubeconfig) as client:
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, crd())
        yield Fleet(kubeconfig, client)


@asynccontextmanager
async def running_operator(fleet: Fleet, settings: OperatorSettings = SETTINGS) -> AsyncIterator[Operator]:
    """An operator with its own client, that is told to stop at the end."""
    async with await KubeClient.from_environment(fleet.kubeconfig) as client:
        operator = Operator(client, settings)
        task = asyncio.create_task(operator.run())
        try:
            yield operator
        finally:
            operator.stop.set()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.gather(task, return_exceptions=True)


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """The one condition of that type."""
    (found,) = [each for each in status["conditions"] if each["type"] == kind]
    return dict(found)


async def gateway_pod(fleet: Fleet, port: int) -> None:
    """A pod of a gateway that is ready, whose signals are on this port of loopback."""
    container = {"name": "gateway", "image": "x", "ports": [{"name": "control", "containerPort": port}]}
    metadata = {"name": "gateway", "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": "fairlead-gateway"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    await fleet.client.create(PODS, pod)
    status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [READY]}
    await fleet.client.patch(PODS, "gateway", {"status": status}, NAMESPACE, subresource="status")
