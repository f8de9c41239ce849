"""Adapters that a file lists: fetched from a hub that runs here, held, told of over HTTP, and tried again."""

import asyncio
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from fairlead_common.wire.downloads import DownloadFailure, SourcesReport, SourceState
from fairlead_engine.sources.downloader import DownloadOrders, download
from fairlead_engine.sources.listed_adapters import ListedAdapters
from fairlead_engine.sources.models_folder import ModelsFolder, is_held, read_manifest
from fairlead_engine.sources.remote import DownloadError
from fairlead_engine.sources.reporting import Reporter
from fairlead_engine.sources.selection import SourceKind
from fairlead_engine_testing.loopback_hub import HubModel, LoopbackHub, loopback_hub

PATIENCE_SECONDS = 60.0
CONFIG = json.dumps({"peft_type": "LORA", "r": 4}).encode()
TENSORS = {"base_model.model.a.lora_A.weight": np.arange(4096, dtype=np.float32).reshape(4, 1024)}


def pickled() -> bytes:
    buffer = io.BytesIO()
    torch.save({name: torch.from_numpy(tensor) for name, tensor in TENSORS.items()}, buffer)
    return buffer.getvalue()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    adapter = {"adapter_config.json": CONFIG, "adapter_model.safetensors": save(TENSORS), "README.md": b"#"}
    models = {
        "acme/pirate": HubModel({"main": adapter, "v1": adapter}),
        "acme/poet": HubModel({"main": {"adapter_config.json": CONFIG, "adapter_model.bin": pickled()}}),
        "acme/model": HubModel({"main": {"config.json": b"{}", "model.safetensors": save(TENSORS)}}),
    }
    with loopback_hub(LoopbackHub(models=models)) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


class SourceListing:
    """The file, and what becomes of it."""

    def __init__(self, path: Path, adapters: ListedAdapters) -> None:
        self._path, self._adapters = path, adapters

    def write(self, *sources: str) -> None:
        self._path.write_text("".join(f"{source}\n" for source in sources))

    async def until(self, holds: Callable[[dict[str, SourceState]], bool]) -> dict[str, SourceState]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                states = {each.source: each for each in self._adapters.report().sources}
                if holds(states):
                    return states
                await asyncio.sleep(0.01)


@asynccontextmanager
async def listed(folder: Path) -> AsyncIterator[SourceListing]:
    listing, models = folder / "sources", ModelsFolder(folder / "models")
    adapters = ListedAdapters(listing, models, look_seconds=0.01, first_pause_seconds=0.05)
    async with adapters.kept():
        yield SourceListing(folder / "sources", adapters)


async def test_what_is_listed_is_fetched_and_held_until_it_is_listed_no_more(hub: LoopbackHub, tmp_path: Path) -> None:
    async with listed(tmp_path) as listing:
        await listing.until(lambda states: not states)  # the file is not there yet
        listing.write("hf://acme/pirate@v1")
        states = await listing.until(lambda states: all(each.folder for each in states.values()) and bool(states))
        folder = Path(states["hf://acme/pirate@v1"].folder or "")
        assert sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) == [
            "adapter_config.json", "adapter_model.safetensors",
        ]  # fmt: skip
        assert is_held(folder, just_used_seconds=0.0), "nobody removes it for room"
        listing.write("hf://acme/poet", "hf://acme/poet")
        states = await listing.until(
            lambda states: states.keys() == {"hf://acme/poet"} and all(s.folder for s in states.values())
        )
        assert not is_held(folder, just_used_seconds=0.0) and folder.is_dir()
        poet = Path(states["hf://acme/poet"].folder or "")
    assert not is_held(poet, just_used_seconds=0.0)
    assert read_manifest(poet) is not None
    found = load((poet / "adapter_model.safetensors").read_bytes())
    assert {name: tensor.tolist() for name, tensor in found.items()} == {n: t.tolist() for n, t in TENSORS.items()}
    assert not (poet / "adapter_model.bin").exists() and not (poet / "model.safetensors").exists()


async def test_what_fails_names_its_reason_and_is_tried_until_it_is_there(hub: LoopbackHub, tmp_path: Path) -> None:
    async with listed(tmp_path) as listing:
        listing.write("hf://acme/pirate@v9", "hf://acme/nobody", "hf://acme/model", "hf://", "hf://acme/pirate")
        states = await listing.until(
            lambda states: len(states) == 5 and all(each.reason or each.folder for each in states.values())
        )
        reasons = {source: each.reason for source, each in states.items()}
        assert reasons == {
            "hf://acme/pirate@v9": "RevisionNotFound", "hf://acme/nobody": "SourceNotFound",
            "hf://acme/model": "SourceNotFound", "hf://": "SourceNotSupported", "hf://acme/pirate": "",
        }  # fmt: skip
        assert "has no revision 'v9'" in states["hf://acme/pirate@v9"].message
        assert "it is a model" in states["hf://acme/model"].message
        hub.models["acme/pirate"].revisions["v9"] = hub.models["acme/pirate"].revisions["v1"]
        await listing.until(lambda states: states["hf://acme/pirate@v9"].folder is not None)


async def test_progress_is_told_and_a_download_ends_when_it_is_listed_no_more(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.pause_seconds = 3600.0
    async with listed(tmp_path) as listing:
        listing.write("hf://acme/pirate")
        states = await listing.until(
            lambda states: any(each.progress and each.progress.stage == "downloading" for each in states.values())
        )
        (state,) = states.values()
        assert state.progress is not None and (state.progress.total_bytes or 0) > 16384 and not state.folder
        listing.write()
        await listing.until(lambda states: not states)
        hub.pause_seconds = 0.0
        listing.write("hf://acme/pirate")
        await listing.until(lambda states: all(each.folder for each in states.values()) and bool(states))


async def test_a_source_is_either_a_model_or_an_adapter(hub: LoopbackHub, tmp_path: Path) -> None:
    models = ModelsFolder(tmp_path)

    async def fetch(source: str, kind: SourceKind) -> Path:
        return await download(DownloadOrders(source=source, models=models, kind=kind), Reporter(source))

    await fetch("hf://acme/pirate", SourceKind.ADAPTER)
    for source, kind in (("hf://acme/pirate", SourceKind.MODEL), ("hf://acme/poet", SourceKind.MODEL)):
        with pytest.raises(DownloadError, match="is an adapter and no model") as caught:
            await fetch(source, kind)
        assert caught.value.reason == DownloadFailure.SOURCE_NOT_FOUND
    await fetch("hf://acme/model", SourceKind.MODEL)
    with pytest.raises(DownloadError, match="it is a model"):
        await fetch("hf://acme/model", SourceKind.ADAPTER)


def test_the_program_answers_until_it_is_told_to_end(hub: LoopbackHub, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    listing = tmp_path / "sources"
    listing.write_text("hf://acme/pirate\n")
    command = [sys.executable, "-m", "fairlead_engine", "download-adapters", "--listed-in", str(listing)]
    command += ["--to", str(tmp_path / "models"), "--port", str(port)]
    with subprocess.Popen(command, env=dict(os.environ)) as program:
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not (state := asked(port)) or state[0].folder is None:
                assert time.monotonic() < deadline and program.poll() is None
                time.sleep(0.05)
            assert Path(state[0].folder).parent == tmp_path / "models"
        finally:
            program.send_signal(signal.SIGTERM)
    assert program.returncode == 0


def asked(port: int) -> list[SourceState]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/sources")
        return msgspec.json.decode(connection.getresponse().read(), type=SourcesReport).sources
    except (OSError, http.client.HTTPException):
        return []
    finally:
        connection.close()
