"""A namespace that the operator may not read any more, or not yet, is left alone; the others are looked after."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import kopf
import pytest

from fairlead.controller import handlers, operator
from fairlead.controller.capabilities import MissingRights
from fairlead.controller.operator import Operator
from fairlead.kube.client import JsonObject, KubeError
from fairlead.kube.resources import DEPLOYMENTS, LLMDEPLOYMENTS
from fairlead_testing.api_servers import Refusals, refusing_api_server
from fairlead_testing.operators import SETTINGS, Fleet, fleet_at, running_operator

NAMESPACED = replace(SETTINGS, watch_namespaces=("default", "other"), gateway_namespace="default", resync_interval=3.0)
LEFT_ALONE = "the namespace other is left alone, because the operator may not list"


@pytest.fixture(autouse=True)
def _everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="fairlead")


@pytest.fixture
def refusals() -> Refusals:
    return Refusals()


@pytest.fixture
async def fleet(tmp_path: Path, refusals: Refusals) -> AsyncIterator[Fleet]:
    """An API with the namespaces default and other, and no operator."""
    async with refusing_api_server(tmp_path, refusals, "other") as kubeconfig, fleet_at(kubeconfig) as fleet:
        yield fleet


async def create(fleet: Fleet, namespace: str, name: str) -> None:
    body: JsonObject = {
        "apiVersion": LLMDEPLOYMENTS.api_version,
        "kind": LLMDEPLOYMENTS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": {"source": "demo://dinghy"}, "replicas": 0},
    }
    await fleet.client.create(LLMDEPLOYMENTS, body)


async def until_looked_after(fleet: Fleet, namespace: str, name: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await fleet.client.get(DEPLOYMENTS, f"{name}-engine", namespace)
                return
            except KubeError as error:
                assert error.status == 404
            await asyncio.sleep(0.05)


async def create_and_wait(fleet: Fleet, namespace: str, name: str) -> None:
    await create(fleet, namespace, name)
    await until_looked_after(fleet, namespace, name)


async def until_said(caplog: pytest.LogCaptureFixture, words: str) -> None:
    async with asyncio.timeout(30):
        while words not in caplog.text:
            await asyncio.sleep(0.05)


async def until_looked_again(refusals: Refusals) -> None:
    """Twice, so that the first look is over."""
    enough = refusals.num_looks + 2
    async with asyncio.timeout(30):
        while refusals.num_looks < enough:
            await asyncio.sleep(0.05)


async def until_left_alone(seen: Operator) -> None:
    """Until kopf watches only the other one."""
    async with asyncio.timeout(30):
        while seen.capabilities.namespaces != ("default",) or not seen.cluster.is_bound:
            await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("reviews", [201, 403, 404])
async def test_a_namespace_that_is_not_there_yet_is_said_once_and_looked_after_when_it_comes(
    fleet: Fleet, refusals: Refusals, caplog: pytest.LogCaptureFixture, reviews: int
) -> None:
    refusals.reviews = reviews
    refusals.lose("other")
    async with running_operator(fleet, NAMESPACED) as seen:
        await create_and_wait(fleet, "default", "here")
        await until_looked_again(refusals)
        assert caplog.text.count(LEFT_ALONE) == 1
        assert "take it out of watch.namespaces" in caplog.text
        refusals.give_back("other")
        await create_and_wait(fleet, "other", "there")
        assert sorted(seen.cluster.keys()) == [("default", "here"), ("other", "there")]


@pytest.mark.slow
async def test_a_namespace_that_goes_takes_no_other_along(
    fleet: Fleet, refusals: Refusals, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_operator(fleet, NAMESPACED) as seen:
        await create(fleet, "default", "here")
        await create(fleet, "other", "there")
        await until_looked_after(fleet, "default", "here")
        await until_looked_after(fleet, "other", "there")
        refusals.lose("other")
        await until_said(caplog, LEFT_ALONE)
        await until_left_alone(seen)
        await create_and_wait(fleet, "default", "later")
        refusals.give_back("other")
        await until_said(caplog, "the namespace other can be watched again")
        await create_and_wait(fleet, "other", "anew")


async def test_a_watch_that_is_refused_makes_the_operator_look_at_once(
    fleet: Fleet, refusals: Refusals, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here no look at fixed times finds the loss: kopf has given the namespace up."""

    def impatient() -> kopf.OperatorSettings:
        settings = handlers.kopf_settings()
        settings.networking.error_backoffs = (0.1,)
        return settings

    monkeypatch.setattr(operator, "kopf_settings", impatient)
    async with running_operator(fleet, replace(NAMESPACED, resync_interval=600.0)) as seen:
        await create(fleet, "default", "here")
        await create_and_wait(fleet, "other", "there")
        refusals.lose("other")
        await until_said(caplog, LEFT_ALONE)
        await until_left_alone(seen)
        await create_and_wait(fleet, "default", "later")


async def test_an_operator_that_may_read_no_namespace_at_all_ends_and_names_them(
    fleet: Fleet, refusals: Refusals
) -> None:
    for namespace in ("first", "second"):
        refusals.lose(namespace)
    settings = replace(NAMESPACED, watch_namespaces=("first", "second"))
    with pytest.raises(MissingRights, match=r"namespace first, .* namespace second"):
        await asyncio.wait_for(Operator(fleet.client, settings).run(), 30)


@pytest.mark.slow
@pytest.mark.parametrize("reviews", [403, 503])
async def test_an_operator_that_nobody_tells_its_rights_works_and_says_so_once(
    fleet: Fleet, refusals: Refusals, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, reviews: int
) -> None:
    monkeypatch.setattr("fairlead.controller.capabilities.PAUSE_SECONDS", 0.1)
    refusals.reviews = reviews
    async with running_operator(fleet, NAMESPACED):
        await create_and_wait(fleet, "other", "there")
        await until_looked_again(refusals)
        assert caplog.text.count("Whether the operator lacks rights cannot be asked for: nobody may ask") == 1
        await create_and_wait(fleet, "default", "here")
