"""Kubernetes itself is replaced by the next version while clients stream: what serves goes on, what manages comes back.

The suite's node is upgraded in place, as `python -m cluster upgrade` does it. So this comes after everything else of a
run on a version before the newest (`make e2e-kubernetes KUBERNETES=1.36 SCENARIOS=core`).
"""

import json
import time
from collections.abc import Callable

import pytest
from cluster.node import Node, upgrade_problem
from cluster.programs import ready_versions

pytestmark = [
    pytest.mark.core,
    pytest.mark.last,
    pytest.mark.kubernetes_only(reason="local mode runs no Kubernetes that could be upgraded"),
]
ENGINE = {"dtype": "float32", "maxNumSeqs": 8}


@pytest.fixture
def next_version(own_node: Node) -> str:
    """The oldest version of a later minor release that programs are at hand of."""
    current = own_node.version
    minor = current.rpartition(".")[0]
    ready = ready_versions()
    later = [version for version in ready[ready.index(current) + 1 :] if not version.startswith(f"{minor}.")]
    if not later:
        pytest.skip(f"the node is of Kubernetes {current}: no programs of a later minor version are at hand")
    if problem := upgrade_problem(current, later[0]):
        pytest.skip(f"{problem} No programs of the version between are at hand")
    return later[0]


def lived_through(pods: dict[str, dict]) -> dict[str, tuple[str, list[str]]]:
    """What of each pod must stay: its uid, and the containers that run in it."""
    return {
        name: (pod["metadata"]["uid"], sorted(each["containerID"] for each in pod["status"]["containerStatuses"]))
        for name, pod in pods.items()
    }


def test_kubernetes_is_upgraded_under_load_and_nothing_is_dropped_or_restarted(
    fleet, own_node: Node, next_version: str, deployed: Callable[..., str], name: str, say: Callable[[str], None]
) -> None:
    deployed(name, engine=ENGINE, replicas=2, routing={"maxQueueTime": "120s"})
    fleet.wait_ready(name, 2)
    uid, engines = fleet.get("llm", name)["metadata"]["uid"], lived_through(fleet.pods(name))
    gateways = lived_through(fleet.system_pods("gateway"))
    [operator] = fleet.system_pods("operator")
    restarts = fleet.num_restarts(operator, fleet.system_namespace)
    with fleet.steady_load(name) as load:
        fleet.wait_for_answers(load)
        began = time.monotonic()
        own_node.upgrade(next_version)
        took = time.monotonic() - began
        fleet.wait_for_answers(load)
    say(f"{load.num_answers} requests, {load.verdict} failed, truncated, different; {took:.0f} s")
    assert load.verdict == (0, 0, 0), load.problems

    told = json.loads(fleet.kubectl("version", "-o", "json").stdout)
    assert told["serverVersion"]["gitVersion"] == f"v{next_version}"
    assert fleet.get("nodes")["items"][0]["status"]["nodeInfo"]["kubeletVersion"] == f"v{next_version}"

    fleet.wait_leading()
    # It ends once where it could not renew its Lease, and then waits for the API server.
    assert fleet.num_restarts(operator, fleet.system_namespace) - restarts <= 1
    fleet.wait_ready(name, 2)
    assert fleet.get("llm", name)["metadata"]["uid"] == uid
    assert lived_through(fleet.pods(name)) == engines
    assert lived_through(fleet.system_pods("gateway")) == gateways

    another = deployed(f"{name}-after")
    fleet.wait_ready(another)
