"""Files that are being fetched: their digests are of the bytes as they come, and of what an earlier run has left."""

import asyncio
import hashlib
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_engine.sources.part_file import PartFile
from fairlead_engine.sources.remote import RemoteFile


def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@given(pieces=st.lists(st.binary(max_size=50), max_size=6), left=st.integers(0, 100), flip=st.booleans())
def test_a_blob_of_git_is_checked_as_it_comes(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], left: int, flip: bool
) -> None:
    content = b"".join(pieces)
    told = blob(content if not flip else content + b"!")
    file = RemoteFile("config.json", len(content), git_blob=told)
    folder = tmp_path_factory.mktemp("part")
    (folder / "config.json.part").write_bytes(content[:left])

    async def fetch() -> str | None:
        part = PartFile(folder, file)
        await part.resume()
        await part.append(content[part.size :])
        await part.flush()
        (folder / "config.json.part").unlink(missing_ok=True)  # nothing is read again
        return part.problem()

    problem = asyncio.run(fetch())
    assert (problem is None) != flip and (problem is None or told in problem)


def test_who_is_cancelled_while_a_piece_is_written_writes_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another file of the same model cannot be had; without a digest nobody would notice."""
    begun, may_go_on = threading.Event(), threading.Event()
    write = PartFile._write

    def slowly(part: PartFile) -> None:
        begun.set()
        may_go_on.wait()
        write(part)

    monkeypatch.setattr(PartFile, "_write", slowly)
    content = os.urandom(1000)

    async def fetch(part: PartFile) -> None:
        try:
            await part.append(content)
            await part.flush()
        finally:
            await part.flush()

    async def cancelled() -> int:
        part = PartFile(tmp_path, RemoteFile("a", 2000))
        task = asyncio.create_task(fetch(part))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        return part.size

    assert asyncio.run(cancelled()) == len(content)
    assert (tmp_path / "a.part").read_bytes() == content
