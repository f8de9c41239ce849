"""Waiting for the system's Deployments: says what is waited for, and gives up as soon as waiting is in vain."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from fairlead_local.apiserver.operations import Operations
from fairlead_local.apiserver.resources import DEPLOYMENTS, PODS
from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.tables import pod_reason
from fairlead_local.fleet_state import FleetError

PATIENCE_SECONDS = 120.0
_HOPELESS_RESTARTS = 3
_POLL_SECONDS = 0.1
_TAIL_LINES = 20


async def wait_until_ready(operations: Operations, data: Path, namespace: str, say: Callable[[str], None]) -> None:
    """Returns when every Deployment of the namespace is available. Raises FleetError with the reason and the log."""
    waiting = {deployment["metadata"]["name"] for deployment in operations.list(DEPLOYMENTS, namespace)}
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while waiting:
        for name in sorted(waiting):
            if _is_ready(operations.get(DEPLOYMENTS, namespace, name)):
                say(f"{name} is ready")
                waiting.discard(name)
        for pod in operations.list(PODS, namespace):
            if _is_hopeless(pod):
                raise FleetError(_failure(pod, data))
        if waiting and asyncio.get_running_loop().time() > deadline:
            names = ", ".join(sorted(waiting))
            tails = "".join(_tail(pod, data) for pod in operations.list(PODS, namespace))
            raise FleetError(f"{names} did not become ready within {PATIENCE_SECONDS:g} s{tails}")
        await asyncio.sleep(_POLL_SECONDS)


def _is_ready(deployment: Json) -> bool:
    status, wanted = deployment.get("status") or {}, deployment["spec"]["replicas"]
    if status.get("observedGeneration") != deployment["metadata"]["generation"]:
        return False
    return all(status.get(name, 0) == wanted for name in ("replicas", "updatedReplicas", "availableReplicas"))


def _is_hopeless(pod: Json) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(status["restartCount"] >= _HOPELESS_RESTARTS for status in statuses)


def _failure(pod: Json, data: Path) -> str:
    name = pod["metadata"]["name"]
    return f"{name} keeps ending ({pod_reason(pod)}){_tail(pod, data)}"


def _tail(pod: Json, data: Path) -> str:
    """The last lines of what the pod's containers wrote, newest run last."""
    logs = sorted(
        (data / "pods" / pod["metadata"]["uid"] / "logs").glob("*/*.log"), key=lambda path: path.stat().st_mtime
    )
    written = [path.read_text(errors="replace").strip() for path in logs]
    lines = next((text for text in reversed(written) if text), "").splitlines()[-_TAIL_LINES:]
    return "".join(f"\n  {line}" for line in [f"the log of {pod['metadata']['name']}:", *lines]) if lines else ""
