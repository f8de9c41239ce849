"""The engine's Deployment, whose pods serve OpenAI's API, and the ConfigMap with their configuration file."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import yaml

from fairlead.api import names
from fairlead.api.conditions import Reason
from fairlead.api.devices import DeviceRequest
from fairlead.api.llmdeployment import LLMDeployment, Resources
from fairlead.api.pod_spec import for_sidecars, is_sidecar, lasting_containers, merge, sidecars
from fairlead.api.quantities import format_duration, parse_quantity
from fairlead.manifests.common import (
    CONTAINED,
    GPU,
    SCRATCH_VOLUME,
    Manifest,
    as_sidecar,
    child,
    engine_image,
    environment_of_the_pod,
    fingerprint,
    own_labels,
    probe,
    selector_labels,
)
from fairlead.manifests.devices import check_devices, pod_claims
from fairlead.manifests.downloaders import AdapterDownloader, download_container
from fairlead.manifests.foreign_servers import FOREIGN_SERVERS, front_flags, unless, with_front
from fairlead.manifests.measured_profile import ProfileFile
from fairlead.manifests.source import CannotBuild, ModelSource, claim_mount
from fairlead.operator_settings import OperatorSettings, Profile

CONFIG_VOLUME = "config"
SHARED_MEMORY_VOLUME = "shared-memory"
SHARED_MEMORY_OF_GPUS = "4Gi"
"""Size of /dev/shm of a replica with several GPUs, which exchange sums there, unless a profile sets another."""
GPU_RESOURCE = "nvidia.com/gpu"
TERMINATION_MARGIN_SECONDS = 30
"""A pod's time beyond the drain, to stop in order."""
START_SECONDS = 1800
"""How long loading a model may take before the kubelet restarts the engine."""
DOWNLOAD_SECONDS = 86400
"""How long a download may take before `kubectl rollout status` gives a rollout up."""


def engine_deployment(
    deployment: LLMDeployment, pod: Mapping[str, Any], flags: Mapping[str, Any], profile: ProfileFile | None = None
) -> Manifest:
    """The Deployment of pods with this spec; the engine reads flags and profile from the ConfigMap. Our labels and
    annotations win over `spec.template`'s; a template may bring its own volume for the configuration."""
    rollout, overlay = deployment.spec.rollout, deployment.spec.template
    annotations = {
        **overlay.metadata.annotations,
        names.ANNOTATION_CONFIG_HASH: fingerprint(flags),
        names.ANNOTATION_MODEL: deployment.spec.model.served_name,
    }
    with _template_must_fit():
        volumes: list[dict[str, Any]] = list(pod.get("volumes") or [])
        if all(volume["name"] != CONFIG_VOLUME for volume in volumes):
            volumes.insert(0, {"name": CONFIG_VOLUME, "configMap": {"name": config_name(deployment, flags, profile)}})
        downloads = [each for each in pod.get("initContainers") or () if not is_sidecar(each)]
        fetches = bool(downloads) or any("image" in volume for volume in volumes)
        # With whose log `kubectl logs` begins, wherever it stands in the pod.
        is_beside = any(each["name"] == names.ENGINE_CONTAINER for each in sidecars(pod))
        shown = {names.ANNOTATION_DEFAULT_CONTAINER: names.ENGINE_CONTAINER} if is_beside else {}
    spec = {
        "replicas": deployment.desired_replicas,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": 2 * START_SECONDS + (DOWNLOAD_SECONDS if fetches else 0),
        "selector": {"matchLabels": selector_labels(deployment)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
        },
        "template": {
            "metadata": {
                "labels": {**overlay.metadata.labels, **own_labels(deployment)},
                "annotations": shown | annotations,
            },
            "spec": {**pod, "volumes": volumes},
        },
    }
    return child(deployment, "apps/v1", "Deployment", {"spec": spec})


def config_map(deployment: LLMDeployment, flags: dict[str, Any], profile: ProfileFile | None = None) -> Manifest:
    """The ConfigMap with the engine's configuration file, and the profile, if any."""
    text = yaml.safe_dump(flags, sort_keys=False, allow_unicode=True)
    body = {"data": {names.ENGINE_CONFIG_KEY: text, **({} if profile is None else {profile.key: profile.text})}}
    return child(deployment, "v1", "ConfigMap", body, name=config_name(deployment, flags, profile))


def config_name(deployment: LLMDeployment, flags: Mapping[str, Any], profile: ProfileFile | None) -> str:
    """The ConfigMap's name, unique to flags and profile: a container restarted in the middle of a rollout must not read
    its successors' configuration."""
    content = flags if profile is None else {**flags, "profile": profile.key}
    return f"{names.engine_child(deployment.metadata.name)}-{fingerprint(content)}"


def engine_flags(
    deployment: LLMDeployment, source: ModelSource, cpus: Decimal | None, adapter_folder: str | None = None
) -> dict[str, Any]:
    """The flags of `fairlead-engine serve`, or `front`, that the spec sets; the engine chooses the others. Defaults are
    not written, so a newer operator with more flags replaces no pod.

    `cpus`: of the engine's container, None = unlimited. There is a compute thread for each, rounded up, less its
    further HTTP processes', unless the user sets the number; else every engine would start a thread per core of its
    node. `adapter_folder`: root of loadable adapters, None = no adapters.
    """
    spec, engine = deployment.spec, deployment.spec.engine
    if (kind := FOREIGN_SERVERS.get(engine.type)) is not None:
        return front_flags(deployment, source, kind)
    speculative = engine.speculative
    is_said = any(argument.partition("=")[0] == "--num-threads" for argument in engine.extra_args)
    flags = {
        **source.flags,
        "served-name": spec.model.served_name,
        "dtype": str(engine.dtype),
        "quantization": None if engine.quantization is None else str(engine.quantization),
        "tensor-parallel-size": engine.tensor_parallel_size if engine.tensor_parallel_size > 1 else None,
        "api-servers": engine.api_servers if engine.api_servers > 1 else None,
        "max-model-len": engine.max_model_len,
        "max-num-seqs": engine.max_num_seqs,
        "max-num-batched-tokens": engine.max_num_batched_tokens,
        "max-num-queued-tokens": engine.max_num_queued_tokens,
        "block-size": engine.kv_cache.block_size,
        "kv-cache-memory": engine.kv_cache.memory,
        "kv-cache-dtype": unless(engine.kv_cache.dtype, "auto"),
        "enable-prefix-caching": engine.enable_prefix_caching,
        "speculative-method": None if speculative is None else str(speculative.method),
        "num-speculative-tokens": None if speculative is None else speculative.num_tokens,
        "speculative-tree": None if speculative is None else speculative.tree,
        "adapter-folder": adapter_folder,
        "max-loras": engine.max_loras,
        "max-lora-rank": engine.max_lora_rank,
        "max-lora-expert-rank": engine.max_lora_expert_rank,
        "max-cpu-loras": engine.max_cpu_loras,
        "max-images": engine.max_images,
        "max-image-pixels": engine.max_image_pixels,
        "allowed-media-domains": ",".join(engine.allowed_media_domains) or None,
        "chat-template": engine.chat_template,
        "tool-call-parser": unless(engine.tool_call_parser, "auto"),
        "reasoning-parser": unless(engine.reasoning_parser, "auto"),
        "unknown-fields": unless(engine.unknown_fields, "ignore"),
        "num-threads": None if cpus is None or is_said else max(1, math.ceil(cpus) - (engine.api_servers - 1)),
        "drain-timeout": format_duration(spec.drain.timeout),
    }
    return {flag: value for flag, value in flags.items() if value is not None}


def engine_pod(
    deployment: LLMDeployment,
    settings: OperatorSettings,
    source: ModelSource,
    adapter_claims: Iterable[str] = (),
    measured: ProfileFile | None = None,
    *,
    downloads_adapters: bool = False,
) -> dict[str, Any]:
    """The pods' spec, with `spec.template.spec` laid over it. `adapter_claims`: claims to mount for adapters.
    `measured`: the engine's profile. `downloads_adapters`: whether a sidecar downloads adapters.

    Raises CannotBuild for an unknown profile, a wrong number of GPUs, or a template that does not fit onto a pod.
    """
    profile = replica_profile(deployment, settings)
    volumes: list[dict[str, Any]] = [{"name": SCRATCH_VOLUME, "emptyDir": {}}, *source.volumes]
    mounts: list[dict[str, Any]] = [
        {"name": CONFIG_VOLUME, "mountPath": names.ENGINE_CONFIG_FOLDER, "readOnly": True},
        {"name": SCRATCH_VOLUME, "mountPath": "/tmp"},
        *source.mounts,
    ]
    for claim in adapter_claims:
        volume, mount = claim_mount(claim)
        volumes.append(volume)
        mounts.append(mount)
    init = [download_container(deployment, settings, profile, each) for each in source.downloads]
    if downloads_adapters:
        downloader = AdapterDownloader(deployment, settings, profile)
        init.append(as_sidecar(downloader.container))
        volumes += [each for each in downloader.volumes if each not in volumes]
        mounts.append(downloader.engine_mount)
    if profile.shared_memory is not None:
        medium = {"medium": "Memory", "sizeLimit": profile.shared_memory}
        volumes.append({"name": SHARED_MEMORY_VOLUME, "emptyDir": medium})
        mounts.append({"name": SHARED_MEMORY_VOLUME, "mountPath": "/dev/shm"})
    arguments = [*source.arguments, *(() if measured is None else ("--profile", measured.path))]
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(deployment.spec.drain.timeout) + TERMINATION_MARGIN_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            **settings.engine_pod_security_context.fields,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(deployment, settings, profile, arguments, mounts)],
        "volumes": volumes,
    }
    if init:
        pod["initContainers"] = init
    pull_secrets = dict.fromkeys((*settings.engine_image_pull_secrets, *source.pull_secrets))
    if pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in pull_secrets]
    ours = pod | _placement(deployment, profile)
    if (kind := FOREIGN_SERVERS.get(deployment.spec.engine.type)) is not None:
        ours = with_front(ours, deployment, settings, source, kind)
    with _template_must_fit():
        laid_over = merge(ours, for_sidecars(deployment.spec.template.spec, ours))
        _check_gpus("template.spec", _engine_resources(laid_over), deployment, profile.devices)
    return laid_over


def _placement(deployment: LLMDeployment, profile: Profile) -> dict[str, Any]:
    """Where the pods may run, and how: fields of their spec."""
    # Replicas on different nodes where there is a choice: a node that goes takes as few of them along as it can.
    spread = {
        "maxSkew": 1,
        "topologyKey": names.LABEL_HOSTNAME,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector_labels(deployment)},
    }
    # Nothing where the template says how: merged with ours, its constraints would mean something else.
    is_said = "topologySpreadConstraints" in deployment.spec.template.spec
    own = deployment.spec.resources.node_selector
    placement = {
        "topologySpreadConstraints": [] if is_said else [spread],
        "nodeSelector": dict(profile.node_selector if own is None else own),
        "affinity": profile.affinity.fields,
        "tolerations": [dict(toleration) for toleration in profile.tolerations],
        "runtimeClassName": profile.runtime_class_name,
        "priorityClassName": profile.priority_class_name,
        "resourceClaims": pod_claims(deployment, profile),
    }
    return {field: value for field, value in placement.items() if value}


def engine_cpus(pod: Mapping[str, Any]) -> Decimal | None:
    """CPUs of the engine's container: its limit, else its request; None = neither. Raises CannotBuild for malformed
    templates."""
    with _template_must_fit():
        resources = _engine_resources(pod)
        named = ((kind, (resources.get(kind) or {}).get("cpu")) for kind in ("limits", "requests"))
        kind, cpus = next((found for found in named if found[1] is not None), ("", None))
    if cpus is None:
        return None
    try:
        return parse_quantity(str(cpus))
    except ValueError as e:
        raise CannotBuild(f"template.spec: {kind}.cpu of the engine: {e}") from e


def _engine_resources(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Requests and limits of the engine's container."""
    engine = next((each for each in lasting_containers(pod) if each["name"] == names.ENGINE_CONTAINER), {})
    return engine.get("resources") or {}


def _check_gpus(
    field: str, resources: Mapping[str, Any], deployment: LLMDeployment, devices: DeviceRequest | None
) -> None:
    """Raises CannotBuild unless the number of GPUs (or slices) is that of the ranks, or none: more would idle, and with
    fewer no engine starts. `devices`: claimed beside `resources`."""
    check_devices(field, devices, resources, deployment)
    num_ranks = deployment.spec.engine.tensor_parallel_size
    for kind in ("limits", "requests"):
        asked = {name: quantity for name, quantity in (resources.get(kind) or {}).items() if GPU.search(name)}
        try:
            num_gpus = sum(parse_quantity(str(quantity)) for quantity in asked.values())
        except ValueError as e:
            raise CannotBuild(f"{field}: {kind} of the engine: {e}") from e
        if num_gpus not in (0, num_ranks):
            written = ", ".join(f"{name}: {quantity}" for name, quantity in asked.items())
            raise CannotBuild(
                f"{field}: its {kind} ask for {written}, and engine.tensorParallelSize is {num_ranks}: make them equal"
            )


@contextmanager
def _template_must_fit() -> Iterator[None]:
    """The CRD takes any object as a template's pod spec; its author is told of one without a pod's shape."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as e:
        raise CannotBuild(
            f"template.spec does not fit onto a pod ({e!r}): items of containers, volumes and env need a name"
        ) from e


def _container(
    deployment: LLMDeployment,
    settings: OperatorSettings,
    profile: Profile,
    model: Iterable[str],
    mounts: list[dict[str, Any]],
) -> dict[str, Any]:
    engine = deployment.spec.engine
    arguments = ["serve", "--config", f"{names.ENGINE_CONFIG_FOLDER}/{names.ENGINE_CONFIG_KEY}", *model]
    arguments += ["--host", "$(POD_IP)", "--port", str(names.ENGINE_PORT), *engine.extra_args]
    claims = [{"name": each["name"]} for each in pod_claims(deployment, profile)]
    resources = {"requests": dict(profile.requests), "limits": dict(profile.limits), "claims": claims}
    given = {
        each.name: {"valueFrom": dict(each.value_from)} if each.value_from is not None else {"value": each.value or ""}
        for each in (*profile.env, *engine.env)
    }
    # The pod's own address and name first, because the arguments use them.
    own = [each for each in environment_of_the_pod() if each["name"] not in given]
    return {
        "name": names.ENGINE_CONTAINER,
        "image": engine_image(deployment, settings, profile),
        "imagePullPolicy": str(settings.engine_image_pull_policy),
        "args": arguments,
        "env": [*own, *({"name": name, **value} for name, value in given.items())],
        "ports": [{"name": "http", "containerPort": names.ENGINE_PORT, "protocol": "TCP"}],
        "resources": {kind: asked for kind, asked in resources.items() if asked},
        # The other probes wait for the startup probe: loading may take long, and failing is noticed soon.
        # Its answer waits for the engine, so that readiness is seen when it comes and not a second later.
        "startupProbe": probe("/ready?wait=1", period=1, failures=START_SECONDS, timeout=2),
        "readinessProbe": probe("/ready", period=2, failures=2, timeout=2),
        "livenessProbe": probe("/health", period=10, failures=3, timeout=5),
        **CONTAINED,
        "volumeMounts": mounts,
    }


_IN_LOCAL_MODE = (
    "; local mode has none of the chart's profiles: gpu takes a GPU of this machine, the others take CPUs, and "
    "`fairlead models catalog` names the models for those"
)


def replica_profile(deployment: LLMDeployment, settings: OperatorSettings) -> Profile:
    """Resources of one replica. Raises CannotBuild for an unknown profile, and for a wrong number of GPUs."""
    resources = deployment.spec.resources
    if has_own_numbers(resources):
        gpus = {GPU_RESOURCE: str(resources.gpus)} if resources.gpus else {}
        limits = {**resources.limits, **gpus}
        asked = {"limits": limits, "requests": resources.requests}
        _check_gpus("resources", asked, deployment, resources.devices)
        shared_memory = SHARED_MEMORY_OF_GPUS if _num_devices(deployment) > 1 else None
        return Profile(
            requests=resources.requests, limits=limits, devices=resources.devices, shared_memory=shared_memory
        )
    name = resources.profile or settings.default_profile
    if not name:
        return Profile()
    profile = settings.all_profiles.get(name)
    if profile is None:
        known = ", ".join(sorted(settings.all_profiles))
        message = f"resources.profile {name!r} is not in the operator's settings: use one of {known}, "
        message += "or write resources.requests and limits"
        raise CannotBuild(message + (_IN_LOCAL_MODE if settings.is_local else ""), Reason.UNKNOWN_PROFILE)
    asked = {"limits": profile.limits, "requests": profile.requests}
    _check_gpus(f"resources.profile {name!r}", asked, deployment, profile.devices)
    return profile


def has_own_numbers(resources: Resources) -> bool:
    """Whether they are said without a profile."""
    asked = resources.gpus is not None or resources.devices is not None or resources.claim_template_name is not None
    return asked or bool(resources.requests or resources.limits)


def _num_devices(deployment: LLMDeployment) -> int:
    """Of a replica without a profile. A claim template of the user's has one for each rank."""
    resources = deployment.spec.resources
    if resources.claim_template_name is not None:
        return deployment.spec.engine.tensor_parallel_size
    return resources.devices.count if resources.devices is not None else resources.gpus or 0
