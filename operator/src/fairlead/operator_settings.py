"""The operator's settings: what an administrator decides for all LLMDeployments, read from one YAML file.

Keys in the file are the fields' names in camelCase, as everywhere in Kubernetes (`gatewayUrl: …`). An unknown key or a
bad value is refused by name, with a hint.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self, get_args

import yaml

from fairlead import __version__
from fairlead.api import names
from fairlead.api.admission_policy import AdmissionPolicy
from fairlead.api.devices import DeviceRequest
from fairlead.api.engine_rules import is_owned
from fairlead.api.llmdeployment import EnvironmentVariable
from fairlead.api.quantities import QUANTITY_PATTERN, format_duration
from fairlead.api.schema import (
    Constraints,
    InvalidValue,
    Quantities,
    Raw,
    Seconds,
    UnknownField,
    api_fields,
    decode,
    descriptions,
    unwrap,
)
from fairlead_common.logs import LogFormat


class SettingsError(ValueError):
    """A setting that cannot be used. `name` as written in the file (`profiles.gpu.requests`), `hint`: what to write."""

    def __init__(self, name: str, message: str, hint: str) -> None:
        super().__init__(f"setting {name}: {message}\n\nhint: {hint}")
        self.name = name
        self.message = message
        self.hint = hint


DNS_LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
PROMETHEUS_DURATION_PATTERN = r"^(?=.*[1-9])([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$"
_LABEL_KEY = re.compile(r"[A-Za-z0-9][-._/A-Za-z0-9]*")


class LogLevel(StrEnum):
    """From everything to failures only."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class ImagePullPolicy(StrEnum):
    """When a kubelet asks the registry for an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """Nodes that pods are drawn to and kept from; each part as in a pod. None = nothing is said."""

    node_affinity: Raw | None = None
    """To nodes, by their labels."""
    pod_affinity: Raw | None = None
    """To nodes with certain pods."""
    pod_anti_affinity: Raw | None = None
    """Away from nodes with certain pods."""

    @property
    def fields(self) -> dict[str, Any]:
        """As fields of a pod's affinity."""
        parts = {
            "nodeAffinity": self.node_affinity,
            "podAffinity": self.pod_affinity,
            "podAntiAffinity": self.pod_anti_affinity,
        }
        return {name: dict(part) for name, part in parts.items() if part is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a replica may use, where and with what it runs, under a name that users put into `spec.resources.profile`.

    An LLMDeployment's own fields win over the profile, and the profile over the other settings.
    """

    image: Annotated[str | None, Constraints(min_length=1, max_length=512, pattern=r"^[^\s]+$")] = None
    """Image of Fairlead's engines here, such as the one for CUDA; `engine.image` wins. Servers of other engine types
    are in the image that `engine.image` names. None = `engineImage`."""
    env: Annotated[
        tuple[EnvironmentVariable, ...], Constraints(max_items=64, list_type="map", list_map_keys=("name",))
    ] = ()
    """Environment variables of the engine's container, as in a pod; those of the same name in `engine.env` win. Secrets
    and ConfigMaps that they name are those of each LLMDeployment's namespace. Default: none."""

    requests: Quantities = field(default_factory=dict)
    """Resources to reserve, as in a container (quantities). Where no CPU limit says it, the CPUs reserved here are also
    the engine's compute threads. Default: none."""
    limits: Quantities = field(default_factory=dict)
    """Most that may be used, as in a container (quantities). The engine computes with as many threads as it has CPUs
    here. Default: none."""
    devices: DeviceRequest | None = None
    """Devices by dynamic resource allocation (Kubernetes from 1.34 on): deviceClassName, count and selectors, as in
    `resources.devices` of an LLMDeployment. Default: none."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes to run on; `resources.nodeSelector` of an LLMDeployment replaces them. Default: any node."""
    affinity: Affinity = Affinity()
    """Nodes that the pods are drawn to and kept from, as in a pod. Default: none."""
    tolerations: tuple[Raw, ...] = ()
    """Taints to accept, as in a pod. Default: none."""
    runtime_class_name: str | None = None
    """RuntimeClass of the pods, such as nvidia. None = the cluster's default."""
    priority_class_name: str | None = None
    """PriorityClass of the pods. None = the cluster's default."""
    shared_memory: Annotated[str | None, Constraints(pattern=QUANTITY_PATTERN)] = None
    """Size of /dev/shm (a quantity); it counts as memory of the pod. None = the container runtime's default, 64Mi."""
    gpu_memory: Annotated[str | None, Constraints(pattern=QUANTITY_PATTERN)] = None
    """Memory of each GPU (a quantity), as nvidia-smi tells it: what `fairlead check` and the condition Fits reckon
    with. It changes no pod. None = not known, and nothing is said of whether models fit."""


BUILT_IN_PROFILES: Mapping[str, Profile] = {
    "cpu-small": Profile(requests={"cpu": "1", "memory": "1Gi"}, limits={"memory": "2Gi"}),
    "cpu-medium": Profile(requests={"cpu": "4", "memory": "8Gi"}, limits={"memory": "16Gi"}),
    "cpu-large": Profile(requests={"cpu": "8", "memory": "16Gi"}, limits={"memory": "32Gi"}),
    "gpu": Profile(
        requests={"cpu": "4", "memory": "16Gi"},
        limits={"nvidia.com/gpu": "1", "memory": "64Gi"},
        tolerations=({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},),
        shared_memory="4Gi",
    ),
}
"""What `spec.resources.profile` may say without any settings file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBudget:
    """GPUs that the replicas of several LLMDeployments may have together."""

    name: Annotated[str, Constraints(pattern=DNS_LABEL_PATTERN)]
    """Names the budget in the sentences of those who wait for it."""
    gpus: Annotated[int, Constraints(minimum=0)]
    """Most GPUs, of any vendor and size."""
    profiles: tuple[str, ...] = ()
    """Profiles whose replicas count. Default: all, and replicas without a profile."""
    namespaces: tuple[Annotated[str, Constraints(pattern=DNS_LABEL_PATTERN)], ...] = ()
    """Namespaces whose replicas count. Default: all."""

    def covers(self, namespace: str, profile: str) -> bool:
        """Whether an LLMDeployment there is under it. `profile`: empty = it names its resources itself."""
        return (not self.profiles or profile in self.profiles) and (not self.namespaces or namespace in self.namespaces)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodIds:
    """Ids that a pod's processes and files have. None = the cluster or the image chooses."""

    run_as_user: Annotated[int | None, Constraints(minimum=1)] = None
    """User of all processes."""
    run_as_group: Annotated[int | None, Constraints(minimum=0)] = None
    """Their first group."""
    fs_group: Annotated[int | None, Constraints(minimum=0)] = None
    """Group of the files of volumes."""

    @property
    def fields(self) -> dict[str, int]:
        """As fields of a pod's securityContext."""
        ids = {"runAsUser": self.run_as_user, "runAsGroup": self.run_as_group, "fsGroup": self.fs_group}
        return {name: number for name, number in ids.items() if number is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Everything the operator has to be told. The defaults serve a cluster where the chart was installed unchanged."""

    engine_image: str = f"{names.ENGINE_IMAGE}:{__version__}"
    """Image of engines whose LLMDeployment names none."""
    engine_image_pull_policy: ImagePullPolicy = ImagePullPolicy.IF_NOT_PRESENT
    """When the kubelet pulls an engine's image: IfNotPresent, Always or Never."""
    engine_image_pull_secrets: tuple[
        Annotated[str, Constraints(pattern=names.DNS_SUBDOMAIN_PATTERN, max_length=253)], ...
    ] = ()
    """Names of the Secrets with the registry's credentials for engines' images, in the namespace of each LLMDeployment:
    the operator copies none. Default: those that the namespace's ServiceAccount names."""
    engine_pod_security_context: PodIds = PodIds(run_as_user=65532, run_as_group=65532, fs_group=65532)
    """Ids of engines' pods. Default: 65532 for each, which is no user of a node."""
    gateway_url: str = f"http://{names.GATEWAY_NAME}.{names.SYSTEM_NAMESPACE}"
    """Base URL under which clients reach the gateway; `status.url` starts with it."""
    gateway_service: str = f"{names.GATEWAY_NAME}.{names.SYSTEM_NAMESPACE}.svc.cluster.local"
    """DNS name of the gateway's Service; the Service of each LLMDeployment is an alias for it."""
    allow_file_sources: bool = False
    """Whether `file://` may be served: folders on the machine the engine runs on. Only for local mode."""
    claims_folder: str | None = None
    """Folder below which engines find the claims of adapters, as NAMESPACE/CLAIM. None = where their pods mount them.
    Only for local mode, whose pods have no mounts."""
    node_models_folder: Annotated[str | None, Constraints(pattern="^/.", max_length=1024)] = None
    """Folder of every node that keeps downloaded models, for LLMDeployments with `model.cache.node`; the engines' user
    must be able to write there. None = there is none, and those are refused."""
    download_environment: Annotated[Mapping[str, str], Constraints(max_items=64)] = field(default_factory=dict)
    """Environment variables of every download: a mirror (HF_ENDPOINT, AWS_ENDPOINT_URL), proxies (HTTPS_PROXY,
    NO_PROXY), a file of certificates. No credentials: those come from the Secrets of LLMDeployments. Default: none."""
    admission_policy: AdmissionPolicy | None = None
    """What LLMDeployments may ask for; what asks for more is not made, and its conditions say which field and which
    setting. None = for anything that whoever creates Deployments may."""
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    """Name → profile; added to the built-in ones (cpu-small, cpu-medium, cpu-large, gpu), where they replace those of
    the same name."""
    gpu_budgets: Annotated[
        tuple[GpuBudget, ...], Constraints(max_items=64, list_type="map", list_map_keys=("name",))
    ] = ()
    """GPUs that the autoscaler shares, by `autoscaling.priority` and then by who misses its targets most. Replicas that
    it does not scale count first; it adds none beyond a budget. Default: no bounds but maxReplicas."""
    default_profile: str = "cpu-small"
    """Profile of LLMDeployments that name neither a profile nor resources. Empty = they reserve nothing."""
    gateway_namespace: str = names.SYSTEM_NAMESPACE
    """Namespace of the gateway's pods, whose signals the autoscaler follows."""
    gateway_selector: str = f"{names.LABEL_NAME}={names.GATEWAY_NAME}"
    """Label selector of the gateway's pods."""
    operator_selector: str = f"{names.LABEL_NAME}={names.OPERATOR_NAME}"
    """Label selector of the operator's own pods, which are in the gateway's namespace."""
    network_policies: bool = True
    """Whether each LLMDeployment gets a NetworkPolicy: its engines take connections from the gateway's pods, the
    operator's and those of `monitoringNamespace`, and from nobody else. It finds their namespaces by the label
    kubernetes.io/metadata.name, which Kubernetes puts on every namespace."""
    monitoring_namespace: Annotated[str | None, Constraints(pattern=DNS_LABEL_PATTERN)] = None
    """Namespace whose pods may read the engines' metrics. None = no other pods may."""
    pod_disruption_budgets: bool = True
    """Whether each LLMDeployment gets a PodDisruptionBudget: nodes are drained of its engines one engine at a time."""
    pod_monitors: bool = True
    """Whether each LLMDeployment gets a PodMonitor, by which the Prometheus operator finds its engines' metrics."""
    pod_monitor_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of these PodMonitors, by which a Prometheus chooses them."""
    pod_monitor_interval: Annotated[str | None, Constraints(pattern=PROMETHEUS_DURATION_PATTERN)] = None
    """Time between two scrapes of an engine, as Prometheus writes it (15s). None = Prometheus' own."""
    pod_monitor_scrape_timeout: Annotated[str | None, Constraints(pattern=PROMETHEUS_DURATION_PATTERN)] = None
    """Time that such a scrape may take; at most the interval. None = Prometheus' own."""
    autoscaler_interval: Seconds = 1.0
    """Time between two looks of the autoscaler. It looks at once when a request waits for a first replica."""
    watch_namespaces: tuple[str, ...] | None = None
    """Namespaces to look after. None = all."""
    lease_namespace: str = names.SYSTEM_NAMESPACE
    """Namespace of the Lease that keeps a second operator waiting."""
    lease_name: str = names.LEASE_NAME
    """Name of that Lease."""
    lease_duration: Seconds = 15.0
    """Silence after which another operator takes over."""
    resync_interval: Seconds = 300.0
    """Time after which every LLMDeployment is looked at again, whether or not anything happened."""
    workers: Annotated[int, Constraints(minimum=1)] = 4
    """LLMDeployments that are reconciled at the same time."""
    host: str = "0.0.0.0"
    """Address for health and metrics."""
    port: Annotated[int, Constraints(minimum=0, maximum=65535)] = names.OPERATOR_PORT
    """Port for health and metrics; 0 = none."""
    log_level: LogLevel = LogLevel.INFO
    """How much is logged."""
    log_format: LogFormat = LogFormat.TEXT
    """How the log's lines are written: logfmt, or a JSON object a line with the same keys."""

    def __post_init__(self) -> None:
        if not self.gateway_url.startswith(("http://", "https://")):
            raise SettingsError("gatewayUrl", f"{self.gateway_url!r} is not a URL", "start it with http:// or https://")
        if self.default_profile and self.default_profile not in self.all_profiles:
            known = ", ".join(sorted(self.all_profiles))
            raise SettingsError("defaultProfile", f"{self.default_profile!r} is not a profile", f"use one of {known}")
        for index, budget in enumerate(self.gpu_budgets):
            if unknown := [each for each in budget.profiles if each not in self.all_profiles]:
                hint = f"use some of {', '.join(sorted(self.all_profiles))}"
                raise SettingsError(f"gpuBudgets[{index}].profiles", f"{unknown[0]!r} is not a profile", hint)
        for name, profile in self.profiles.items():
            for index, variable in enumerate(profile.env):
                _check_variable(f"profiles.{name}.env[{index}]", variable)
        for name, selector in (
            ("gatewaySelector", self.gateway_selector),
            ("operatorSelector", self.operator_selector),
        ):
            if self.network_policies and not equality_selector(selector):
                hint = "write KEY=VALUE, several with commas between them, or switch networkPolicies off"
                raise SettingsError(name, f"{selector!r} cannot be written into a NetworkPolicy", hint)
        for name, seconds in (("leaseDuration", self.lease_duration), ("resyncInterval", self.resync_interval)):
            if seconds < 3.0:
                raise SettingsError(name, f"is only {format_duration(seconds)}", "use 3s or more")
        if self.autoscaler_interval < 0.1:
            raise SettingsError("autoscalerInterval", f"is only {self.autoscaler_interval:g}s", "use 100ms or more")

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Raises SettingsError for what cannot be read, is unknown or does not fit."""
        try:
            raw = yaml.safe_load(path.read_text())
        except (OSError, yaml.YAMLError) as e:
            raise SettingsError(str(path), f"cannot be read: {e}", "give a YAML file") from e
        return cls.from_mapping({} if raw is None else raw)

    @classmethod
    def from_mapping(cls, raw: Any) -> Self:
        """The settings of a parsed file. Raises SettingsError, naming the key."""
        if not isinstance(raw, Mapping):
            raise SettingsError("file", "is not a mapping", "write `key: value` lines")
        try:
            return decode(cls, raw, strict=True)
        except UnknownField as e:
            close = difflib.get_close_matches(e.path.rpartition(".")[2], e.known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(e.known)}"
            raise SettingsError(e.path, e.message, hint) from e
        except InvalidValue as e:
            hint = _purpose(cls, e.path) or "see the documentation of the operator's settings"
            raise SettingsError(e.path, e.message, hint) from e

    @property
    def is_local(self) -> bool:
        """Whether these are local mode's, which has no chart."""
        return self.claims_folder is not None

    @property
    def all_profiles(self) -> Mapping[str, Profile]:
        """What `spec.resources.profile` may say."""
        return {**BUILT_IN_PROFILES, **self.profiles}


def _check_variable(path: str, variable: EnvironmentVariable) -> None:
    """Raises SettingsError for a variable that no engine may be given."""
    if is_owned(variable.name):
        message = f"{variable.name} is said by the operator, or would keep it out"
        raise SettingsError(f"{path}.name", message, "leave it out")
    if variable.value is not None and variable.value_from is not None:
        raise SettingsError(path, f"{variable.name} has both value and valueFrom", "leave one of them out")


def _purpose(settings: type, path: str) -> str:
    """What the setting at a path, or the one that it is a part of, is for; empty where nothing says so."""
    kind: Any = settings
    purpose = ""
    for name in path.replace("[", ".").replace("]", "").split("."):
        if isinstance(kind, type) and is_dataclass(kind):
            purpose = descriptions(kind).get(name) or purpose
            kind = next((item.type for item in api_fields(kind) if item.key == name), None)
        else:  # of a list or a map: one of its items
            items = [each for each in get_args(kind) if each is not Ellipsis]
            kind = unwrap(items[-1])[0] if items else None
    return purpose


def equality_selector(selector: str) -> dict[str, str]:
    """The labels of a selector `KEY=VALUE,…`; empty for any other kind of selector."""
    pairs = [part.strip().replace("==", "=", 1).partition("=") for part in selector.split(",")]
    if not all(equals and _LABEL_KEY.fullmatch(key.strip()) for key, equals, _ in pairs):
        return {}
    return {key.strip(): value.strip() for key, _, value in pairs}
