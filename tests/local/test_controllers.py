"""Owners and dependents, namespaces, claims, the scheduler: what happens without anybody running a container."""

from pathlib import Path
from typing import Any

import pytest

from fairlead_local.apiserver.operations import WriteOptions
from fairlead_local.apiserver.resources import CLAIMS, CONFIG_MAPS, DEPLOYMENTS, EVENTS, NODES, PODS, REPLICA_SETS
from fairlead_local.controllers.controller import ObjectEvents
from fairlead_testing.local_api import LocalApi, eventually

CONFIG_MAPS_PATH = "/api/v1/namespaces/default/configmaps"
PODS_PATH = "/api/v1/namespaces/default/pods"
DEPLOYMENTS_PATH = "/apis/apps/v1/namespaces/default/deployments"
REPLICA_SETS_PATH = "/apis/apps/v1/namespaces/default/replicasets"


def find(api: LocalApi, name: str) -> dict[str, Any] | None:
    return api.operations.find(CONFIG_MAPS, "default", name)


async def make(http: Any, name: str, *owners: dict[str, Any], block: bool = True, **metadata: Any) -> dict[str, Any]:
    references = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": o["metadata"]["name"], "uid": o["metadata"]["uid"]}
        | {"blockOwnerDeletion": block}
        for o in owners
    ]
    body = {"metadata": {"name": name, **metadata, **({"ownerReferences": references} if references else {})}}
    reply = await http("POST", CONFIG_MAPS_PATH, body)
    assert reply.status == 201, reply.body
    created: dict[str, Any] = reply.body
    return created


async def test_dependents_follow_their_last_owner(http: Any, api: LocalApi) -> None:
    one, two = await make(http, "one"), await make(http, "two")
    child = await make(http, "child", one, two)
    await make(http, "grandchild", child)
    await http("DELETE", f"{CONFIG_MAPS_PATH}/one")
    await eventually(lambda: len((find(api, "child") or {})["metadata"]["ownerReferences"]) == 1)
    await http("DELETE", f"{CONFIG_MAPS_PATH}/two")
    await eventually(lambda: not find(api, "grandchild"))
    assert not find(api, "child")


async def test_an_object_whose_owner_never_was_is_collected(http: Any, api: LocalApi) -> None:
    ghost = {"metadata": {"name": "ghost", "uid": "00000000-0000-0000-0000-000000000000"}}
    await make(http, "child", ghost)
    await eventually(lambda: not find(api, "child"))


async def test_an_owner_of_a_kind_nobody_serves_keeps_its_dependents(http: Any, api: LocalApi) -> None:
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "1"}
    body = {"metadata": {"name": "child", "ownerReferences": [reference]}}
    await http("POST", CONFIG_MAPS_PATH, body)
    await make(http, "marker", {"metadata": {"name": "ghost", "uid": "2"}})
    await eventually(lambda: not find(api, "marker"))
    assert find(api, "child")


async def test_in_the_foreground_the_owner_goes_last(http: Any, api: LocalApi) -> None:
    owner = await make(http, "owner")
    await make(http, "child", owner, finalizers=["test/hold"])
    deleted = await http("DELETE", f"{CONFIG_MAPS_PATH}/owner", {"propagationPolicy": "Foreground"})
    assert deleted.body["metadata"]["finalizers"] == ["foregroundDeletion"]
    await eventually(lambda: (find(api, "child") or {})["metadata"].get("deletionTimestamp"))
    assert find(api, "owner")
    await http.merge(f"{CONFIG_MAPS_PATH}/child", {"metadata": {"finalizers": None}})
    await eventually(lambda: not find(api, "owner"))
    assert not find(api, "child")


async def test_orphans_stay_without_their_owner(http: Any, api: LocalApi) -> None:
    owner = await make(http, "owner")
    await make(http, "child", owner)
    await http("DELETE", f"{CONFIG_MAPS_PATH}/owner", propagationPolicy="Orphan")
    await eventually(lambda: not find(api, "owner"))
    assert "ownerReferences" not in (find(api, "child") or {})["metadata"]


async def test_a_namespace_is_emptied_before_it_goes(http: Any, api: LocalApi) -> None:
    await http("POST", "/api/v1/namespaces", {"metadata": {"name": "n"}})
    held = {"metadata": {"name": "held", "finalizers": ["test/hold"]}}
    await http("POST", "/api/v1/namespaces/n/configmaps", held)
    deleted = await http("DELETE", "/api/v1/namespaces/n")
    assert deleted.body["status"]["phase"] == "Terminating"
    refused = await http("POST", "/api/v1/namespaces/n/configmaps", {"metadata": {"name": "late"}})
    assert (refused.status, "being terminated" in refused.message) == (403, True)
    await http.merge("/api/v1/namespaces/n/configmaps/held", {"metadata": {"finalizers": None}})
    await eventually(lambda: not api.operations.store.get("namespaces", "", "n"))
    assert (await http("POST", "/api/v1/namespaces/n/configmaps", {"metadata": {"name": "x"}})).status == 404


def claim(**spec: Any) -> dict[str, Any]:
    resources = {"requests": {"storage": "1Gi"}}
    return {"metadata": {"name": "models"}, "spec": {"accessModes": ["ReadOnlyMany"], "resources": resources, **spec}}


async def test_a_claim_gets_a_folder_that_outlives_it(http: Any, api: LocalApi, tmp_path: Path) -> None:
    path = "/api/v1/namespaces/default/persistentvolumeclaims"
    created = await http("POST", path, claim())
    assert created.body["status"] == {"phase": "Pending"}
    bound = await eventually(
        lambda: next((c for c in api.operations.list(CLAIMS) if c["status"]["phase"] == "Bound"), None)
    )
    assert bound["status"]["capacity"] == {"storage": "1Gi"}
    folder = tmp_path / "volumes" / "default" / "models"
    (folder / "weights").write_text("precious")
    await http("DELETE", f"{path}/models")
    assert (folder / "weights").read_text() == "precious"


async def test_a_claim_of_a_foreign_storage_class_stays_pending_and_says_why(http: Any, api: LocalApi) -> None:
    await http("POST", "/api/v1/namespaces/default/persistentvolumeclaims", claim(storageClassName="fast"))
    event = await eventually(lambda: next(iter(api.operations.list(EVENTS)), None))
    assert (event["reason"], "fast" in event["message"]) == ("ProvisioningFailed", True)


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "test/python", "args": ["-c", "pass"]}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def requesting(**requests: str) -> dict[str, Any]:
    body = pod()
    body["spec"]["containers"][0]["resources"] = {"requests": requests}
    return body


def refusal(api: LocalApi) -> dict[str, Any] | None:
    found = api.operations.find(PODS, "default", "p") or {}
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), None)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (requesting(**{"nvidia.com/gpu": "1"}), "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
        (
            requesting(cpu="64", memory="9Ti"),
            "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory.",
        ),
        (
            pod(nodeSelector={"disk": "ssd"}),
            "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
        ),
        (
            pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]),
            '0/1 nodes are available: persistentvolumeclaim "none" not found.',
        ),
    ],
)
async def test_a_pod_that_fits_nowhere_says_what_is_missing(
    node_http: Any, node_api: LocalApi, body: dict[str, Any], message: str
) -> None:
    await node_http("POST", PODS_PATH, body)
    condition = await eventually(lambda: refusal(node_api))
    assert (condition["reason"], condition["message"]) == ("Unschedulable", message)
    event = await eventually(
        lambda: next((e for e in node_api.operations.list(EVENTS) if e["reason"] == "FailedScheduling"), None)
    )
    assert (event["type"], event["message"]) == ("Warning", message)
    assert (node_api.operations.get(PODS, "default", "p"))["status"]["phase"] == "Pending"


async def test_a_pending_pod_is_scheduled_once_what_it_waits_for_is_there(node_http: Any, node_api: LocalApi) -> None:
    node = node_api.operations.get(NODES, "", "local")
    await node_http.merge("/api/v1/nodes/local", {"spec": {"unschedulable": True}})
    await node_http("POST", PODS_PATH, pod(restartPolicy="Never"))
    condition = await eventually(lambda: refusal(node_api))
    assert condition["message"] == "0/1 nodes are available: 1 node(s) were unschedulable."
    await node_http.merge("/api/v1/nodes/local", {"spec": {"unschedulable": None}})
    await eventually(lambda: node_api.operations.get(PODS, "default", "p")["status"]["phase"] == "Succeeded")
    assert node_api.operations.get(PODS, "default", "p")["spec"]["nodeName"] == node["metadata"]["name"]


def deployment(**spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": pod()["spec"]}
    selector = {"matchLabels": {"app": "x"}}
    return {"metadata": {"name": "x"}, "spec": {"selector": selector, "template": template, **spec}}


def replica_set(replicas: int) -> dict[str, Any]:
    return {"metadata": {"name": "rs"}, "spec": deployment(replicas=replicas)["spec"]}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"selector": {"matchLabels": {"app": "y"}}}, "spec.template.metadata.labels"),
        ({"selector": {}}, "spec.selector"),
        ({"replicas": -1}, "spec.replicas"),
        (
            {"template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": []}}},
            "spec.template.spec.containers",
        ),
        (
            {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}},
            "spec.strategy.rollingUpdate.maxUnavailable",
        ),
        ({"strategy": {"type": "BlueGreen"}}, "spec.strategy.type"),
    ],
)
async def test_a_deployment_that_cannot_work_is_refused(http: Any, change: dict[str, Any], field: str) -> None:
    refused = await http("POST", DEPLOYMENTS_PATH, deployment(**change))
    assert refused.status == 422
    assert field in [cause["field"] for cause in refused.body["details"]["causes"]]


async def test_selectors_and_running_pods_are_fixed(http: Any) -> None:
    await http("POST", DEPLOYMENTS_PATH, deployment())
    both = {"selector": {"matchLabels": {"app": "y"}}, "template": {"metadata": {"labels": {"app": "y"}}}}
    refused = await http.merge(f"{DEPLOYMENTS_PATH}/x", {"spec": both})
    assert (refused.status, "field is immutable" in refused.message) == (422, True)
    await http("POST", PODS_PATH, pod())
    refused = await http.merge(f"{PODS_PATH}/p", {"spec": {"hostNetwork": True}})
    assert (refused.status, "may not change fields other than" in refused.message) == (422, True)


async def test_a_deployment_makes_a_replica_set_that_makes_pods(http: Any, api: LocalApi) -> None:
    created = (await http("POST", DEPLOYMENTS_PATH, deployment(replicas=2))).body
    assert created["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": "25%"}
    pods = await eventually(lambda: api.operations.list(PODS) if len(api.operations.list(PODS)) == 2 else None)
    (replica_set,) = api.operations.list(REPLICA_SETS)
    assert replica_set["metadata"]["ownerReferences"][0]["uid"] == created["metadata"]["uid"]
    assert {p["metadata"]["ownerReferences"][0]["name"] for p in pods} == {replica_set["metadata"]["name"]}
    assert replica_set["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    await http("DELETE", f"{DEPLOYMENTS_PATH}/x")
    await eventually(lambda: not api.operations.list(PODS) and not api.operations.list(REPLICA_SETS))


async def test_a_rollout_that_does_not_get_on_is_reported_after_its_deadline(http: Any, api: LocalApi) -> None:
    await http("POST", DEPLOYMENTS_PATH, deployment(progressDeadlineSeconds=1))

    def overdue() -> dict[str, Any] | None:
        conditions = api.operations.get(DEPLOYMENTS, "default", "x")["status"].get("conditions") or ()
        return next((c for c in conditions if c["reason"] == "ProgressDeadlineExceeded"), None)

    condition = await eventually(overdue)
    assert (condition["type"], condition["status"]) == ("Progressing", "False")


async def test_orphaned_pods_are_adopted_and_surplus_deleted(http: Any, api: LocalApi) -> None:
    body = pod("stray")
    body["metadata"]["labels"] = {"app": "x"}
    await http("POST", PODS_PATH, body)
    await http("POST", REPLICA_SETS_PATH, replica_set(1))
    await eventually(lambda: api.operations.get(REPLICA_SETS, "default", "rs").get("status", {}).get("replicas"))
    assert [p["metadata"]["name"] for p in api.operations.list(PODS)] == ["stray"]
    await http.merge(f"{REPLICA_SETS_PATH}/rs/scale", {"spec": {"replicas": 0}})
    await eventually(lambda: not api.operations.list(PODS))


async def test_a_pod_whose_labels_are_changed_is_released_and_replaced(http: Any, api: LocalApi) -> None:
    await http("POST", REPLICA_SETS_PATH, replica_set(2))
    first = await eventually(lambda: len(pods := api.operations.list(PODS)) == 2 and pods[0]["metadata"])
    await http.merge(f"{PODS_PATH}/{first['name']}", {"metadata": {"labels": {"app": "debugging"}}})

    await eventually(lambda: len(api.operations.list(PODS)) == 3)
    owners = {p["metadata"]["name"]: p["metadata"].get("ownerReferences", []) for p in api.operations.list(PODS)}
    assert owners.pop(first["name"]) == [], "released, and let live"
    assert [[owner["name"] for owner in each] for each in owners.values()] == [["rs"], ["rs"]]
    await eventually(lambda: api.operations.get(REPLICA_SETS, "default", "rs")["status"]["replicas"] == 2)

    await http.merge(f"{PODS_PATH}/{first['name']}", {"metadata": {"labels": {"app": "x"}}})
    await eventually(lambda: len(api.operations.list(PODS)) == 2), "taken back, and one too many goes"


async def test_events_are_counted_not_repeated(api: LocalApi) -> None:
    subject = api.operations.create(CONFIG_MAPS, "default", {"metadata": {"name": "a"}}, WriteOptions()).object
    recorder = ObjectEvents(api.operations, "tester")
    for _ in range(3):
        recorder.normal(subject, "Seen", "it was seen")
    (event,) = api.operations.list(EVENTS)
    assert (event["count"], event["involvedObject"]["uid"]) == (3, subject["metadata"]["uid"])
