"""Steady load from within the cluster: a pod that runs `streaming_load.py` and tells by its log what it sees.

So the clients meet what clients of a cluster meet, the Service and its endpoints, and no tunnel stands between.
"""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import streaming_load

from homes.fleet import Fleet
from homes.kubectl import OURS, Json, kept_running

SCRIPT = Path(streaming_load.__file__)
STOP_FILE = "/tmp/stop"
EVERYWHERE = [{"operator": "Exists"}]
"""Tolerations: the clients stay wherever engines are driven away."""


class ClusterLoad:
    """What the pod has told last."""

    def __init__(self) -> None:
        self._told: Json = {"begun": 0, "answers": 0, "verdict": [0, 0, 0], "problems": "", "final": False}
        self.started = False

    def hear(self, line: str) -> None:
        """A line of the pod's log; what is no JSON (a traceback, say) is kept among the problems."""
        try:
            told = json.loads(line)
        except ValueError:
            self._told = {**self._told, "problems": f"{self._told['problems']}\n{line}".strip()[-4000:]}
            return
        if told["answers"] >= self.num_answers:  # a log that is followed anew begins at its beginning
            self._told, self.started = told, True

    @property
    def num_begun(self) -> int:
        return int(self._told["begun"])

    @property
    def num_answers(self) -> int:
        return int(self._told["answers"])

    @property
    def verdict(self) -> tuple[int, int, int]:
        failed, truncated, different = self._told["verdict"]
        return int(failed), int(truncated), int(different)

    @property
    def problems(self) -> str:
        return str(self._told["problems"])

    @property
    def final(self) -> bool:
        """Whether every client has ended."""
        return bool(self._told["final"])


def load_pod(name: str, image: str, arguments: list[str], secret: tuple[str, str]) -> list[Json]:
    """The pod and the ConfigMap with its script. `secret`: name and key of the API key's Secret."""
    key = {"secretKeyRef": {"name": secret[0], "key": secret[1]}}
    container: dict[str, Any] = {
        "name": "load",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "/load/streaming_load.py", *arguments, "--stop-file", STOP_FILE],
        "env": [{"name": streaming_load.API_KEY_VARIABLE, "valueFrom": key}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "load", "mountPath": "/load"}, {"name": "tmp", "mountPath": "/tmp"}],
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "tolerations": EVERYWHERE,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "load", "configMap": {"name": name}}, {"name": "tmp", "emptyDir": {}}],
    }
    script = {"streaming_load.py": SCRIPT.read_text()}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": OURS}, "data": script},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": OURS}, "spec": pod},
    ]


@contextmanager
def cluster_load(
    fleet: Fleet, model: str, *, url: str, image: str, secret: tuple[str, str], num_clients: int
) -> Iterator[ClusterLoad]:
    """A pod that loads `model` from before the block to after it. `url`: of the gateway, as pods reach it."""
    name = f"load-{uuid.uuid4().hex[:6]}"
    arguments = ["--url", url, "--model", model, "--num-clients", str(num_clients)]
    fleet.apply(*load_pod(name, image, arguments, secret))
    load = ClusterLoad()
    try:
        fleet.wait("the load's pod to run", lambda: _phase(fleet, name) != "Pending")
        with kept_running(fleet.kubectl_command("logs", "--follow", name), load.hear):
            fleet.wait(f"the load to start\n{load.problems}", lambda: load.started or _phase(fleet, name) == "Failed")
            assert load.started, load.problems
            try:
                yield load
            finally:
                fleet.kubectl("exec", name, "--", "touch", STOP_FILE)
                fleet.wait("the load to end", lambda: _phase(fleet, name) in ("Succeeded", "Failed"))
        for line in fleet.kubectl("logs", name).stdout.splitlines()[-20:]:
            load.hear(line)
        assert load.final, f"the load ended without a verdict: {load.problems}"
    finally:
        fleet.delete("pod", name)
        fleet.delete("configmap", name)


def _phase(fleet: Fleet, name: str) -> str:
    return str(fleet.get("pod", name).get("status", {}).get("phase") or "Pending")
