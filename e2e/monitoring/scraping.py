"""A scrape configuration for plain Prometheus: the jobs that docs/guides/monitoring.md tells people to write.

They find pods as the chart's and the operator's PodMonitors do, and give them the same labels. Debian's Prometheus is
built without Kubernetes' discovery, so tests play it: `targets` says of pods what the real one says.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

COMPONENTS = {"gateway": "control", "operator": "control", "engine": "http"}
"""Component → name of the container port that its metrics are on."""
_PART_OF = "app.kubernetes.io/part-of"
_COMPONENT = "app.kubernetes.io/component"
_LLMDEPLOYMENT = "fairlead.dev/llmdeployment"


def relabelings(component: str) -> list[dict[str, Any]]:
    """Which of all pods' ports belong to the job, and which labels they get."""
    return [
        _keep(_meta(f"label_{_PART_OF}"), "fairlead"),  # others have gateways and operators, too
        _keep(_meta(f"label_{_COMPONENT}"), component),
        _keep(_meta("container_port_name"), COMPONENTS[component]),
        _keep(_meta("phase"), "Running"),
        _copy("__meta_kubernetes_namespace", "namespace"),
        _copy(_meta("name"), "pod"),
        _copy(_meta(f"label_{_LLMDEPLOYMENT}"), "fairlead_dev_llmdeployment"),
    ]


def scrape_configs(**discovery: Any) -> list[dict[str, Any]]:
    """One job per component. `discovery`: such as `kubernetes_sd_configs=[{"role": "pod"}]`."""
    return [
        {"job_name": f"fairlead-{component}", **discovery, "relabel_configs": relabelings(component)}
        for component in COMPONENTS
    ]


def config(targets: Path, rules: Iterable[Path], *, interval: str = "1s") -> dict[str, Any]:
    """A whole configuration that reads its targets from a JSON file and notices when that changes."""
    discovery = {"file_sd_configs": [{"files": [str(targets)], "refresh_interval": "5s"}]}
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval, "scrape_timeout": interval},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": scrape_configs(**discovery),
    }


def targets(pods: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What Prometheus' discovery with `role: pod` says of these pods: a target for each port of each container."""
    return [
        {"targets": [f"{pod['status']['podIP']}:{port['containerPort']}"], "labels": _metadata(pod, port)}
        for pod in pods
        if (pod.get("status") or {}).get("podIP")
        for container in pod["spec"]["containers"]
        for port in container.get("ports") or []
    ]


def _metadata(pod: Mapping[str, Any], port: Mapping[str, Any]) -> dict[str, str]:
    metadata = pod["metadata"]
    labels = {_meta(f"label_{name}"): str(value) for name, value in (metadata.get("labels") or {}).items()}
    return labels | {
        "__meta_kubernetes_namespace": metadata["namespace"],
        _meta("name"): metadata["name"],
        _meta("phase"): pod["status"].get("phase", ""),
        _meta("container_port_name"): port.get("name", ""),
    }


def _meta(name: str) -> str:
    return "__meta_kubernetes_pod_" + "".join(each if each.isalnum() else "_" for each in name)


def _keep(label: str, value: str) -> dict[str, Any]:
    return {"action": "keep", "source_labels": [label], "regex": value}


def _copy(source: str, target: str) -> dict[str, Any]:
    return {"action": "replace", "source_labels": [source], "target_label": target}
