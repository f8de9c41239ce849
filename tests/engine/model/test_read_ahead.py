"""What reads a checkpoint's files ahead: how many read, what is in the page cache then, and that it ends when told."""

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairlead_engine.model import loading, read_ahead
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine.model.read_ahead import ReadAhead, Readers
from fairlead_engine.model.shard import Shard
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.tiny_families.dense import llama_fields

CHUNK = 4096


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(read_ahead, "_WORTH_BYTES", 1)
    monkeypatch.setattr(read_ahead, "_LOOK_SECONDS", 0.02)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Of 100 chunks and a byte."""
    paths = [tmp_path / f"{index}.safetensors" for index in range(2)]
    for path, size in zip(paths, (60 * CHUNK + 1, 40 * CHUNK), strict=True):
        path.write_bytes(random.Random(size).randbytes(size))
    return paths


def is_cached(path: Path) -> bool:
    with path.open("rb") as file:
        return all(read_ahead._is_cached(file.fileno(), start, 1) for start in range(0, path.stat().st_size, CHUNK))


def forget(path: Path) -> None:
    """Has the page cache give its pages up, as after a restart; skips where it cannot be told to."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        for _ in range(3):  # pages that were just written are kept the first time
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            time.sleep(0.05)
    if is_cached(path):
        pytest.skip("this file system keeps its pages, or does not say which it has")


class Far:
    """A disk that takes its time for each chunk, and serves many at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.chunks: list[tuple[str, int]] = []
        self.most = self._now = 0
        self._lock = threading.Lock()
        self._seconds = seconds
        self._read = os.preadv
        monkeypatch.setattr(os, "preadv", self)

    def __call__(self, descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            self.chunks.append((str(Path(f"/proc/self/fd/{descriptor}").readlink()), offset))
        time.sleep(self._seconds)
        with self._lock:
            self._now -= 1
        return self._read(descriptor, buffers, offset)


def until_read(ahead: ReadAhead, num_bytes: int) -> None:
    deadline = time.monotonic() + 120
    while ahead.num_bytes < num_bytes:
        assert time.monotonic() < deadline, "it does not go on"
        time.sleep(0.005)


def test_every_byte_is_read_once_by_readers_that_become_more(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Far(monkeypatch, 0.01)
    with ReadAhead(files) as ahead:
        until_read(ahead, 100 * CHUNK + 1)
    assert len(far.chunks) == len(set(far.chunks)) == 101
    assert far.most > 1


def test_it_ends_when_the_weights_are_there(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    far = Far(monkeypatch, 0.05)
    with ReadAhead(files):
        pass
    assert len(far.chunks) < 101
    assert not [thread for thread in threading.enumerate() if thread.name == "read ahead"]


def test_what_was_on_disk_alone_is_in_the_page_cache_and_is_not_read_again(files: list[Path]) -> None:
    for path in files:
        forget(path)
    with ReadAhead(files) as ahead:
        until_read(ahead, 1)
        deadline = time.monotonic() + 30
        while not all(map(is_cached, files)) and time.monotonic() < deadline:
            time.sleep(0.005)
    assert all(map(is_cached, files))
    with ReadAhead(files) as again:
        while any(thread.name == "read ahead" for thread in threading.enumerate()):
            time.sleep(0.005)
    assert again.num_bytes == 0


@pytest.mark.parametrize("problem", ["too large for the memory", "small", "gone", "no file"])
def test_nothing_is_read_and_nothing_fails(
    files: list[Path], problem: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    far = Far(monkeypatch, 0.0)
    if problem == "too large for the memory":
        monkeypatch.setattr(read_ahead, "free_memory", lambda: 100 * CHUNK)
    elif problem == "small":
        monkeypatch.setattr(read_ahead, "_WORTH_BYTES", 101 * CHUNK)
    elif problem == "gone":
        ahead = ReadAhead(files)
        for path in files:
            path.unlink()
    else:
        files = [tmp_path / "none"]
    with ahead if problem == "gone" else ReadAhead(files):
        time.sleep(0.05)
    assert not far.chunks


@pytest.mark.parametrize("rank", [0, 1])
def test_while_a_model_loads_its_first_rank_reads_its_files_ahead(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[list[Path], bool]] = []

    class Seen(ReadAhead):
        def __exit__(self, *error: Any) -> None:
            opened.append((list(found), bool(self._threads)))
            super().__exit__(*error)

        def __init__(self, of: Any) -> None:
            found[:] = of
            super().__init__(of)

    found: list[Path] = []
    monkeypatch.setattr(loading, "ReadAhead", Seen)
    folder = write_random_checkpoint(tmp_path, llama_fields())
    load_model(folder, read_config(folder), torch.float32, torch.device("cpu"), None, Shard(rank, 2))
    assert opened == [([folder / "model.safetensors"] if rank == 0 else [], rank == 0)]
    assert not [thread for thread in threading.enumerate() if thread.name == "read ahead"]


@given(st.floats(1e6, 1e10), st.floats(1.0, 200.0))
def test_readers_become_more_only_while_that_pays(one: float, most: float) -> None:
    """Of a disk that gives each reader `one`, and all of them `most` times as much."""
    readers, before = Readers(), 0
    while True:
        assert readers.number > before
        before = readers.number
        if not readers.saw(one * min(readers.number, most)):
            break
    assert readers.number <= read_ahead._MOST_READERS
    assert readers.number >= min(most / 1.2, read_ahead._MOST_READERS)
    assert readers.number < 4 * most
    assert not readers.saw(0.0)
