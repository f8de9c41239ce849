"""One fleet for all scenarios: local mode, started and stopped by the real command, driven by kubectl and HTTP."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PATIENCE_SECONDS = 120.0
"""How long a scenario waits for the fleet before it fails with what it saw last; nothing is asserted about speed."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Fleet:
    """A running fleet and the ways a person reaches it."""

    folder: Path
    kubeconfig: Path
    gateway: str
    namespace: str = "default"
    environment: dict[str, str] = field(default_factory=dict)

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess:
        """Runs kubectl as a person would; fails the test with kubectl's own words unless `check` is off."""
        completed = subprocess.run(
            ["kubectl", "--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace, *arguments],
            input=stdin, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        if check and completed.returncode != 0:
            pytest.fail(f"kubectl {' '.join(arguments)}: {completed.stdout}{completed.stderr}")
        return completed

    def get(self, kind: str, name: str = "", *options: str) -> dict[str, Any]:
        arguments = [kind, *([name] if name else []), *options, "-o", "json"]
        return json.loads(self.kubectl("get", *arguments).stdout)

    def apply(self, *manifests: dict[str, Any], check: bool = True) -> subprocess.CompletedProcess:
        return self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests), check=check)

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        status = self.get("llm", name).get("status", {})
        return next((c for c in status.get("conditions", []) if c["type"] == kind), {})

    def wait(self, what: str, probe: Callable[[], Any], patience: float = PATIENCE_SECONDS) -> Any:
        """Polls until `probe` gives something true; on failure shows the state of the fleet."""
        deadline = time.monotonic() + patience
        while not (seen := probe()):
            if time.monotonic() > deadline:
                pytest.fail(f"waited {patience:.0f} s for {what}\n{self.state()}")
            time.sleep(0.2)
        return seen

    def wait_condition(self, name: str, kind: str, status: str, reason: str | None = None) -> dict[str, Any]:
        def probe() -> dict[str, Any] | None:
            condition = self.condition(name, kind)
            matches = condition.get("status") == status and reason in (None, condition.get("reason"))
            return condition if matches else None

        return self.wait(f"{name}: {kind}={status} {reason or ''}", probe)

    def wait_ready(self, name: str, replicas: int = 1) -> None:
        self.wait(
            f"{name} to have {replicas} ready replicas",
            lambda: (
                self.condition(name, "Ready").get("status") == "True"
                and self.get("llm", name)["status"].get("readyReplicas") == replicas
            ),
        )

    def children(self, name: str) -> list[str]:
        """Everything that carries the deployment's label."""
        listing = self.kubectl(
            "get", "deployments,replicasets,pods,services,configmaps", "-l", f"fairlead.dev/llmdeployment={name}",
            "-o", "name",
        )  # fmt: skip
        return listing.stdout.split()

    def state(self) -> str:
        """What a person would look at first when something is wrong."""
        parts = [
            self.kubectl("get", "llm,deployments,pods", "-A", "-o", "wide", check=False).stdout,
            self.kubectl("get", "llm", "-A", "-o", "yaml", check=False).stdout,
            self.kubectl("get", "events", "-A", check=False).stdout,
            self.kubectl(
                "logs", "-n", "fairlead-system", "deployment/fairlead-operator", "--tail=40", check=False
            ).stdout,
            self.kubectl(
                "logs", "-n", "fairlead-system", "deployment/fairlead-gateway", "--tail=40", check=False
            ).stdout,
        ]
        return "\n".join(parts)


def llm(name: str, source: str = "demo://dinghy", **spec: Any) -> dict[str, Any]:
    """An LLMDeployment as a person would write it."""
    model = {"source": source, **spec.pop("model", {})}
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name},
        "spec": {"model": model, "resources": {"profile": "cpu-small"}, "replicas": 1, **spec},
    }


def fairlead(*arguments: str, **options: Any) -> subprocess.CompletedProcess:
    """Runs the `fairlead` command."""
    return subprocess.run(
        [sys.executable, "-m", "fairlead", *arguments],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, **options,
    )  # fmt: skip


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A local fleet, shared by all scenarios of this process."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: the end-to-end scenarios need it")
    folder = tmp_path_factory.mktemp("fleet")
    port = free_port()
    started = fairlead(
        "local",
        "up",
        "--detach",
        "--data-dir",
        str(folder),
        "--api-port",
        str(free_port()),
        "--gateway-port",
        str(port),
        "--gateways",
        "2",
    )
    assert started.returncode == 0, started.stdout + started.stderr
    try:
        yield Fleet(folder, folder / "kubeconfig", f"http://127.0.0.1:{port}")
    finally:
        stopped = fairlead("local", "down", "--data-dir", str(folder))
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr


@pytest.fixture
def name() -> str:
    """A fresh LLMDeployment name, so that scenarios do not meet."""
    return f"boat-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def deployed(fleet: Fleet) -> Iterator[Callable[..., str]]:
    """Applies LLMDeployments and deletes them when the scenario is over."""
    names: list[str] = []

    def deploy(name: str, *args: Any, **spec: Any) -> str:
        names.append(name)
        fleet.apply(llm(name, *args, **spec))
        return name

    yield deploy
    for name in names:
        fleet.kubectl("delete", "llm", name, "--ignore-not-found", "--wait=false")


@pytest.fixture(scope="session")
def manifest() -> Callable[..., dict[str, Any]]:
    return llm


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess]:
    return fairlead


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Scenarios share one fleet, so they share one worker."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.xdist_group("fleet"))


os.environ.setdefault("OMP_NUM_THREADS", "1")
