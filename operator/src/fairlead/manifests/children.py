"""All children of an LLMDeployment, in the order of application; the small ones are made here."""

from collections.abc import Collection, Mapping
from typing import Any

from fairlead.api import names
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.common import Manifest, child, selector_labels
from fairlead.manifests.devices import claim_templates
from fairlead.manifests.downloaders import adapter_list
from fairlead.manifests.engine import (
    config_map,
    engine_cpus,
    engine_deployment,
    engine_flags,
    engine_pod,
    replica_profile,
)
from fairlead.manifests.measured_profile import profile_file
from fairlead.manifests.source import adapter_folder, downloaded_sources, model_source
from fairlead.operator_settings import OperatorSettings, equality_selector
from fairlead_common.wire.downloads import SOURCES_PORT

ALWAYS_MADE = ("ConfigMap", "Deployment", "Service")


def children(
    deployment: LLMDeployment,
    settings: OperatorSettings,
    optional_kinds: Collection[str] = (),
    adapter_claims: Collection[str] = (),
    profile: Mapping[str, Any] | None = None,
    *,
    keeps_downloader: bool = False,
) -> tuple[Manifest, ...]:
    """ConfigMap, Deployment, Service; of ResourceClaimTemplate, NetworkPolicy, PodDisruptionBudget and PodMonitor those
    in `optional_kinds`; a ConfigMap of downloaded adapters. `adapter_claims`: claims to mount for adapters. `profile`:
    the ConfigMap of `engine.profile`, if it exists. `keeps_downloader`: whether pods can download adapters already.

    Raises CannotBuild, with a reason.
    """
    source = model_source(deployment.spec, settings)
    folder = adapter_folder(deployment, settings)
    downloads = folder is not None and (keeps_downloader or bool(downloaded_sources(deployment)))
    measured = profile_file(deployment, profile)
    pod = engine_pod(deployment, settings, source, adapter_claims, measured, downloads_adapters=downloads)
    flags = engine_flags(deployment, source, engine_cpus(pod), folder)
    policy = network_policy(deployment, settings, downloads_adapters=downloads)
    manifests = (
        config_map(deployment, flags, measured),
        *([adapter_list(deployment)] if downloads else []),
        *claim_templates(deployment, replica_profile(deployment, settings)),
        policy,  # before the pods, so that they are never open to everybody
        engine_deployment(deployment, pod, flags, measured),
        service(deployment, settings),
        pod_disruption_budget(deployment),
        pod_monitor(deployment, settings),
    )
    return tuple(each for each in manifests if each["kind"] in (*ALWAYS_MADE, *optional_kinds))


def network_policy(
    deployment: LLMDeployment, settings: OperatorSettings, *, downloads_adapters: bool = False
) -> Manifest:
    """Admits the gateway's, the operator's and monitoring's pods to the engines' port, and the operator's to the
    adapter downloader's. Egress stays open."""
    peers: list[dict[str, object]] = [
        {
            "namespaceSelector": {"matchLabels": {names.LABEL_NAMESPACE_NAME: settings.gateway_namespace}},
            "podSelector": {"matchLabels": equality_selector(selector)},
        }
        for selector in (settings.gateway_selector, settings.operator_selector)
    ]
    operator = peers[1]
    if settings.monitoring_namespace is not None:
        labels = {names.LABEL_NAMESPACE_NAME: settings.monitoring_namespace}
        peers.append({"namespaceSelector": {"matchLabels": labels}})
    ingress: list[dict[str, object]] = [{"from": peers, "ports": [{"port": names.ENGINE_PORT, "protocol": "TCP"}]}]
    if downloads_adapters:
        ingress.append({"from": [operator], "ports": [{"port": SOURCES_PORT, "protocol": "TCP"}]})
    spec = {
        "podSelector": {"matchLabels": selector_labels(deployment)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return child(deployment, "networking.k8s.io/v1", "NetworkPolicy", {"spec": spec})


def service(deployment: LLMDeployment, settings: OperatorSettings) -> Manifest:
    """An alias for the gateway, which routes by Host: http://NAME.NAMESPACE/v1 works inside the cluster."""
    spec = {
        "type": "ExternalName",
        "externalName": settings.gateway_service,
        "ports": [{"name": "http", "port": names.GATEWAY_SERVICE_PORT, "protocol": "TCP"}],
    }
    return child(deployment, "v1", "Service", {"spec": spec}, name=deployment.metadata.name)


def pod_disruption_budget(deployment: LLMDeployment) -> Manifest:
    """One engine may be missing, even the only one: else its node could never be drained."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": selector_labels(deployment)}}
    return child(deployment, "policy/v1", "PodDisruptionBudget", {"spec": spec})


def pod_monitor(deployment: LLMDeployment, settings: OperatorSettings) -> Manifest:
    """For the Prometheus operator: every engine's /metrics, labelled with the LLMDeployment's name. Times and the
    PodMonitor's own labels come from the settings."""
    times = {"interval": settings.pod_monitor_interval, "scrapeTimeout": settings.pod_monitor_scrape_timeout}
    endpoint = {"port": "http", "path": "/metrics", **{name: time for name, time in times.items() if time is not None}}
    spec = {
        "selector": {"matchLabels": selector_labels(deployment)},
        "podMetricsEndpoints": [endpoint],
        "podTargetLabels": [names.LABEL_LLMDEPLOYMENT],
    }
    api_version, labels = "monitoring.coreos.com/v1", settings.pod_monitor_labels
    return child(deployment, api_version, "PodMonitor", {"spec": spec}, labels=labels)
