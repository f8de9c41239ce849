"""A Kubernetes cluster of one node, from nothing to Ready and back to nothing.

`Node.up` tells the order in which things are made, `take_down` the order in which they go, and `Node.upgrade` the one
in which they are replaced. What each component needs to run is control_plane's and worker's business; what isolates
them from the host is network's and cgroups'.
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
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import dns.exception
import dns.message
import dns.query

from cluster import cgroups, control_plane, network, processes, worker
from cluster.api import Api, ApiError
from cluster.commands import ClusterError, Progress, run, tail
from cluster.control_plane import Endpoints
from cluster.layout import API_SERVICE_ADDRESS, CLUSTER_DOMAIN, NAME, NODE_ADDRESS, Layout
from cluster.processes import ComponentFailed, Process, Record, Starter
from cluster.programs import Binaries, cache_root, obtain

PATIENCE_SECONDS = 180.0
"""How long any one step of a start may take, on a machine that is busy with other things."""
STOP_SECONDS = 10.0
"""How long a component may take to end. (An API server that somebody still follows a log through would take 60.)"""
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
        with _exclusively(self.layout):
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

    @property
    def version(self) -> str:
        """The version of Kubernetes that runs, such as `1.36.3`. Raises ClusterError where no node is up."""
        return _binaries(_whole_node(self.layout)).version

    def upgrade(self, version: str) -> None:
        """Replaces Kubernetes by another version in place, component by component; containers go on running.

        An upgrade that fails, or is killed, leaves the node as it is at that moment, for whoever wants to know why: it
        is on record, `upgrade` does all of it again, `up` begins anew and `down` removes it. `version`: in full. Raises
        ClusterError, also where Kubernetes itself supports no such step.
        """
        with _exclusively(self.layout):
            record = _whole_node(self.layout)
            if problem := upgrade_problem(_binaries(record).version, version):
                raise ClusterError(problem)
            binaries = obtain(self.progress, version)
            if record.build == binaries.folder.name and not record.upgrading_to:
                self.progress.say(f"the node is of {version} already")
                return
            _Upgrade(self.layout, binaries, record, self.progress).run()

    @contextmanager
    def without(self, *names: str) -> Iterator[None]:
        """Within the block these components are dead, killed as by a crash; then they are started again in the same
        order, and awaited."""
        with _exclusively(self.layout):
            record = _whole_node(self.layout)
            components = _Components(self.layout, _binaries(record), record, self.progress)
            for name in reversed(names):
                components.stop(name, patience_seconds=0)
            try:
                yield
            finally:
                for name in names:
                    components.start(name)

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
        if record.upgrading_to:
            return False
        wanted = {*control_plane.ORDER} if self.mode == _CONTROL_PLANE else {*control_plane.ORDER, *_WORKER}
        return wanted <= record.living().keys() and _answers(self.kubeconfig)


_WORKER = ("containerd", "kubelet", "kube-proxy", "dns")


class _Components:
    """The components of one cluster, on record: how each is started, awaited and stopped."""

    def __init__(self, layout: Layout, binaries: Binaries, record: Record, progress: Progress) -> None:
        self.layout, self.binaries, self.record, self.progress = layout, binaries, record, progress
        environment = {"PATH": binaries.search_path, "HOME": "/root", "LANG": "C.UTF-8"}
        self.starter = Starter(record, layout.logs, environment)
        if anchor := record.processes.get("anchor"):
            self.starter.prefix = network.enter(anchor)
        self.endpoints = Endpoints(NODE_ADDRESS)

    @cached_property
    def api(self) -> Api:
        return Api(self.layout.kubeconfig)

    def start(self, component: str) -> None:
        """Starts a component of Kubernetes, or etcd, and waits until it does its work as far as that can be seen."""
        commands = control_plane.commands(self.layout, self.binaries, self.endpoints)
        self.starter.start(component, *(commands | worker.commands(self.layout, self.binaries))[component])
        match component:
            case "kube-apiserver":
                self.wait_for("the API server to be ready", component, self._is_api_server_ready)
            case "kubelet":
                self.wait_for("the node to be Ready", component, self._is_node_ready)
            case "kube-proxy":
                route = "kube-proxy to route to Services"
                self.wait_for(route, component, lambda: _connects(API_SERVICE_ADDRESS, 443))

    def stop(self, component: str, patience_seconds: float = STOP_SECONDS) -> None:
        """Asks a component to end, and kills it after so many seconds, as kubelets end what runs a control plane.

        One that no record knows of is found, too.
        """
        programs = [process for pid in _pids_in_namespace() if (process := _called(pid, component))]
        processes.stop(programs, patience_seconds)
        # What entered the namespaces for it, which the record names, waits for it and ends with it.
        recorded = self.record.processes.get(component)
        for process in [*programs, *([recorded] if recorded else [])]:
            if not process.wait_gone(PATIENCE_SECONDS):
                raise ComponentFailed(component, f"{component} does not end, though it was killed", self.layout.logs)

    def wait_for(self, what: str, component: str, holds: Callable[[], bool]) -> None:
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

    def _is_api_server_ready(self) -> bool:
        return bool(self.api.get("/readyz") == "ok")

    def _is_node_ready(self) -> bool:
        """Whether it is, by the word of the kubelet that runs now."""
        node = self.api.get(f"/api/v1/nodes/{NAME}")
        told = node["status"]["nodeInfo"]["kubeletVersion"].removeprefix("v")
        return told == self.binaries.version and _condition(node, "Ready") == "True"


class _Start(_Components):
    """One start; `run` tells the order. Knows nothing of taking down: the record it keeps is enough for that."""

    def run(self) -> None:
        self.with_worker = self.record.mode == _NODE
        for folder in (self.layout.logs, self.layout.configuration):
            folder.mkdir(parents=True, exist_ok=True)
        self.layout.state.chmod(0o755)
        self.endpoints = self._make_place()
        control_plane.make_pki(self.layout, self.endpoints)
        self.progress.say("certificates made")
        if self.with_worker:
            worker.write_configuration(self.layout, self.binaries)
            self.starter.start("containerd", *worker.commands(self.layout, self.binaries)["containerd"])
        for component in control_plane.ORDER:
            self.start(component)
        if self.with_worker:
            self._start_worker()
        else:
            self._wait_for_default_account()

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
        return self.endpoints

    def _start_worker(self) -> None:
        self.wait_for("containerd to answer", "containerd", lambda: bool(ctr(self.layout, "version")))
        load_image(self.layout, self.binaries.pause_archive)
        package_root = str(Path(__file__).parent.parent)
        self.starter.start(
            "dns", sys.executable, "-m", "cluster.dns", NODE_ADDRESS, self.layout.pki / "dns.kubeconfig",
            PYTHONPATH=package_root, PYTHONDONTWRITEBYTECODE="1",
        )  # fmt: skip
        self.start("kubelet")
        self._wait_for_default_account()
        self.start("kube-proxy")
        self.wait_for("DNS to answer", "dns", _dns_answers)

    def _wait_for_default_account(self) -> None:
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        self.wait_for("the default ServiceAccount", "kube-controller-manager", lambda: bool(self.api.get(path)))


class _Upgrade(_Components):
    """One upgrade of a whole node. etcd's data stay, and so does containerd with all that it runs: it is the same one
    in every version, and the build that it was started from stays in the cache while it runs."""

    def run(self) -> None:
        self.record.upgrading_to = self.binaries.folder.name
        self.record.save()
        for component in (*control_plane.ORDER, "kubelet", "kube-proxy"):
            self.stop(component)
            if component == "kubelet":  # not earlier: kube-proxy ends when its file is written
                worker.write_configuration(self.layout, self.binaries)
            self.start(component)
            self.progress.say(f"{component} is of {self.binaries.version}")
        self.record.build, self.record.upgrading_to = self.binaries.folder.name, ""
        self.record.save()


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


def _called(pid: int, component: str) -> Process | None:
    """The process of that number, where it is a component's program. (Their files are one, called by several names.)"""
    process = Process.of(pid)
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return process if Path(os.fsdecode(words[0])).name == component else None


def _whole_node(layout: Layout) -> Record:
    """The record of the node that is up. Raises ClusterError where there is none."""
    record = Record.read(layout.record)
    if record is None or record.mode != _NODE or "anchor" not in record.living():
        raise ClusterError("No node is up here: `python -m cluster up` starts one.")
    return record


def _binaries(record: Record) -> Binaries:
    return Binaries(cache_root() / record.build)


def upgrade_problem(current: str, wanted: str) -> str:
    """Why a node of one version of Kubernetes is not replaced by another; empty where nothing speaks against it."""
    before, after = (tuple(map(int, version.split("."))) for version in (current, wanted))
    if after < before:
        return f"The node is of Kubernetes {current}, and what it has stored need not be readable for {wanted}."
    if (before[0], before[1] + 1) < after[:2]:
        return f"The node is of Kubernetes {current}: it is upgraded by one minor version at a time, not to {wanted}."
    return ""


def _ctr_command(layout: Layout) -> list[str]:
    binaries = _binaries(_whole_node(layout))
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
    if record.upgrading_to:
        found["upgrading_to"] = record.upgrading_to
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
