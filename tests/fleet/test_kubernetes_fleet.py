"""Pods join and leave within one event; limits are asked for; invalid objects do not take a model away."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from fairlead.fleet import kubernetes
from fairlead.fleet.directory import served_model
from fairlead.fleet.kubernetes import KubernetesFleet
from fairlead.fleet.replica_tasks import ModelInfoClient, ModelInfoError
from fairlead.kube.client import KubeError
from fairlead.kube.resources import PODS, Resource
from fairlead.routing.replica import Limits, Replica

LIMITS = Limits(max_num_seqs=4, max_num_queued_tokens=200)


class FakeModelInfo(ModelInfoClient):
    """Fails as often as told, then knows."""

    def __init__(self, *, failures: int = 0) -> None:
        super().__init__()
        self.failures = failures
        self.asked: list[str] = []

    async def fetch(self, replica: Replica) -> Replica:
        self.asked.append(replica.name)
        if len(self.asked) <= self.failures:
            raise ModelInfoError("not yet")
        return replace(replica, limits=LIMITS)


def deployment(name: str = "dinghy", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"model": {"source": "demo://dinghy"}, **spec},
    }


def pod(
    name: str = "p0", *, ready: bool = True, since: str = "t1", going: bool = False, ip: str = "10.0.0.1"
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "labels": {"fairlead.dev/llmdeployment": "dinghy", "app.kubernetes.io/component": "engine"},
    }
    if going:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": since}
    return {"metadata": metadata, "status": {"phase": "Running", "podIP": ip, "conditions": [condition]}}


class World:
    """A fleet that is told of objects, and what it has published."""

    def __init__(self, model_info: FakeModelInfo | None = None) -> None:
        self.model_info = model_info or FakeModelInfo()
        self.fleet = KubernetesFleet(FakeKube(), model_info=self.model_info)  # type: ignore[arg-type]

    @property
    def replicas(self) -> list[str]:
        pool = self.fleet.directory.find_key("default", "dinghy")
        assert pool is not None
        return [replica.name for replica in pool.replicas]

    def limits_of(self, name: str) -> Limits | None:
        pool = self.fleet.directory.find_key("default", "dinghy")
        assert pool is not None
        return next(replica.limits for replica in pool.replicas if replica.name == name)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    made.fleet.on_deployment("ADDED", deployment())
    yield made
    await made.fleet.close()


async def test_a_ready_pod_joins_and_an_unready_one_leaves_at_the_event(world: World) -> None:
    assert world.replicas == []
    world.fleet.on_pod("ADDED", pod(ready=False))
    assert world.replicas == []
    world.fleet.on_pod("MODIFIED", pod())
    assert world.replicas == ["p0"]
    world.fleet.on_pod("MODIFIED", pod(ready=False))
    assert world.replicas == []


async def test_an_llmdeployment_is_read_when_it_changes_and_not_when_its_pods_do(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with a template of a megabyte takes tens of milliseconds."""
    read = []
    monkeypatch.setattr(kubernetes, "served_model", lambda each: (read.append(each), served_model(each))[1])
    for ready in (True, False) * 5:
        world.fleet.on_pod("MODIFIED", pod(ready=ready))
    assert read == []
    world.fleet.on_deployment("MODIFIED", deployment())
    assert len(read) == 1


async def test_a_pod_that_is_to_be_deleted_leaves_at_once_though_it_is_still_ready(world: World) -> None:
    world.fleet.on_pod("ADDED", pod())
    world.fleet.on_pod("MODIFIED", pod(going=True))
    assert world.replicas == []
    world.fleet.on_pod("DELETED", pod(going=True))
    assert world.replicas == []


async def test_a_pod_that_drains_can_still_be_asked_about_its_answers(world: World) -> None:
    def departing() -> list[str]:
        return [each.name for each in world.fleet.directory.pools[0].departing]

    world.fleet.on_pod("ADDED", pod())
    world.fleet.on_pod("MODIFIED", pod(ready=False))
    assert departing() == ["p0"], "it was asked to drain, and finishes"
    world.fleet.on_pod("MODIFIED", pod(ready=False, going=True))
    assert (world.replicas, departing()) == ([], ["p0"])
    world.fleet.on_pod("DELETED", pod(going=True))
    assert departing() == []
    world.fleet.on_pod("ADDED", pod("p1", going=True))
    world.fleet.on_pod("ADDED", pod("p2", ready=False))
    assert departing() == ["p1"], "one that was going before this gateway came, and not one that starts"
    world.fleet.on_pod("MODIFIED", {**pod("p1", going=True), "status": {"phase": "Succeeded", "podIP": "10.0.0.1"}})
    assert departing() == []
    world.fleet.on_pod("MODIFIED", pod("p2"))
    world.fleet.on_pod("MODIFIED", pod("p2", since="t2"))
    assert (world.replicas, departing()) == (["p2"], [])


async def test_pods_that_start_are_counted_and_the_operators_word_on_what_is_wrong_is_kept(world: World) -> None:
    def seen() -> tuple[int, str]:
        [pool] = world.fleet.directory.pools
        return pool.num_starting, pool.trouble

    world.fleet.on_pod("ADDED", pod("p0", ready=False))
    world.fleet.on_pod("ADDED", pod("p1", ready=False))
    assert seen() == (2, "")
    world.fleet.on_pod("MODIFIED", pod("p1"))
    assert seen() == (1, "")
    world.fleet.on_pod("MODIFIED", pod("p1", ready=False))
    assert seen() == (1, ""), "one that was ready drains, and does not start"
    world.fleet.on_pod("MODIFIED", pod("p0", ready=False, going=True))
    assert seen() == (0, "")
    degraded = {"type": "Degraded", "status": "True", "message": "The image cannot be pulled."}
    for status, message in (("True", "The image cannot be pulled."), ("False", "")):
        object_now = deployment() | {"status": {"conditions": [degraded | {"status": status}]}}
        world.fleet.on_deployment("MODIFIED", object_now)
        assert seen() == (0, message)


async def test_a_deleted_pod_leaves(world: World) -> None:
    world.fleet.on_pod("ADDED", pod("p0"))
    world.fleet.on_pod("ADDED", pod("p1"))
    world.fleet.on_pod("DELETED", pod("p0"))
    assert world.replicas == ["p1"]


async def test_the_address_is_the_pods_own_and_port_8000(world: World) -> None:
    world.fleet.on_pod("ADDED", pod(ip="10.1.2.3"))
    (replica,) = world.fleet.directory.pools[0].replicas
    assert (replica.host, replica.port, replica.uid) == ("10.1.2.3", 8000, "uid-p0")


async def test_limits_are_known_soon_after_joining_and_missing_until_then(world: World) -> None:
    world.fleet.on_pod("ADDED", pod())
    assert world.limits_of("p0") is None
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert world.limits_of("p0") == LIMITS


async def test_limits_are_asked_for_again_until_the_engine_answers() -> None:
    world = World(FakeModelInfo(failures=1))
    world.fleet.on_deployment("ADDED", deployment())
    world.fleet.on_pod("ADDED", pod())
    async with asyncio.timeout(30):
        while world.limits_of("p0") is None:
            await asyncio.sleep(0.01)
    assert world.model_info.asked == ["p0", "p0"]
    await world.fleet.close()


async def test_a_pod_that_became_ready_anew_is_asked_again(world: World) -> None:
    world.fleet.on_pod("ADDED", pod(since="t1"))
    await asyncio.sleep(0.01)
    world.fleet.on_pod("MODIFIED", pod(since="t1"))
    world.fleet.on_pod("MODIFIED", pod(since="t2"))
    await asyncio.sleep(0.01)
    assert world.model_info.asked == ["p0", "p0"]


async def test_pods_seen_before_their_llmdeployment_are_not_lost() -> None:
    world = World()
    world.fleet.on_pod("ADDED", pod())
    world.fleet.on_deployment("ADDED", deployment())
    assert world.replicas == ["p0"]
    await world.fleet.close()


async def test_an_object_made_invalid_keeps_being_served_as_it_was(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fleet.on_pod("ADDED", pod())
    world.fleet.on_deployment("MODIFIED", deployment(routing={"policy": "Nonsense"}))
    assert world.replicas == ["p0"]
    assert "spec.routing.policy" in caplog.text


async def test_a_deleted_llmdeployment_takes_its_pool_away(world: World) -> None:
    world.fleet.on_pod("ADDED", pod())
    world.fleet.on_deployment("DELETED", deployment())
    assert world.fleet.directory.pools == ()


async def test_events_that_change_nothing_publish_nothing(world: World) -> None:
    world.fleet.on_pod("ADDED", pod())
    await asyncio.sleep(0.01)
    before = world.fleet.directory
    world.fleet.on_pod("MODIFIED", pod())
    world.fleet.on_deployment("MODIFIED", deployment())
    assert world.fleet.directory is before


class FakeKube:
    """Lists what it was given, then stays silent."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = objects
        self.selectors: dict[str, str | None] = {}

    async def list(self, resource: Resource, namespace: str | None, *, label_selector: str | None) -> dict[str, Any]:
        self.selectors[resource.plural] = label_selector
        items = [each for each in self.objects if ("status" in each) == (resource is PODS)]
        return {"items": items, "metadata": {"resourceVersion": "1"}}

    async def watch(self, resource: Resource, namespace: str | None, **_: Any) -> AsyncIterator[dict[str, Any]]:
        await asyncio.Event().wait()
        yield {}


async def test_the_fleet_follows_the_api_and_says_when_it_knows_everything() -> None:
    kube = FakeKube(deployment(), pod())
    fleet = KubernetesFleet(kube, model_info=FakeModelInfo())  # type: ignore[arg-type]
    assert not fleet.synced
    following = asyncio.create_task(fleet.run())
    async with asyncio.timeout(30):
        while not fleet.synced or not fleet.directory.pools or not fleet.directory.pools[0].replicas:
            await asyncio.sleep(0.01)
    assert kube.selectors["pods"] == "fairlead.dev/llmdeployment,app.kubernetes.io/component=engine"
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


class NamespacedKube(FakeKube):
    """Refuses whoever asks for all namespaces at once."""

    async def list(self, resource: Resource, namespace: str | None, *, label_selector: str | None) -> dict[str, Any]:
        if namespace is None:
            raise KubeError(403, "Forbidden", "cannot list resource at the cluster scope")
        listed = await super().list(resource, namespace, label_selector=label_selector)
        items = [each for each in listed["items"] if each["metadata"]["namespace"] == namespace]
        return listed | {"items": items}


async def test_several_namespaces_are_one_fleet_and_take_no_rights_for_the_whole_cluster() -> None:
    elsewhere = deployment("skiff")
    elsewhere["metadata"]["namespace"] = "harbour"
    unseen = deployment("raft")
    unseen["metadata"]["namespace"] = "sea"
    kube = NamespacedKube(deployment(), pod(), elsewhere, unseen)
    namespaces = ["default", "harbour", "default"]
    fleet = KubernetesFleet(kube, namespaces=namespaces, model_info=FakeModelInfo())  # type: ignore[arg-type]
    following = asyncio.create_task(fleet.run())
    async with asyncio.timeout(30):
        while not fleet.synced or not fleet.directory.find_key("default", "dinghy"):
            await asyncio.sleep(0.01)
    assert sorted(pool.model.key for pool in fleet.directory.pools) == ["default/dinghy", "harbour/skiff"]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
