"""What authors of LLMDeployments may ask for where an administrator limits it: part of the operator's settings, and of
the chart's values under the same names."""

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
"""Each a name, or the beginning of names with a `*` after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """What an LLMDeployment may ask for; all else that gives its author power over others is refused. Where names are
    listed, a `*` at the end of one stands for anything. Nothing listed: nothing allowed."""

    exempt_namespaces: Names = ()
    """Namespaces whose LLMDeployments may ask for anything. Default: none."""
    images: Annotated[
        tuple[Annotated[str, Constraints(min_length=1, max_length=512, pattern=_IMAGE_ENTRY)], ...],
        Constraints(max_items=64),
    ] = ()
    """Images that engine.image may name: registry.example.com/team/ = all below it, vllm/vllm-openai = that one, with
    any tag or digest. Default: none but the operator's own."""
    sources: Annotated[
        tuple[Annotated[str, Constraints(min_length=1, max_length=1024, pattern=_SOURCE_ENTRY)], ...],
        Constraints(max_items=64),
    ] = ("demo://", "hf://", "s3://", "gs://", "az://", "oci://")
    """Where models, adapters and what guesses tokens may come from: hf:// = all of it, hf://ORGANISATION/ = all below
    it, pvc://CLAIM = that claim. Default: demo://, hf://, s3://, gs://, az:// and oci://; no claims, and no https://,
    which reaches every server that pods reach."""
    secrets: Names = ()
    """Secrets of the namespace that model.credentials, environment variables and volumes may name. Default: none."""
    config_maps: Names = ()
    """ConfigMaps of the namespace that engine.profile, environment variables and volumes may name. Default: none."""
    claims: Names = ()
    """PersistentVolumeClaims of the namespace that model.cache.claim and volumes may name; for sources say pvc://CLAIM
    in `sources`. Default: none."""
    node_cache: bool = False
    """Whether models may be kept where every namespace finds them: in the nodes' folder (model.cache.node), or among
    the nodes' images (model.cache.image). Whoever names a source gets what lies there, with whatever credentials it
    was fetched."""
    arguments: Annotated[
        tuple[Annotated[str, Constraints(min_length=1, max_length=128, pattern=_ARGUMENT_ENTRY)], ...],
        Constraints(max_items=64),
    ] = ()
    """Flags that engine.extraArgs may have, such as --seed, written --seed=1 there; numbers may stand alone; `*` = any.
    Default: none."""
    environment: Names = ()
    """Environment variables that engine.env and the template may set. Default: none."""
    media_domains: Names = ()
    """Hosts that engine.allowedMediaDomains may name. Default: none."""
    resources: Names = ("cpu", "memory", "ephemeral-storage", "nvidia.com/*", "amd.com/*")
    """Resources that may be asked for by name; how much, a ResourceQuota says. Default: cpu, memory, ephemeral-storage
    and GPUs of nvidia.com and amd.com; no other devices of nodes."""
    placement: bool = False
    """Whether the template may choose nodes: nodeSelector, affinity, tolerations, topologySpreadConstraints. Profiles
    do in any case."""
    priority_classes: Names = ()
    """PriorityClasses that the template may name, whose pods may push others off their nodes. Default: none."""
    labels: Names = ()
    """Labels that the template may give to pods; Services and NetworkPolicies choose pods by labels. Default: none."""
    annotations: Names = ()
    """Annotations that the template may give to pods; webhooks and node agents go by them. Default: none."""

    def entries(self, name: str) -> Any:
        """The setting of that name, as it is written."""
        return getattr(self, _PYTHON_NAMES[name])


_PYTHON_NAMES = {camel(each.name): each.name for each in fields(AdmissionPolicy)}
SETTING = "admissionPolicy"
"""Of the operator, and the chart's value."""
EXEMPT = "exemptNamespaces"
LIMITS = tuple(name for name in _PYTHON_NAMES if name != EXEMPT)
"""What rules may go by, as written."""
