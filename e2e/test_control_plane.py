"""The operator on a genuine API server, controller-manager and scheduler, as far as that goes without a node.

It runs as a process of this machine with the token of its ServiceAccount and the chart's Roles, in a namespace of its
own. What is to have pods asks for more than any node has, so they stay pending wherever this runs.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from children import OWNED, events, everything, listed
from hopeless import HOPELESS, Hopeless

pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")

from homes.control_plane import ControlPlane

Json = dict[str, Any]

pytestmark = [
    pytest.mark.control_plane,
    pytest.mark.core,
    pytest.mark.timeout(600),
]

WITHOUT_PODS = [
    *(each for each in HOPELESS if each.reason in ("UnknownProfile", "ModelSourceNotFound")),
    Hopeless(
        {"source": "file:///srv"},
        "SourceNotSupported",
        [
            "file:// is for local mode only: put its folder on a PersistentVolumeClaim",
            "model.source: pvc://CLAIM/FOLDER",
        ],
        "ModelAvailable",
    ),
]
FOREIGN: dict[str, Json] = {
    "Service": {"apiVersion": "v1", "spec": {"ports": [{"port": 80}], "selector": {"app": "theirs"}}},
    "Deployment": {
        "apiVersion": "apps/v1",
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "theirs"}},
            "template": {
                "metadata": {"labels": {"app": "theirs"}},
                "spec": {"containers": [{"name": "theirs", "image": "example.com/theirs:1"}]},
            },
        },
    },
    "NetworkPolicy": {
        "apiVersion": "networking.k8s.io/v1",
        "spec": {"podSelector": {"matchLabels": {"app": "theirs"}}, "policyTypes": ["Egress"]},
    },
}
"""Kind → an object of somebody else's, less its name."""


def owners(child: Json) -> list[tuple[str, bool]]:
    return [(each["uid"], each.get("controller", False)) for each in child["metadata"].get("ownerReferences", [])]


# -- children --


def test_children_belong_to_their_llmdeployment_and_the_controllers_go_on_from_there(
    plane: ControlPlane, pending: str
) -> None:
    uid = plane.get("llm", pending)["metadata"]["uid"]
    children = listed(plane, OWNED, pending)
    assert sorted(child["kind"] for child in children) == ["ConfigMap", "Deployment", "NetworkPolicy", "Service"]
    for child in children:
        assert owners(child) == [(uid, True)], child["kind"]
        assert "finalizers" not in child["metadata"], child["kind"]
    (deployment,) = listed(plane, "deployments", pending)
    (replicaset,) = listed(plane, "replicasets", pending)
    (pod,) = listed(plane, "pods", pending)
    assert owners(replicaset) == [(deployment["metadata"]["uid"], True)]
    assert owners(pod) == [(replicaset["metadata"]["uid"], True)]
    metadata = plane.get("llm", pending)["metadata"]
    assert "finalizers" not in metadata


def test_a_disruption_budget_is_made_where_one_is_served(
    plane: ControlPlane, applied: Callable[..., str], name: str
) -> None:
    applied(name, replicas=0)
    seen = plane.wait_condition(name, "Degraded", "False", "AsExpected")
    assert "PodDisruptionBudget" not in seen["message"]
    (budget,) = listed(plane, "poddisruptionbudgets", name)
    assert budget["spec"]["maxUnavailable"] == 1


def test_a_change_rolls_the_deployment_s_template(plane: ControlPlane, pending: str) -> None:
    (before,) = listed(plane, "deployments", pending)
    plane.merge(pending, {"engine": {"maxNumSeqs": 4}})
    plane.wait("a second ReplicaSet", lambda: len(listed(plane, "replicasets", pending)) == 2)
    replicasets = listed(plane, "replicasets", pending)
    (after,) = listed(plane, "deployments", pending)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert configuration(before) != configuration(after)
    assert {configuration(each) for each in replicasets} == {configuration(before), configuration(after)}
    data = plane.get("configmap", configuration(after))["data"]
    assert "max-num-seqs: 4\n" in data["engine.yaml"]
    assert plane.get("llm", pending)["status"]["observedGeneration"] == 2


def configuration(workload: Json) -> str:
    """The ConfigMap that its pods mount."""
    return str(workload["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"])


def test_what_somebody_changed_or_deleted_is_put_right(plane: ControlPlane, pending: str) -> None:
    service = plane.get("service", pending)["metadata"]["uid"]
    plane.kubectl("scale", "deployment", f"{pending}-engine", "--replicas=5")
    plane.kubectl("delete", "service", pending)

    def is_right() -> bool:
        (deployment,) = listed(plane, "deployments", pending)
        services = [each["metadata"]["uid"] for each in listed(plane, "services", pending)]
        return deployment["spec"]["replicas"] == 1 and len(services) == 1 and services != [service]

    plane.wait("one replica and another Service", is_right)


def test_a_second_look_writes_nothing(plane: ControlPlane, pending: str) -> None:
    """Though the server has filled in its defaults, and the controllers have written to the same objects."""

    def looks() -> int:
        return sum(
            f"llmdeployment={plane.namespace}/{pending}" in line and "outcome=unchanged" in line
            for line in plane.operator.log.splitlines()
        )

    plane.wait("a first look that changes nothing", looks)
    before, num_looks = everything(plane, pending), looks()
    plane.wait("three more looks", lambda: looks() >= num_looks + 3)
    assert everything(plane, pending) == before


# -- what kubectl shows and does --


def test_kubectl_scale_reaches_the_deployment_and_the_selector_finds_its_pods(
    plane: ControlPlane, pending: str
) -> None:
    plane.kubectl("scale", "llm", pending, "--current-replicas=1", "--replicas=3")
    path = f"/apis/fairlead.dev/v1alpha1/namespaces/{plane.namespace}/llmdeployments/{pending}/scale"

    def scale() -> Json:
        found: Json = json.loads(plane.kubectl("get", "--raw", path).stdout)
        return found

    plane.wait("three replicas", lambda: scale()["status"]["replicas"] == 3)
    assert scale()["spec"]["replicas"] == 3
    assert plane.get("deployment", f"{pending}-engine")["spec"]["replicas"] == 3
    assert len(plane.get("pods", "", "-l", scale()["status"]["selector"])["items"]) == 3
    assert "Scaled" in {event["reason"] for event in events(plane, pending)}
    plane.kubectl("scale", "llm", pending, "--replicas=0")
    plane.wait_condition(pending, "Ready", "False", "ScaledToZero")
    plane.wait("the pods to go", lambda: not listed(plane, "pods", pending))


def test_kubectl_wait_understands_the_conditions(plane: ControlPlane, applied: Callable[..., str], name: str) -> None:
    """Asleep with Fairlead's autoscaler is Ready: the next request wakes it."""
    applied(name, replicas=0, autoscaling={"minReplicas": 0, "maxReplicas": 1})
    plane.kubectl("wait", "--for=condition=Ready", f"llm/{name}", "--timeout=60s")
    assert plane.condition(name, "Ready")["reason"] == "ScaledToZero"


def test_events_tell_what_was_done_and_what_is_wrong(plane: ControlPlane, pending: str) -> None:
    plane.wait("a warning", lambda: "Unschedulable" in {event["reason"] for event in events(plane, pending)})
    types = {event["reason"]: event["type"] for event in events(plane, pending)}
    assert types["Created"] == "Normal"
    assert types["Unschedulable"] == "Warning"
    uid = plane.get("llm", pending)["metadata"]["uid"]
    assert {event["involvedObject"]["uid"] for event in events(plane, pending)} == {uid}
    described = plane.kubectl("describe", "llm", pending).stdout
    assert "Unschedulable" in described.rpartition("Events:")[2]


# -- what cannot work --


@pytest.mark.parametrize("hopeless", WITHOUT_PODS, ids=str)
def test_what_cannot_be_built_is_told_and_makes_nothing(
    plane: ControlPlane, applied: Callable[..., str], name: str, hopeless: Hopeless
) -> None:
    applied(name, **{"source": "demo://dinghy", **hopeless.spec})
    seen = plane.wait_condition(name, hopeless.condition, "False", hopeless.reason)
    for word in hopeless.words:
        assert word in seen["message"]
    assert plane.condition(name, "Ready")["reason"] == hopeless.reason
    assert plane.condition(name, "Degraded")["status"] == "True"
    assert not listed(plane, OWNED, name)
    wanted = ("Warning", hopeless.reason)
    plane.wait("a warning", lambda: wanted in {(event["type"], event["reason"]) for event in events(plane, name)})


def test_what_no_node_takes_is_told_in_the_scheduler_s_words(plane: ControlPlane, pending: str) -> None:
    (pod,) = listed(plane, "pods", pending)
    scheduled = next(c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled")
    message = plane.condition(pending, "Ready")["message"]
    assert "no node can take it; check resources and the nodes" in message
    assert scheduled["message"].split(":")[0] in message
    assert plane.condition(pending, "Degraded")["reason"] == "Unschedulable"


@pytest.mark.parametrize("kind", FOREIGN)
def test_an_object_of_somebody_else_is_left_alone(
    plane: ControlPlane, applied: Callable[..., str], name: str, kind: str
) -> None:
    theirs = name if kind == "Service" else f"{name}-engine"
    plane.apply({"kind": kind, "metadata": {"name": theirs}, **FOREIGN[kind]})

    def essence() -> list[Any]:
        found = plane.get(kind, theirs)
        return [found["spec"], *(found["metadata"].get(key) for key in ("uid", "labels", "ownerReferences"))]

    before = essence()
    applied(name, replicas=0)
    seen = plane.wait_condition(name, "Degraded", "True", "ResourceNotOwned")
    assert f"{kind} {theirs!r} exists and is not ours: delete it" in seen["message"]
    assert len(listed(plane, OWNED, name)) == 3, "the other children are made"
    plane.kubectl("delete", "llm", name, "--cascade=foreground", "--timeout=60s")
    plane.wait("the others to go", lambda: not listed(plane, OWNED, name))
    assert essence() == before
    applied(name, replicas=0)
    plane.wait_condition(name, "Degraded", "True", "ResourceNotOwned")
    plane.kubectl("delete", kind, theirs)
    plane.wait_condition(name, "Degraded", "False")
    assert len(listed(plane, OWNED, name)) == 4


# -- the end of an LLMDeployment, and of an operator --


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_the_garbage_collector_removes_what_a_deleted_one_had_and_nothing_else(
    plane: ControlPlane, applied: Callable[..., str], pending: str, cascade: str
) -> None:
    neighbor = applied(f"{pending}-2", replicas=0)
    plane.wait("the neighbor's children", lambda: len(listed(plane, OWNED, neighbor)) == 4)
    uids = {child["metadata"]["uid"] for child in listed(plane, OWNED, neighbor)}
    plane.kubectl("delete", "llm", pending, f"--cascade={cascade}", "--timeout=60s")
    plane.wait("everything of it to go", lambda: not listed(plane, f"{OWNED},replicasets,pods", pending))
    assert {child["metadata"]["uid"] for child in listed(plane, OWNED, neighbor)} == uids
    applied(pending, replicas=0)
    plane.wait_condition(pending, "Degraded", "False", "AsExpected")
    assert len(listed(plane, OWNED, pending)) == 4


def test_a_second_operator_waits_and_takes_over_when_the_first_is_killed(plane: ControlPlane, pending: str) -> None:
    first, holder = plane.operator, plane.holder
    second = plane.start_operator()
    plane.wait("the second one to see the first", lambda: f"held by {holder}" in second.log)
    plane.kubectl("scale", "llm", pending, "--replicas=2")
    plane.wait("two replicas", lambda: plane.get("llm", pending)["status"]["replicas"] == 2)
    assert (plane.holder, "reconciled" in second.log) == (holder, False), "the second one only watches"
    first.kill()
    plane.kubectl("scale", "llm", pending, "--replicas=3")
    plane.wait("three replicas", lambda: plane.get("llm", pending)["status"]["replicas"] == 3)
    assert plane.holder not in ("", holder)
    assert second.is_running


def test_the_operator_has_the_chart_s_rights_and_misses_none(plane: ControlPlane, pending: str) -> None:
    del pending  # it has worked before its log is looked at
    mine = ("--kubeconfig", str(plane.operator_kubeconfig))
    for question in (("*", "*"), ("get", "secrets"), ("delete", "llm"), ("list", "llm", "--all-namespaces")):
        answer = plane.kubectl("auth", "can-i", *question, *mine, check=False)
        assert (answer.returncode, answer.stdout.strip()) == (1, "no"), question
    assert plane.kubectl("auth", "can-i", "list", "llm", *mine).stdout.strip() == "yes"
    for complaint in ("forbidden", "lacks the right", "Traceback"):
        assert complaint not in plane.operator.log
