"""The store: one counter, a history that replays to the present, and objects that outlive the process."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_local.apiserver.status import StatusError
from fairlead_local.apiserver.store import Change, ChangeType, Journal, Store

Names = st.sampled_from(["a", "b", "c"])
Steps = st.lists(st.tuples(st.sampled_from(["put", "remove"]), Names, st.integers(0, 3)), max_size=40)


def write(store: Store, step: tuple[str, str, int], resource: str = "boats.test") -> None:
    action, name, value = step
    if action == "put":
        store.put(resource, {"metadata": {"name": name, "namespace": "n"}, "value": value})
    elif last := store.get(resource, "n", name):
        store.remove(resource, last)


def replay(changes: list[Change], start: dict[str, object]) -> dict[str, object]:
    seen = dict(start)
    for change in changes:
        name = change.object["metadata"]["name"]
        if change.type is ChangeType.DELETED:
            del seen[name]
        else:
            seen[name] = change.object
    return seen


def present(store: Store) -> dict[str, object]:
    return {obj["metadata"]["name"]: obj for obj in store.list("boats.test")}


@given(Steps, Steps)
@settings(deadline=None, max_examples=40)
def test_a_list_and_the_changes_since_are_the_present(
    before: list[tuple[str, str, int]], after: list[tuple[str, str, int]]
) -> None:
    store = Store()
    for step in before:
        write(store, step)
    listed, version = present(store), store.version
    for step in after:
        write(store, step)
    assert replay(list(store.changes_since("boats.test", version)), listed) == present(store)


@given(Steps)
@settings(deadline=None, max_examples=40)
def test_versions_only_grow_and_every_object_carries_its_own(steps: list[tuple[str, str, int]]) -> None:
    store, versions = Store(), []
    store.subscribe(lambda change: versions.append(change.version))
    for step in steps:
        write(store, step)
    assert versions == sorted(set(versions))
    assert all(int(obj["metadata"]["resourceVersion"]) in versions for obj in store.list("boats.test"))


@given(Steps)
@settings(deadline=None, max_examples=40)
def test_a_restart_keeps_objects_and_never_reuses_a_version(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("state")
    store = Store(Journal(folder))
    for step in steps:
        write(store, step)
        write(store, step, "pods")
    again = Store(Journal(folder))
    assert present(again) == present(store)
    assert again.list("pods") == []
    assert again.version >= store.version
    again.close()
    store.close()


def test_a_line_the_process_died_in_is_ignored(tmp_path: Path) -> None:
    store = Store(Journal(tmp_path))
    write(store, ("put", "a", 1))
    store.close()
    with (tmp_path / "objects.jsonl").open("a") as file:
        file.write('{"key":["boats.test","n","b"],"obj')
    again = Store(Journal(tmp_path))
    assert list(present(again)) == ["a"]
    again.close()


def test_the_journal_folds_itself(tmp_path: Path) -> None:
    store = Store(Journal(tmp_path))
    for number in range(6_000):
        write(store, ("put", "a", number))
    store.close()
    lines = (tmp_path / "objects.jsonl").read_text().splitlines()
    assert len(lines) < 2_000
    assert json.loads(lines[-1])["object"]["value"] == 5_999


def test_what_the_history_has_forgotten_is_gone() -> None:
    store = Store(history=3)
    start = store.version
    for number in range(5):
        write(store, ("put", "a", number))
    with pytest.raises(StatusError, match="too old resource version") as refused:
        store.changes_since("boats.test", start)
    assert (refused.value.code, refused.value.reason) == (410, "Expired")
    assert [change.object["value"] for change in store.changes_since("boats.test", store.version - 3)] == [2, 3, 4]


def test_a_version_nobody_was_given_is_gone_too() -> None:
    store = Store()
    with pytest.raises(StatusError, match="too new resource version"):
        store.changes_since("boats.test", store.version + 1)


def test_versions_from_before_a_restart_are_gone(tmp_path: Path) -> None:
    store = Store(Journal(tmp_path))
    write(store, ("put", "a", 1))
    old = store.version
    store.close()
    again = Store(Journal(tmp_path))
    with pytest.raises(StatusError, match="too old"):
        again.changes_since("boats.test", old)
    assert again.changes_since("boats.test", again.version) == []
    again.close()


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file grows beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("step", [("put", "a", 2), ("put", "b", 2), ("remove", "a", 0)])
def test_what_a_full_disk_does_not_take_never_happened(tmp_path: Path, step: tuple[str, str, int]) -> None:
    file = tmp_path / "objects.jsonl"
    store = Store(Journal(tmp_path))
    write(store, ("put", "a", 1))
    seen: list[Change] = []
    store.subscribe(seen.append)
    before, kept, version = present(store), file.read_bytes(), store.version
    with full_disk(len(kept) + 20), pytest.raises(StatusError, match="nothing was changed") as refused:
        write(store, step)
    assert refused.value.code == 500
    assert (present(store), file.read_bytes(), seen) == (before, kept, [])
    assert store.changes_since("boats.test", version) == []

    write(store, ("put", "c", 3))
    now = present(store)
    assert [change.object["metadata"]["name"] for change in seen] == ["c"]
    store.close()
    again = Store(Journal(tmp_path))
    assert present(again) == now
    again.close()


def test_a_journal_that_cannot_be_folded_goes_on_as_it_is(tmp_path: Path) -> None:
    store = Store(Journal(tmp_path))
    for name in range(200):  # a snapshot of these is larger than what the disk has left
        store.put("boats.test", {"metadata": {"name": f"b{name}", "namespace": "n"}, "value": "x" * 4_000})
    (tmp_path / "objects.new").symlink_to("/dev/full")
    for number in range(5_100):
        write(store, ("put", "a", number))
    write(store, ("put", "a", "last"))  # type: ignore[arg-type]
    store.close()
    again = Store(Journal(tmp_path))
    assert present(again)["a"]["value"] == "last"  # type: ignore[index]
    again.close()


def test_a_version_that_cannot_be_reserved_is_not_handed_out(tmp_path: Path) -> None:
    store = Store(Journal(tmp_path))
    size, versions = (tmp_path / "objects.jsonl").stat().st_size, set()
    with full_disk(size), pytest.raises(StatusError, match="nothing was changed"):
        for _ in range(20_000):
            versions.add(
                store.put("pods", {"metadata": {"name": "p", "namespace": "n"}})["metadata"]["resourceVersion"]
            )
    assert 0 < len(versions) < 20_000
    assert store.version == max(map(int, versions))
    store.close()
    again = Store(Journal(tmp_path))
    assert again.version >= store.version
    again.close()
