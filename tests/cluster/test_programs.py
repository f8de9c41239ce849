"""Which version of Kubernetes a node runs, where its programs come from, and what the cache keeps of them."""

import hashlib
import io
import os
import tarfile
import time
from pathlib import Path

import debian
import pytest
from cluster import packages, programs
from cluster.commands import ClusterError, Progress

VERSION = "1.30.1"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, archives of one version in a folder that the environment names, and packages without apt."""
    folder = tmp_path / "archives"
    folder.mkdir()
    names = programs.archive_names(VERSION)
    for name, program in zip(names, ("hyperkube", "containerd"), strict=True):
        with tarfile.open(folder / name, "w:xz") as archive:
            entry = tarfile.TarInfo(f"bin/{program}")
            entry.size = len(program)
            archive.addfile(entry, io.BytesIO(program.encode()))
    sums = tmp_path / "SHA256SUMS"
    sums.write_text("".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names))
    monkeypatch.setattr(programs, "_SUMS", sums)
    monkeypatch.setenv("FAIRLEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(programs.ARCHIVES_VARIABLE, str(folder))
    monkeypatch.delenv(programs.VERSION_VARIABLE, raising=False)
    monkeypatch.setattr(packages, "install", lambda tools: [])
    monkeypatch.setattr(debian, "download", lambda names, into: [into / name for name in names])
    monkeypatch.setattr(debian, "unpack", _unpacked)
    monkeypatch.setattr(debian, "version", lambda file: "1")
    return folder


def _unpacked(files: list[Path], into: Path) -> None:
    (into / "usr/bin").mkdir(parents=True)
    (into / "usr/bin/catatonit").write_bytes(b"\x7fELF")


def test_ready_archives_become_an_entry_of_the_cache(machine: Path) -> None:
    assert programs.cached() is None
    made = programs.obtain(Progress())
    assert (made, made.version) == (programs.cached(), VERSION)
    assert [made.program(name).name for name in ("hyperkube", "containerd", "pause")]
    assert made.pause_archive.is_file()
    with pytest.raises(FileNotFoundError, match="kubelet"):
        made.program("kubelet")
    for archive in machine.iterdir():
        archive.unlink()
    assert programs.obtain(Progress()) == made, "what the cache has needs no archive"


def test_an_archive_with_another_sum_is_refused_and_nothing_is_kept(machine: Path, tmp_path: Path) -> None:
    (machine / programs.archive_names(VERSION)[0]).write_bytes(b"other")
    with pytest.raises(
        ClusterError, match=f"is not the archive that .*SHA-256 is {hashlib.sha256(b'other').hexdigest()}"
    ):
        programs.obtain(Progress())
    assert programs.cached() is None
    assert not list(programs.cache_root().glob(".making-*"))


def test_an_archive_without_a_sum_is_refused(machine: Path) -> None:
    for name in programs.archive_names(VERSION):
        (machine / name.replace(VERSION, "1.31.0")).write_bytes((machine / name).read_bytes())
    with pytest.raises(ClusterError, match=r"has no sum for kubernetes-1\.31\.0"):
        programs.obtain(Progress(), "1.31.0")


def test_a_folder_without_the_archive_is_named(machine: Path) -> None:
    with pytest.raises(ClusterError, match=rf"{machine}, which holds no kubernetes-1\.31\.0-linux"):
        programs.obtain(Progress(), "1.31.0")


def test_without_a_folder_and_without_go_it_is_said_what_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(programs.ARCHIVES_VARIABLE)
    monkeypatch.setenv("PATH", "/nowhere")
    for part in ("FAIRLEAD_KUBERNETES names no folder", r"no Go ≥ 1\.26 on PATH", "KUBECONFIG"):
        with pytest.raises(ClusterError, match=part):
            programs.origin(VERSION)


@pytest.mark.parametrize(("told", "found"), [("go1.26.1", True), ("go1.27rc1", True), ("go1.25.9", False), ("", False)])
def test_go_builds_it_where_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, found: bool
) -> None:
    monkeypatch.delenv(programs.ARCHIVES_VARIABLE)
    go = tmp_path / "path" / "go"
    go.parent.mkdir()
    go.write_text(f"#!/bin/sh\necho {told}\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    if found:
        assert "builds it from modules" in programs.origin(VERSION)
    else:
        with pytest.raises(ClusterError, match="no Go"):
            programs.origin(VERSION)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("", "1.37.2"), ("1.36", "1.36.12"), ("1.36.3", "1.36.3"), ("1.3", None), ("1.35", None), ("1.35.1", "1.35.1")],
)
def test_a_version_is_asked_for_by_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, found: str | None
) -> None:
    (tmp_path / "SHA256SUMS").write_text(
        "".join(f"0  kubernetes-{v}-linux-amd64.tar.xz\n" for v in ("1.37.2", "1.36.12", "1.36.3", "1.34.4"))
    )
    monkeypatch.setenv(programs.VERSION_VARIABLE, wanted)
    if found:
        assert programs.chosen_version() == found
    else:
        with pytest.raises(ClusterError, match=r"Ready are 1\.34\.4, 1\.36\.3, 1\.36\.12, 1\.37\.2"):
            programs.chosen_version()


def test_the_cache_key_changes_with_the_recipe_and_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = programs.cache_key(VERSION)
    assert before.startswith(f"{VERSION}-") and programs.cache_key(VERSION) == before
    recipe = tmp_path / "recipe.sh"
    monkeypatch.setattr(programs, "_RECIPE", (recipe,))
    keys = {before}
    for text in ("one", "two"):
        recipe.write_text(text)
        keys.add(programs.cache_key(VERSION))
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert len(keys | {programs.cache_key(VERSION)}) == 4


def test_what_nobody_has_asked_for_in_a_month_goes(capsys: pytest.CaptureFixture[str]) -> None:
    programs.obtain(Progress())
    root, now = programs.cache_root(), time.time()
    for name, age_seconds in (("1.28.0-unused", programs.KEPT_SECONDS + 60), ("1.29.0-used", 60)):
        (root / name).mkdir(parents=True)
        (root / name / "build.json").touch()
        os.utime(root / name / "build.json", (now - age_seconds, now - age_seconds))
    made = programs.cached()
    assert made is not None
    os.utime(made.folder / "build.json", (now - 3600, now - 3600))
    assert programs.obtain(Progress()) == made
    assert {made.folder, root / "1.29.0-used"} == {folder for folder in root.iterdir() if folder.is_dir()}
    assert f"nobody has used in a month: {root / '1.28.0-unused'}" in capsys.readouterr().err
    assert (made.folder / "build.json").stat().st_mtime >= now - 1, "it was asked for"
