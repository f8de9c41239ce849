"""The engines' PodDisruptionBudget: a node is drained of one engine at a time."""

from fairlead.api import names
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.common import Manifest, child, selector_labels


def pod_disruption_budget(deployment: LLMDeployment) -> Manifest:
    """One engine may be missing, also where there is only one: else its node could never be drained."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": selector_labels(deployment)}}
    return child(
        deployment, "policy/v1", "PodDisruptionBudget", names.engine_child(deployment.metadata.name), {"spec": spec}
    )
