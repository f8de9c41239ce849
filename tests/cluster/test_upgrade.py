"""A node whose Kubernetes is replaced: in which order, what is on record meanwhile, and what is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import node
from cluster.commands import ClusterError
from cluster.layout import Layout
from cluster.node import Node, upgrade_problem
from cluster.processes import Process, Record
from cluster.programs import Binaries

OLD, NEW = "1.36.3-aaaa", "1.37.2-bbbb"
ORDER = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"]


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to components, in its order; none of them is a process."""
    told: list[str] = []

    def obtain(_: object, version: str = "") -> Binaries:
        folder = tmp_path / "cache" / (NEW if version.startswith("1.37") else OLD)
        folder.mkdir(parents=True, exist_ok=True)
        return Binaries(folder)

    monkeypatch.setattr(node, "obtain", obtain)
    monkeypatch.setattr(node, "cache_root", lambda: tmp_path / "cache")
    monkeypatch.setattr(node.worker, "write_configuration", lambda *_: told.append("configuration"))
    monkeypatch.setattr(node._Components, "stop", lambda _, name: told.append(f"stop {name}"))
    monkeypatch.setattr(
        node._Components, "start", lambda self, name: told.append(f"start {name} of {self.binaries.version}")
    )
    return told


@pytest.fixture
def up(tmp_path: Path, process: Process, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node of the older version."""
    monkeypatch.setattr(node, "_answers", lambda kubeconfig: True)
    layout = Layout(tmp_path / "state")
    layout.state.mkdir()
    names = ("anchor", "containerd", *ORDER, "dns")
    Record(layout.record, build=OLD, processes=dict.fromkeys(names, process)).save()
    return Node(layout=layout)


def record_of(upgraded: Node) -> Record:
    record = Record.read(upgraded.layout.record)
    assert record is not None
    return record


def test_each_component_is_replaced_before_the_next_and_containerd_stays(up: Node, done: list[str]) -> None:
    assert up.version == "1.36.3"
    up.upgrade("1.37.2")
    steps = [step for name in ORDER for step in (f"stop {name}", f"start {name} of 1.37.2")]
    steps.insert(steps.index("start kubelet of 1.37.2"), "configuration")
    assert done == steps
    assert (record_of(up).build, record_of(up).upgrading_to, up.version) == (NEW, "", "1.37.2")
    assert up._runs(node.obtain(None, "1.37.2"))  # type: ignore[arg-type]


def test_a_node_of_that_version_is_left_alone(up: Node, done: list[str]) -> None:
    up.upgrade("1.36.3")
    assert done == []


def test_an_upgrade_that_was_killed_is_on_record_and_is_done_again(
    up: Node, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: object, name: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(node._Components, "start", killed)
        up.upgrade("1.37.2")
    assert (record_of(up).build, record_of(up).upgrading_to) == (OLD, NEW)
    assert node.status(up.layout)["upgrading_to"] == NEW
    for version in ("1.36.3", "1.37.2"):
        assert not up._runs(node.obtain(None, version)), "half of it is of another version"  # type: ignore[arg-type]
    done.clear()
    up.upgrade("1.37.2")
    assert [step for step in done if step.startswith("start")] == [f"start {name} of 1.37.2" for name in ORDER]
    assert (record_of(up).build, record_of(up).upgrading_to) == (NEW, "")


def test_without_a_node_there_is_nothing_to_upgrade(tmp_path: Path, done: list[str]) -> None:
    with pytest.raises(ClusterError, match="No node is up"):
        Node(layout=Layout(tmp_path / "state")).upgrade("1.37.2")
    assert done == []


@pytest.mark.parametrize(
    ("current", "wanted", "problem"),
    [
        ("1.36.3", "1.37.2", ""),
        ("1.36.3", "1.36.4", ""),
        ("1.36.3", "1.36.3", ""),
        ("1.9.0", "1.10.0", ""),
        ("1.34.4", "1.36.3", "one minor version at a time"),
        ("1.37.2", "1.36.3", "need not be readable"),
        ("1.37.2", "1.37.1", "need not be readable"),
    ],
)
def test_only_the_steps_that_kubernetes_supports_are_taken(current: str, wanted: str, problem: str) -> None:
    told = upgrade_problem(current, wanted)
    assert (problem in told) if problem else told == ""


@pytest.mark.parametrize(("name", "is_found"), [("kube-proxy", True), ("kube-apiserver", False)])
def test_a_component_is_found_by_the_name_that_its_program_was_called_by(name: str, is_found: bool) -> None:
    """Also where an upgrade was killed between its start and the record."""
    called = ["/somewhere/kube-proxy", "-c", "print(flush=True); input()"]
    with subprocess.Popen(called, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # the kernel shows a command line a moment after it has begun
        assert (node._called(child.pid, name) is not None) is is_found
        child.kill()
    assert node._called(os.getpid(), name) is None
