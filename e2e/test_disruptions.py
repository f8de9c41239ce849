"""What a cluster's own life does to a fleet: its control plane goes away, room is wanted for something more important,
a node is cordoned and drained. Whoever streams meanwhile gets every answer, and what was done is said.

One deployment of two replicas lives through all of it, on the spot profile: its pods are worth less than others.
"""

import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cluster.node import Node
from homes.kubectl import LABEL_LLMDEPLOYMENT, OURS, Json

pytestmark = pytest.mark.kubernetes_only(reason="local mode has no control plane to lose, no scheduler and no node")

ENGINE = {"dtype": "float32", "maxNumSeqs": 8}
ABSENCE_SECONDS = 60
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""What goes together: the others end where they cannot renew their own Leases."""
PROBES = 8081
"""The port at which operator and gateways tell whether they are ready."""
URGENT = "fairlead-e2e-urgent"
"""A PriorityClass, and how its pods' names begin."""


@pytest.fixture(scope="module")
def priorities(fleet) -> Iterator[None]:
    """A PriorityClass for spot replicas, below what pods have without one, and a higher one."""
    for name, value in ((fleet.spot_priority, -10), (URGENT, 1000)):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        fleet.apply(kind | {"metadata": {"name": name, "labels": OURS}, "value": value})
    yield
    fleet.delete("priorityclass", fleet.spot_priority)
    fleet.delete("priorityclass", URGENT)


@pytest.fixture
def model(fleet, priorities: None, deployed_for_all: Callable[..., str], shared_name: str) -> str:
    """Two replicas that compute in float32."""
    if not fleet.exists("llm", shared_name):
        resources, routing = {"profile": "spot"}, {"maxQueueTime": "120s"}
        deployed_for_all(shared_name, engine=ENGINE, replicas=2, resources=resources, routing=routing)
    fleet.merge(shared_name, {"autoscaling": None, "replicas": 2})
    fleet.wait_ready(shared_name, 2)
    return shared_name


@pytest.fixture
def judged(fleet, model: str, say: Callable[[str], None]):
    """Load around a block, and the verdict after it."""

    @contextmanager
    def load() -> Iterator[None]:
        with fleet.steady_load(model) as load:
            fleet.wait_for_answers(load)
            yield
            fleet.wait_for_answers(load)
        failed, truncated, different = load.verdict
        say(f"{load.num_answers} requests, {failed} failed, {truncated} truncated, {different} different")
        assert load.verdict == (0, 0, 0), load.problems

    return load


# -- the control plane --


def test_a_minute_without_a_control_plane_drop_nothing_and_repeat_nothing(
    fleet, own_node: Node, model: str, judged
) -> None:
    autoscaling = {"minReplicas": 2, "maxReplicas": 2, "scaleDown": {"stabilizationWindow": "1s"}}
    fleet.merge(model, {"autoscaling": autoscaling})
    fleet.wait_condition(model, "ScalingActive", "True")
    engines, gateways, told = fleet.pods(model), fleet.system_pods("gateway"), events(fleet, model)
    [operator] = fleet.system_pods("operator")
    restarts = fleet.num_restarts(operator, fleet.system_namespace)

    with judged():
        with own_node.without(*CONTROL_PLANE), watched(gateways) as answers:
            time.sleep(ABSENCE_SECONDS)
        assert answers and set(answers) == {200}, Counter(answers)
        fleet.wait_leading()
        assert lived(fleet.pods(model)) == lived(engines)
        assert lived(fleet.system_pods("gateway")) == lived(gateways)
        # It ended once, where it could not renew its Lease, and waited for the API server from then on.
        assert fleet.num_restarts(operator, fleet.system_namespace) - restarts <= 1

    assert events(fleet, model) == told

    fleet.merge(model, {"autoscaling": {"minReplicas": 1}})
    fleet.wait("one of the two to be left", lambda: len(fleet.pods(model)) == 1)
    assert set(fleet.pods(model)) < set(engines)
    news = events(fleet, model) - told
    assert [count for (reason, _), count in news.items() if reason == "ScaledDown"] == [1]


def lived(pods: dict[str, Json]) -> dict[str, Any]:
    """What of each pod stays when nothing happens to it: its containers, and since when it has been ready."""
    return {
        name: (
            [each["containerID"] for each in pod["status"]["containerStatuses"]],
            [(each["status"], each["lastTransitionTime"]) for each in pod["status"]["conditions"]],
        )
        for name, pod in pods.items()
    }


def events(fleet, model: str) -> Counter[tuple[str, str]]:
    """How often each thing was told of the LLMDeployment."""
    found: Counter[tuple[str, str]] = Counter()
    for event in fleet.get("events", "", "--field-selector", f"involvedObject.name={model}")["items"]:
        if event["involvedObject"]["kind"] == "LLMDeployment":
            found[event["reason"], event["message"]] += event.get("count") or 1
    return found


@contextmanager
def watched(pods: dict[str, Json]) -> Iterator[list[int]]:
    """Asks each pod once a second whether it is ready, as its kubelet does; the status of every answer, 0 for none."""
    answers: list[int] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(1.0):
            for pod in pods.values():
                try:
                    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:{PROBES}/ready", timeout=5) as reply:
                        answers.append(reply.status)
                except urllib.error.HTTPError as refusal:
                    answers.append(refusal.code)
                except OSError:
                    answers.append(0)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        yield answers
    finally:
        ended.set()
        asker.join()


# -- the scheduler --


def test_a_spot_replica_that_is_preempted_drops_nothing_says_why_and_comes_back(fleet, model: str, judged) -> None:
    before = staying(fleet, model)
    with judged():
        with preempted(fleet, model) as gone:
            [left] = before - {gone}
            [told] = [message for reason, message in events(fleet, model) if reason == "Disrupted"]
            assert told.startswith(f"{gone}: is taken away (PreemptionByScheduler). ")
            degraded = fleet.wait_condition(model, "Degraded", "True", "Unschedulable")
            assert "Insufficient cpu" in degraded["message"]
            assert fleet.get("llm", model)["status"]["readyReplicas"] == 1
        fleet.wait_ready(model, 2)
        assert left in staying(fleet, model)
    fleet.wait_condition(model, "Degraded", "False")


def staying(fleet, model: str) -> set[str]:
    """The replicas' pods that are not being deleted."""
    return {name for name, pod in fleet.pods(model).items() if "deletionTimestamp" not in pod["metadata"]}


@contextmanager
def preempted(fleet, model: str) -> Iterator[str]:
    """Fills the replicas' node with pods of a higher priority until the scheduler takes away a replica for one of them,
    whose pod is named. Room that other tests' pods give up meanwhile is filled too."""
    before = staying(fleet, model)
    [node] = {pod["spec"]["nodeName"] for pod in fleet.pods(model).values()}
    urgent: list[str] = []
    try:
        while not (gone := before - staying(fleet, model)):
            urgent.append(f"{URGENT}-{len(urgent)}")
            fleet.apply(urgent_pod(fleet, urgent[-1], node, free_cpu(fleet, node) + 50))
            fleet.wait(f"{urgent[-1]} to run", lambda: fleet.get("pod", urgent[-1])["status"]["phase"] == "Running")
        [name] = gone
        yield name
    finally:
        fleet.delete("pod", *urgent)


def urgent_pod(fleet, name: str, node: str, cpu: int) -> Json:
    """A pod of the higher priority for a node. `cpu`: thousandths of a core."""
    container = {
        "name": "sleep", "image": fleet.shell_image, "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": f"{cpu}m"}},
    }  # fmt: skip
    spec = {
        "priorityClassName": URGENT, "nodeSelector": {"kubernetes.io/hostname": node}, "containers": [container],
        "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False,
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": OURS}, "spec": spec}


def free_cpu(fleet, node: str) -> int:
    """Thousandths of a core on a node that no pod has asked for."""
    allocatable = fleet.get("node", node)["status"]["allocatable"]["cpu"]
    pods = fleet.get("pods", "", "--all-namespaces", "--field-selector", f"spec.nodeName={node}")["items"]
    asked = (
        container.get("resources", {}).get("requests", {}).get("cpu", "0")
        for pod in pods
        if pod["status"]["phase"] not in ("Succeeded", "Failed")
        for container in pod["spec"]["containers"]
    )
    return thousandths(allocatable) - sum(map(thousandths, asked))


def thousandths(cpu: str) -> int:
    return int(cpu.removesuffix("m")) if cpu.endswith("m") else int(float(cpu) * 1000)


# -- nodes --


def test_replicas_for_which_a_cordoned_node_has_no_place_say_so_and_start_once_it_is_open(fleet, model: str) -> None:
    fleet.kubectl("scale", "llm", model, "--replicas=1")
    fleet.wait_ready(model, 1)
    nodes = {node["metadata"]["name"] for node in fleet.get("nodes")["items"]}
    with cordoned(fleet, nodes):
        fleet.kubectl("scale", "llm", model, "--replicas=2")
        degraded = fleet.wait_condition(model, "Degraded", "True", "Unschedulable")
        assert "node(s) were unschedulable" in degraded["message"]
        assert fleet.get("llm", model)["status"]["readyReplicas"] == 1
    fleet.wait_ready(model, 2)
    fleet.wait_condition(model, "Degraded", "False")


def test_a_drained_node_gives_up_one_replica_at_a_time_and_drops_nothing(fleet, model: str, judged) -> None:
    before = set(fleet.pods(model))
    [node] = {pod["spec"]["nodeName"] for pod in fleet.pods(model).values()}
    others = {each["metadata"]["name"] for each in fleet.get("nodes")["items"]} - {node}
    with judged(), cordoned(fleet, others), draining(fleet, node, model) as drain:
        left = fleet.wait("one replica to be gone", lambda: before - set(fleet.pods(model)) and fleet.pods(model))
        assert before & set(left), "the budget lets one go, and its successor has no place"
        fleet.wait_condition(model, "Degraded", "True", "Unschedulable")
        assert drain.poll() is None
        assert fleet.get("llm", model)["status"]["readyReplicas"] == 1
        fleet.kubectl("uncordon", node)
        fleet.wait("the drain to end", lambda: drain.poll() is not None)
        assert drain.returncode == 0, drain.communicate()
        assert not before & set(fleet.pods(model))
        fleet.wait_ready(model, 2)


@contextmanager
def cordoned(fleet, nodes: set[str]) -> Iterator[None]:
    try:
        for node in nodes:
            fleet.kubectl("cordon", node)
        yield
    finally:
        for node in nodes:
            fleet.kubectl("uncordon", node)


@contextmanager
def draining(fleet, node: str, model: str) -> Iterator["subprocess.Popen[str]"]:
    """`kubectl drain` of the deployment's engines, which may be evicted only one by one."""
    command = fleet.kubectl_command(
        "drain", node, f"--pod-selector={LABEL_LLMDEPLOYMENT}={model}", "--delete-emptydir-data",
        f"--timeout={fleet.patience:.0f}s",
    )  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as drain:
        try:
            yield drain
        finally:
            drain.terminate()
            fleet.kubectl("uncordon", node)
