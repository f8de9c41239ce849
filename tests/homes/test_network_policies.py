"""Whom a NetworkPolicy lets in: what the operator writes, and what it must not be changed into."""

import copy
from typing import Any

import pytest
from homes.network_policies import PodName, let_in

from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.children import network_policy
from fairlead.operator_settings import OperatorSettings

SETTINGS = OperatorSettings(
    gateway_selector="app.kubernetes.io/name=fairlead-gateway,app.kubernetes.io/instance=fairlead",
    operator_selector="app.kubernetes.io/name=fairlead-operator,app.kubernetes.io/instance=fairlead",
)
ENGINE = {"fairlead.dev/llmdeployment": "dinghy", "app.kubernetes.io/component": "engine"}


def pod(namespace: str, name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": name} | ({} if labels is None else {"labels": labels})}


def of(component: str, instance: str = "fairlead") -> dict[str, str]:
    return {
        "app.kubernetes.io/name": f"fairlead-{component}",
        "app.kubernetes.io/instance": instance,
        "app.kubernetes.io/component": component,
    }


GATEWAY, OPERATOR = PodName("fairlead-system", "gateway-1"), PodName("fairlead-system", "operator-1")
PODS = [
    pod(*GATEWAY, of("gateway")),
    pod(*OPERATOR, of("operator")),
    pod("fairlead-system", "test", of("test")),
    pod("fairlead-system", "other-release", of("gateway", "other")),
    pod("fairlead-system", "bare"),
    pod("default", "engine", ENGINE),
    pod("default", "false-gateway", of("gateway")),
]


def policy(settings: OperatorSettings = SETTINGS) -> dict[str, Any]:
    created = {"generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    metadata = {"name": "dinghy", "namespace": "default", "uid": "u"} | created
    deployment = LLMDeployment.from_body({"metadata": metadata, "spec": {"model": {"source": "demo://dinghy"}}})
    return copy.deepcopy(dict(network_policy(deployment, settings)))


def test_each_peer_that_the_operator_writes_lets_in_one_component_of_its_own_release() -> None:
    assert let_in(policy(), PODS) == [{GATEWAY}, {OPERATOR}]


def test_monitoring_lets_in_its_whole_namespace() -> None:
    settings = OperatorSettings(monitoring_namespace="default")
    assert let_in(policy(settings), PODS)[2] == {PodName("default", "engine"), PodName("default", "false-gateway")}


def test_a_peer_without_labels_lets_in_its_namespace_and_one_without_a_namespace_stays_in_the_policys() -> None:
    wide, own = policy(), policy()
    del wide["spec"]["ingress"][0]["from"][0]["podSelector"]
    assert len(let_in(wide, PODS)[0]) == 5
    del own["spec"]["ingress"][0]["from"][0]["namespaceSelector"]
    assert let_in(own, PODS)[0] == {PodName("default", "false-gateway")}


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [{}],
        [{"from": []}],
        [{"from": [{}]}],
        [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}],
        [{"from": [{"podSelector": {}}]}, {"from": [{"podSelector": {}}]}],
    ],
)
def test_what_lets_in_others_than_pods_is_no_answer(rules: list[Any]) -> None:
    changed = policy()
    changed["spec"]["ingress"] = rules
    with pytest.raises(ValueError, match="peer"):
        let_in(changed, PODS)
