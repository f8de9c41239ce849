"""All children of an LLMDeployment, in the order in which they are to be applied."""

from collections.abc import Collection

from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.access import network_policy
from fairlead.manifests.common import Manifest
from fairlead.manifests.disruption import pod_disruption_budget
from fairlead.manifests.engine import engine_cpus, engine_deployment, engine_pod
from fairlead.manifests.engine_config import config_map, engine_flags
from fairlead.manifests.monitoring import pod_monitor
from fairlead.manifests.service import service
from fairlead.manifests.source import model_source
from fairlead.operator_settings import OperatorSettings

ALWAYS_MADE = ("ConfigMap", "Deployment", "Service")


def children(
    deployment: LLMDeployment, settings: OperatorSettings, optional_kinds: Collection[str] = ()
) -> tuple[Manifest, ...]:
    """ConfigMap, Deployment, Service, and of NetworkPolicy, PodDisruptionBudget and PodMonitor those in
    `optional_kinds`.

    Raises CannotBuild, with a reason, for a spec that cannot be built here.
    """
    source = model_source(deployment.spec.model.source, settings)
    pod = engine_pod(deployment, settings, source)
    flags = engine_flags(deployment, source, engine_cpus(pod))
    manifests = (
        config_map(deployment, flags),
        network_policy(deployment, settings),  # before the pods, so that they are never open to everybody
        engine_deployment(deployment, pod, flags),
        service(deployment, settings),
        pod_disruption_budget(deployment),
        pod_monitor(deployment, settings),
    )
    return tuple(
        manifest for manifest in manifests if manifest["kind"] in ALWAYS_MADE or manifest["kind"] in optional_kinds
    )
