"""Scale-down with a real operator, real controllers and engines that answer: who is asked to drain, who goes, and what
happens when the operator dies half-way or an engine does not answer. The kubelet's part is the test's.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.api import names
from fairlead.api.signals_message import ReplicaSignals
from fairlead.controller.applier import ask_to_drain
from fairlead.controller.plan import mark
from fairlead.kube.client import JsonObject
from fairlead.kube.resources import CONFIGMAPS, EVENTS, LLMDEPLOYMENTS, PODS
from fairlead_common.wire.messages import PATH_DRAIN
from fairlead_testing.fake_gateway import FakeGateway
from fairlead_testing.http import RecordedRequest, Responder, serve_http
from fairlead_testing.local_api import local_api_server
from fairlead_testing.operators import NAMESPACE, READY, SETTINGS, Fleet, fleet_at, gateway_pod, running_operator

SELECTOR = "fairlead.dev/llmdeployment=dinghy"
WATCHING = replace(SETTINGS, gateway_namespace=NAMESPACE, autoscaler_interval=0.3)


def load(name: str, running: int) -> ReplicaSignals:
    return ReplicaSignals(
        name=name, age_seconds=0.1, running=running, waiting=0, queued_prefill_tokens=0, kv_blocks_free=9,
        kv_blocks_total=9, kv_tokens=0, token_budget=64, max_num_seqs=4,
    )  # fmt: skip


class Engines:
    """The kubelet's part: every pod that the ReplicaSet makes gets an address where an engine answers, and is ready."""

    def __init__(self, fleet: Fleet, stack: AsyncExitStack) -> None:
        self.fleet = fleet
        self.drained: list[str] = []
        """Names of the pods whose engines were asked to drain."""
        self.hanging: set[str] = set()
        self._stack = stack
        self._served: set[str] = set()

    async def serve(self, num_pods: int) -> list[str]:
        """Waits for so many pods and has their engines answer; the names of all pods."""
        async with asyncio.timeout(20):
            while len(pods := await self.pods()) != num_pods:
                await asyncio.sleep(0.02)
        for pod in pods:
            name = pod["metadata"]["name"]
            if name not in self._served:
                await self._start(name)
                self._served.add(name)
        return [pod["metadata"]["name"] for pod in pods]

    async def pods(self) -> list[JsonObject]:
        items: list[JsonObject] = (await self.fleet.client.list(PODS, NAMESPACE, label_selector=SELECTOR))["items"]
        return sorted(items, key=lambda pod: str(pod["metadata"]["name"]))

    async def until_left(self, *left: str) -> None:
        """Waits until just these pods are there."""
        async with asyncio.timeout(20):
            while {pod["metadata"]["name"] for pod in await self.pods()} != set(left):
                await asyncio.sleep(0.02)

    async def _start(self, name: str) -> None:
        async def answer(request: RecordedRequest, responder: Responder) -> None:
            assert (request.method, request.path) == ("POST", PATH_DRAIN)
            self.drained.append(name)
            if name in self.hanging:
                await asyncio.sleep(3600)
            await responder.json(202, {})

        address = f"127.{random.randint(1, 250)}.{random.randint(1, 250)}.{random.randint(2, 250)}"
        server = await serve_http(answer, host=address, port=names.ENGINE_PORT)
        self._stack.callback(server.close)
        status = {
            "phase": "Running",
            "podIP": address,
            "conditions": [READY],
            "containerStatuses": [{"name": "engine", "image": "e", "restartCount": 0, "ready": True}],
        }
        await self.fleet.client.patch(PODS, name, {"status": status}, NAMESPACE, subresource="status")


@pytest.fixture
async def engines(tmp_path: Path) -> AsyncIterator[Engines]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(local_api_server(tmp_path))
        fleet = await stack.enter_async_context(fleet_at(server.kubeconfig_path))
        yield Engines(fleet, stack)


async def test_the_least_loaded_are_asked_to_drain_and_just_these_go(engines: Engines) -> None:
    fleet, gateway = engines.fleet, FakeGateway()
    async with gateway.serving() as port, running_operator(fleet, WATCHING) as operator:
        await fleet.create(replicas=3)
        first, second, third = await engines.serve(3)
        await fleet.until_reason("ReplicasReady")
        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await engines.pods()}
        running = {first: 1, second: 7, third: 2}
        gateway.signals.replicas = {uids[name]: load(name, number) for name, number in running.items()}
        await gateway_pod(fleet, port)
        async with asyncio.timeout(20):
            while len(operator.gateways.running()) < 3:
                await asyncio.sleep(0.02)
        await fleet.scale(1)
        await engines.until_left(second)
        assert sorted(engines.drained) == sorted([first, third])
        status = await fleet.until(lambda status: status["replicas"] == 1 and not status["drainingReplicas"])
        assert status["readyReplicas"] == 1
        events = {each["reason"]: each["message"] for each in (await fleet.client.list(EVENTS, NAMESPACE))["items"]}
        assert events["Draining"] == f"Draining Pod {first}, Pod {third}"


async def test_to_zero_all_are_asked(engines: Engines) -> None:
    fleet = engines.fleet
    async with running_operator(fleet):
        await fleet.create(replicas=2)
        pods = await engines.serve(2)
        await fleet.until_reason("ReplicasReady")
        await fleet.scale(0)
        await engines.until_left()
        assert sorted(engines.drained) == pods
        await fleet.until_reason("ScaledToZero")


async def test_one_that_does_not_answer_goes_all_the_same(engines: Engines) -> None:
    fleet = engines.fleet
    async with running_operator(fleet):
        await fleet.create(replicas=2)
        engines.hanging = set(await engines.serve(2))
        await fleet.until_reason("ReplicasReady")
        await fleet.scale(1)
        async with asyncio.timeout(20):
            while len(await engines.pods()) != 1:
                await asyncio.sleep(0.02)
        assert len(engines.drained) >= 1


async def test_an_operator_that_died_after_the_mark_is_made_up_for_by_the_next(engines: Engines) -> None:
    fleet = engines.fleet
    async with running_operator(fleet):
        await fleet.create(replicas=3)
        first, second, third = await engines.serve(3)
        await fleet.until_reason("ReplicasReady")
    await fleet.scale(2)
    await fleet.client.patch(PODS, second, {"metadata": {"annotations": mark("2026-06-01T00:00:00Z")}}, NAMESPACE)
    async with running_operator(fleet):
        await engines.until_left(first, third)
        await fleet.until_reason("ReplicasReady")
        assert engines.drained == [second]
        assert await fleet.names(PODS) == [first, third]


async def test_a_scale_down_that_is_taken_back_half_way_replaces_whoever_was_to_go(engines: Engines) -> None:
    fleet = engines.fleet
    async with running_operator(fleet):
        await fleet.create(replicas=2)
        first, second = await engines.serve(2)
        await fleet.until_reason("ReplicasReady")
    await fleet.client.patch(PODS, second, {"metadata": {"annotations": mark("2026-06-01T00:00:00Z")}}, NAMESPACE)
    async with running_operator(fleet):
        async with asyncio.timeout(20):
            while second in await fleet.names(PODS) or len(await engines.pods()) != 2:
                await asyncio.sleep(0.02)
        assert first in await engines.serve(2)
        await fleet.until_reason("ReplicasReady")
        assert "Replacing" in await fleet.reasons_of_events()
        assert engines.drained == []


async def test_an_operator_that_restarts_at_rest_drains_nobody_and_says_nothing(engines: Engines) -> None:
    fleet = engines.fleet
    async with running_operator(fleet):
        await fleet.create(replicas=2)
        pods = await engines.serve(2)
        await fleet.until_reason("ReplicasReady")
        before = await fleet.at_rest()
    async with running_operator(fleet) as operator:
        async with asyncio.timeout(20):
            while operator.cluster.keys() != [(NAMESPACE, "dinghy")]:
                await asyncio.sleep(0.02)
        assert await fleet.at_rest() == before
    assert (await fleet.names(PODS), engines.drained) == (pods, [])


async def test_a_new_configuration_and_deletion_leave_draining_to_the_signal(engines: Engines) -> None:
    fleet = engines.fleet
    async with running_operator(fleet):
        await fleet.create(replicas=1)
        [old] = await engines.serve(1)
        await fleet.until_reason("ReplicasReady")
        await fleet.edit(engine={"maxNumSeqs": 4})
        async with asyncio.timeout(20):
            while len(await engines.pods()) != 2:
                await asyncio.sleep(0.02)
        assert len(await fleet.names(CONFIGMAPS)) == 2, "the old pod has kept its configuration"
        both = await engines.serve(2)  # one more than wanted, and only when that is ready the old one goes
        await engines.until_left(*(name for name in both if name != old))
        async with asyncio.timeout(20):
            while len(await fleet.names(CONFIGMAPS)) != 1:
                await asyncio.sleep(0.02)
        await fleet.client.delete(LLMDEPLOYMENTS, "dinghy", NAMESPACE)
        await engines.until_left()
    assert engines.drained == []


async def test_pods_without_address_or_engine_are_passed_over() -> None:
    nowhere: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": []}, "status": {}}
    closed = {
        "metadata": {"name": "q"},
        "spec": {"containers": [{"name": "engine", "ports": [{"containerPort": 1}]}]},
        "status": {"podIP": "127.0.0.1"},
    }
    await ask_to_drain([nowhere, closed])
