"""Downloading containers of an engine's pod, with a Secret that the engine does not get: models before the engine
starts, adapters beside the running engine."""

from collections.abc import Mapping
from typing import Any

from fairlead.api import names
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.api.pod_spec import lasting_container, pod_spec_of
from fairlead.manifests.common import (
    CONTAINED,
    GPU,
    SCRATCH_VOLUME,
    Manifest,
    child,
    engine_image,
    environment_of_the_pod,
)
from fairlead.manifests.source import DOWNLOADS_VOLUME, Download, cache_volume, downloaded_sources
from fairlead.operator_settings import OperatorSettings, Profile
from fairlead_common.wire.downloads import DOWNLOAD_PORT, SOURCES_PORT

_LIST_VOLUME = "adapter-list"
_RESOURCES = {"cpu": "250m", "memory": "1Gi"}
"""Of the container beside the engine, which reads pickled weights with torch, a file at a time."""
_SCRATCH = {"name": SCRATCH_VOLUME, "mountPath": "/tmp"}


def download_container(
    deployment: LLMDeployment, settings: OperatorSettings, profile: Profile, download: Download
) -> dict[str, Any]:
    """An init container for a model's download, with the engine's resources but for GPUs: the pod grows no larger."""
    # `$(` would have the kubelet put a variable there, which may be a credential.
    arguments = ["download", download.source.replace("$", "$$"), "--to", names.DOWNLOADS_FOLDER]
    arguments += [*_size_limit(deployment), "--host", "$(POD_IP)", "--progress-port", str(DOWNLOAD_PORT)]
    resources = {
        kind: {name: quantity for name, quantity in quantities.items() if not GPU.search(name)}
        for kind, quantities in (("requests", profile.requests), ("limits", profile.limits))
    }
    mounts = [_SCRATCH, {"name": DOWNLOADS_VOLUME, "mountPath": names.DOWNLOADS_FOLDER}]
    return _container(deployment, settings, profile, download.container, arguments, resources, mounts)


class AdapterDownloader:
    """The container beside the engine, and its volumes shared with the engine at the same paths. Follows the ConfigMap
    of `adapter_list`. Raises CannotBuild where nodes keep no models."""

    def __init__(self, deployment: LLMDeployment, settings: OperatorSettings, profile: Profile) -> None:
        listing = {"name": names.adapter_list(deployment.metadata.name), "optional": True}
        self.volumes = [
            cache_volume(deployment.spec.model.cache, settings),
            {"name": _LIST_VOLUME, "configMap": listing},
        ]
        mount = {"name": DOWNLOADS_VOLUME, "mountPath": names.ADAPTER_DOWNLOADS_FOLDER}
        self.engine_mount = mount | {"readOnly": True}
        arguments = ["download-adapters", "--listed-in", f"{names.ADAPTER_LIST_FOLDER}/{names.ADAPTER_LIST_KEY}"]
        arguments += ["--to", names.ADAPTER_DOWNLOADS_FOLDER, *_size_limit(deployment)]
        arguments += ["--host", "$(POD_IP)", "--port", str(SOURCES_PORT)]
        listed = {"name": _LIST_VOLUME, "mountPath": names.ADAPTER_LIST_FOLDER, "readOnly": True}
        # As the engine has it, so that the pod keeps its class of service.
        resources = {
            kind: _RESOURCES for kind, given in (("requests", profile.requests), ("limits", profile.limits)) if given
        }
        self.container = _container(
            deployment, settings, profile, names.ADAPTERS_CONTAINER, arguments, resources, [_SCRATCH, mount, listed]
        ) | {"ports": [{"name": "sources", "containerPort": SOURCES_PORT, "protocol": "TCP"}]}
        for source in self.container.get("envFrom", []):
            source["secretRef"]["optional"] = True  # a Secret that is missing keeps no pod from serving


def adapter_list(deployment: LLMDeployment) -> Manifest:
    """The ConfigMap with the sources of downloaded adapters."""
    text = "".join(f"{source}\n" for source in downloaded_sources(deployment))
    body = {"data": {names.ADAPTER_LIST_KEY: text}}
    return child(deployment, "v1", "ConfigMap", body, name=names.adapter_list(deployment.metadata.name))


def has_adapter_downloader(engine: Mapping[str, Any] | None) -> bool:
    """Whether a Deployment's pods can download adapters. Pods keep the container when the last adapter goes: removing
    one replaces no pod."""
    return bool(lasting_container(pod_spec_of(engine), names.ADAPTERS_CONTAINER))


def _container(
    deployment: LLMDeployment,
    settings: OperatorSettings,
    profile: Profile,
    name: str,
    arguments: list[str],
    resources: Mapping[str, Mapping[str, str]],
    mounts: list[dict[str, Any]],
) -> dict[str, Any]:
    credentials = deployment.spec.model.credentials
    secret = [] if credentials is None else [{"secretRef": {"name": credentials.secret_name}}]
    container = {
        "name": name,
        "image": engine_image(deployment, settings, profile),
        "imagePullPolicy": str(settings.engine_image_pull_policy),
        "args": arguments,
        "env": [
            *environment_of_the_pod(),
            *({"name": name, "value": value} for name, value in settings.download_environment.items()),
        ],
        "envFrom": secret,
        "resources": {kind: dict(quantities) for kind, quantities in resources.items() if quantities},
        **CONTAINED,
        "volumeMounts": mounts,
    }
    return {field: value for field, value in container.items() if value or field == "resources"}


def _size_limit(deployment: LLMDeployment) -> list[str]:
    cache = deployment.spec.model.cache
    return [] if cache is None or cache.size is None else ["--size-limit", str(cache.size)]
