"""Limits of an administrator on LLMDeployments: part of the operator's settings, and of the chart's values under the
same names."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

from fairlead.api.schema import Constraints, camel

_SOURCE_ENTRY = r"^(demo|file|pvc|hf|s3|gs|az|https|oci)://[^?#*]*$"
_IMAGE_ENTRY = r"^[a-z0-9][A-Za-z0-9._/:@-]*$"
_NAME_ENTRY = r"^[^*\s]*[*]?$"
_ARGUMENT_ENTRY = r"^(--?[A-Za-z0-9][A-Za-z0-9._-]*|[*])$"

Names = Annotated[
    tuple[Annotated[str, Constraints(min_length=1, max_length=253, pattern=_NAME_ENTRY)], ...],
    Constraints(max_items=64),
]
"""Names, or beginnings of names with a `*` at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """What an LLMDeployment may ask for; anything else that gives its author power over others is refused. A name in a
    list may end with a `*` for any rest. An empty list allows nothing."""

    exempt_namespaces: Names = ()
    """Namespaces whose LLMDeployments may ask for anything. Default: none."""
    images: Annotated[
        tuple[Annotated[str, Constraints(min_length=1, max_length=512, pattern=_IMAGE_ENTRY)], ...],
        Constraints(max_items=64),
    ] = ()
    """Images that engine.image may name: registry.example.com/team/ = all below it, vllm/vllm-openai = this image with
    any tag or digest. Default: only the operator's own."""
    sources: Annotated[
        tuple[Annotated[str, Constraints(min_length=1, max_length=1024, pattern=_SOURCE_ENTRY)], ...],
        Constraints(max_items=64),
    ] = ("demo://", "hf://", "s3://", "gs://", "az://", "oci://")
    """Sources of models, adapters and draft models: hf:// = all of it, hf://ORGANISATION/ = all below it, pvc://CLAIM =
    this claim. Default: demo://, hf://, s3://, gs://, az:// and oci://; no claims, and no https://, which reaches every
    server in reach of pods."""
    secrets: Names = ()
    """Secrets of the namespace that model.credentials, environment variables and volumes may name. Default: none."""
    config_maps: Names = ()
    """ConfigMaps of the namespace that engine.profile, environment variables and volumes may name. Default: none."""
    claims: Names = ()
    """PersistentVolumeClaims of the namespace for model.cache.claim and volumes; for sources say pvc://CLAIM in
    `sources`. Default: none."""
    node_cache: bool = False
    """Whether models may be kept within reach of every namespace: in the nodes' folder (model.cache.node), or among the
    nodes' images (model.cache.image). Naming a source then gives access to the kept model, with whatever credentials it
    was fetched."""
    arguments: Annotated[
        tuple[Annotated[str, Constraints(min_length=1, max_length=128, pattern=_ARGUMENT_ENTRY)], ...],
        Constraints(max_items=64),
    ] = ()
    """Flags for engine.extraArgs, such as --seed, written --seed=1 there; numbers may stand alone; `*` = any. Default:
    none."""
    environment: Names = ()
    """Environment variables that engine.env and the template may set. Default: none."""
    media_domains: Names = ()
    """Hosts that engine.allowedMediaDomains may name. Default: none."""
    resources: Names = ("cpu", "memory", "ephemeral-storage", "nvidia.com/*", "amd.com/*")
    """Resources that may be asked for by name; how much, a ResourceQuota says. Default: cpu, memory, ephemeral-storage
    and GPUs of nvidia.com and amd.com; no other devices of nodes."""
    device_classes: Names = ("gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com")
    """DeviceClasses that resources.devices may name; how many devices, a ResourceQuota says. Default: those of NVIDIA's
    and AMD's GPUs."""
    claim_templates: Names = ()
    """ResourceClaimTemplates of the namespace that resources.claimTemplateName may name, whatever devices they ask for.
    Default: none."""
    placement: bool = False
    """Whether nodes may be chosen: by resources.nodeSelector, and by the template's nodeSelector, affinity, tolerations
    and topologySpreadConstraints. Profiles do in any case."""
    priority_classes: Names = ()
    """PriorityClasses for the template; their pods may push others off nodes. Default: none."""
    labels: Names = ()
    """Labels that the template may give to pods; Services and NetworkPolicies choose pods by labels. Default: none."""
    annotations: Names = ()
    """Annotations that the template may give to pods; webhooks and node agents go by them. Default: none."""

    def entries(self, name: str) -> Any:
        """The setting of a name, as written."""
        return getattr(self, _PYTHON_NAMES[name])


_PYTHON_NAMES = {camel(each.name): each.name for each in fields(AdmissionPolicy)}
SETTING = "admissionPolicy"
"""Of the operator, and the chart's value."""
EXEMPT = "exemptNamespaces"
LIMITS = tuple(name for name in _PYTHON_NAMES if name != EXEMPT)
"""What rules may go by, as written."""
