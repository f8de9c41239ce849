"""A namespace that the API server refuses is done without after a while; the others are followed all along."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairlead.fleet.kubernetes import KubernetesFleet
from fairlead.kube.client import JsonObject, KubeClient
from fairlead.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, LLMDEPLOYMENTS
from fairlead_local.system import crd
from fairlead_testing.api_servers import Refusals, refusing_api_server

LOST_SECONDS = 0.5
IS_LOST = "the namespace other is lost"


class Api:
    """An API with a model in each of the namespaces default and other."""

    def __init__(self, client: KubeClient, refusals: Refusals) -> None:
        self.client = client
        self.refusals = refusals

    @asynccontextmanager
    async def fleet(self, *namespaces: str, lost_seconds: float = LOST_SECONDS) -> AsyncIterator[KubernetesFleet]:
        """What a gateway follows."""
        followed = namespaces or ("default", "other")
        fleet = KubernetesFleet(self.client, namespaces=followed, lost_seconds=lost_seconds)
        following = asyncio.create_task(fleet.run())
        try:
            yield fleet
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


@pytest.fixture
async def api(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Api]:
    caplog.set_level("INFO", logger="fairlead")
    refusals = Refusals()
    async with (
        refusing_api_server(tmp_path, refusals, "other") as kubeconfig,
        await KubeClient.from_environment(kubeconfig) as client,
    ):
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, crd())
        for namespace, name in (("default", "dinghy"), ("other", "skiff")):
            await client.create(LLMDEPLOYMENTS, deployment(namespace, name))
        yield Api(client, refusals)


def deployment(namespace: str, name: str) -> JsonObject:
    return {
        "apiVersion": LLMDEPLOYMENTS.api_version,
        "kind": LLMDEPLOYMENTS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": {"source": "demo://dinghy"}},
    }


def models(fleet: KubernetesFleet) -> list[str]:
    return sorted(pool.model.key for pool in fleet.directory.pools)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_gateway_that_starts_without_a_namespace_is_ready_for_the_others_after_a_while(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    api.refusals.lose("other")
    async with api.fleet(lost_seconds=1.0) as fleet:
        await until(lambda: models(fleet) == ["default/dinghy"])
        assert not fleet.synced, "a refusal may pass: an API server that starts refuses what it will grant"
        await until(lambda: fleet.synced)
        assert caplog.text.count(IS_LOST) == 1
        assert "take it out of watch.namespaces" in caplog.text
        api.refusals.give_back("other")
        await until(lambda: models(fleet) == ["default/dinghy", "other/skiff"])
        await until(lambda: "the namespace other can be read again" in caplog.text)
        assert fleet.synced
    assert caplog.text.count(IS_LOST) == 1


async def test_a_gateway_that_runs_keeps_what_it_knows_of_a_lost_namespace_and_follows_the_others(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    async with api.fleet() as fleet:
        await until(lambda: models(fleet) == ["default/dinghy", "other/skiff"])
        unready: list[bool] = []
        fleet.subscribe(lambda _: unready.append(not fleet.synced))
        api.refusals.lose("other")
        await until(lambda: IS_LOST in caplog.text)
        await api.client.create(LLMDEPLOYMENTS, deployment("default", "later"))
        await until(lambda: models(fleet) == ["default/dinghy", "default/later", "other/skiff"])
        api.refusals.give_back("other")
        await api.client.delete(LLMDEPLOYMENTS, "skiff", "other")
        await until(lambda: models(fleet) == ["default/dinghy", "default/later"])
        assert caplog.text.count(IS_LOST) == 1
        assert not any(unready), "who was ready stays ready"


async def test_a_short_refusal_changes_nothing(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    async with api.fleet(lost_seconds=60.0) as fleet:
        await until(lambda: models(fleet) == ["default/dinghy", "other/skiff"])
        api.refusals.lose("other")
        await until(lambda: caplog.text.count("is forbidden in the namespace other") == 2)
        api.refusals.give_back("other")
        await api.client.create(LLMDEPLOYMENTS, deployment("other", "later"))
        await until(lambda: models(fleet) == ["default/dinghy", "other/later", "other/skiff"])
    assert IS_LOST not in caplog.text


async def test_where_every_namespace_is_refused_none_is_lost_and_what_is_known_is_served(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    async with api.fleet(lost_seconds=0.0) as running:
        await until(lambda: models(running) == ["default/dinghy", "other/skiff"])
        refused = api.refusals.num_refused
        api.refusals.lose("default", "other")
        async with api.fleet(lost_seconds=0.0) as starting:
            await until(lambda: api.refusals.num_refused >= refused + 16)
            assert models(running) == ["default/dinghy", "other/skiff"]
            assert running.synced
            assert not starting.synced, "a gateway that knows nothing is not ready"
    assert "is lost" not in caplog.text


async def test_the_only_namespace_is_never_lost(api: Api) -> None:
    api.refusals.lose("other")
    async with api.fleet("other", lost_seconds=0.0) as fleet:
        await until(lambda: api.refusals.num_refused >= 6)
        assert not fleet.synced
