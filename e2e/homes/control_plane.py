"""A genuine API server with its controllers, and the operator of this tree as a process beside it: what can be shown
without a node. It has a namespace of its own, and the operator the rights of the chart there and no others.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from cluster.layout import Layout
from cluster.node import Node
from helm import objects, render

from fairlead.api.names import CRD_NAME, LEASE_NAME
from homes.kubectl import Json, Kubectl

VALUES = {"operator": {"leaseDuration": "8s", "resyncInterval": "3s", "logLevel": "debug"}}
"""Of the chart: a takeover and many a second look within a test. Nobody starts an operator again that lost its Lease on
a machine whose processes wait for seconds."""
ACCOUNT = "fairlead-operator"
GRANTED = ("ServiceAccount", "Role", "RoleBinding")
STOP_SECONDS = 30.0
SECONDS_TO_KILL = 10.0


class OperatorProcess:
    """One `fairlead operator`."""

    def __init__(self, kubeconfig: Path, settings: Path, log: Path) -> None:
        """Starts it; `log` takes what it prints."""
        self._log = log
        files = ["--kubeconfig", str(kubeconfig), "--settings", str(settings)]
        command = [sys.executable, "-m", "fairlead", "operator", *files]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent, start_new_session=True
            )  # a Ctrl-C is for the tests, which then stop it

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def stop(self) -> int:
        """Asks it to end, as the kubelet does; its exit status."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """Ends it without a chance to say goodbye."""
        self._process.kill()
        self._process.wait(SECONDS_TO_KILL)


class ControlPlane(Kubectl):
    """An administrator's view of the API server, and the operators started here."""

    patience = 90.0
    namespace = "fairlead-control-plane"

    def __init__(self, kubeconfig: Path, folder: Path, program: str) -> None:
        """`kubeconfig`: the administrator's, complete in itself, with one context. `folder`: for the operators' files;
        it exists. `program`: kubectl."""
        self.kubeconfig = kubeconfig
        self.program = program
        self._folder = folder
        self._operators: list[OperatorProcess] = []

    @property
    def operator_kubeconfig(self) -> Path:
        """How the operators reach the API server: with their ServiceAccount's token."""
        return self._folder / "operator.kubeconfig"

    @property
    def operator(self) -> OperatorProcess:
        """The one that leads, or is about to: the oldest that runs."""
        return next(each for each in self._operators if each.is_running)

    @property
    def holder(self) -> str:
        """Who has the Lease; empty = nobody."""
        holder = "jsonpath={.spec.holderIdentity}"
        return self.kubectl("get", "lease", LEASE_NAME, "--ignore-not-found", "-o", holder).stdout

    def install(self) -> None:
        """The chart's ServiceAccount and Roles for the operator; its settings, and a kubeconfig with a token."""
        chart = objects(render(VALUES, namespace=self.namespace))
        self.apply(*(each for each in chart if each["kind"] in GRANTED and _is_operators(each)))
        (settings,) = (each for each in chart if each["kind"] == "ConfigMap" and each["metadata"]["name"] == ACCOUNT)
        # Several operators share this machine's ports, and nobody probes them.
        content: Json = {**yaml.safe_load(settings["data"]["operator.yaml"]), "port": 0}
        self._settings.write_text(yaml.safe_dump(content))
        kubeconfig: Json = yaml.safe_load(self.kubeconfig.read_text())
        kubeconfig["users"] = [
            {"name": user["name"], "user": {"token": self.token(self.namespace, ACCOUNT)}}
            for user in kubeconfig["users"]
        ]
        self.operator_kubeconfig.touch(mode=0o600)
        self.operator_kubeconfig.write_text(yaml.safe_dump(kubeconfig))

    @property
    def _settings(self) -> Path:
        return self._folder / "operator.yaml"

    def start_operator(self) -> OperatorProcess:
        """One more. It leads when no other does."""
        log = self._folder / f"operator-{len(self._operators)}.log"
        started = OperatorProcess(self.operator_kubeconfig, self._settings, log)
        self._operators.append(started)
        return started

    def stop_operators(self) -> list[int]:
        """Their exit statuses, of those that still run."""
        return [each.stop() for each in self._operators if each.is_running]

    def kill_operators(self) -> None:
        """Whatever became of them."""
        for each in self._operators:
            each.kill()

    def state(self) -> str:
        return "\n".join([super().state(), *(each.log[-8000:] for each in self._operators)])


def _is_operators(manifest: Json) -> bool:
    """Whether it is the operator's own, by the chart's label."""
    return bool(manifest["metadata"]["labels"]["app.kubernetes.io/component"] == "operator")


@contextmanager
def own_control_plane() -> Iterator[Path]:
    """etcd, API server, controller-manager and scheduler on this machine's loopback, without a node; gives the
    kubeconfig. A node that is up here is another one, and stays as it is."""
    state = Layout.default().state
    layout = Layout(state.with_name(f"{state.name}-control-plane"))
    with Node(control_plane_only=True, layout=layout) as plane:
        yield plane.kubeconfig


@contextmanager
def control_plane(kubeconfig: Path, folder: Path, program: str, *, with_crd: bool) -> Iterator[ControlPlane]:
    """With an operator that leads; everything is removed again. `program`: kubectl. `with_crd`: bring the CRD along,
    and remove it where it was not there before; False where a fleet on the same cluster takes care of it."""
    plane = ControlPlane(kubeconfig, folder, program)
    plane.claim_namespace(plane.namespace)
    created_crd = with_crd and plane.apply_crd()
    try:
        plane.install()
        operator = plane.start_operator()
        plane.wait("the operator to lead", lambda: plane.holder or not operator.is_running)
        assert operator.is_running, operator.log
        yield plane
        plane.kubectl("delete", "llm", "--all", "--timeout=60s")
        assert plane.stop_operators() == [0], plane.state()
        assert not plane.holder, "an operator that ends gives its Lease back"
    finally:
        plane.kill_operators()
        plane.kubectl("delete", "namespace", plane.namespace, "--timeout=80s")
        if created_crd:
            plane.kubectl("delete", "crd", CRD_NAME, "--timeout=60s")
