"""Where caches are, that one process at a time fills one, and who uses one."""

import fcntl
from pathlib import Path

from caches import alone, cache, unused, using


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


def test_a_folder_is_unused_only_while_nobody_uses_it(tmp_path: Path) -> None:
    with using(tmp_path), using(tmp_path), unused(tmp_path) as free:
        assert not free
    with unused(tmp_path) as free:
        assert free
