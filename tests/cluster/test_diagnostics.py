"""What is written down about a cluster that does not answer: all that was asked, and why there is no answer."""

import shutil
from pathlib import Path

import pytest
from cluster import diagnostics, pki
from cluster.layout import Layout

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the node of this machine, whose API server is down."""
    monkeypatch.setenv("FAIRLEAD_E2E_STATE", str(tmp_path / "state"))
    layout = Layout.default()
    layout.logs.mkdir(parents=True)
    layout.log("kube-apiserver").write_text("panic: out of luck\n")
    authority = pki.Authority(layout.pki)
    authority.create()
    pair = authority.client("admin", "admin", "system:masters")
    pki.write_kubeconfig(layout.kubeconfig, "https://127.0.0.1:1", authority, "admin", pair)
    return layout.kubeconfig


def test_a_dump_of_a_dead_cluster_has_its_components_logs(kubeconfig: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    diagnostics.dump(kubeconfig, folder)
    assert (folder / "node" / "kube-apiserver.log").read_text() == "panic: out of luck\n"
    assert {"objects.txt", "events.txt", "nodes.txt", "pods.txt"} <= {file.name for file in folder.iterdir()}
    assert (folder / "events.txt").read_text() != ""


def test_another_clusters_dump_has_not_this_machines_logs(kubeconfig: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text(kubeconfig.read_text().replace("127.0.0.1:1", "127.0.0.1:2"))
    diagnostics.dump(other, tmp_path / "out")
    assert not (tmp_path / "out" / "node").exists()


def test_a_node_of_somebody_else_does_not_end_a_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kubeconfig is there and may not be read."""
    layout = Layout(tmp_path / "state")
    layout.logs.mkdir(parents=True)
    (layout.logs / "etcd.log").write_text("words")
    layout.kubeconfig.write_text("theirs")
    monkeypatch.setattr(diagnostics.Layout, "default", lambda: layout)
    monkeypatch.setattr(diagnostics.os, "access", lambda path, mode: path != layout.kubeconfig)
    monkeypatch.setattr(diagnostics.kubectl, "find", lambda: None)
    (tmp_path / "kubeconfig").write_text("mine")
    diagnostics.dump(tmp_path / "kubeconfig", tmp_path / "out")
    assert not (tmp_path / "out" / "node").exists()
