"""What a build of the oracle is kept under, and what is taken of Debian's packages."""

import json
import os
from pathlib import Path

import debian
import pytest
from cluster.commands import ClusterError
from debian import Package
from oracle import build

LIBRARY = Package(build.LIBRARY, "0.36.4-1")
PACKAGES = [Package("golang-1.27-go", "1.27.3-1"), LIBRARY]


def test_the_key_is_of_exactly_these_versions() -> None:
    assert build.key(PACKAGES) == build.key(PACKAGES[::-1])
    newer = [PACKAGES[0], Package(build.LIBRARY, "0.36.5-1")]
    assert build.key(newer) != build.key(PACKAGES)
    assert build.key(newer).startswith(f"{build.recipe()}-")


def test_only_the_toolchain_and_go_sources_are_taken() -> None:
    others = [Package("libc6", "2.42-1"), Package("protobuf-compiler", "3.21-1")]
    assert build.go_packages([*others, *PACKAGES]) == PACKAGES


def test_the_library_has_the_number_of_its_release() -> None:
    assert build.kubernetes_version(PACKAGES) == "1.36.4"


def test_the_latest_build_of_these_instructions_is_ready(tmp_path: Path) -> None:
    assert build.ready(tmp_path) is None
    for age, (folder, version) in enumerate(((f"{build.recipe()}-a", "1.36.4"), (f"{build.recipe()}-b", "1.36.3"))):
        _finish(tmp_path / folder, version, age)
    _finish(tmp_path / "otherrecipe-c", "1.37.0", 0)
    found = build.ready(tmp_path)
    assert found is not None
    assert (found.kubernetes, found.binary) == ("1.36.4", tmp_path / f"{build.recipe()}-a" / build.BINARY)


def test_a_build_that_the_cache_has_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "mirror", lambda: "http://mirror.test/debian/")
    monkeypatch.setattr(debian.Suite, "refresh", lambda self: None)
    monkeypatch.setattr(debian.Suite, "closure", lambda self, names: PACKAGES)
    monkeypatch.setattr(debian.Suite, "download", lambda self, packages, into: pytest.fail("it is there"))
    _finish(tmp_path / build.key(PACKAGES), "1.36.4", 0)
    (tmp_path / "building-killed" / "root").mkdir(parents=True)
    said: list[str] = []
    assert build.build(tmp_path, said.append).folder == tmp_path / build.key(PACKAGES)
    assert said == [f"the cache has this build: {tmp_path / build.key(PACKAGES)}"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([build.key(PACKAGES), "lock"])


def test_without_a_mirror_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "mirror", lambda: None)
    with pytest.raises(ClusterError, match="knows no Debian mirror"):
        build.build(tmp_path, lambda _: None)


def _finish(folder: Path, version: str, age: int) -> None:
    folder.mkdir(parents=True)
    (folder / "build.json").write_text(json.dumps({"kubernetes": version}))
    os.utime(folder / "build.json", (1000 - age, 1000 - age))
