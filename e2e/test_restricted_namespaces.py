"""Engines where the cluster's owner enforces the Pod Security Standard `restricted`, and where a quota is used up."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from homes import Fleet
from homes.kubectl import OURS, Json, secret

import fairlead_local.demo.loopback_hub

pytestmark = pytest.mark.kubernetes_only("local mode has no admission, and no quotas")

HUB = Path(fairlead_local.demo.loopback_hub.__file__).read_text()
BYTES_PER_SECOND = 1_000_000_000
LEVEL = "pod-security.kubernetes.io/enforce"
ENFORCED = {LEVEL: "restricted", f"{LEVEL}-version": "latest"}
UNSAFE = {"containers": [{"name": "a", "image": "elsewhere.test/a:1", "securityContext": {"privileged": True}}]}
OTHERS: dict[str, Json] = {
    "vLLM": {"engine": {"type": "vLLM", "image": "registry.example.com/vllm:1"}},
    "SGLang": {"engine": {"type": "SGLang", "image": "registry.example.com/sglang:1"}},
    "llama.cpp": {"engine": {"type": "llama.cpp", "image": "registry.example.com/llama:1"}},
    "adapters": {"adapters": [{"name": "pirate", "source": "hf://fairlead/pirate"}]},
    "speculative": {"engine": {"speculative": {"method": "draft", "source": "hf://fairlead/raft"}}},
}
"""What else makes containers of its own."""


# -- Pod Security --


@pytest.fixture(scope="module")
def enforced(fleet: Fleet) -> Iterator[None]:
    """The namespaces of engines, operator and gateways refuse pods that are not `restricted`."""
    namespaces = (fleet.namespace, fleet.system_namespace)
    probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "unsafe"}, "spec": UNSAFE}

    def is_refused(namespace: str) -> bool:
        command = ("apply", "-n", namespace, "--dry-run=server", "-f", "-")
        return (
            'violates PodSecurity "restricted' in fleet.kubectl(*command, stdin=json.dumps(probe), check=False).stderr
        )

    try:
        for each in namespaces:
            fleet.kubectl("label", "namespace", each, "--overwrite", *(f"{key}={ENFORCED[key]}" for key in ENFORCED))
            fleet.wait(f"{each} to refuse what is unsafe", lambda each=each: is_refused(each))
        yield
    finally:
        for each in namespaces:
            fleet.kubectl("label", "namespace", each, *(f"{key}-" for key in ENFORCED))


@pytest.mark.usefixtures("enforced")
def test_operator_gateways_and_the_chart_s_test_run_where_restricted_is_enforced(fleet: Fleet) -> None:
    before = {*fleet.system_pods("operator"), *fleet.system_pods("gateway")}
    deployments = ("deployment/fairlead-operator", "deployment/fairlead-gateway")
    fleet.kubectl("rollout", "restart", *deployments, "-n", fleet.system_namespace)
    for component in ("operator", "gateway"):
        fleet.wait_rolled_out(component)
        assert set(fleet.system_pods(component)) - before, component
    assert fleet.release.test()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("enforced")
def test_an_engine_with_a_download_serves_where_restricted_is_enforced(
    fleet: Fleet, deployed: Callable[..., str], name: str
) -> None:
    with fleet.serving(f"{name}-hub", HUB, ["fairlead/dinghy", str(BYTES_PER_SECOND)], {}) as hub:
        fleet.apply(secret(name, HF_ENDPOINT=hub.url))
        deployed(name, "hf://fairlead/dinghy@main", model={"credentials": {"secretName": name}})
        fleet.wait_ready(name)
        assert fleet.adds_up(name)
        (pod,) = fleet.pods(name).values()
        assert [each["name"] for each in pod["spec"]["initContainers"]] == ["download"]
    fleet.delete("secret", name)


@pytest.mark.usefixtures("enforced")
def test_every_other_pod_is_admitted_where_restricted_is_enforced(
    fleet: Fleet, deployed: Callable[..., str], name: str
) -> None:
    """Their images need not exist for that, nor their models."""
    names = [
        deployed(f"{name}-{number}", "hf://fairlead/none", resources={"requests": {"cpu": "4000"}}, **spec)
        for number, spec in enumerate(OTHERS.values())
    ]
    for each in names:
        seen = fleet.wait_condition(each, "Degraded", "True")
        assert seen["reason"] == "Unschedulable", seen["message"]
        assert len(fleet.pods(each)) == 1


@pytest.mark.usefixtures("enforced")
def test_a_cache_in_nodes_folders_is_refused_there_and_told(
    fleet: Fleet, deployed: Callable[..., str], name: str
) -> None:
    deployed(name, "hf://fairlead/none", model={"cache": {"node": True}})
    seen = fleet.wait_condition(name, "Ready", "False", "PodsRefused")
    for words in ("pods cannot be created: ", 'violates PodSecurity "restricted:latest"', "hostPath"):
        assert words in seen["message"]


# -- a quota --


@contextmanager
def room_for(fleet: Fleet, name: str) -> Iterator[Callable[[int], None]]:
    """A quota for the pods of the priority class `name` only: so many, and one to begin with."""
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 0}
    scope = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": [name]}]}
    metadata = {"name": name, "labels": OURS}

    def put(pods: int) -> None:
        spec = {"hard": {"pods": str(pods)}, "scopeSelector": scope}
        fleet.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec})

    fleet.apply({**priority, "metadata": metadata})
    put(1)
    try:
        fleet.wait("the quota to count", lambda: fleet.get("resourcequota", name).get("status", {}).get("hard"))
        yield put
    finally:
        fleet.kubectl("delete", "resourcequota,priorityclass", name)


def test_a_quota_that_is_used_up_holds_up_scaling_and_rolling_but_not_serving(
    fleet: Fleet, deployed: Callable[..., str], name: str
) -> None:
    with room_for(fleet, name) as put:
        deployed(name, template={"spec": {"priorityClassName": name}})
        fleet.wait_ready(name)
        (first,) = fleet.pods(name)

        fleet.kubectl("scale", "llm", name, "--replicas=2")
        seen = fleet.wait_condition(name, "Ready", "False", "PodsRefused")
        for words in ("1/2 replicas ready; pods cannot be created: ", f"exceeded quota: {name}"):
            assert words in seen["message"]
        status = fleet.get("llm", name)["status"]
        assert (status["desiredReplicas"], status["readyReplicas"]) == (2, 1)
        assert fleet.adds_up(name)

        fleet.kubectl("scale", "llm", name, "--replicas=1")
        fleet.wait_ready(name)
        fleet.wait_condition(name, "Degraded", "False")
        fleet.merge(name, {"engine": {"maxNumSeqs": 4}})
        assert f"exceeded quota: {name}" in fleet.wait_condition(name, "Degraded", "True", "PodsRefused")["message"]
        assert fleet.condition(name, "Progressing")["reason"] == "PodsRefused"
        assert fleet.condition(name, "Ready")["status"] == "True"
        assert list(fleet.pods(name)) == [first]
        assert fleet.adds_up(name)

        put(2)
        fleet.wait("the roll to end", lambda: first not in fleet.pods(name))
        fleet.wait_ready(name)
        fleet.wait_condition(name, "Degraded", "False")
        fleet.wait_condition(name, "Progressing", "False", "Complete")
        assert fleet.adds_up(name)
        fleet.delete("llm", name)
        fleet.wait("its pods to go", lambda: not fleet.pods(name))
