"""The Service under the LLMDeployment's own name: an alias for the gateway, which routes by Host."""

from fairlead.api import names
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.common import Manifest, child
from fairlead.operator_settings import OperatorSettings


def service(deployment: LLMDeployment, settings: OperatorSettings) -> Manifest:
    """An ExternalName Service, so that http://NAME.NAMESPACE/v1 works from inside the cluster."""
    spec = {
        "type": "ExternalName",
        "externalName": settings.gateway_service,
        "ports": [{"name": "http", "port": names.GATEWAY_SERVICE_PORT, "protocol": "TCP"}],
    }
    return child(deployment, "v1", "Service", deployment.metadata.name, {"spec": spec})
