"""The oracle in the cache: taken as it is, and a new build takes older ones with it."""

from pathlib import Path

import pytest
from oracle import build, entries
from oracle.build import Build


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAIRLEAD_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "build", lambda say: finish(build.cache_root() / f"{build.recipe()}-new"))
    return build.cache_root()


def finish(folder: Path) -> Build:
    folder.mkdir(parents=True)
    (folder / "build.json").write_text('{"kubernetes": "1.36.4"}')
    return Build.at(folder)


def test_a_new_build_takes_older_ones_with_it(root: Path) -> None:
    for name in ("a-1", "b-1", "c-1"):
        finish(root / name)
    said: list[str] = []
    made = entries.renew(said.append)
    left = {folder.name for folder in root.iterdir() if folder.is_dir()}
    assert made.folder.name in left and len(left) == 2
    assert len(said) == 2 and all(line.startswith(f"removed an older build: {root}") for line in said)


def test_the_latest_that_the_cache_has_is_taken(root: Path) -> None:
    there = finish(root / f"{build.recipe()}-there")
    finish(root / "other-1")
    assert entries.obtain() == there
    assert {folder.name for folder in root.iterdir()} == {there.folder.name, "other-1"}


def test_where_the_cache_has_none_one_is_built(root: Path) -> None:
    finish(root / "other-1")
    assert entries.obtain().folder == root / f"{build.recipe()}-new"
