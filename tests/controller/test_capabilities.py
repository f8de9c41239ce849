"""What the API server can do: what is done without, what is said about it, and how an operator notices a change."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.controller.capabilities import MissingRights, check_rights, look
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    POD_MONITORS,
    Resource,
)
from fairlead.operator_settings import OperatorSettings
from fairlead_local.system import crd
from fairlead_testing.api_servers import discovering
from fairlead_testing.local_api import local_api_server
from fairlead_testing.operators import SETTINGS, Fleet, bare_api_server, condition, fleet_at, running_operator

NAMESPACED = OperatorSettings(watch_namespaces=("a", "b"), gateway_namespace="system")


def definition(resource: Resource) -> JsonObject:
    """A CRD that takes anything."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
            },
            "versions": [
                {"name": resource.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }


async def test_what_is_served_and_permitted_is_made_and_the_rest_is_told() -> None:
    async with discovering(NETWORK_POLICIES, denied={("create", "networkpolicies", "b")}) as client:
        seen = await look(client, NAMESPACED)
    assert (seen.kinds, seen.wanted) == ((), frozenset())
    assert seen.done_without == (
        "Done without NetworkPolicy: the operator may not create networkpolicies.networking.k8s.io in the namespace b.",
        "Done without PodDisruptionBudget: this API server does not serve policy/v1.",
        "Done without PodMonitor: this API server does not serve monitoring.coreos.com/v1.",
    )
    async with discovering(NETWORK_POLICIES, POD_DISRUPTION_BUDGETS, POD_MONITORS) as client:
        seen = await look(client, NAMESPACED)
    assert seen.wanted == {"NetworkPolicy", "PodDisruptionBudget", "PodMonitor"}
    assert seen.done_without == ()


async def test_what_is_switched_off_is_not_missed_but_watched_so_that_it_can_be_removed() -> None:
    settings = replace(NAMESPACED, pod_disruption_budgets=False, pod_monitors=False)
    async with discovering(POD_DISRUPTION_BUDGETS) as client:
        seen = await look(client, settings)
    assert (seen.kinds, seen.wanted) == ((POD_DISRUPTION_BUDGETS,), frozenset())
    assert seen.done_without == ("Done without NetworkPolicy: this API server does not serve networking.k8s.io/v1.",)


async def test_a_namespace_that_cannot_be_watched_is_left_alone_and_what_cannot_be_written_is_named() -> None:
    async with discovering(POD_DISRUPTION_BUDGETS, denied={("watch", "services", "b")}) as client:
        seen = await look(client, NAMESPACED)
    assert seen.namespaces == ("a",)
    assert seen.lost == {
        "b": "the namespace b is left alone, because the operator may not watch services in the namespace b: create it "
        "again, and its Roles by `helm upgrade`, or take it out of watch.namespaces"
    }
    assert "PodDisruptionBudget" in seen.wanted, "what a lost namespace lacks is not missing in others"
    async with discovering(denied={("patch", "llmdeployments", "a"), ("list", "pods", "system")}) as client:
        assert (await look(client, NAMESPACED)).lost == {}
        missing = await check_rights(client, NAMESPACED, ("a", "b"))
        elsewhere = await check_rights(client, NAMESPACED, ("b",))
    assert [right.sentence_part for right in missing] == [
        "patch llmdeployments.fairlead.dev/status in the namespace a",
        "patch llmdeployments.fairlead.dev/scale in the namespace a",
        "list pods in the namespace system",
    ]
    assert [right.sentence_part for right in elsewhere] == ["list pods in the namespace system"]


@pytest.mark.parametrize(
    ("settings", "denied", "words"),
    [
        (
            NAMESPACED,
            {("watch", "services", "a"), ("list", "pods", "b")},
            "services in the namespace a, to list pods in",
        ),
        (OperatorSettings(), {("watch", "services", "")}, "lacks the right to watch services in all namespaces"),
    ],
)
async def test_where_nothing_can_be_watched_that_is_the_end(
    settings: OperatorSettings, denied: set[tuple[str, str, str]], words: str
) -> None:
    async with discovering(denied=denied) as client:
        with pytest.raises(MissingRights, match=words):
            await look(client, settings)


async def test_where_rights_cannot_be_asked_for_a_lost_namespace_is_found_by_listing() -> None:
    async with discovering(fail_reviews_with=403, lists={"b": 403}) as client:
        seen = await look(client, NAMESPACED)
    assert (seen.namespaces, list(seen.lost)) == (("a",), ["b"])
    assert seen.unanswered is not None
    assert "nobody may ask" in seen.unanswered


async def until_gone(fleet: Fleet, resource: Resource, name: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await fleet.get(resource, name)
            except KubeError as error:
                assert error.status == 404
                return
            await asyncio.sleep(0.05)


async def until_there(fleet: Fleet, resource: Resource, name: str) -> JsonObject:
    async with asyncio.timeout(20):
        while True:
            try:
                return await fleet.get(resource, name)
            except KubeError as error:
                assert error.status == 404
            await asyncio.sleep(0.05)


async def test_a_kind_that_comes_is_used_and_one_that_goes_is_done_without(tmp_path: Path) -> None:
    settings = replace(SETTINGS, resync_interval=3.0, network_policies=False, pod_disruption_budgets=False)
    async with (
        local_api_server(tmp_path) as server,
        fleet_at(server.kubeconfig_path) as fleet,
        running_operator(fleet, settings),
    ):
        await fleet.create(replicas=0)
        sentence = "Done without PodMonitor: this API server does not serve monitoring.coreos.com/v1."
        await fleet.until(lambda status: "conditions" in status and sentence in text(status))
        await fleet.client.create(CUSTOM_RESOURCE_DEFINITIONS, definition(POD_MONITORS))
        monitor = await until_there(fleet, POD_MONITORS, "dinghy-engine")
        assert monitor["metadata"]["ownerReferences"][0]["kind"] == "LLMDeployment"
        await fleet.until(lambda status: text(status) == "nothing is wrong")
        await asyncio.sleep(0.5)
        await fleet.client.delete(POD_MONITORS, "dinghy-engine", "default")
        again = await until_there(fleet, POD_MONITORS, "dinghy-engine")
        assert again["metadata"]["uid"] != monitor["metadata"]["uid"], "it is watched"
        await fleet.client.delete(CUSTOM_RESOURCE_DEFINITIONS, "podmonitors.monitoring.coreos.com")
        await fleet.until(lambda status: sentence in text(status))
        await fleet.edit(rollout={"maxSurge": 2})
        await fleet.until(lambda status: status["observedGeneration"] == 2)


async def test_what_is_switched_off_is_removed(tmp_path: Path) -> None:
    settings = replace(SETTINGS, network_policies=False, pod_disruption_budgets=False)
    async with bare_api_server(tmp_path) as kubeconfig, fleet_at(kubeconfig) as fleet:
        await fleet.client.create(CUSTOM_RESOURCE_DEFINITIONS, definition(POD_MONITORS))
        async with running_operator(fleet, settings):
            await fleet.create()
            await until_there(fleet, POD_MONITORS, "dinghy-engine")
        async with running_operator(fleet, replace(settings, pod_monitors=False)):
            await until_gone(fleet, POD_MONITORS, "dinghy-engine")


async def test_an_operator_that_is_there_before_the_crd_waits_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bare_api_server(tmp_path) as kubeconfig, await KubeClient.from_environment(kubeconfig) as client:
        fleet = Fleet(kubeconfig, client)
        async with running_operator(fleet):
            async with asyncio.timeout(20):
                while "waiting until the CRD is installed" not in caplog.text:
                    await asyncio.sleep(0.05)
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, crd())
            await fleet.create()
            await fleet.until(lambda status: "conditions" in status)


async def test_signals_are_heard_when_kopf_that_took_them_has_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.controller.operator.KOPF_END_SECONDS", 1.0)
    async with (
        local_api_server(tmp_path) as server,
        fleet_at(server.kubeconfig_path) as fleet,
        running_operator(fleet, replace(SETTINGS, resync_interval=3.0)) as operator,
    ):
        operator.install_signal_handlers()
        await fleet.create(replicas=0)
        await fleet.until(lambda status: "conditions" in status)
        await fleet.client.delete(CUSTOM_RESOURCE_DEFINITIONS, "llmdeployments.fairlead.dev")
        await fleet.client.create(CUSTOM_RESOURCE_DEFINITIONS, definition(POD_MONITORS))  # so that it watches anew
        async with asyncio.timeout(20):
            while "waiting until the CRD is installed" not in caplog.text:
                await asyncio.sleep(0.05)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
            await operator.stop.wait()


def text(status: JsonObject) -> str:
    return str(condition(status, "Degraded")["message"])
