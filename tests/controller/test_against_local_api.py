"""The whole operator, real kopf included, against local mode's API server.

Most tests run without any other controller and play the pods themselves; the last ones run the real controllers beside
it.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.controller.operator import LeaseLost, Operator
from fairlead.kube.client import KubeError
from fairlead.kube.resources import (
    CHILDREN,
    CONFIGMAPS,
    DEPLOYMENTS,
    LEASES,
    LLMDEPLOYMENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    REPLICASETS,
    SERVICES,
)
from fairlead_testing.local_api import local_api_server
from fairlead_testing.operators import (
    NAMESPACE,
    READY,
    SCHEDULED,
    SETTINGS,
    SHORT_LEASE,
    Fleet,
    bare_api_server,
    condition,
    fleet_at,
    running_operator,
)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Fleet]:
    """An API with the CRD, no controllers and no operator."""
    async with bare_api_server(tmp_path) as kubeconfig, fleet_at(kubeconfig) as fleet:
        yield fleet


@pytest.fixture
async def fleet(api: Fleet) -> AsyncIterator[Fleet]:
    """An API with a running operator."""
    async with running_operator(api):
        yield api


async def test_an_llmdeployment_gets_its_children_and_a_status(fleet: Fleet) -> None:
    await fleet.create()
    status = await fleet.until(lambda status: status.get("observedGeneration") == 1)
    assert await fleet.names(DEPLOYMENTS) == ["dinghy-engine"]
    assert [name.rpartition("-")[0] for name in await fleet.names(CONFIGMAPS)] == ["dinghy-engine"]
    assert await fleet.names(SERVICES) == ["dinghy"]
    assert status["url"] == "http://gateway/default/dinghy/v1"
    assert len(status["conditions"]) == 6
    owners = (await fleet.get(DEPLOYMENTS, "dinghy-engine"))["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in owners] == [(await fleet.get(LLMDEPLOYMENTS, "dinghy"))["metadata"]["uid"]]


async def test_nothing_of_ours_has_finalizers_nor_annotations_on_the_users_object(fleet: Fleet) -> None:
    await fleet.create()
    await fleet.until_reason("Reconciling")
    await fleet.at_rest()
    metadata = (await fleet.get(LLMDEPLOYMENTS, "dinghy"))["metadata"]
    assert "finalizers" not in metadata
    assert "annotations" not in metadata
    for resource in CHILDREN:
        for item in (await fleet.client.list(resource, NAMESPACE))["items"]:
            assert "finalizers" not in item["metadata"]


async def test_a_fleet_at_rest_causes_no_writes_even_when_it_is_looked_at_again(api: Fleet) -> None:
    async with running_operator(api, replace(SETTINGS, resync_interval=3.0)) as operator:
        await api.create()
        await api.pod("p", SCHEDULED, READY)
        await api.until_reason("ReplicasReady")
        before = await api.at_rest()
        for _ in range(3):
            operator.queue.add((NAMESPACE, "dinghy"))
            await asyncio.sleep(0.2)
        assert await api.at_rest() == before


async def test_the_way_to_ready_is_told_step_by_step(fleet: Fleet) -> None:
    await fleet.create()
    await fleet.until_reason("Reconciling")
    await fleet.pod("p", SCHEDULED, state={"waiting": {"reason": "ContainerCreating"}})
    await fleet.until_reason("ContainerCreating")
    await fleet.pod("p", SCHEDULED, state={"waiting": None, "running": {}}, started=False)
    await fleet.until_reason("LoadingModel")
    await fleet.pod("p", SCHEDULED, READY, state={"running": {}}, started=True)
    status = await fleet.until(lambda status: status["readyReplicas"] == 1)
    assert condition(status, "Ready")["message"] == "1/1 replica ready"
    assert condition(status, "ModelAvailable")["status"] == "True"
    await fleet.at_rest()
    assert {"Created", "ContainerCreating", "LoadingModel", "ReplicasReady"} <= set(await fleet.reasons_of_events())


@pytest.mark.parametrize(
    ("conditions", "engine", "reason", "words"),
    [
        (
            [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: no GPU"}],
            {},
            "Unschedulable",
            "0/1 nodes: no GPU",
        ),
        (
            [SCHEDULED],
            {"state": {"terminated": {"exitCode": 1, "message": '{"reason": "MissingTensor", "message": "lm_head"}'}}},
            "MissingTensor",
            "lm_head",
        ),
    ],
)
async def test_what_keeps_a_pod_from_starting_ends_in_a_condition_and_a_warning(
    fleet: Fleet, conditions: list[dict[str, str]], engine: dict[str, Any], reason: str, words: str
) -> None:
    await fleet.create()
    await fleet.pod("p", *conditions, **engine)
    ready = await fleet.until_reason(reason)
    assert words in ready["message"]
    degraded = await fleet.until_reason(reason, "Degraded")
    assert degraded["status"] == "True"
    await fleet.at_rest()
    assert reason in await fleet.reasons_of_events()


async def test_what_cannot_be_built_ends_in_a_condition_and_creates_nothing(fleet: Fleet) -> None:
    await fleet.create(resources={"profile": "absent"})
    assert "use one of" in (await fleet.until_reason("UnknownProfile"))["message"]
    assert await fleet.names(DEPLOYMENTS) == []


async def test_a_claim_that_appears_is_noticed(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.controller.reconcile.RECHECK_SECONDS", 0.2)
    await fleet.create(model={"source": "pvc://models/tiny"})
    assert "create it" in (await fleet.until_reason("ModelSourceNotFound", "ModelAvailable"))["message"]
    assert await fleet.names(DEPLOYMENTS) == []
    claim = {"metadata": {"name": "models", "namespace": NAMESPACE}, "spec": {"accessModes": ["ReadOnlyMany"]}}
    await fleet.client.create(PERSISTENT_VOLUME_CLAIMS, {"apiVersion": "v1", "kind": "PersistentVolumeClaim"} | claim)
    await fleet.until_reason("Reconciling")
    assert await fleet.names(DEPLOYMENTS) == ["dinghy-engine"]


async def test_a_volume_that_cannot_be_mounted_ends_in_a_condition_and_is_forgotten_when_it_can(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet tells it in Events only, which are of no object that is watched."""
    monkeypatch.setattr("fairlead.controller.pod_starts.SLOW_SECONDS", 0.0)
    monkeypatch.setattr("fairlead.controller.pod_starts.ASK_AGAIN_SECONDS", 0.2)
    await fleet.create()
    await fleet.pod("p", SCHEDULED, state={"waiting": {"reason": "ContainerCreating"}})
    await fleet.pod("other", SCHEDULED, owner="another", state={"waiting": {"reason": "ContainerCreating"}})
    await fleet.until_reason("ContainerCreating")
    await fleet.warn("other", "FailedMount", "of another pod")
    await fleet.warn("p", "FailedMount", 'MountVolume.SetUp failed for volume "creds" : secret "s" not found')
    ready = await fleet.until_reason("FailedMount")
    assert "p: a volume cannot be mounted; check the claims, Secrets" in ready["message"]
    assert ready["message"].endswith('secret "s" not found')
    assert (await fleet.until_reason("FailedMount", "Degraded"))["status"] == "True"
    await fleet.at_rest()
    await fleet.pod("p", SCHEDULED, READY, state={"running": {}}, started=True)
    await fleet.until_reason("ReplicasReady")
    await fleet.until_reason("AsExpected", "Degraded")


async def test_an_edit_reaches_the_children_and_an_impossible_one_leaves_them(fleet: Fleet) -> None:
    await fleet.create()
    await fleet.pod("p", SCHEDULED, READY)
    await fleet.until_reason("ReplicasReady")
    await fleet.edit(engine={"maxNumSeqs": 4})
    await fleet.until(lambda status: status["observedGeneration"] == 2)
    before = await fleet.get(DEPLOYMENTS, "dinghy-engine")
    mounted = before["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]
    assert "max-num-seqs: 4\n" in (await fleet.get(CONFIGMAPS, mounted))["data"]["engine.yaml"]
    await fleet.edit(resources={"profile": "absent"})
    ready = await fleet.until_reason("UnknownProfile")
    assert ready["message"].startswith("1 replica still serving")
    assert (await fleet.get(DEPLOYMENTS, "dinghy-engine"))["metadata"]["generation"] == before["metadata"]["generation"]


async def test_scale_reaches_the_deployment_and_its_selector_counts_the_pods(fleet: Fleet) -> None:
    await fleet.create()
    await fleet.until_reason("Reconciling")
    await fleet.scale(2)
    status = await fleet.until(lambda status: status["desiredReplicas"] == 2)
    assert (await fleet.get(DEPLOYMENTS, "dinghy-engine"))["spec"]["replicas"] == 2
    for name in ("p", "q"):
        await fleet.pod(name, SCHEDULED, READY)
    await fleet.until_reason("ReplicasReady")
    scale = await fleet.client.request("GET", LLMDEPLOYMENTS.path(NAMESPACE, "dinghy", "scale"))
    assert scale["spec"]["replicas"] == 2
    assert scale["status"] == {"replicas": 2, "selector": status["selector"]}
    selected = await fleet.client.list(PODS, NAMESPACE, label_selector=status["selector"])
    assert len(selected["items"]) == 2
    assert "Scaled" in await fleet.reasons_of_events()


async def test_a_hand_edited_deployment_is_put_right(fleet: Fleet) -> None:
    await fleet.create(replicas=2)
    await fleet.until_reason("Reconciling")
    await fleet.client.patch(DEPLOYMENTS, "dinghy-engine", {"spec": {"replicas": 9}}, NAMESPACE)
    async with asyncio.timeout(20):
        while (await fleet.get(DEPLOYMENTS, "dinghy-engine"))["spec"]["replicas"] != 2:
            await asyncio.sleep(0.02)


async def test_a_deleted_child_is_made_anew(fleet: Fleet) -> None:
    await fleet.create()
    await fleet.until_reason("Reconciling")
    uid = (await fleet.get(SERVICES, "dinghy"))["metadata"]["uid"]
    await fleet.client.delete(SERVICES, "dinghy", NAMESPACE)
    async with asyncio.timeout(20):
        while "dinghy" not in await fleet.names(SERVICES):
            await asyncio.sleep(0.02)
    assert (await fleet.get(SERVICES, "dinghy"))["metadata"]["uid"] != uid


async def test_an_object_that_is_not_ours_is_left_alone_and_named(api: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.controller.reconcile.RECHECK_SECONDS", 0.2)
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "dinghy", "namespace": NAMESPACE}}
    spec = {"ports": [{"port": 80}], "selector": {"app": "theirs"}}
    before = await api.client.create(SERVICES, theirs | {"spec": spec})
    async with running_operator(api):
        await api.create()
        degraded = await api.until_reason("ResourceNotOwned", "Degraded")
        assert "Service 'dinghy' exists and is not ours: delete it" in degraded["message"]
        assert await api.get(SERVICES, "dinghy") == before
        assert await api.names(DEPLOYMENTS) == ["dinghy-engine"]
        await api.client.delete(SERVICES, "dinghy", NAMESPACE)
        await api.until_reason("AsExpected", "Degraded")
        assert (await api.get(SERVICES, "dinghy"))["spec"]["type"] == "ExternalName"


async def test_the_younger_of_two_with_one_name_waits_for_it(fleet: Fleet) -> None:
    await fleet.create("elder", model={"source": "demo://dinghy", "servedName": "m"})
    await asyncio.sleep(1.1)  # creation times have whole seconds
    await fleet.create("younger", model={"source": "demo://dinghy", "servedName": "m"})
    degraded = await fleet.until_reason("NameConflict", "Degraded", "younger")
    assert "default/elder" in degraded["message"]
    assert (await fleet.until_reason("AsExpected", "Degraded", "elder"))["status"] == "False"
    await fleet.client.delete(LLMDEPLOYMENTS, "elder", NAMESPACE)
    await fleet.until_reason("AsExpected", "Degraded", "younger")


async def test_a_draining_pod_is_counted_apart(fleet: Fleet) -> None:
    await fleet.create()
    await fleet.pod("p", SCHEDULED, READY)
    await fleet.until_reason("ReplicasReady")
    await fleet.client.delete(PODS, "p", NAMESPACE)  # it is there until its kubelet says that it has ended
    status = await fleet.until(lambda status: status["drainingReplicas"] == 1)
    assert (status["replicas"], status["readyReplicas"]) == (0, 0)
    await fleet.client.request("DELETE", PODS.path(NAMESPACE, "p"), body={"gracePeriodSeconds": 0})
    await fleet.until(lambda status: status["drainingReplicas"] == 0)


async def test_an_external_autoscaler_finds_a_count_in_the_scale(fleet: Fleet) -> None:
    await fleet.create(autoscaling={"mode": "External"})
    await fleet.until_reason("ExternalAutoscaler", "ScalingActive")
    await fleet.at_rest()
    assert (await fleet.get(LLMDEPLOYMENTS, "dinghy"))["spec"]["replicas"] == 1


async def test_a_deleted_llmdeployment_is_forgotten_and_may_come_back(fleet: Fleet) -> None:
    await fleet.create()
    await fleet.until_reason("Reconciling")
    await fleet.client.delete(LLMDEPLOYMENTS, "dinghy", NAMESPACE)
    with pytest.raises(KubeError):
        await fleet.get(LLMDEPLOYMENTS, "dinghy")
    # No garbage collector runs here, so the children of the first one are still in the way of the second.
    await fleet.create()
    async with asyncio.timeout(20):
        while "waiting until the" not in (await fleet.until_reason("Reconciling", "Progressing"))["message"]:
            await asyncio.sleep(0.02)
    await fleet.until_reason("AsExpected", "Degraded")
    assert len(await fleet.names(DEPLOYMENTS)) == 1


async def test_a_restarted_operator_changes_nothing_and_goes_on(api: Fleet) -> None:
    async with running_operator(api):
        await api.create(replicas=1)
        await api.pod("p", SCHEDULED, READY)
        await api.until_reason("ReplicasReady")
        before = await api.at_rest()
    async with running_operator(api) as operator:
        async with asyncio.timeout(20):
            while operator.cluster.keys() != [(NAMESPACE, "dinghy")]:
                await asyncio.sleep(0.02)
        assert await api.at_rest() == before
        await api.scale(3)
        await api.until(lambda status: status["desiredReplicas"] == 3)


async def test_what_happened_while_no_operator_ran_is_made_up_for(api: Fleet) -> None:
    async with running_operator(api):
        await api.create()
        await api.until_reason("Reconciling")
    await api.scale(2)
    await api.client.delete(SERVICES, "dinghy", NAMESPACE)
    async with running_operator(api):
        await api.until(lambda status: status["desiredReplicas"] == 2)
        assert await api.names(SERVICES) == ["dinghy"]


async def test_only_one_operator_is_active_and_the_other_takes_over_at_once(api: Fleet) -> None:
    async with running_operator(api, SHORT_LEASE) as first:
        await api.create()
        await api.until_reason("Reconciling")
        async with running_operator(api, SHORT_LEASE) as second:
            await asyncio.sleep(0.5)
            assert second.cluster.keys() == []
            assert (await api.get(LEASES, "fairlead-operator"))["spec"]["holderIdentity"] == first.lease.identity
            first.stop.set()
            await api.scale(2)
            await api.until(lambda status: status["desiredReplicas"] == 2)
            assert (await api.get(LEASES, "fairlead-operator"))["spec"]["holderIdentity"] == second.lease.identity


async def test_an_operator_that_loses_its_lease_ends(api: Fleet) -> None:
    operator = Operator(api.client, SHORT_LEASE)
    running = asyncio.create_task(operator.run())
    await api.create()
    await api.until_reason("Reconciling")
    await api.client.patch(LEASES, "fairlead-operator", {"spec": {"holderIdentity": "thief"}}, NAMESPACE)
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(running, 20)
    assert (await api.get(LEASES, "fairlead-operator"))["spec"]["holderIdentity"] == "thief"


async def test_real_controllers_make_pods_of_it_and_their_trouble_is_shown(tmp_path: Path) -> None:
    """There is no node, so the scheduler has a reason of its own not to place the pod."""
    async with (
        local_api_server(tmp_path) as server,
        fleet_at(server.kubeconfig_path) as fleet,
        running_operator(fleet),
    ):
        await fleet.create()
        ready = await fleet.until_reason("Unschedulable")
        assert "The scheduler says: " in ready["message"]
        assert len(await fleet.names(PODS)) == 1


async def test_a_rollout_that_somebody_pauses_stays_paused_and_says_how_it_goes_on(tmp_path: Path) -> None:
    async with (
        local_api_server(tmp_path) as server,
        fleet_at(server.kubeconfig_path) as fleet,
        running_operator(fleet),
    ):
        await fleet.create()
        await fleet.until_reason("Unschedulable")
        await fleet.client.patch(DEPLOYMENTS, "dinghy-engine", {"spec": {"paused": True}}, NAMESPACE)
        await fleet.at_rest()
        await fleet.edit(engine={"maxNumSeqs": 4})
        paused = await fleet.until_reason("Paused", "Progressing")
        assert paused["status"] == "False"
        assert "kubectl rollout resume deployment/dinghy-engine -n default" in paused["message"]
        await fleet.at_rest()
        assert (await fleet.get(DEPLOYMENTS, "dinghy-engine"))["spec"]["paused"] is True, "it is not ours to resume"
        assert len(await fleet.names(REPLICASETS)) == 1
        await fleet.client.patch(DEPLOYMENTS, "dinghy-engine", {"spec": {"paused": None}}, NAMESPACE)
        await fleet.until_reason("Unschedulable", "Progressing")
        async with asyncio.timeout(20):
            while len(await fleet.names(REPLICASETS)) != 2:
                await asyncio.sleep(0.02)


async def test_deleting_an_llmdeployment_leaves_nothing_behind_even_without_an_operator(tmp_path: Path) -> None:
    async with local_api_server(tmp_path) as server, fleet_at(server.kubeconfig_path) as fleet:
        async with running_operator(fleet):
            await fleet.create()
            await fleet.until_reason("Unschedulable")
        await fleet.client.delete(LLMDEPLOYMENTS, "dinghy", NAMESPACE)
        async with asyncio.timeout(20):
            while [name for resource in (*CHILDREN, REPLICASETS, PODS) for name in await fleet.names(resource)]:
                await asyncio.sleep(0.02)
        assert await fleet.names(LLMDEPLOYMENTS) == []
