"""All children of an LLMDeployment, in the order in which they are to be applied."""

from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.common import Manifest
from fairlead.manifests.config import config_map, engine_flags
from fairlead.manifests.engine import engine_cpus, engine_deployment, engine_pod
from fairlead.manifests.service import service
from fairlead.manifests.source import model_source
from fairlead.settings import OperatorSettings


def children(deployment: LLMDeployment, settings: OperatorSettings) -> tuple[Manifest, ...]:
    """ConfigMap, Deployment, Service. Raises CannotBuild, with a reason, for a spec that cannot be built here."""
    source = model_source(deployment.spec.model.source, settings)
    pod = engine_pod(deployment, settings, source)
    flags = engine_flags(deployment, source, engine_cpus(pod))
    return (
        config_map(deployment, flags),
        engine_deployment(deployment, pod, flags),
        service(deployment, settings),
    )
