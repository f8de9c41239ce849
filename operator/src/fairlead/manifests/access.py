"""The engines' NetworkPolicy: they answer the gateway, the operator and monitoring, and nobody else."""

from typing import Any

from fairlead.api import names
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.common import Manifest, child, selector_labels
from fairlead.operator_settings import OperatorSettings, equality_selector


def network_policy(deployment: LLMDeployment, settings: OperatorSettings) -> Manifest:
    """Of what comes in, connections of the gateway's and the operator's pods to the engines' port; what goes out is
    left alone."""
    system = settings.gateway_namespace
    peers = [_pods(system, settings.gateway_selector), _pods(system, settings.operator_selector)]
    if settings.monitoring_namespace is not None:
        peers.append(_namespace(settings.monitoring_namespace))
    spec = {
        "podSelector": {"matchLabels": selector_labels(deployment)},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": peers, "ports": [{"port": names.ENGINE_PORT, "protocol": "TCP"}]}],
    }
    name = names.engine_child(deployment.metadata.name)
    return child(deployment, "networking.k8s.io/v1", "NetworkPolicy", name, {"spec": spec})


def _pods(namespace: str, selector: str) -> dict[str, Any]:
    return {**_namespace(namespace), "podSelector": {"matchLabels": equality_selector(selector)}}


def _namespace(namespace: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {names.LABEL_NAMESPACE_NAME: namespace}}}
