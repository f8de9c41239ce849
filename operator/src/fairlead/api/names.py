"""Every name that two files must agree on: groups, labels, annotations, ports, field managers, images, child names."""

GROUP = "fairlead.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LLMDeployment"
PLURAL = "llmdeployments"
SINGULAR = "llmdeployment"
SHORT_NAME = "llm"
CRD_NAME = f"{PLURAL}.{GROUP}"
MAX_NAME_LENGTH = 40
"""Of an LLMDeployment, because its children's names and label values contain it."""
DNS_SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
"""Names of Secrets, claims and most other objects."""
LABEL_VALUE_PATTERN = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"

LABEL_LLMDEPLOYMENT = f"{GROUP}/llmdeployment"
"""On every child: the name of the LLMDeployment it belongs to."""
LABEL_NAME = "app.kubernetes.io/name"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_PART_OF = "app.kubernetes.io/part-of"
"""On every object of ours, including the chart's: tells our components from other components of the same name."""
MANAGED_BY = "fairlead"
PART_OF = "fairlead"
ENGINE_COMPONENT = "engine"
OPERATOR_COMPONENT = "operator"
ANNOTATION_CONFIG_HASH = f"{GROUP}/config-hash"
"""On the pod template: hash of the mounted engine configuration, so a change rolls the Deployment."""
ANNOTATION_APPLIED_HASH = f"{GROUP}/applied-hash"
"""On every child: hash of the last applied object; the operator applies again only after a change."""
ANNOTATION_IGNORE_FIT = f"{GROUP}/ignore-fit"
"""On an LLMDeployment: `true` starts pods although the model cannot fit by the arithmetic."""
ANNOTATION_MODEL = f"{GROUP}/served-name"
ANNOTATION_DRAIN = f"{GROUP}/drain"
"""On a pod chosen by a scale-down: start of the drain (RFC 3339). The pod is asked to drain, is no capacity, and never
returns to service."""
ANNOTATION_WATCHED_NAMESPACES = f"{GROUP}/watched-namespaces"
"""On the operator's Lease: what its holder looks after, with commas between; `*` = every namespace."""
ANNOTATION_GATEWAYS = f"{GROUP}/gateways"
"""On the operator's Lease: namespace and label selector of the followed gateways, with a `/` between."""
ANNOTATION_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""kubectl's own, on a pod: whose log it shows where nobody says."""
ANNOTATION_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Kubernetes' own: among equally ready pods, a ReplicaSet deletes the cheapest first."""
LABEL_GROUP = "leaderworkerset.sigs.k8s.io/group-key"
"""LeaderWorkerSet's own, on every pod of a group: the same for all of them, and for no others."""
LABEL_GROUP_RANK = "leaderworkerset.sigs.k8s.io/worker-index"
"""LeaderWorkerSet's own: a pod's place in its group; the leader's is 0."""
ANNOTATION_GROUP_SIZE = "leaderworkerset.sigs.k8s.io/size"
"""LeaderWorkerSet's own: how many pods a group has."""

FIELD_MANAGER = "fairlead"
"""Applies children."""
FIELD_MANAGER_STATUS = "fairlead-status"
FIELD_MANAGER_AUTOSCALER = "fairlead-autoscaler"

ENGINE_PORT = 8000
GATEWAY_PORT = 8080
GATEWAY_SERVICE_PORT = 80
GATEWAY_CONTROL_PORT = 8081
OPERATOR_PORT = 8081
CONTROL_PORT_NAME = "control"
"""Name of the container port for metrics, health and signals."""

ENGINE_IMAGE = "fairlead/engine"
"""Without tag. Local mode runs this image as `python -m fairlead_engine`."""
OPERATOR_IMAGE = "fairlead/operator"
"""Without tag. Local mode runs this image as `python -m fairlead`."""

ENGINE_CONTAINER = "engine"
DEVICES_CLAIM = "devices"
"""Of a pod: its claim for devices."""
"""Container of the model's server; a foreign server is a sidecar of its front."""
FRONT_CONTAINER = "front"
"""Container of the front before a foreign server."""
DOWNLOAD_CONTAINER = "download"
"""The init container with the model's download; reports progress at the engine's port."""
DOWNLOAD_SPECULATIVE_CONTAINER = "download-speculative"
"""The same for what guesses tokens beside it."""
DOWNLOAD_CONTAINERS = {
    DOWNLOAD_CONTAINER: "model.source",
    DOWNLOAD_SPECULATIVE_CONTAINER: "engine.speculative.source",
}
"""Init containers with downloads → the field of the spec with the source."""
ADAPTERS_CONTAINER = "download-adapters"
"""The sidecar that downloads adapters while an engine runs."""
ENGINE_CONFIG_KEY = "engine.yaml"
ENGINE_CONFIG_FOLDER = "/etc/fairlead"
MODEL_FOLDER = "/models"
DOWNLOADS_FOLDER = "/downloads"
"""Mount path of the volume with downloaded models, each in its own folder."""
SPECULATIVE_FOLDER = "/speculative"
"""Mount path of the claim with draft models or heads, unless it is the model's claim."""
ADAPTER_FOLDER = "/adapters"
"""Parent of the mount paths of adapters' claims, each under its name."""
ADAPTER_DOWNLOADS_FOLDER = f"{ADAPTER_FOLDER}/.downloads"
"""Where the volume with downloaded adapters is mounted: no claim is called so."""
ADAPTER_LIST_FOLDER = "/etc/fairlead-adapters"
ADAPTER_LIST_KEY = "sources"
"""File in the list with the sources of adapters, one per line."""
TERMINATION_LOG = "/dev/termination-log"
TERMINATION_LOG_VARIABLE = "FAIRLEAD_TERMINATION_LOG"
"""Environment variable with the path of the termination log, if not `TERMINATION_LOG`."""

SYSTEM_NAMESPACE = "fairlead-system"
LABEL_NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""Kubernetes' own, on every namespace: its name."""
LABEL_HOSTNAME = "kubernetes.io/hostname"
"""Kubernetes' own, on every node: its name."""
LEASE_NAME = "fairlead-operator"
GATEWAY_NAME = "fairlead-gateway"
OPERATOR_NAME = "fairlead-operator"

SCALING_HISTORY_LENGTH = 5
"""Changes of the count kept in `status.scaling.history`."""


def adapter_list(name: str) -> str:
    """Name of the ConfigMap with the list of adapters to download for an LLMDeployment."""
    return f"{name}-engine-adapters"


def engine_child(name: str) -> str:
    """Name of the LLMDeployment's children, but for the Service and the configuration."""
    return f"{name}-engine"
