"""A tiny model with a real byte-level BPE tokenizer, apps in process on a scripted engine, and servers as processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers
from fastapi.dependencies import models as dependencies
from tokenizers import decoders, models, pre_tokenizers, trainers

from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine.api.served_model import ModelFiles
from fairlead_engine.api.service import Service
from fairlead_engine.config import ServerConfig
from fairlead_engine.server.app import build_app
from fairlead_engine_testing import ScriptedEngine
from fairlead_engine_testing.fake_engine import fake_config
from fairlead_engine_testing.prompts_here import PromptsHere
from fairlead_testing.collection import lies_below
from fairlead_testing.real_servers import free_port

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SPECIAL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
_TEXT = [
    "The quick brown fox jumps over the lazy dog. A fairlead guides each line to where it runs freely.",
    "Größe, déjà vu, 日本語のテキスト, русский текст, 👩‍👩‍👧 🚢 ⚓ and more of the same.",
    "one two three four five six seven eight nine ten eleven twelve",
]
READY_SECONDS = 60.0
SERVERS = ("dinghy", "served", "several")
"""Fixtures of a session that start a server."""
STARTERS = {"serve_folder", "start_engine_in", "measured"}
"""Fixtures by which a module starts servers for all its tests, or measures one."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a server share a process, so that it starts once: that takes eight CPU seconds."""
    for item in items:
        if isinstance(item, pytest.Function) and lies_below(item, Path(__file__).parent):
            names = set(item.fixturenames)
            server = next((name for name in SERVERS if name in names), item.path.stem if names & STARTERS else None)
            if server is not None:
                item.add_marker(pytest.mark.xdist_group(server))


def tokenizer_json() -> str:
    """A byte-level BPE tokenizer of 320 ids, the last four of them special."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=316, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_TEXT, trainer)
    tokenizer.add_special_tokens(_SPECIAL)
    return tokenizer.to_str()


@pytest.fixture(scope="session")
def tokenizer() -> PromptTokenizer:
    """The tiny model's tokenizer and chat template."""
    return PromptTokenizer(tokenizer_json(), chat_template=CHAT_TEMPLATE, special_tokens={"eos_token": "<|end|>"})


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, tokenizer: PromptTokenizer) -> Path:
    """The folder of a tiny Llama with random weights that answers with random text and rarely stops by itself."""
    from fairlead_engine_testing.checkpoints import write_random_checkpoint
    from fairlead_engine_testing.tiny_families.dense import llama_fields

    folder = tmp_path_factory.mktemp("models") / "tiny"
    fields = llama_fields(vocab_size=tokenizer.vocab_size, eos_token_id=tokenizer.token_id("<|end|>"))
    write_random_checkpoint(folder, {**fields, "max_position_embeddings": 4096})
    (folder / "tokenizer.json").write_text(tokenizer.tokenizer_json)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


@dataclass
class App:
    """A server in this process: its scripted engine, its service, and a client of its ASGI application."""

    engine: ScriptedEngine
    service: Service
    http: httpx.AsyncClient

    async def chat(self, **fields: Any) -> httpx.Response:
        """One chat request with defaults."""
        body = {"model": "tiny", "messages": [{"role": "user", "content": "ahoy"}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def complete(self, **fields: Any) -> httpx.Response:
        """One completion request with defaults."""
        return await self.http.post("/v1/completions", json={"model": "tiny", "prompt": "ahoy", **fields})


StartApp = Callable[..., App]


@pytest.fixture
async def start_app(tokenizer: PromptTokenizer) -> AsyncIterator[StartApp]:
    """Makes an `App` on a scripted engine; `ready=False` leaves it loading."""
    apps: list[App] = []

    def start(
        engine: ScriptedEngine | None = None,
        *,
        ready: bool = True,
        tokenizer: PromptTokenizer = tokenizer,
        **settings: Any,
    ) -> App:
        engine = engine or ScriptedEngine()
        engine.alive = True
        service = Service("tiny", engine, ServerConfig(**settings), make_asked=PromptsHere)
        if ready:
            service.ready(ModelFiles(tokenizer, {}), engine.info)
        transport = httpx.ASGITransport(app=build_app(service), raise_app_exceptions=False)
        apps.append(App(engine, service, httpx.AsyncClient(transport=transport, base_url="http://engine")))
        return apps[-1]

    yield start
    for app in apps:
        await app.http.aclose()
        app.service.close()
    forget_endpoints()


def forget_endpoints() -> None:
    """Empties FastAPI's caches of what kind endpoints are. They hold thousands of bound methods, and so the last
    hundreds of these applications with tokenizers and grammars: gigabytes in each test process."""
    for each in vars(dependencies).values():
        if hasattr(each, "cache_clear"):
            each.cache_clear()


@dataclass
class EngineProcess:
    """`fairlead-engine serve` as a process."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    termination_log: Path

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Returns when `holds()`; fails with the server's log when it does not within a minute."""
        deadline = time.monotonic() + READY_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                pytest.fail(f"{what} did not happen; the server's log:\n{self.log.read_text()}")
            time.sleep(0.02)

    def wait_ready(self) -> None:
        self.wait_until(lambda: self.status("/ready") == 200 or self.process.poll() is not None, "readiness")
        assert self.process.poll() is None, self.log.read_text()

    def status(self, path: str) -> int | None:
        """The status of a GET; None when nobody answers."""
        try:
            return httpx.get(self.url + path, timeout=5).status_code
        except httpx.TransportError:
            return None

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        lines = httpx.get(self.url + "/metrics", timeout=5).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))

    def wait_exit(self) -> int:
        return self.process.wait(timeout=READY_SECONDS)

    def core_pid(self) -> int:
        """The process that runs the model."""
        others = {*self.peer_pids(), *self._running(b"workers.process")}
        (core,) = (each for each in self.children() if each not in others)
        return core

    def peer_pids(self) -> list[int]:
        """The HTTP processes beside the first."""
        return self._running(b"peer_process")

    def worker_pids(self) -> set[int]:
        """The processes that run strangers' programs, whichever of them has started which."""
        found, new = set[int](), self._running(b"workers.process")
        while new:
            found.update(new)
            new = [child for pid in new for child in _children(pid)]
        return found

    def _running(self, module: bytes) -> list[int]:
        """Those of the program, whichever thread has started them."""
        return [pid for pid in _children(self.process.pid) if module in _command_line(pid)]

    def children(self) -> list[int]:
        """The processes that the server's first thread has started, the oldest first."""
        return [*map(int, Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split())]


def _children(pid: int) -> list[int]:
    """Of any of its threads; none of one that is gone."""
    try:
        lists = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [*map(int, " ".join(lists).split())]


def _command_line(pid: int) -> bytes:
    """Nothing of a process that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class EngineStarter:
    """Starts `fairlead-engine serve` with flags on a free port, and kills at the end what still runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[EngineProcess] = []

    def __call__(self, *flags: str, port: int | None = None, program: str = "fairlead_engine") -> EngineProcess:
        port = free_port() if port is None else port
        number = len(self._started)
        log, last_words = self._folder / f"engine-{number}.log", self._folder / f"termination-{number}"
        command = [sys.executable, "-m", program, "serve", "--port", str(port), *flags]
        environment = {**os.environ, "FAIRLEAD_TERMINATION_LOG": str(last_words), "OMP_NUM_THREADS": "1"}
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=self._folder)
        self._started.append(EngineProcess(process, f"http://127.0.0.1:{port}", log, last_words))
        return self._started[-1]

    def kill(self) -> None:
        for engine in self._started:
            if engine.process.poll() is None:
                engine.process.kill()
            engine.process.wait()

    def fake(self, *flags: str, misbehaviour: str = "", num_blocks: int = 4096) -> EngineProcess:
        """An engine without a model, as `tiny`: ready soon, and told how it misbehaves (`Misbehaviour`)."""
        memory = str(fake_config(num_blocks=num_blocks).kv_cache_memory)
        sizes = ["--block-size", "4", "--kv-cache-memory", memory, "--max-num-seqs", "16"]
        model = ["--model", f"fake://?{misbehaviour}", "--served-name", "tiny"]
        return self(*model, *sizes, *flags, program="fairlead_engine_testing.fake_serve")


@pytest.fixture
def start_engine(tmp_path: Path) -> Iterator[EngineStarter]:
    """Starts engines for one test."""
    starter = EngineStarter(tmp_path)
    yield starter
    starter.kill()


@pytest.fixture(scope="session")
def start_engine_in() -> Callable[[Path], EngineStarter]:
    """For fixtures of their own: what starts engines, in a folder, to be told when to kill them."""
    return EngineStarter


@pytest.fixture(scope="module")
def serve_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., EngineProcess]]:
    """Serves a model, by default as `tiny`, for the tests of one module."""
    starter = EngineStarter(tmp_path_factory.mktemp("served"))

    def serve(model: Path | str, *flags: str, name: str = "tiny") -> EngineProcess:
        engine = starter("--model", str(model), "--served-name", name, "--dtype", "float32", *flags)
        engine.wait_ready()
        return engine

    yield serve
    starter.kill()


@pytest.fixture(scope="session")
def served(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """One engine, as `tiny`, for all tests that leave it as it was."""
    starter = EngineStarter(tmp_path_factory.mktemp("served"))
    engine = starter("--model", str(checkpoint), "--served-name", "tiny")
    engine.wait_ready()
    yield engine
    starter.kill()


@pytest.fixture(scope="session")
def dinghy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """One engine of the bundled model, as `dinghy`, for all tests that leave it as it was."""
    starter = EngineStarter(tmp_path_factory.mktemp("dinghy"))
    engine = starter(
        "--model", "demo://dinghy", "--served-name", "dinghy", "--dtype", "float32", "--max-model-len", "512"
    )
    engine.wait_ready()
    yield engine
    starter.kill()


@pytest.fixture(scope="session")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """An engine of three HTTP processes and no model, for all tests that leave it as it was; it takes nine connections
    and makes a token in five milliseconds."""
    starter = EngineStarter(tmp_path_factory.mktemp("several"))
    engine = starter.fake("--api-servers", "3", "--max-connections", "9", misbehaviour="step_seconds=0.005")
    engine.wait_ready()
    yield engine
    starter.kill()
