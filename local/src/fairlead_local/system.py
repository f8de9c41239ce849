"""The installation of a fleet: the API of LLMDeployments, the operator and the gateways as Deployments of the system
namespace; and the wait for ready Deployments, given up as soon as it is in vain."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fairlead import __version__
from fairlead.api import names
from fairlead_local.apiserver.operations import Operations
from fairlead_local.apiserver.replies import pod_reason
from fairlead_local.apiserver.resources import DEPLOYMENTS, PODS
from fairlead_local.apiserver.status import Json
from fairlead_local.controllers.rollout import is_complete
from fairlead_local.fleet_state import FleetError, FleetFolder

HOST = "127.0.0.1"
GATEWAY_DRAIN_SECONDS = 300
"""Time for a replaced gateway to finish streams; `fairlead local down` does not wait so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports of this machine's loopback interface."""

    gateway: int
    operator: int


@cache
def crd() -> Json:
    """The CustomResourceDefinition of LLMDeployments, as `make crds` has written it. Do not change the result."""
    definition: Json = json.loads(Path(__file__).with_name("crd.json").read_bytes())
    return definition


def operator_settings(gateway_url: str, port: int, claims: Path, models: Path) -> Json:
    """The settings file of the operator: local mode may serve folders of this machine, pods have no mounts, and the API
    lacks the kinds that guard and watch engines. `claims`: folder of all claims. `models`: folder of downloaded models,
    for `model.cache.node`."""
    absent = dict.fromkeys(("networkPolicies", "podDisruptionBudgets", "podMonitors"), False)
    local = {"allowFileSources": True, "claimsFolder": str(claims), "nodeModelsFolder": str(models)}
    return {"gatewayUrl": gateway_url, "host": HOST, "port": port} | local | absent


def system_deployments(ports: Ports, settings: Path, num_gateways: int) -> list[Json]:
    """The Deployments `fairlead-operator`, at the machine's address, and `fairlead-gateway`, each pod at its own."""
    words = ["operator", "--settings", str(settings)]
    operator = _deployment(names.OPERATOR_NAME, "operator", words, ports.operator)
    operator["spec"]["strategy"] = {"type": "Recreate"}  # two could not listen on the same port
    operator["spec"]["template"]["spec"] |= {"hostNetwork": True, "terminationGracePeriodSeconds": 10}
    arguments = ["gateway", "--host", "$(POD_IP)", "--no-api-keys"]  # only this machine's loopback reaches it
    # Clients of one machine hear of a leaving gateway at once: it need not linger.
    arguments += ["--drain-delay", "1", "--drain-timeout", str(GATEWAY_DRAIN_SECONDS)]
    gateways = _deployment(names.GATEWAY_NAME, "gateway", arguments, names.GATEWAY_CONTROL_PORT)
    gateways["spec"] |= {
        "replicas": num_gateways,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
    }
    pod = gateways["spec"]["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = GATEWAY_DRAIN_SECONDS + 10
    pod["containers"][0]["env"] = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    return [operator, gateways]


def _deployment(name: str, component: str, args: list[str], port: int) -> Json:
    selector = {names.LABEL_NAME: name}
    labels = {
        **selector,
        names.LABEL_COMPONENT: component,
        names.LABEL_PART_OF: names.PART_OF,
        names.LABEL_MANAGED_BY: "fairlead-local",
    }
    container = {
        "name": component,
        "image": f"{names.OPERATOR_IMAGE}:{__version__}",
        "args": args,
        "ports": [{"name": names.CONTROL_PORT_NAME, "containerPort": port, "protocol": "TCP"}],
        "startupProbe": _probe("/ready", port, period=1, failures=120),
        "readinessProbe": _probe("/ready", port, period=2, failures=2),
        # A frozen program obeys no SIGTERM; the wait would be as long as for a draining gateway.
        "livenessProbe": _probe("/health", port, period=5, failures=3) | {"terminationGracePeriodSeconds": 5},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    pod: Json = {"containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": names.SYSTEM_NAMESPACE, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _probe(path: str, port: int, *, period: int, failures: int) -> Json:
    get = {"path": path, "port": port}
    return {"httpGet": get, "periodSeconds": period, "timeoutSeconds": 2, "failureThreshold": failures}


PATIENCE_SECONDS = 120.0
_HOPELESS_RESTARTS = 3
_POLL_SECONDS = 0.1
_TAIL_LINES = 20


async def wait_until_ready(
    operations: Operations, folder: FleetFolder, namespace: str, say: Callable[[str], None]
) -> None:
    """Returns when every Deployment of the namespace is available. Raises FleetError with the reason and the log."""
    waiting = {deployment["metadata"]["name"] for deployment in operations.list(DEPLOYMENTS, namespace)}
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while waiting:
        for name in sorted(waiting):
            deployment = operations.get(DEPLOYMENTS, namespace, name)
            status = deployment.get("status") or {}
            is_current = status.get("observedGeneration") == deployment["metadata"]["generation"]
            if is_current and is_complete(deployment, status):
                say(f"{name} is ready")
                waiting.discard(name)
        for pod in operations.list(PODS, namespace):
            statuses = (pod.get("status") or {}).get("containerStatuses") or ()
            if any(status["restartCount"] >= _HOPELESS_RESTARTS for status in statuses):
                text = f"{pod['metadata']['name']} keeps ending ({pod_reason(pod)})"
                raise FleetError(text + _tail(pod, folder))
        if waiting and asyncio.get_running_loop().time() > deadline:
            missing = ", ".join(sorted(waiting))
            tails = "".join(_tail(pod, folder) for pod in operations.list(PODS, namespace))
            raise FleetError(f"{missing} did not become ready within {PATIENCE_SECONDS:g} s{tails}")
        await asyncio.sleep(_POLL_SECONDS)


def _tail(pod: Json, folder: FleetFolder) -> str:
    """The last lines of what the pod's containers wrote, newest run last."""
    logs = sorted(
        (folder.pods / pod["metadata"]["uid"] / "logs").glob("*/*.log"), key=lambda path: path.stat().st_mtime
    )
    written = [path.read_text(errors="replace").strip() for path in logs]
    lines = next((text for text in reversed(written) if text), "").splitlines()[-_TAIL_LINES:]
    return "".join(f"\n  {line}" for line in [f"the log of {pod['metadata']['name']}:", *lines]) if lines else ""
