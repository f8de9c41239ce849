"""Where caches are, and that one process at a time fills one."""

import fcntl
from pathlib import Path

from caches import alone, cache


def test_the_cache_is_where_the_environment_says(tmp_path: Path) -> None:
    assert cache("oracle", {"FAIRLEAD_CACHE": str(tmp_path)}) == tmp_path / "oracle"
    home = Path.home().resolve() / ".cache" / "fairlead" / "oracle"
    assert [cache("oracle", {}), cache("oracle", {"FAIRLEAD_CACHE": ""})] == [home, home]


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
