"""The fleet's own workloads: the operator and the gateway as Deployments of the system namespace. Pure."""

from dataclasses import dataclass
from pathlib import Path

from fairlead import __version__
from fairlead.api.names import (
    CONTROL_PORT_NAME,
    GATEWAY_NAME,
    LABEL_COMPONENT,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    OPERATOR_IMAGE,
    OPERATOR_NAME,
)
from fairlead.api.names import SYSTEM_NAMESPACE as NAMESPACE
from fairlead.local.apiserver.status import Json

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports of this machine's loopback interface."""

    gateway: int
    gateway_control: int
    operator: int


def operator_settings(gateway_url: str, port: int) -> Json:
    """The operator's settings file: local mode may serve folders of this machine."""
    return {"gatewayUrl": gateway_url, "allowFileSources": True, "host": HOST, "port": port}


def system_deployments(ports: Ports, settings: Path) -> list[Json]:
    """The Deployments `fairlead-operator` and `fairlead-gateway`; both on the machine's own address."""
    operator = ["operator", "--settings", str(settings)]
    gateway = ["gateway", "--host", HOST, "--port", str(ports.gateway), "--control-port", str(ports.gateway_control)]
    # Nobody watches a gateway of one machine through a slow chain of caches, so it need not linger when told to go.
    gateway += ["--drain-delay", "0.5", "--drain-timeout", "5"]
    return [
        _deployment(OPERATOR_NAME, "operator", operator, ports.operator),
        _deployment(GATEWAY_NAME, "gateway", gateway, ports.gateway_control),
    ]


def _deployment(name: str, component: str, args: list[str], port: int) -> Json:
    selector = {LABEL_NAME: name}
    labels = {**selector, LABEL_COMPONENT: component, LABEL_MANAGED_BY: "fairlead-local"}
    container = {
        "name": component,
        "image": f"{OPERATOR_IMAGE}:{__version__}",
        "args": args,
        "ports": [{"name": CONTROL_PORT_NAME, "containerPort": port, "protocol": "TCP"}],
        "startupProbe": _probe("/ready", port, period=1, failures=120),
        "readinessProbe": _probe("/ready", port, period=2, failures=2),
        "livenessProbe": _probe("/health", port, period=10, failures=3),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    pod = {"hostNetwork": True, "terminationGracePeriodSeconds": 10, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # two could not listen on the same port
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _probe(path: str, port: int, *, period: int, failures: int) -> Json:
    get = {"path": path, "port": port}
    return {"httpGet": get, "periodSeconds": period, "timeoutSeconds": 2, "failureThreshold": failures}
