"""The parts of a build that need no buildah: publishing, labels, the registry probe, proxies."""

import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from cluster.commands import ClusterError, Progress
from images import base, build
from images.layout import REPOSITORY, Layout
from images.recipes import RECIPES, Recipe


def test_publishing_replaces_and_keeps_what_is_the_same(tmp_path: Path) -> None:
    archive, place = tmp_path / "a.tar", tmp_path / "out.tar"
    archive.write_bytes(b"new")
    place.write_bytes(b"old")
    assert build.publish(archive, place) == place
    assert place.read_bytes() == b"new" and place.samefile(archive)
    before = place.stat().st_mtime_ns
    build.publish(archive, place)
    assert place.stat().st_mtime_ns == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "out.tar"]


def test_publishing_copies_where_a_hard_link_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, place = tmp_path / "a.tar", tmp_path / "out.tar"
    archive.write_bytes(b"new")

    def refuse(self: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    build.publish(archive, place)
    assert place.read_bytes() == b"new" and not place.samefile(archive)


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="makes repositories with git")


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.test")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@needs_git
def test_labels_name_the_revision_and_only_a_public_address(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    revision = build.labels(tmp_path)[build.REVISION_LABEL]
    assert len(revision) == 40
    (tmp_path / "new").touch()
    assert build.labels(tmp_path) == {build.REVISION_LABEL: f"{revision}-dirty"}
    git(tmp_path, "remote", "add", "origin", "https://user:token@code.test/fairlead.git")
    assert build.SOURCE_LABEL not in build.labels(tmp_path)
    git(tmp_path, "remote", "set-url", "origin", "https://code.test/fairlead.git")
    assert build.labels(tmp_path)[build.SOURCE_LABEL] == "https://code.test/fairlead"


def test_sources_that_git_knows_nothing_of_have_an_unknown_revision(tmp_path: Path) -> None:
    assert build.labels(tmp_path) == {build.REVISION_LABEL: "unknown"}


@needs_git
def test_an_archive_unpacked_in_a_checkout_is_not_of_its_revision(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    (tmp_path / "unpacked").mkdir()
    assert build.revision(tmp_path / "unpacked") == build.UNKNOWN != build.revision(tmp_path)


@needs_git
def test_a_machine_without_git_builds_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    monkeypatch.setenv("PATH", "")
    assert build.labels(tmp_path) == {build.REVISION_LABEL: build.UNKNOWN}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What builds do, with no buildah: the revision that each image would be given, and when the cache is cleaned."""
    done: list[str] = []

    def make(recipe: Recipe, storage: object, context: Path, named: dict[str, str], archive: Path, _: object) -> None:
        done.append(named[build.REVISION_LABEL])
        archive.parent.mkdir(exist_ok=True)
        archive.touch()

    monkeypatch.setattr(build, "_require_tools", lambda progress: None)
    monkeypatch.setattr(build, "ensure_base", lambda *_: "base")
    monkeypatch.setattr(build, "_build", make)
    monkeypatch.setattr(build.Storage, "remove_dangling", lambda self: done.append("cleaned") or ["image 1"])
    return done


def test_the_build_cache_is_cleaned_after_a_build_and_not_without_one(
    tmp_path: Path, built: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "revision", lambda repository: "abc")
    for _ in range(2):
        build.build(["operator"], Layout(tmp_path), None, Progress())
    assert built == ["abc", "cleaned"]
    assert "no tag leads to them: image 1" in capsys.readouterr().err


def test_an_image_without_a_revision_is_built_again_once_there_is_one(
    tmp_path: Path, built: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for revision in (build.UNKNOWN, build.UNKNOWN, "abc", "def"):
        monkeypatch.setattr(build, "revision", lambda repository, revision=revision: revision)
        build.build(["operator"], Layout(tmp_path), None, Progress())
    assert built == [build.UNKNOWN, "cleaned", "abc", "cleaned"]
    assert "No git, or no checkout of its own" in capsys.readouterr().err


def test_a_registry_that_never_answers_costs_little_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        started = time.monotonic()
        assert not base.registry_answers(f"127.0.0.1:{silent.getsockname()[1]}/python:3", seconds=0.5)
        assert time.monotonic() - started < 10


def test_a_machine_without_root_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="needs root"):
        build.build(["engine"], Layout(tmp_path / "cache"), tmp_path, Progress())


def test_apt_proxies_are_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    dump = (
        'Acquire "";\nAcquire::http::Proxy "http://proxy.test:3128";\nAcquire::ftp::Proxy "";\nAcquire::Retries "3";\n'
    )
    monkeypatch.setattr(base, "run", lambda *_: dump)
    assert base.apt_proxies() == ['Acquire::http::Proxy "http://proxy.test:3128";']


def test_a_base_is_made_again_when_its_recipe_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = base.recipe_key()
    assert before == base.recipe_key() and len(before) == 16
    monkeypatch.setattr(base, "_PACKAGES", (*base._PACKAGES, "curl"))
    assert base.recipe_key() != before


def test_a_snapshot_has_the_same_key_and_no_more_than_the_inputs(tmp_path: Path) -> None:
    recipe = RECIPES["operator"]
    context = build.snapshot(recipe, REPOSITORY, tmp_path / "context")
    assert recipe.key(context, "base") == recipe.key(REPOSITORY, "base")
    copied = {path for path in context.rglob("*") if path.is_file()}
    assert copied == set(recipe.files(context))
