"""Which kubectl is called: this machine's, else the built one where its server is the built one, else none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import build, diagnostics, kubectl
from cluster.layout import Layout

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
def built(bare: None, tmp_path: Path) -> Path:
    """The kubectl that was built with Kubernetes."""
    return program(tmp_path / "cache" / "kubernetes" / build.cache_key() / "bin")


def test_the_machines_own_comes_first(built: Path, tmp_path: Path) -> None:
    own = program(tmp_path / "path")
    assert kubectl.find() == kubectl.find(or_built=True) == kubectl.require() == str(own)


def test_the_built_one_does_for_the_server_that_was_built_with_it(built: Path) -> None:
    assert kubectl.find(or_built=True) == kubectl.require(or_built=True) == str(built)


def test_the_built_one_is_not_let_loose_on_another_server(built: Path) -> None:
    assert kubectl.find() is None
    with pytest.raises(kubectl.NoKubectl, match=rf"{build.VERSION}, is for the node that is built with it.*install"):
        kubectl.require()


@pytest.mark.parametrize(("or_built", "advice"), [(False, "install one"), (True, "python -m cluster build")])
def test_who_has_none_is_told_what_to_do(bare: None, or_built: bool, advice: str) -> None:
    assert kubectl.find(or_built=or_built) is None
    with pytest.raises(kubectl.NoKubectl, match=advice):
        kubectl.require(or_built=or_built)


def test_the_server_is_the_built_one_where_none_or_its_own_is_named(bare: None, tmp_path: Path) -> None:
    assert [kubectl.is_ours(each) for each in (None, "", str(Layout.default().kubeconfig))] == [True] * 3
    assert not kubectl.is_ours(str(tmp_path / "kubeconfig"))


def test_a_dump_asks_with_the_built_one(built: Path, tmp_path: Path) -> None:
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
def test_the_scenarios_of_a_foreign_cluster_end_with_what_is_missing(built: Path, tmp_path: Path) -> None:
    pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")
    ended = scenarios("kubernetes", tmp_path, KUBECONFIG=str(tmp_path / "kubeconfig"))
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert "refused: There is no kubectl on PATH" in ended.stdout + ended.stderr


def test_the_scenarios_of_local_mode_are_skipped_and_say_why(built: Path, tmp_path: Path) -> None:
    skipped = scenarios("local", tmp_path)
    assert skipped.returncode == 0, skipped.stdout + skipped.stderr
    assert "There is no kubectl on PATH" in skipped.stdout and "1 skipped" in skipped.stdout
