"""Sources that have no end, no size, or all the time there is: each is given up, and nothing grows beyond its bound."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from fairlead_common.wire.downloads import DownloadFailure
from fairlead_engine.sources import http_reader, limits
from fairlead_engine.sources.downloader import DownloadOrders, download
from fairlead_engine.sources.models_folder import ModelsFolder
from fairlead_engine.sources.remote import DownloadError, Packing, RemoteFile, SourceListing
from fairlead_engine.sources.reporting import Reporter
from fairlead_engine_testing.downloads import tar
from fairlead_testing.http import RecordedRequest, Responder, serve_http

SOURCE = "hf://acme/dinghy"
MIB = 1 << 20
CONFIG = b'{"architectures": ["LlamaForCausalLM"]}'


class FakeRemote:
    """Files by path; None in place of bytes has no end."""

    def __init__(self, files: dict[str, bytes | None], *, packing: Packing | None = None, states_size: bool = False):
        self.files = files
        self.packing = packing
        self.states_size = states_size
        self.num_sent = 0
        self.pause_seconds = 0.0
        self.chunk = b"x" * MIB

    async def open(self) -> SourceListing:
        return SourceListing("1", tuple(self._listed(path, content) for path, content in self.files.items()))

    def _listed(self, path: str, content: bytes | None) -> RemoteFile:
        size = len(content) if self.states_size and content is not None else None
        return RemoteFile(path, size, packing=self.packing)

    async def read(self, file: RemoteFile, start: int) -> AsyncIterator[bytes]:
        content = self.files[file.path]
        while content is None:
            await asyncio.sleep(self.pause_seconds)
            self.num_sent += len(self.chunk)
            yield self.chunk
        yield content[start:]

    async def close(self) -> None:
        pass


async def fetch(folder: Path, remote: FakeRemote | None = None, size_limit: int | None = None) -> Path:
    orders = DownloadOrders(SOURCE, ModelsFolder(folder), size_limit=size_limit, attempts=2, backoff_seconds=0.0)
    async with asyncio.timeout(60):
        return await download(orders, Reporter(SOURCE), remote)


async def refused(folder: Path, remote: FakeRemote | None = None, size_limit: int | None = None) -> DownloadError:
    with pytest.raises(DownloadError) as raised:
        await fetch(folder, remote, size_limit)
    return raised.value


def taken(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Awaitable[None]]]:
    """`await hub(answer)`: what the hub answers to anything."""
    servers = []

    async def serve(answer: Callable[[RecordedRequest, Responder], Awaitable[None]]) -> None:
        servers.append(await serve_http(answer))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}")

    yield serve
    for server in servers:
        server.close()


@pytest.mark.parametrize("num_endless", [1, 3])
async def test_what_states_no_size_counts_as_it_comes(tmp_path: Path, num_endless: int) -> None:
    names = ["model.safetensors", "tokenizer.json", "generation_config.json"][:num_endless]
    remote = FakeRemote({"config.json": CONFIG, **dict.fromkeys(names)})
    error = await refused(tmp_path, remote, size_limit=50 * MIB)
    assert error.reason == DownloadFailure.NO_SPACE and "raise the limit" in error.message
    assert taken(tmp_path) <= 50 * MIB
    assert remote.num_sent <= 52 * MIB + num_endless * MIB
    again = await refused(tmp_path, remote, size_limit=50 * MIB)  # with what the first try has left
    assert again.reason == DownloadFailure.NO_SPACE and taken(tmp_path) <= 50 * MIB


async def test_what_states_no_size_makes_room_like_the_rest(tmp_path: Path) -> None:
    weights = b"x" * (3 * MIB)
    remote = FakeRemote({"config.json": CONFIG, "tokenizer.json": b"{}", "model.safetensors": weights})
    folder = await fetch(tmp_path, remote, size_limit=4 * MIB)
    assert (folder / "model.safetensors").stat().st_size == len(weights)


async def test_what_is_unpacked_counts(tmp_path: Path) -> None:
    packed = tar({"config.json": CONFIG, "model.safetensors": bytes(20 * MIB)}, "gz")
    remote = FakeRemote({"model.tar.gz": packed}, packing=Packing.ARCHIVE, states_size=True)
    error = await refused(tmp_path, remote, size_limit=MIB)
    assert error.reason == DownloadFailure.NO_SPACE
    assert taken(tmp_path) <= MIB


async def test_a_listing_without_an_end_is_not_read_to_it(hub, tmp_path: Path) -> None:
    num_sent = 0

    async def answer(request: RecordedRequest, responder: Responder) -> None:
        nonlocal num_sent
        await responder.start(200, {})
        while True:
            await responder.chunk(b" " * MIB)
            num_sent += MIB

    await hub(answer)
    error = await refused(tmp_path)
    assert error.reason == DownloadFailure.SOURCE_NOT_SUPPORTED
    assert num_sent < 40 * MIB


async def test_a_listing_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_FILES", 10)
    error = await refused(tmp_path, FakeRemote({f"{number}.safetensors": b"" for number in range(11)}))
    assert error.reason == DownloadFailure.SOURCE_NOT_SUPPORTED and "more than 10 files" in error.message


HEAD = b"HTTP/1.1 200 OK\r\nx-long: "


@pytest.mark.parametrize("part", ["head", "body"])
async def test_a_listing_that_comes_a_byte_at_a_time_is_given_up(
    hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Silence is never long enough to be noticed."""
    monkeypatch.setattr(http_reader, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(limits, "LISTING_SECONDS", 0.6)
    num_asked = 0

    async def answer(request: RecordedRequest, responder: Responder) -> None:
        nonlocal num_asked
        num_asked += 1
        if part == "body":
            await responder.start(200, {})
        else:
            responder._writer.write(HEAD)
        while True:
            if part == "body":
                await responder.chunk(b" ")
            else:
                responder._writer.write(b"x")
            await asyncio.sleep(0.01)

    await hub(answer)
    error = await refused(tmp_path)
    assert error.reason == DownloadFailure.SOURCE_UNREACHABLE and "took more than" in error.message
    assert num_asked == 2


@pytest.mark.parametrize("limit", ["STALL_SECONDS", "SLOW_SECONDS", "FILE_SECONDS"])
async def test_a_file_that_is_slow_or_takes_all_the_time_there_is_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(limits, limit, 0.05)
    remote = FakeRemote({"config.json": CONFIG, "tokenizer.json": b"{}", "model.safetensors": None})
    remote.chunk = b"x" if limit == "SLOW_SECONDS" else b"x" * 1000
    remote.pause_seconds = 60.0 if limit == "STALL_SECONDS" else 0.01
    told: list[str] = []
    pieces = limits.paced(remote.read(RemoteFile("model.safetensors"), 0))
    try:
        async with asyncio.timeout(10):
            async for _ in pieces:
                pass
    except Exception as error:
        told.append(f"{type(error).__name__}: {error}")
    assert told and told[0].startswith("Interrupted: ")


async def test_a_server_without_ranges_that_sends_what_is_there_slowly_is_given_up(
    hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SLOW_SECONDS", 0.1)

    async def answer(request: RecordedRequest, responder: Responder) -> None:
        await responder.start(200, {})
        while True:
            await responder.chunk(b"x")
            await asyncio.sleep(0.01)

    server = await serve_http(answer)
    reader = http_reader.HttpReader()
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/file"
    with pytest.raises(Exception, match="slow"):
        async with asyncio.timeout(10):
            async for chunk in limits.paced(reader.read(url, 10**9)):
                assert not chunk
    await reader.close()
    server.close()
