"""Where caches are, that one process at a time fills one, and which builds go again."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from caches import RECORD, alone, builds, cache, pruned, unused, using


def test_the_cache_is_where_the_environment_says(tmp_path: Path) -> None:
    assert cache("images", {"FAIRLEAD_CACHE": str(tmp_path)}) == tmp_path / "images"
    home = Path.home().resolve() / ".cache" / "fairlead" / "images"
    assert [cache("images", {}), cache("images", {"FAIRLEAD_CACHE": ""})] == [home, home]


def test_who_comes_second_says_so_and_waits(tmp_path: Path) -> None:
    lock = tmp_path / "new" / "lock"
    said: list[str] = []
    with alone(lock, lambda: said.append("first waits")), lock.open() as second:
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said.append("held")
    with lock.open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with alone(lock, lambda: fcntl.flock(holder, fcntl.LOCK_UN)):
            said.append("had it after the other")
    assert said == ["held", "had it after the other"]


# -- older builds --


def finish(root: Path, name: str, age_seconds: int) -> Path:
    """A finished build that was used last so long ago."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / RECORD).write_text("{}")
    os.utime(folder, (10_000 - age_seconds, 10_000 - age_seconds))
    return folder


def add(root: Path) -> list[str]:
    """A new build, named `new`, as builders make one; what was said about older ones."""
    said: list[str] = []
    with pruned(root, said.append):
        finish(root, "new", 0)
    return said


def test_a_new_build_leaves_one_older_one(tmp_path: Path) -> None:
    for age, name in enumerate(("third", "second", "first", "other")):
        finish(tmp_path, name, 100 - age)
    said = add(tmp_path)
    assert {build.name for build in builds(tmp_path)} == {"new", "other"}
    assert sorted(said) == [f"removed an older build: {tmp_path / name}" for name in ("first", "second", "third")]


def test_the_older_one_that_stays_is_the_one_that_was_used_last(tmp_path: Path) -> None:
    older = finish(tmp_path, "older", 200)
    finish(tmp_path, "newer", 100)
    with using(older):
        pass
    add(tmp_path)
    assert {build.name for build in builds(tmp_path)} == {"new", "older"}


def test_without_a_new_build_nothing_goes(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        finish(tmp_path, name, 100)
    said: list[str] = []
    with pruned(tmp_path, said.append):
        pass
    assert (said, len(builds(tmp_path))) == ([], 3)


def test_a_build_that_failed_takes_no_other_with_it(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        finish(tmp_path, name, 100)
    with pytest.raises(KeyboardInterrupt), pruned(tmp_path, print):
        raise KeyboardInterrupt
    assert len(builds(tmp_path)) == 3


def test_what_is_no_build_is_left_alone(tmp_path: Path) -> None:
    elsewhere = finish(tmp_path / "elsewhere", "mine", 500)
    root = tmp_path / "cache"
    finish(root, "other", 100)
    (root / "link").symlink_to(elsewhere)
    (root / "lock").touch()
    (root / "building-x" / "finished").mkdir(parents=True)
    (root / "building-x" / "finished" / RECORD).touch()
    (root / "notes").mkdir()
    assert add(root) == []
    assert {"other", "new", "link", "lock", "building-x", "notes"} <= {path.name for path in root.iterdir()}
    assert (elsewhere / RECORD).exists()


def test_a_build_that_somebody_uses_stays(tmp_path: Path) -> None:
    finish(tmp_path, "other", 0)
    used = finish(tmp_path, "used", 300)
    with using(used):
        os.utime(used, (1, 1))  # used last or not, it is in use
        assert add(tmp_path) == [f"an older build stays, because it is in use: {used}"]
    assert used in builds(tmp_path)


def test_a_build_whose_programs_run_stays_until_they_end(tmp_path: Path) -> None:
    finish(tmp_path, "other", 0)
    old = finish(tmp_path, "old", 300)
    program = old / "bin" / "cat"
    program.parent.mkdir()
    shutil.copy2(str(shutil.which("cat")), program)
    os.utime(old, (1, 1))
    with subprocess.Popen([program], stdin=subprocess.PIPE) as running:
        assert add(tmp_path) == [f"an older build stays, because it is in use: {old}"]
        running.communicate()
    shutil.rmtree(tmp_path / "new")
    assert add(tmp_path) == [f"removed an older build: {old}"]


def test_what_a_killed_removal_has_left_goes_with_the_next(tmp_path: Path) -> None:
    finish(tmp_path, ".removed-old", 300)
    assert builds(tmp_path) == set()
    add(tmp_path)
    assert not (tmp_path / ".removed-old").exists()


def test_what_is_gone_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), using(tmp_path / "gone"):
        pytest.fail("it was used")


def test_a_folder_is_unused_only_while_nobody_uses_it(tmp_path: Path) -> None:
    with using(tmp_path), using(tmp_path), unused(tmp_path) as free:
        assert not free
    with unused(tmp_path) as free:
        assert free
