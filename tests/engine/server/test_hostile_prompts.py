"""Tokenizers and chat templates that take all there is: what makes them do so is refused, and nobody else notices."""

import json
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

MEGABYTE = 2**20
GROWING = {
    "normalizer": {
        "type": "Sequence",
        "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}] * 6,
    }
}
PANICKING = {
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
}
NESTED = "{% set ns = namespace(x=[0]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
LOOPING = "{% if messages[0].content == 'ahoy' %}ahoy{% else %}" + NESTED + "{{ 1 in ns.x }}{% endif %}"


def written(sound: Path, folder: Path, changes: dict[str, Any], template: str | None = None) -> Path:
    """A model that is sound but for these."""
    shutil.copytree(sound, folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def serve(start_engine: Any, folder: Path) -> Any:
    return start_engine("--model", str(folder), "--served-name", "tiny", "--kv-cache-memory", "4Mi")


def refused(engine: Any, path: str, **fields: Any) -> tuple[str, str]:
    """The field, and the sentence."""
    response = httpx.post(engine.url + path, json={"model": "tiny", **fields}, timeout=60)
    error = response.json()["error"]
    assert response.status_code == 400, error
    return error["param"], error["message"]


def test_who_makes_a_tokenizer_take_too_much_is_refused_and_others_are_answered(
    start_engine: Any, checkpoint: Path, tmp_path: Path
) -> None:
    engine = serve(start_engine, written(checkpoint, tmp_path / "m", GROWING, LOOPING))
    engine.wait_ready()
    process = psutil.Process(engine.process.pid)
    before, stopping = process.memory_info().rss, threading.Event()

    def attack() -> None:
        while not stopping.is_set():
            field, sentence = refused(engine, "/v1/completions", prompt="a" * 40)
            assert (field, "more" in sentence or "memory" in sentence) == ("prompt", True), sentence

    threads = [threading.Thread(target=attack) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        body = {"model": "tiny", "prompt": "bcd", "max_tokens": 1}
        assert httpx.post(engine.url + "/v1/completions", json=body, timeout=60).status_code == 200
        assert engine.status("/health") == 200
    stopping.set()
    for thread in threads:
        thread.join()
    said = [{"role": "user", "content": "what?"}]
    assert refused(engine, "/v1/chat/completions", messages=said)[0] == "messages"
    assert refused(engine, "/tokenize", messages=said)[0] == "messages"
    assert refused(engine, "/v1/completions", prompt="b", bad_words=["a" * 40])[0] == "bad_words"
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "ahoy"}], "max_tokens": 1}
    assert httpx.post(engine.url + "/tokenize", json={**chat, "messages": chat["messages"]}).status_code == 400
    assert process.memory_info().rss - before < 100 * MEGABYTE
    family = process.children(recursive=True)
    engine.process.send_signal(signal.SIGTERM)
    assert engine.wait_exit() == 0
    psutil.wait_procs(family, timeout=10)
    assert not [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def test_a_panic_is_a_refusal_that_names_the_field(start_engine: Any, checkpoint: Path, tmp_path: Path) -> None:
    engine = serve(start_engine, written(checkpoint, tmp_path / "m", PANICKING))
    engine.wait_ready()
    assert refused(engine, "/v1/completions", prompt="a" * 40 + "b")[0] == "prompt"
    messages = [{"role": "user", "content": "a" * 40 + "b"}]
    assert refused(engine, "/v1/chat/completions", messages=messages)[0] == "messages"


@pytest.mark.parametrize(
    "decoders",
    [
        [{"type": "Fuse"}, *[{"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 10}] * 6],
        pytest.param(
            [{"type": "Fuse"}, {"type": "Replace", "pattern": {"Regex": "(e+)+$"}, "content": ""}],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_decoder_that_may_take_all_there_is_is_not_served(
    start_engine: Any, checkpoint: Path, tmp_path: Path, decoders: list[dict[str, Any]]
) -> None:
    changes = {"decoder": {"type": "Sequence", "decoders": decoders}}
    engine = serve(start_engine, written(checkpoint, tmp_path / "m", changes))
    assert engine.wait_exit() == 1
    words = json.loads(engine.termination_log.read_text())
    assert (words["reason"], "its decoder" in words["message"]) == ("TokenizerInvalid", True)
