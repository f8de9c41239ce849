"""`fairlead models` and an engine on what it has downloaded: from a name to an answer."""

import json
import os
import pty
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import fairlead_engine.demo
from fairlead.fit.presets import presets
from fairlead_common.wire.downloads import DownloadStage
from fairlead_common.wire.model_sources import folder_name
from fairlead_engine_testing.loopback_hub import HubModel, LoopbackHub, loopback_hub

DINGHY = Path(fairlead_engine.demo.__file__).parent / "dinghy"
SOURCE = "hf://acme/dinghy@v1"


@pytest.fixture(scope="module")
def hub() -> Iterator[LoopbackHub]:
    files = {path.name: path.read_bytes() for path in DINGHY.iterdir() if path.is_file() and path.suffix != ".py"}
    with loopback_hub(LoopbackHub({"acme/dinghy": HubModel({"v1": files})})) as hub:
        yield hub


def models(hub: LoopbackHub, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"HF_ENDPOINT": hub.endpoint, "FAIRLEAD_MODELS_FOLDER": str(folder)}
    command = [sys.executable, "-m", "fairlead", "models", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@contextmanager
def serving(folder: Path, module: str = "fairlead_engine_testing.fake_serve") -> Iterator[str]:
    """An engine's address, once it is ready."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", module, "serve", "--model", str(folder), "--host", "127.0.0.1"]
    with subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.PIPE, text=True) as process:
        try:
            for _ in range(1200):
                try:
                    urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).close()
                    break
                except OSError:
                    assert process.poll() is None, process.stderr and process.stderr.read()
                    time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.communicate()


@pytest.mark.slow
def test_pull_list_and_prune(hub: LoopbackHub, tmp_path: Path) -> None:
    pulled = models(hub, tmp_path, "pull", SOURCE)
    folder = tmp_path / folder_name(SOURCE)
    assert pulled.returncode == 0, pulled.stderr
    assert Path(pulled.stdout.strip()) == folder and (folder / "model.safetensors").is_file()
    assert SOURCE in models(hub, tmp_path, "list").stdout
    with serving(folder):
        listed: dict[str, Any] = json.loads(models(hub, tmp_path, "list", "--json").stdout)
        assert [(row["source"], row["in_use"]) for row in listed["models"]] == [(SOURCE, True)]
        kept = models(hub, tmp_path, "prune", SOURCE)
        assert kept.returncode == 1 and "in use" in kept.stderr and folder.exists()
        assert models(hub, tmp_path, "prune", "--all").returncode == 0 and folder.exists()
    assert models(hub, tmp_path, "prune", SOURCE).stdout == f"removed {folder.name}\n"
    assert not folder.exists()
    assert models(hub, tmp_path, "prune", SOURCE).returncode == 1
    assert "no models in" in models(hub, tmp_path, "list").stdout


@pytest.mark.parametrize("source", ["demo://dinghy", "acme/dinghy", "hf://a:hunter2@acme/dinghy"])
def test_what_is_not_downloaded_is_told(hub: LoopbackHub, tmp_path: Path, source: str) -> None:
    done = models(hub, tmp_path, "pull", source)
    assert done.returncode == 1 and "hunter2" not in done.stderr
    (told,) = done.stderr.splitlines()
    assert told.startswith("error: ") and "{" not in told


@pytest.mark.parametrize("name", ["dinghy", "smollm2-135m-instruct"])
def test_the_name_of_a_preset_is_no_source_and_its_source_is_told(hub: LoopbackHub, name: str, tmp_path: Path) -> None:
    ended = models(hub, tmp_path, "pull", name)
    assert ended.returncode == 1
    assert f"whose model is {presets()[name].source}" in ended.stderr
    assert f"catalog show {name} | kubectl apply" in ended.stderr


def test_a_pipe_gets_plain_lines(hub: LoopbackHub, tmp_path: Path) -> None:
    done = models(hub, tmp_path, "pull", SOURCE)
    assert done.returncode == 0 and Path(done.stdout.strip()).is_dir()
    *before, last = done.stderr.splitlines()
    assert re.fullmatch(r"done +[0-9.]+ MB", last)
    assert all(line.partition(" ")[0] in set(DownloadStage) for line in before)
    (told,) = models(hub, tmp_path, "pull", SOURCE).stderr.splitlines()
    assert told == f"{SOURCE} is already there: {last.partition(' ')[2].strip()}"


def test_a_terminal_gets_a_bar_and_no_log(hub: LoopbackHub, tmp_path: Path) -> None:
    environment = os.environ | {"HF_ENDPOINT": hub.endpoint, "COLUMNS": "80", "LINES": "24"}
    seen = []
    for source in (SOURCE, "hf://acme/barge"):
        command = [sys.executable, "-m", "fairlead", "models", "pull", source, "--to", str(tmp_path)]
        ours, theirs = pty.openpty()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment) as process:
            os.close(theirs)
            seen.append(until_closed(ours))
        assert process.returncode == (0 if source == SOURCE else 1)
    (last,), told_lines = ([line.rpartition("\x1b[K")[2] for line in each.split("\r\n")[:-1]] for each in seen)
    told = " ".join(told_lines)
    assert last.startswith("done        ██") and len(last) < 80
    assert told.startswith("error: ") and "has no model acme/barge" in told
    assert all(len(line) <= 80 for line in told_lines)


@pytest.mark.slow
def test_without_a_network_one_sentence_tells(tmp_path: Path) -> None:
    done = models(LoopbackHub(endpoint="http://127.0.0.1:9"), tmp_path, "pull", SOURCE)
    assert done.returncode == 1 and done.stdout == ""
    told = done.stderr.splitlines()
    assert told[-1].startswith("error: listing of") and set(told[:-1]) <= {"listing …"}


def until_closed(terminal: int) -> str:
    """All that is written to a terminal until its last writer ends."""
    written = b""
    with suppress(OSError), os.fdopen(terminal, "rb", buffering=0) as stream:
        while chunk := stream.read(4096):
            written += chunk
    return written.decode()


@pytest.mark.slow
def test_from_a_name_to_an_answer(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = models(hub, tmp_path, "pull", "hf://acme/dinghy", "--revision", "v1").stdout.strip()
    question = {"model": "dinghy", "messages": [{"role": "user", "content": "What is 2 plus 3?"}], "temperature": 0}
    answers = []
    for place in (folder, str(DINGHY)):
        with serving(Path(place), "fairlead_engine") as url:
            with urlopen(f"{url}/v1/models") as listed:
                question["model"] = json.load(listed)["data"][0]["id"]
            body = Request(
                f"{url}/v1/chat/completions", json.dumps(question).encode(), {"Content-Type": "application/json"}
            )
            with urlopen(body) as answer:
                answers.append(json.load(answer)["choices"][0]["message"]["content"])
    assert answers[0] and answers[0] == answers[1]
