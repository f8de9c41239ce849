"""A Kubernetes cluster of one node, from nothing to Ready and back to nothing.

`Node.up` tells the order in which things are made, `take_down` the order in which they go. What each component needs
to run is control_plane's and worker's business; what isolates them from the host is network's and cgroups'.
"""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import dns.exception
import dns.message
import dns.query
from caches import using

from cluster import cgroups, control_plane, network, processes, worker
from cluster.api import Api, ApiError
from cluster.commands import ClusterError, Progress, run, tail
from cluster.control_plane import Endpoints
from cluster.layout import API_SERVICE_ADDRESS, CLUSTER_DOMAIN, NAME, NODE_ADDRESS, Layout
from cluster.processes import ComponentFailed, Process, Record, Starter
from cluster.programs import Binaries, cache_root, obtain

PATIENCE_SECONDS = 180.0
"""How long any one step of a start may take, on a machine that is busy with other things."""
_POLL_SECONDS = 0.1
_NODE, _CONTROL_PLANE = "node", "control-plane"
_CALLED = {_NODE: "a whole node", _CONTROL_PLANE: "a control plane alone"}


class Node:
    """The one node of this machine. As a context manager it is up in the block, and down after unless it was up before.

    `control_plane_only`: etcd, API server, controller-manager, scheduler as plain processes on loopback; no pods run.
    """

    def __init__(
        self, *, control_plane_only: bool = False, layout: Layout | None = None, progress: Progress | None = None
    ) -> None:
        self.mode = _CONTROL_PLANE if control_plane_only else _NODE
        self.layout = layout or Layout.default()
        self.progress = progress or Progress()
        self.started_here = False
        """Whether this object started it, and `with` takes it down in the end."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.layout.kubeconfig

    def up(self) -> "Node":
        """Starts the cluster unless it runs already, getting Kubernetes first where the cache lacks it.

        What a killed start has left is removed first. A start that fails, or is interrupted, removes what it had made;
        the error is a ClusterError with the end of the log of the component that failed. So is a cluster of the other
        mode that runs in this state folder: nobody's node goes because somebody else wants a control plane.
        """
        binaries = obtain(self.progress)
        with _exclusively(self.layout), using(binaries.folder):
            self._refuse_other_mode()
            if self._runs(binaries):
                self.progress.say("the cluster is up already")
                return self
            take_down(self.layout)
            self.layout.state.mkdir(parents=True, exist_ok=True)
            if self.mode == _NODE:
                network.refuse_strangers()
                network.refuse_hidden(self.layout.state, binaries.folder, Path(sys.executable).absolute())
            record = Record(self.layout.record, mode=self.mode, build=binaries.folder.name)
            try:
                _Start(self.layout, binaries, record, self.progress).run()
            except BaseException:
                with _undisturbed():
                    take_down(self.layout)
                raise
        self.started_here = True
        return self

    def down(self) -> None:
        """Stops the cluster and removes everything that was made for it; does nothing when there is none."""
        if self.layout.state.is_dir():
            with _exclusively(self.layout), _undisturbed():
                take_down(self.layout)

    def load_image(self, archive: Path) -> None:
        """Imports a docker-archive or OCI archive into the node."""
        load_image(self.layout, archive)

    def __enter__(self) -> "Node":
        return self.up()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.started_here:
            self.down()

    def _refuse_other_mode(self) -> None:
        record = Record.read(self.layout.record)
        if record is None or record.mode == self.mode or not record.living():
            return
        raise ClusterError(
            f"{_CALLED[record.mode].capitalize()} is up in {self.layout.state}, and {_CALLED[self.mode]} would take "
            f"its place. Give this one a folder of its own (FAIRLEAD_E2E_STATE={self.layout.state}-2, say), or end "
            "the other first: `PYTHONPATH=e2e python -m cluster down`."
        )

    def _runs(self, binaries: Binaries) -> bool:
        """Whether a cluster of this mode and build is up, with every process that it was started with."""
        record = Record.read(self.layout.record)
        if record is None or (record.mode, record.build) != (self.mode, binaries.folder.name):
            return False
        wanted = {*control_plane.ORDER} if self.mode == _CONTROL_PLANE else {*control_plane.ORDER, *_WORKER}
        return wanted <= record.living().keys() and _answers(self.kubeconfig)


_WORKER = ("containerd", "kubelet", "kube-proxy", "dns")


class _Start:
    """One start; `run` tells the order. Knows nothing of taking down: the record it keeps is enough for that."""

    def __init__(self, layout: Layout, binaries: Binaries, record: Record, progress: Progress) -> None:
        self.layout, self.binaries, self.record, self.progress = layout, binaries, record, progress
        environment = {"PATH": binaries.search_path, "HOME": "/root", "LANG": "C.UTF-8"}
        self.starter = Starter(record, layout.logs, environment)
        self.with_worker = record.mode == _NODE

    def run(self) -> None:
        for folder in (self.layout.logs, self.layout.configuration):
            folder.mkdir(parents=True, exist_ok=True)
        self.layout.state.chmod(0o755)
        endpoints = self._make_place()
        control_plane.make_pki(self.layout, endpoints)
        self.progress.say("certificates made")
        if self.with_worker:
            self._start_containerd()
        self._start_control_plane(endpoints)
        if self.with_worker:
            self._start_worker()

    def _make_place(self) -> Endpoints:
        """Makes the namespaces, link and cgroups that the node lives in; a control plane alone needs only ports."""
        if not self.with_worker:
            self.record.save()
            return Endpoints(control_plane.LOOPBACK, *_free_ports(3))
        self.record.mounted_netns_folder = not network.netns_folder_is_mounted()
        self.record.save()
        network.create_namespace()
        anchor, outer = network.start_anchor(self.layout, self.binaries.program("pause"))
        self.record.processes = {"anchor": anchor, "namespaces": outer}
        self.record.save()
        self.starter.prefix = network.enter(anchor)
        network.connect()
        cgroups.create(NAME)
        return Endpoints(NODE_ADDRESS)

    def _start_containerd(self) -> None:
        worker.write_configuration(self.layout, self.binaries)
        self.starter.start("containerd", *worker.commands(self.layout, self.binaries)["containerd"])

    def _start_control_plane(self, endpoints: Endpoints) -> None:
        commands = control_plane.commands(self.layout, self.binaries, endpoints)
        self.starter.start("etcd", *commands["etcd"])
        self.starter.start("kube-apiserver", *commands["kube-apiserver"])
        self.api = Api(self.layout.kubeconfig)
        self._wait_for("the API server to be ready", "kube-apiserver", lambda: self.api.get("/readyz") == "ok")
        for component in ("kube-controller-manager", "kube-scheduler"):
            self.starter.start(component, *commands[component])
        if not self.with_worker:
            self._wait_for_default_account()

    def _start_worker(self) -> None:
        commands = worker.commands(self.layout, self.binaries)
        self._wait_for("containerd to answer", "containerd", lambda: bool(ctr(self.layout, "version")))
        load_image(self.layout, self.binaries.pause_archive)
        self.starter.start("kubelet", *commands["kubelet"])
        self.starter.start("kube-proxy", *commands["kube-proxy"])
        package_root = str(Path(__file__).parent.parent)
        self.starter.start(
            "dns", sys.executable, "-m", "cluster.dns", NODE_ADDRESS, self.layout.pki / "dns.kubeconfig",
            PYTHONPATH=package_root, PYTHONDONTWRITEBYTECODE="1",
        )  # fmt: skip
        self._wait_for_default_account()
        self._wait_for("the node to be Ready", "kubelet", self._is_ready)
        self._wait_for("kube-proxy to route to Services", "kube-proxy", lambda: _connects(API_SERVICE_ADDRESS, 443))
        self._wait_for("DNS to answer", "dns", _dns_answers)

    def _wait_for_default_account(self) -> None:
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        self._wait_for("the default ServiceAccount", "kube-controller-manager", lambda: bool(self.api.get(path)))

    def _is_ready(self) -> bool:
        return _condition(self.api.get(f"/api/v1/nodes/{NAME}"), "Ready") == "True"

    def _wait_for(self, what: str, component: str, holds: Callable[[], bool]) -> None:
        """Waits until `holds`; errors of its own are reasons to go on waiting, a component that has ended is none."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        last = "it said nothing"
        while True:
            try:
                if holds():
                    break
            except (ApiError, ClusterError, OSError) as error:
                last = str(error)
            self.starter.check()
            if time.monotonic() > deadline:
                problem = f"Waited {PATIENCE_SECONDS:.0f} s for {what} ({last})"
                raise ComponentFailed(component, problem, self.layout.logs)
            time.sleep(_POLL_SECONDS)
        self.progress.say(f"{what}: done")


def take_down(layout: Layout) -> None:
    """Stops and removes what the record of `layout` says was made; the folder too, if nothing else is in it."""
    record = Record.read(layout.record)
    if record is not None and record.mode == _NODE:
        _take_down_node(record)
    elif record is not None:
        processes.stop(reversed(list(record.living().values())))
    for path in (layout.root, layout.etcd, layout.configuration, layout.pki, layout.logs):
        shutil.rmtree(path, ignore_errors=True)
    for file in (layout.kubeconfig, layout.record.with_suffix(".partial"), layout.record):
        file.unlink(missing_ok=True)
    if layout.state.is_dir() and not any(layout.state.iterdir()):
        layout.state.rmdir()


def _take_down_node(record: Record) -> None:
    """Kills PID 1 of the node's namespaces, with which the kernel ends every process and frees every mount in them."""
    living = record.living()
    for name in ("anchor", *(name for name in living if name != "anchor")):
        if name in living:
            living[name].signal(signal.SIGKILL)
    strays = [Process.of(pid) for pid in _pids_in_namespace()]  # a start may have been killed before it wrote them down
    for process in [*living.values(), *(stray for stray in strays if stray)]:
        process.signal(signal.SIGKILL)
        if not process.wait_gone(30):
            raise ClusterError(f"Process {process.pid} of the node does not end, though it was killed.")
    network.disconnect()
    if record.mounted_netns_folder:
        network.unmount_netns_folder()
    if remaining := cgroups.remove(NAME):
        raise ClusterError(f"These cgroups still hold something: {', '.join(map(str, remaining))}.")


def _pids_in_namespace() -> list[int]:
    return [int(pid) for pid in run("ip", "netns", "pids", NAME).split()] if network.NETNS.exists() else []


def ctr(layout: Layout, *arguments: str) -> str:
    """Runs containerd's own client, on the node's containerd."""
    return run(*_ctr_command(layout), *arguments, timeout=60)


def _ctr_command(layout: Layout) -> list[str]:
    record = Record.read(layout.record)
    if record is None or record.mode != _NODE:
        raise ClusterError("No node is up here: `python -m cluster up` starts one.")
    binaries = Binaries(cache_root() / record.build)
    socket_file = f"{layout.root}/run/containerd/containerd.sock"
    return [str(binaries.program("ctr")), "--address", socket_file, "--namespace", "k8s.io"]


def load_image(layout: Layout, archive: Path) -> None:
    """Imports an image archive into the running node of `layout`."""
    command = _ctr_command(layout)
    try:
        source = archive.open("rb")
    except OSError as error:
        raise ClusterError(f"{archive} cannot be read: {error.strerror}.") from error
    with source:
        # Standard input, because the node's containerd may not see the file under its name.
        imported = subprocess.run(
            [*command, "images", "import", "-"],
            stdin=source, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if imported.returncode != 0:
        raise ClusterError(f"{archive} could not be imported: {tail(imported.stdout + imported.stderr, 5)}")


def status(layout: Layout) -> dict[str, Any]:
    """What is there: mode, the processes on record and whether each lives, and what the API server says of itself."""
    record = Record.read(layout.record)
    if record is None:
        return {"mode": None}
    living = record.living()
    found: dict[str, Any] = {"mode": record.mode, "build": record.build, "kubeconfig": str(layout.kubeconfig)}
    found["processes"] = {name: "running" if name in living else "gone" for name in record.processes}
    try:
        api = Api(layout.kubeconfig)
        found["version"] = api.get("/version")["gitVersion"]
        found["nodes"] = {
            node["metadata"]["name"]: "Ready" if _condition(node, "Ready") == "True" else "NotReady"
            for node in api.get("/api/v1/nodes")["items"]
        }
    except (ApiError, OSError) as error:
        found["version"] = f"no answer: {error}"
    return found


def _condition(thing: dict[str, Any], kind: str) -> str:
    conditions = thing.get("status", {}).get("conditions", [])
    return next((str(condition["status"]) for condition in conditions if condition["type"] == kind), "Unknown")


def _answers(kubeconfig: Path) -> bool:
    try:
        return bool(Api(kubeconfig).get("/readyz") == "ok")
    except (ApiError, OSError):
        return False


def _free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _connects(address: str, port: int) -> bool:
    with socket.create_connection((address, port), timeout=1):
        return True


def _dns_answers() -> bool:
    """Whether the DNS server gives the API server's own Service the address it has."""
    query = dns.message.make_query(f"kubernetes.default.svc.{CLUSTER_DOMAIN}", "A")
    try:
        answer = dns.query.udp(query, NODE_ADDRESS, timeout=1).answer
    except dns.exception.DNSException as error:
        raise ClusterError(str(error)) from error
    return API_SERVICE_ADDRESS in str(answer)


@contextmanager
def _exclusively(layout: Layout) -> Iterator[None]:
    """One `up` or `down` at a time for one state folder; the lock is the folder itself, so it leaves no file."""
    layout.state.mkdir(parents=True, exist_ok=True)
    folder = os.open(layout.state, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """While it lasts a second Ctrl-C, or a SIGTERM, does not interrupt the taking down."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
