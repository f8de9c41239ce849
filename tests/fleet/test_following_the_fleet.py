"""Fleets follow the streams of the replicas they have: from when a pod joins until it leaves."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from fairlead.fleet.kubernetes import KubernetesFleet
from fairlead.fleet.replica_tasks import ModelInfoClient
from fairlead.routing.replica import Replica
from fairlead_common.wire.messages import ModelBrief
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.gateways import make_pool
from fairlead_testing.listeners import MirrorListener
from fairlead_testing.static_fleet import StaticFleet

DEPLOYMENT = {
    "metadata": {
        "name": "dinghy", "namespace": "default", "uid": "uid-dinghy", "generation": 1, "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": {"model": {"source": "demo://dinghy"}},
}  # fmt: skip


def pod(*, since: str = "t1", ready: bool = True, going: bool = False) -> dict[str, Any]:
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": since}
    metadata = {
        "name": "p0", "namespace": "default", "uid": "uid-p0", "resourceVersion": "1",
        "labels": {"fairlead.dev/llmdeployment": "dinghy", "app.kubernetes.io/component": "engine"},
    }  # fmt: skip
    if going:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata, "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [condition]}}


class FakeModelInfo(ModelInfoClient):
    """Says that every replica is this engine."""

    def __init__(self, engine: FakeEngine) -> None:
        super().__init__()
        self.engine = engine

    async def fetch(self, replica: Replica) -> Replica:
        engine = self.engine.replica()
        return replace(engine, uid=replica.uid, name=replica.name)


class World:
    """A fleet whose one pod is a fake engine, and who hears of it."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.listener = MirrorListener()
        info = FakeModelInfo(engine)
        self.fleet = KubernetesFleet(None, model_info=info, listener=self.listener)  # type: ignore[arg-type]
        self.fleet.on_deployment("ADDED", DEPLOYMENT)

    async def until_followed(self) -> None:
        await self.listener.until(lambda: "uid-p0" in self.listener.loads)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with FakeEngine() as engine:
        made = World(engine)
        yield made
        await made.fleet.close()


async def test_a_pod_is_followed_once_it_is_ready(world: World) -> None:
    world.fleet.on_pod("ADDED", pod(ready=False))
    await asyncio.sleep(0.05)
    assert world.engine.stream.num_listed == 0
    world.fleet.on_pod("MODIFIED", pod())
    await world.until_followed()
    assert world.listener.blocks == {"uid-p0": set()}


@pytest.mark.parametrize("last", [pod(ready=False), pod(going=True)])
async def test_nobody_hears_of_a_pod_that_has_left(world: World, last: dict[str, Any]) -> None:
    world.fleet.on_pod("ADDED", pod())
    await world.until_followed()
    world.fleet.on_pod("MODIFIED", last)
    assert world.listener.left_uids == ["uid-p0"], "at the very event"
    async with asyncio.timeout(30):
        while world.engine.stream.num_followers:
            await asyncio.sleep(0.005)
    assert world.listener.loads == {}


async def test_a_pod_that_became_ready_anew_is_followed_anew(world: World) -> None:
    world.fleet.on_pod("ADDED", pod(since="t1"))
    await world.until_followed()
    world.fleet.on_pod("MODIFIED", pod(since="t1"))
    assert world.listener.left_uids == []
    world.fleet.on_pod("MODIFIED", pod(since="t2"))
    assert world.listener.left_uids == ["uid-p0"]
    await world.until_followed()
    assert world.engine.stream.num_listed == 2


async def test_a_draining_replica_stays_in_the_pool_and_its_load_says_so(world: World) -> None:
    world.fleet.on_pod("ADDED", pod())
    await world.until_followed()
    world.engine.drain()
    await world.listener.until(lambda: world.listener.loads["uid-p0"].draining)
    (pool,) = world.fleet.directory.pools
    assert [replica.uid for replica in pool.replicas] == ["uid-p0"]


class FakeBook:
    """Counts the tokenizers it was given."""

    def __init__(self) -> None:
        self.added: list[ModelBrief] = []

    def get(self, digest: str) -> object | None:
        return None

    async def add(self, info: ModelBrief, told: bytes | None) -> None:
        self.added.append(info)


async def test_a_static_fleet_asks_and_follows_what_it_is_told_to_have() -> None:
    listener, book = MirrorListener(), FakeBook()
    async with FakeEngine("a") as first, FakeEngine("b") as second:
        fleet = StaticFleet([make_pool([first.replica(with_limits=False)])], listener=listener, tokenizers=book)
        running = asyncio.create_task(fleet.run())
        await listener.until(lambda: set(listener.loads) == {"a"})
        (pool,) = fleet.directory.pools
        assert pool.replicas == (replace(first.replica(), served_name="fake"),)
        assert book.added[0].digest == first.replica().digest
        fleet.publish([make_pool([second.replica(with_limits=False)])])
        assert listener.left_uids == ["a"]
        await listener.until(lambda: set(listener.loads) == {"b"})
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert listener.left_uids == ["a", "b"]


async def test_a_static_fleet_without_a_listener_asks_nobody() -> None:
    async with FakeEngine() as engine:
        await StaticFleet([make_pool([engine.replica()])]).run()
        assert engine.stream.num_listed == 0
