"""What `up` does where something is up already, and before it starts anything."""

from pathlib import Path

import pytest
from cluster import node
from cluster.commands import ClusterError
from cluster.layout import Layout
from cluster.node import Node
from cluster.processes import Process, Record
from cluster.programs import Binaries

OTHER = {"node": "control-plane", "control-plane": "node"}


class Started(Exception):
    """The start got as far as its first process."""


@pytest.fixture(autouse=True)
def nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished build, an empty machine, and a start that ends at once."""
    binaries = Binaries(tmp_path / "built")
    binaries.folder.mkdir()

    def start(self: node._Start) -> None:
        raise Started

    monkeypatch.setattr(node, "obtain", lambda progress: binaries)
    monkeypatch.setattr(node.network, "refuse_strangers", lambda: None)
    monkeypatch.setattr(node.network, "refuse_hidden", lambda *paths: None)
    monkeypatch.setattr(node, "_take_down_node", lambda record: node.processes.stop(record.living().values()))
    monkeypatch.setattr(node._Start, "run", start)


def recorded(layout: Layout, mode: str, process: Process) -> Record:
    layout.state.mkdir()
    record = Record(layout.record, mode=mode, build="built", processes={"etcd": process})
    record.save()
    return record


@pytest.mark.parametrize("mode", OTHER)
def test_a_cluster_of_the_other_mode_is_not_taken_down(tmp_path: Path, process: Process, mode: str) -> None:
    layout = Layout(tmp_path / "state")
    record = recorded(layout, OTHER[mode], process)
    with pytest.raises(ClusterError) as refusal:
        Node(control_plane_only=mode == "control-plane", layout=layout).up()
    for words in (str(layout.state), "FAIRLEAD_E2E_STATE=", "-m cluster down"):
        assert words in str(refusal.value)
    assert process.alive
    assert Record.read(layout.record) == record


@pytest.mark.parametrize("mode", OTHER)
def test_what_a_killed_one_has_left_is_no_reason_to_refuse(tmp_path: Path, mode: str) -> None:
    layout = Layout(tmp_path / "state")
    recorded(layout, OTHER[mode], Process(2**22 + 1, 1))  # above the kernel's largest number of a process
    with pytest.raises(Started):
        Node(control_plane_only=mode == "control-plane", layout=layout).up()
    assert not layout.record.exists()


def test_an_unfinished_one_of_the_same_mode_is_replaced(tmp_path: Path, process: Process) -> None:
    layout = Layout(tmp_path / "state")
    recorded(layout, "control-plane", process)
    with pytest.raises(Started):
        Node(control_plane_only=True, layout=layout).up()
    assert not process.alive
