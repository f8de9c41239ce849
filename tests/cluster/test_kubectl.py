"""Which kubectl is called: this machine's, the one that came with the node's Kubernetes, or none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import diagnostics, kubectl
from cluster.layout import Layout
from cluster.programs import cache_key, chosen_version

ROOT = Path(__file__).parents[2]


def program(folder: Path) -> Path:
    """A kubectl that prints the words after `--kubeconfig FILE`: the verb and its object."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "kubectl"
    file.write_text('#!/bin/sh\necho "$3 $4"\n')
    file.chmod(0o755)
    return file


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without kubectl and without a node, with an empty cache."""
    (tmp_path / "path").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("FAIRLEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FAIRLEAD_E2E_STATE", str(tmp_path / "state"))


@pytest.fixture
def cached(bare: None, tmp_path: Path) -> Path:
    """The kubectl that came with Kubernetes."""
    return program(tmp_path / "cache" / "kubernetes" / cache_key(chosen_version()) / "bin")


def test_the_machines_own_comes_first_but_at_the_nodes_api_server(cached: Path, tmp_path: Path) -> None:
    own = program(tmp_path / "path")
    assert kubectl.find() == kubectl.require() == str(own)
    assert kubectl.find(of_node=True) == kubectl.require(of_node=True) == str(cached)


def test_either_does_where_the_other_is_missing(cached: Path, tmp_path: Path) -> None:
    assert kubectl.find() == str(cached)
    shutil.rmtree(tmp_path / "cache")
    own = program(tmp_path / "path")
    assert kubectl.find(of_node=True) == str(own)


def test_who_has_none_is_told_what_to_do(bare: None) -> None:
    assert kubectl.find() is kubectl.find(of_node=True) is None
    for advice in ("install one", "python -m cluster build"):
        with pytest.raises(kubectl.NoKubectl, match=advice):
            kubectl.require()


def test_the_server_is_the_nodes_where_none_or_its_own_is_named(bare: None, tmp_path: Path) -> None:
    assert [kubectl.is_ours(each) for each in (None, "", str(Layout.default().kubeconfig))] == [True] * 3
    assert not kubectl.is_ours(str(tmp_path / "kubeconfig"))


def test_a_dump_asks_with_the_cached_one(cached: Path, tmp_path: Path) -> None:
    diagnostics.dump(tmp_path / "kubeconfig", tmp_path / "out")
    assert (tmp_path / "out" / "nodes.txt").read_text() == "describe nodes\n"


def test_a_dump_without_kubectl_says_so_in_its_files(bare: None, tmp_path: Path) -> None:
    diagnostics.dump(tmp_path / "kubeconfig", tmp_path / "out")
    assert "There is no kubectl" in (tmp_path / "out" / "nodes.txt").read_text()


def scenarios(home: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A run of one scenario, on the machine of `bare`."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "e2e/test_serving.py", "--home", home]
    return subprocess.run(
        [*command, "-k", "test_kubectl_shows_the_columns", "--basetemp", str(tmp_path / "basetemp")],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_the_scenarios_of_a_foreign_cluster_end_with_what_is_missing(bare: None, tmp_path: Path) -> None:
    pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")
    ended = scenarios("kubernetes", tmp_path, KUBECONFIG=str(tmp_path / "kubeconfig"))
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert "refused: There is no kubectl" in ended.stdout + ended.stderr


def test_the_scenarios_of_local_mode_are_skipped_and_say_why(bare: None, tmp_path: Path) -> None:
    skipped = scenarios("local", tmp_path)
    assert skipped.returncode == 0, skipped.stdout + skipped.stderr
    assert "There is no kubectl" in skipped.stdout and "1 skipped" in skipped.stdout
