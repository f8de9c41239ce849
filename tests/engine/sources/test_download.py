"""The downloader's program against a hub on this machine: what it fetches, goes on with, refuses, and tells."""

import asyncio
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from fairlead_common.wire.downloads import DownloadFailure, DownloadProgress, DownloadStage
from fairlead_common.wire.model_sources import folder_name
from fairlead_engine.sources import downloader, limits
from fairlead_engine.sources.downloader import DownloadOrders, download
from fairlead_engine.sources.models_folder import ModelsFolder, hold_model, last_used, read_manifest
from fairlead_engine.sources.remote import DownloadError, Remote, RemoteFile, SourceListing
from fairlead_engine.sources.reporting import Reporter
from fairlead_engine_testing.downloads import contents, staged_bytes
from fairlead_engine_testing.loopback_hub import HubModel, LoopbackHub
from fairlead_testing.real_servers import free_port

SOURCE = "hf://acme/dinghy"
TOKEN = "hf_secretsecretsecret"
BIG = random.Random(7).randbytes(1_500_000)
SERVED = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "generation_config.json": b"{}",
    "tokenizer.json": random.Random(3).randbytes(30_000),
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors.index.json": b'{"weight_map": {"a": "model-00001-of-00002.safetensors"}}',
    "model-00001-of-00002.safetensors": BIG,
    "model-00002-of-00002.safetensors": BIG[:700_000],
}
LEFT_OUT = {
    "README.md": b"# A model",
    ".gitattributes": b"*",
    "pytorch_model.bin": BIG[:5000],
    "consolidated.safetensors": BIG[:6000],
    "original/consolidated.00.pth": BIG[:5000],
    "onnx/model.onnx": BIG[:5000],
    "images/boat.png": BIG[:5000],
    "modeling_dinghy.py": b"raise SystemExit",
}


@pytest.fixture
def hub(hub: LoopbackHub) -> LoopbackHub:
    hub.models = {"acme/dinghy": HubModel({"main": SERVED | LEFT_OUT, "v1": SERVED | {"config.json": b"{}"}})}
    hub.token, hub.cut_after, hub.unwell, hub.pause_seconds = None, None, 0, 0.0
    hub.asked, hub.problems, hub.flipped = [], [], set()
    return hub


@dataclass
class Fetched:
    """A download in this process."""

    models: ModelsFolder
    reporter: Reporter = field(default_factory=lambda: Reporter(SOURCE))

    def run(self, source: str = SOURCE, **settings: Any) -> Path:
        orders = DownloadOrders(source, self.models, backoff_seconds=0.001, **settings)
        return asyncio.run(download(orders, self.reporter))

    def fails(self, source: str = SOURCE, **settings: Any) -> DownloadError:
        with pytest.raises(DownloadError) as caught:
            self.run(source, **settings)
        assert not self.models.model(source).exists()
        return caught.value


@pytest.fixture
def fetched(tmp_path: Path) -> Fetched:
    return Fetched(ModelsFolder(tmp_path / "models"))


def start(models: Path, source: str = SOURCE, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "fairlead_engine", "download", source, "--to", str(models), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=os.environ | environment)


def test_what_serving_needs_is_fetched_and_nothing_else(hub: LoopbackHub, fetched: Fetched) -> None:
    folder = fetched.run()
    assert folder == fetched.models.path / folder_name(SOURCE)
    assert contents(folder) == SERVED
    manifest = read_manifest(folder)
    assert manifest is not None and manifest.source == SOURCE
    assert manifest.revision == hub.commit("acme/dinghy", "main")
    assert {file.path: (file.size, file.sha256) for file in manifest.files} == {
        path: (len(content), hashlib.sha256(content).hexdigest()) for path, content in SERVED.items()
    }
    assert {asked.path for asked in hub.asked} == set(SERVED)
    assert fetched.reporter.progress().stage == DownloadStage.DONE
    assert fetched.reporter.progress().bytes == fetched.reporter.progress().total_bytes == manifest.bytes


def test_a_model_that_is_there_is_used_as_it_is(hub: LoopbackHub, fetched: Fetched) -> None:
    fetched.run()
    hub.models["acme/dinghy"].revisions["main"] = SERVED | {"config.json": b'{"moved": true}'}
    hub.asked.clear()
    assert contents(fetched.run()) == SERVED and not hub.asked
    assert contents(fetched.run(refresh=True))["config.json"] == b'{"moved": true}'
    hub.asked.clear()
    fetched.run(refresh=True)
    assert not hub.asked  # the revision is the same


def test_the_official_client_takes_this_hub_for_one(hub: LoopbackHub, tmp_path: Path) -> None:
    program = (
        "import sys; from huggingface_hub import snapshot_download; "
        "print(snapshot_download('acme/dinghy', revision='main', allow_patterns=['*.json', '*.safetensors']))"
    )
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder.name == hub.commit("acme/dinghy", "main")
    assert (folder / "model-00001-of-00002.safetensors").read_bytes() == BIG


def test_a_revision_of_its_own_has_a_folder_of_its_own(hub: LoopbackHub, fetched: Fetched) -> None:
    assert contents(fetched.run(f"{SOURCE}@v1"))["config.json"] == b"{}"
    assert fetched.models.manifest(SOURCE) is None


@pytest.mark.parametrize(
    ("source", "change", "reason", "words"),
    [
        ("hf://acme/dingy", {}, DownloadFailure.SOURCE_NOT_FOUND, "no model acme/dingy"),
        (f"{SOURCE}@v9", {}, DownloadFailure.REVISION_NOT_FOUND, "'v9'"),
        (SOURCE, {"is_gated": True}, DownloadFailure.SOURCE_GATED, "accept its terms"),
        (SOURCE, {"is_private": True}, DownloadFailure.SOURCE_NOT_FOUND, "give HF_TOKEN"),
    ],
)
def test_each_refusal_has_its_sentence(
    hub: LoopbackHub, fetched: Fetched, source: str, change: dict[str, bool], reason: str, words: str
) -> None:
    for name, value in change.items():
        setattr(hub.models["acme/dinghy"], name, value)
    error = fetched.fails(source)
    assert error.reason == reason and words in error.message


def test_a_token_that_is_refused(hub: LoopbackHub, fetched: Fetched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    error = fetched.fails()
    assert error.reason == DownloadFailure.ACCESS_DENIED and "HF_TOKEN" in error.message
    assert "somebody" not in error.message


def test_a_hub_that_is_unwell_is_asked_again_and_one_that_is_gone_is_named(
    hub: LoopbackHub, fetched: Fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.unwell = 5
    assert contents(fetched.run()) == SERVED
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    error = Fetched(fetched.models).fails(f"{SOURCE}@v1", attempts=3)
    assert error.reason == DownloadFailure.SOURCE_UNREACHABLE and "127.0.0.1" in error.message


def test_who_has_little_patience_is_told_before_the_last_try(
    hub: LoopbackHub, fetched: Fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.unwell = 1
    error = fetched.fails(patience_seconds=0.0)
    assert error.reason == DownloadFailure.SOURCE_UNREACHABLE and "not at try 1 (" in error.message
    hub.cut_after = 400_000
    assert contents(fetched.run(patience_seconds=0.0)) == SERVED  # what has begun is tried as ever


STUCK = """
import socket, sys, time
from fairlead_engine.__main__ import main
from fairlead_engine.commands import models_command
from fairlead_engine.sources import http_reader

socket.getaddrinfo = lambda *arguments, **named: time.sleep(3600)
http_reader._CONNECT_SECONDS, models_command._PATIENCE_SECONDS = 0.1, 0.0
sys.exit(main(["download", "hf://acme/dinghy", "--attended", "--to", sys.argv[1]]))
"""


def test_a_look_up_of_a_name_that_does_not_end_keeps_nobody_waiting(tmp_path: Path) -> None:
    environment = os.environ | {"HF_ENDPOINT": "http://hub.example"}
    done = subprocess.run(
        [sys.executable, "-c", STUCK, str(tmp_path)], env=environment, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 1 and done.stdout == ""
    (told,) = done.stderr.splitlines()
    assert told.startswith("error: listing of hf://acme/dinghy cannot be fetched") and "hub.example" in told


def test_connections_that_break_lose_nothing(hub: LoopbackHub, fetched: Fetched) -> None:
    hub.cut_after = 400_000
    assert contents(fetched.run()) == SERVED
    assert hub.file_bytes("model-00001-of-00002.safetensors") < len(BIG) * 1.2


@pytest.mark.parametrize("path", ["model-00002-of-00002.safetensors", "generation_config.json"])
def test_a_flipped_byte_is_refused_by_name_and_not_kept(hub: LoopbackHub, fetched: Fetched, path: str) -> None:
    hub.flipped.add(path)
    error = fetched.fails()
    assert error.reason == DownloadFailure.DIGEST_MISMATCH and path in error.message
    assert not list(fetched.models.staging(SOURCE).glob(f"{path}*"))
    hub.flipped.clear()
    hub.asked.clear()
    assert contents(fetched.run()) == SERVED


@pytest.mark.slow
def test_progress_is_told_and_no_secret_is(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.token, hub.pause_seconds = TOKEN, 0.05
    hub.models["acme/dinghy"].is_private = hub.models["acme/dinghy"].is_gated = True
    log = tmp_path / "termination-log"
    models = tmp_path / "models"
    port = free_port()
    process = start(
        models, SOURCE, "--progress-port", str(port), "--log-level", "debug",
        HF_TOKEN=TOKEN, FAIRLEAD_TERMINATION_LOG=str(log),
    )  # fmt: skip
    seen: list[DownloadProgress] = []
    command_line = b""
    while process.poll() is None:
        command_line = command_line or Path(f"/proc/{process.pid}/cmdline").read_bytes()
        try:
            with urlopen(f"http://127.0.0.1:{port}/progress", timeout=5) as answer:
                seen.append(DownloadProgress(**json.load(answer)))
        except OSError:
            pass
        time.sleep(0.05)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    total = sum(map(len, SERVED.values()))
    running = [each for each in seen if each.stage == DownloadStage.DOWNLOADING]
    assert running and all(each.total_bytes == total for each in running)
    assert [each.bytes for each in seen] == sorted(each.bytes for each in seen)
    assert any(0 < each.bytes < total and each.bytes_per_second and each.remaining_seconds for each in running)
    hub.models["acme/dinghy"].revisions.clear()
    failed = start(models, SOURCE, "--refresh", HF_TOKEN=TOKEN, FAIRLEAD_TERMINATION_LOG=str(log))
    failed_output = "".join(failed.communicate())
    assert json.loads(log.read_text())["reason"] == DownloadFailure.REVISION_NOT_FOUND
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    everything = b"\n".join([output.encode(), errors.encode(), failed_output.encode(), command_line, *written])
    assert TOKEN.encode() not in everything and b"X-Signature" not in everything and not hub.problems


def test_an_interrupt_from_the_keyboard_ends_it_with_what_was_fetched(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.pause_seconds = 0.1
    process = start(tmp_path)
    staging = ModelsFolder(tmp_path).staging(SOURCE)
    while process.poll() is None and staged_bytes(staging) < 300_000:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130 and "Traceback" not in errors
    assert errors.splitlines()[-1] == "stopped; what was fetched is kept for the next time"
    assert staged_bytes(staging) >= 300_000


@pytest.mark.parametrize("port", ["0", "65536", "-1", "1e3", "9" * 5000])
def test_ports_that_are_none(tmp_path: Path, port: str) -> None:
    process = start(tmp_path, SOURCE, f"--progress-port={port}")
    _, errors = process.communicate()
    assert process.returncode == 2 and "--progress-port: must be a port, 1 to 65535" in errors


@pytest.mark.parametrize("status", ["absent", "refusing"])
def test_passwords_of_mirrors_and_proxies_are_told_to_nobody(hub: LoopbackHub, tmp_path: Path, status: str) -> None:
    address = hub.endpoint.removeprefix("http://") if status == "refusing" else "127.0.0.1:9"
    refused = {"HF_ENDPOINT": f"http://me:hidden-word@{address}"}
    proxied = {"HF_ENDPOINT": "http://mirror.invalid", "HTTP_PROXY": f"http://me:hidden-word@{address}"}
    for environment in (refused, proxied):
        # A client of its own, whose attempts do not wait.
        program = (
            "import sys, fairlead_engine.sources.downloader as d; d._LONGEST_PAUSE_SECONDS = 0.001; "
            "from fairlead_engine.__main__ import main; sys.exit(main(sys.argv[1:]))"
        )
        command = [sys.executable, "-c", program, "download", "hf://acme/none", "--to", str(tmp_path)]
        done = subprocess.run(
            [*command, "--log-level", "debug"], capture_output=True, text=True, check=False,
            env=os.environ | {"no_proxy": "", "NO_PROXY": ""} | environment,
        )  # fmt: skip
        assert done.returncode == 1 and '"reason"' in done.stderr
        assert "hidden-word" not in done.stdout + done.stderr, done.stderr


class Dripping(Remote):
    """A source whose first connections bring little."""

    def __init__(self, content: bytes, num_slow: int) -> None:
        self.content, self.num_slow, self.starts = content, num_slow, list[int]()

    async def open(self) -> SourceListing:
        files = {"config.json": 2, "model.safetensors": len(self.content)}
        return SourceListing("r1", tuple(RemoteFile(path, size) for path, size in files.items()))

    async def read(self, file: RemoteFile, start: int) -> AsyncIterator[bytes]:
        if file.path == "config.json":
            yield b"{}"
            return
        self.starts.append(start)
        while len(self.starts) <= self.num_slow:
            yield self.content[start : start + 10]
            start += 10
            await asyncio.sleep(0.001)
        yield self.content[start:]

    async def close(self) -> None: ...


def test_a_connection_that_has_become_slow_is_given_up_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SLOW_SECONDS", 0.05)
    remote = Dripping(random.Random(8).randbytes(500_000), num_slow=3)
    orders = DownloadOrders(SOURCE, ModelsFolder(tmp_path), backoff_seconds=0.001, attempts=2)
    folder = asyncio.run(download(orders, Reporter(SOURCE), remote))
    assert (folder / "model.safetensors").read_bytes() == remote.content
    assert len(remote.starts) == 4 and remote.starts == sorted(set(remote.starts))  # what came is kept


def test_a_disk_without_room_is_told_before_a_byte_is_fetched(
    hub: LoopbackHub, fetched: Fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloader, "free_bytes", lambda folder: 1_000_000)
    error = fetched.fails()
    assert error.reason == DownloadFailure.NO_SPACE and "1000000" in error.message
    assert not hub.asked


@pytest.mark.slow
def test_least_recently_used_models_go_unless_they_are_in_use(hub: LoopbackHub, fetched: Fetched) -> None:
    hub.models |= {f"acme/{name}": HubModel({"main": SERVED}) for name in "abc"}
    folders = [fetched.run(f"hf://acme/{name}") for name in "ab"]
    size = sum(map(len, SERVED.values()))
    for age, folder in zip((9000, 5000), folders, strict=True):
        os.utime(folder / ".fairlead.json", (time.time() - age,) * 2)
    held = hold_model(folders[0])
    assert held is not None
    with held:
        assert fetched.run("hf://acme/c", size_limit=2 * size).exists()
        assert folders[0].exists() and not folders[1].exists()  # the older one is in use
        error = fetched.fails("hf://acme/b", size_limit=2 * size)  # and c was used just now
        assert error.reason == DownloadFailure.NO_SPACE and "raise the limit" in error.message
        assert folders[0].exists() and fetched.models.model("hf://acme/c").exists()
    assert fetched.run("hf://acme/b", size_limit=2 * size).exists() and not folders[0].exists()


def test_asking_for_a_model_is_using_it(hub: LoopbackHub, fetched: Fetched) -> None:
    folder = fetched.run()
    os.utime(folder / ".fairlead.json", (1, 1))
    fetched.run()
    assert last_used(folder) > time.time() - 60
