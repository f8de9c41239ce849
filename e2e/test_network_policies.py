"""What NetworkPolicies let through, tried with packets, where the cluster's network plug-in enforces them."""

from collections.abc import Callable

import pytest
from homes import Fleet
from homes.kubectl import OURS, Json

from fairlead.api.names import ENGINE_PORT, GATEWAY_CONTROL_PORT, GATEWAY_PORT, OPERATOR_PORT

pytestmark = pytest.mark.kubernetes_only("local mode has no network of pods")

LISTEN = "import http.server as h, sys; h.test(h.SimpleHTTPRequestHandler, port=int(sys.argv[2]), bind=sys.argv[1])"
CONNECT_SECONDS = 3
NOT_CONNECTED = (7, 28)
"""curl's exit statuses for a refused connection and for none within the time."""


def is_reached(fleet: Fleet, address: str, port: int) -> bool:
    """Whether a stranger's pod in the scenarios' namespace gets a connection."""
    command = f"curl --silent --output /dev/null --connect-timeout {CONNECT_SECONDS} http://{address}:{port}/; echo $?"
    return int(fleet.shell("sh", "-c", command)) not in NOT_CONNECTED


@pytest.fixture(scope="module")
def enforced(fleet: Fleet) -> None:
    """Skips where a pod that a policy shuts off is reached all the same."""
    with fleet.serving("shut-off", LISTEN, [], {}) as served:
        host, _, port = served.url.removeprefix("http://").partition(":")
        fleet.kubectl("label", "pod", "shut-off", "fairlead.dev/shut-off=true")
        assert is_reached(fleet, host, int(port))
        policy: Json = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "shut-off", "labels": OURS},
            "spec": {"podSelector": {"matchLabels": {"fairlead.dev/shut-off": "true"}}, "policyTypes": ["Ingress"]},
        }
        fleet.apply(policy)
        try:
            was_enforced = not all(is_reached(fleet, host, int(port)) for _ in range(3))
        finally:
            fleet.delete("networkpolicy", "shut-off")
    if not was_enforced:
        pytest.skip("this cluster's network plug-in enforces no NetworkPolicies (kube-router, Calico and Cilium do)")


def test_a_stranger_reaches_the_gateways_port_and_nothing_else(
    fleet: Fleet, enforced: None, deployed: Callable[..., str], name: str
) -> None:
    deployed(name)
    fleet.wait_ready(name)
    (engine,) = fleet.pods(name).values()
    gateways, operators = (fleet.system_pods(each).values() for each in ("gateway", "operator"))
    tried = {
        ("gateway", GATEWAY_PORT): gateways,
        ("gateway", GATEWAY_CONTROL_PORT): gateways,
        ("operator", OPERATOR_PORT): operators,
        ("engine", ENGINE_PORT): [engine],
    }
    reached = {
        which: [is_reached(fleet, pod["status"]["podIP"], which[1]) for pod in pods] for which, pods in tried.items()
    }
    for judge in (all, any):
        assert {which for which, found in reached.items() if judge(found)} == {("gateway", GATEWAY_PORT)}, reached
    answer = fleet.post("/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "Hello"}]})
    assert answer["choices"], "the gateway reaches the engine"
