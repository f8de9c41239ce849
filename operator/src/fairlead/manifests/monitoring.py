"""The engines' PodMonitor, by which the Prometheus operator finds what they measure."""

from collections.abc import Mapping

from fairlead.api import names
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.common import Manifest, child, selector_labels


def pod_monitor(deployment: LLMDeployment, labels: Mapping[str, str]) -> Manifest:
    """Every engine's /metrics; the LLMDeployment's name becomes a label of what is read there. `labels`: of the
    PodMonitor itself."""
    spec = {
        "selector": {"matchLabels": selector_labels(deployment)},
        "podMetricsEndpoints": [{"port": "http", "path": "/metrics"}],
        "podTargetLabels": [names.LABEL_LLMDEPLOYMENT],
    }
    return child(
        deployment,
        "monitoring.coreos.com/v1",
        "PodMonitor",
        names.engine_child(deployment.metadata.name),
        {"spec": spec},
        labels,
    )
