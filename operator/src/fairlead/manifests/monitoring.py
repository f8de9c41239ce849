"""The engines' PodMonitor, by which the Prometheus operator finds what they measure."""

from fairlead.api import names
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.common import Manifest, child, selector_labels
from fairlead.operator_settings import OperatorSettings


def pod_monitor(deployment: LLMDeployment, settings: OperatorSettings) -> Manifest:
    """Every engine's /metrics; the LLMDeployment's name becomes a label of what is read there. When it is read, and the
    PodMonitor's own labels, are the settings' to say."""
    times = {"interval": settings.pod_monitor_interval, "scrapeTimeout": settings.pod_monitor_scrape_timeout}
    endpoint = {"port": "http", "path": "/metrics", **{name: time for name, time in times.items() if time is not None}}
    spec = {
        "selector": {"matchLabels": selector_labels(deployment)},
        "podMetricsEndpoints": [endpoint],
        "podTargetLabels": [names.LABEL_LLMDEPLOYMENT],
    }
    return child(
        deployment,
        "monitoring.coreos.com/v1",
        "PodMonitor",
        names.engine_child(deployment.metadata.name),
        {"spec": spec},
        settings.pod_monitor_labels,
    )
