"""NetworkPolicy, PodDisruptionBudget and PodMonitor of an LLMDeployment: whole objects, compared as a whole."""

from typing import Any

import pytest

from fairlead.api.llmdeployment import LLMDeployment
from fairlead.kube.resources import BY_KIND, NETWORK_POLICIES, POD_DISRUPTION_BUDGETS, POD_MONITORS
from fairlead.manifests.children import children
from fairlead.manifests.common import Manifest
from fairlead.operator_settings import OperatorSettings, SettingsError
from fairlead_testing.fleet_objects import stored

KINDS = [resource.kind for resource in (NETWORK_POLICIES, POD_DISRUPTION_BUDGETS, POD_MONITORS)]
ENGINES = {"fairlead.dev/llmdeployment": "dinghy", "app.kubernetes.io/component": "engine"}
BODY = stored(namespace="ships")


def build(kind: str, **settings: Any) -> Manifest:
    manifests = children(LLMDeployment.from_body(BODY), OperatorSettings(**settings), KINDS)
    (found,) = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


def test_they_are_made_only_where_they_are_asked_for_and_the_policy_before_the_pods() -> None:
    def kinds(*optional: str) -> list[str]:
        return [each["kind"] for each in children(LLMDeployment.from_body(BODY), OperatorSettings(), optional)]

    assert kinds() == ["ConfigMap", "Deployment", "Service"]
    assert kinds("PodMonitor") == ["ConfigMap", "Deployment", "Service", "PodMonitor"]
    assert kinds(*KINDS)[:3] == ["ConfigMap", "NetworkPolicy", "Deployment"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_owned_hashed_and_named_as_the_other_children(kind: str) -> None:
    manifest = build(kind)
    metadata = manifest["metadata"]
    assert manifest["apiVersion"] == BY_KIND[kind].api_version
    assert (metadata["name"], metadata["namespace"]) == ("dinghy-engine", "ships")
    assert metadata["labels"]["fairlead.dev/llmdeployment"] == "dinghy"
    assert metadata["ownerReferences"][0]["uid"] == "u-1"
    assert len(metadata["annotations"]["fairlead.dev/applied-hash"]) == 16


def peer(name: str, namespace: str = "fairlead-system") -> dict[str, Any]:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": name}},
    }


def test_engines_answer_the_gateway_and_the_operator_and_nobody_else() -> None:
    assert build("NetworkPolicy")["spec"] == {
        "podSelector": {"matchLabels": ENGINES},
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": [peer("fairlead-gateway"), peer("fairlead-operator")],
                "ports": [{"port": 8000, "protocol": "TCP"}],
            }
        ],
    }


def test_monitoring_may_come_in_where_it_is_named_and_other_labels_are_taken_from_the_settings() -> None:
    policy = build(
        "NetworkPolicy", gateway_namespace="llm", gateway_selector="app==gw, tier=front", monitoring_namespace="mon"
    )
    gateway, _, monitoring = policy["spec"]["ingress"][0]["from"]
    assert gateway["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "llm"}}
    assert gateway["podSelector"] == {"matchLabels": {"app": "gw", "tier": "front"}}
    assert monitoring == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "mon"}}}


@pytest.mark.parametrize("selector", ["app in (a,b)", "app!=a", "app", ""])
def test_a_selector_that_no_network_policy_can_say_is_refused_unless_there_are_none(selector: str) -> None:
    with pytest.raises(SettingsError, match="gatewaySelector") as refused:
        OperatorSettings(gateway_selector=selector)
    assert "switch networkPolicies off" in refused.value.hint
    assert OperatorSettings(gateway_selector=selector, network_policies=False).gateway_selector == selector


def test_nodes_can_always_be_drained_one_engine_at_a_time() -> None:
    assert build("PodDisruptionBudget")["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": ENGINES}}


def test_prometheus_reads_every_engine_at_its_port() -> None:
    assert build("PodMonitor")["spec"] == {
        "selector": {"matchLabels": ENGINES},
        "podMetricsEndpoints": [{"port": "http", "path": "/metrics"}],
        "podTargetLabels": ["fairlead.dev/llmdeployment"],
    }
    (container,) = next(
        each for each in children(LLMDeployment.from_body(BODY), OperatorSettings()) if each["kind"] == "Deployment"
    )["spec"]["template"]["spec"]["containers"]
    assert "http" in [port["name"] for port in container["ports"]]


def test_prometheus_reads_engines_when_the_settings_say() -> None:
    spec = build("PodMonitor", pod_monitor_interval="1m", pod_monitor_scrape_timeout="20s")["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    assert (endpoint["interval"], endpoint["scrapeTimeout"]) == ("1m", "20s")


@pytest.mark.parametrize("kind", ["NetworkPolicy", "PodDisruptionBudget"])
def test_kubernetes_schemas_know_every_field(kind: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(build(kind), "1.32", strict=True)
