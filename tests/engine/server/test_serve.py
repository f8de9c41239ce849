"""`fairlead-engine serve` as a process: start, answer, stream, drain, and every way it can go wrong."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from safetensors.torch import load_file, save_file

PROMPT = [{"role": "user", "content": "ahoy"}]
LONG: dict[str, Any] = {"max_tokens": 3000, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def client() -> Iterator[Callable[[Any], openai.OpenAI]]:
    """The official client of an engine, closed at the end."""
    with ExitStack() as stack:
        yield lambda engine: stack.enter_context(
            openai.OpenAI(api_key="none", base_url=engine.url + "/v1", max_retries=0)
        )


def test_the_start_is_told_by_phases(served: Any) -> None:
    """Where the seconds go before a new replica helps, which decides the first tokens of a load that grows."""
    (line,) = [line for line in served.log.read_text().splitlines() if " msg=ready " in line]
    fields = dict(word.partition("=")[::2] for word in line.split())
    seconds = {
        name: float(fields[f"{name}_seconds"]) for name in ("duration", "import", "load", "cache", "compile", "warm_up")
    }
    assert 0 < seconds["import"] <= seconds["duration"]
    assert sum(seconds[name] for name in ("import", "load", "cache", "compile", "warm_up")) <= seconds["duration"] + 0.1


def ask(engine: Any, number: int, max_tokens: int) -> str:
    """The answer to one of several prompts that begin alike."""
    prompt = [7] * 60 + [5 + number, 9, 11]
    body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    response = httpx.post(engine.url + "/v1/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


@pytest.mark.slow
def test_another_attention_backend_gives_the_same_answers(served: Any, start_engine: Any, checkpoint: Path) -> None:
    """With a cache so small that sequences are preempted, and prompts that find their prefix in it."""
    other = start_engine(
        "--model", str(checkpoint), "--served-name", "tiny", "--attention-backend", "block_tables",
        "--dtype", "float32", "--max-model-len", "512", "--kv-cache-memory", "600Ki", "--block-size", "4",
    )  # fmt: skip
    other.wait_ready()
    assert " kv_cache_dtype=auto " in other.log.read_text()
    assert " attention_backend=block_tables " in other.log.read_text()
    assert " attention_backend=cpu_spans " in served.log.read_text()

    with ThreadPoolExecutor(8) as pool:
        expected, found = (list(pool.map(lambda n, e=engine: ask(e, n, 200), range(8))) for engine in (served, other))
    assert found == expected
    assert other.metric("fairlead_engine_num_preemptions_total") > 0
    assert other.metric("fairlead_engine_prefix_cache_hits_total") > 0


@pytest.mark.slow
def test_a_cache_of_8_bits_answers_the_same_whoever_else_asks(start_engine: Any, checkpoint: Path) -> None:
    """With a cache so small that sequences are preempted, and prompts that find their prefix in it."""
    engine = start_engine(
        "--model", str(checkpoint), "--served-name", "tiny", "--kv-cache-dtype", "int8",
        "--dtype", "float32", "--max-model-len", "200", "--kv-cache-memory", "40Ki", "--block-size", "4",
    )  # fmt: skip
    engine.wait_ready()
    assert " kv_cache_dtype=int8 " in engine.log.read_text()

    alone = [ask(engine, number, 70) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda number: ask(engine, number, 70), range(4))) == alone
    assert engine.metric("fairlead_engine_num_preemptions_total") > 0
    assert engine.metric("fairlead_engine_prefix_cache_hits_total") > 0


@pytest.mark.slow
def test_an_engine_used_alone_takes_more_than_two_steps_of_prompts(start_engine: Any, checkpoint: Path) -> None:
    limits = ("--max-num-seqs", "2", "--max-num-batched-tokens", "64", "--max-queue-time", "10m")
    engine = start_engine("--model", str(checkpoint), "--served-name", "tiny", *limits)
    engine.wait_ready()

    def ask(number: int, headers: dict[str, str]) -> tuple[int, str | None]:
        body = {"model": "tiny", "prompt": [number] * 130, "max_tokens": 60, "ignore_eos": True}
        response = httpx.post(engine.url + "/v1/completions", json=body, headers=headers, timeout=120)
        return response.status_code, response.headers.get("x-fairlead-reason")

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(lambda number: ask(number, {}), range(10))) == [(200, None)] * 10
        dispatched = list(pool.map(lambda n: ask(20 + n, {"x-fairlead-dispatch": f"gateway:{n + 1}"}), range(10)))
    assert set(dispatched) == {(200, None), (429, "engine-full")}, "a gateway has other replicas to ask"


def test_another_request_is_answered_while_one_with_many_answers_runs(start_engine: Any, checkpoint: Path) -> None:
    engine = start_engine("--model", str(checkpoint), "--served-name", "tiny", "--max-num-seqs", "4")
    engine.wait_ready()
    many = {"model": "tiny", "prompt": [5] * 20, "n": 8, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", engine.url + "/v1/completions", json=many, timeout=120) as stream:
        lines = stream.iter_lines()
        next(lines)
        few = {"model": "tiny", "prompt": [9] * 20, "max_tokens": 2, "ignore_eos": True}
        response = httpx.post(engine.url + "/v1/completions", json=few, timeout=120)
        assert response.status_code == 200
        assert engine.metric("fairlead_engine_num_requests_running") == 3, "all that one request may hold of four"
        assert engine.metric("fairlead_engine_num_requests_waiting") == 5


def last_words(engine: Any) -> dict[str, str]:
    return dict(json.loads(engine.termination_log.read_text()))


def test_it_answers_and_streams(served: Any, client: Any) -> None:
    api = client(served)
    reply = api.chat.completions.create(model="tiny", messages=PROMPT, max_tokens=8, temperature=0)
    assert reply.usage.completion_tokens == 8
    stream = api.chat.completions.create(model="tiny", messages=PROMPT, max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == reply.choices[0].message.content
    ids = httpx.post(served.url + "/tokenize", json={"messages": PROMPT}).json()["tokens"]
    by_ids = api.completions.create(model="tiny", prompt=ids, max_tokens=8, temperature=0)
    assert by_ids.choices[0].text == reply.choices[0].message.content


def test_the_bundled_model_is_served_by_its_name(start_engine: Any, client: Any) -> None:
    engine = start_engine("--model", "demo://dinghy")
    engine.wait_ready()
    api = client(engine)
    assert [model.id for model in api.models.list()] == ["dinghy"]
    question = [{"role": "user", "content": "What is the capital of France?"}]
    reply = api.chat.completions.create(model="dinghy", messages=question, temperature=0)
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("Paris", "stop")


def test_a_repeated_prompt_comes_from_the_cache(served: Any) -> None:
    hits = served.metric("vllm:prefix_cache_hits_total")
    body = {"model": "tiny", "prompt": list(range(50, 100)), "max_tokens": 1}
    cached = [httpx.post(served.url + "/v1/completions", json=body).headers["x-fairlead-cached-tokens"] for _ in "ab"]
    assert cached == ["0", "48"]
    assert served.metric("vllm:prefix_cache_hits_total") == hits + 48


def test_a_client_that_leaves_frees_its_blocks(served: Any, client: Any) -> None:
    stream = client(served).chat.completions.create(model="tiny", messages=PROMPT, stream=True, **LONG)
    next(iter(stream))
    assert served.metric("vllm:num_requests_running") == 1
    stream.close()
    served.wait_until(lambda: served.metric("vllm:num_requests_running") == 0, "the abort of the stream")
    with pytest.raises(httpx.ReadTimeout):
        body = {"model": "tiny", "messages": PROMPT, "max_tokens": 3000, "ignore_eos": True}
        httpx.post(served.url + "/v1/chat/completions", json=body, timeout=0.3)
    served.wait_until(lambda: served.metric("vllm:num_requests_running") == 0, "the abort of the plain request")
    assert served.metric("vllm:kv_cache_usage_perc") == 0


@pytest.mark.slow
def test_a_body_that_comes_too_slowly_is_refused_and_its_connection_closed(start_engine: Any, checkpoint: Path) -> None:
    engine = start_engine("--model", str(checkpoint), "--body-timeout", "200ms")
    engine.wait_ready()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: engine\r\nContent-Length: 1000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", httpx.URL(engine.url).port), timeout=30) as connection:
        connection.sendall(head + b'{"model": "ti')
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    header, _, body = answer.partition(b"\r\n\r\n")
    assert header.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in header
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "request_timeout")
    assert "0.2 s" in error["message"]
    assert 'outcome="too-slow"} 1.0' in httpx.get(engine.url + "/metrics").text


def test_sigterm_ends_an_idle_engine_with_status_0(start_engine: Any, checkpoint: Path) -> None:
    engine = start_engine("--model", str(checkpoint), "--drain-grace", "0")
    engine.wait_ready()
    engine.process.terminate()
    assert engine.wait_exit() == 0
    assert not engine.termination_log.exists()
    assert "msg=stopped" in engine.log.read_text()


@pytest.mark.slow
def test_sigterm_again_hurries_nothing(start_engine: Any, checkpoint: Path, client: Any) -> None:
    """Supervisors and handlers of spot nodes repeat it; only the drain's own time may cut a stream."""
    engine = start_engine("--model", str(checkpoint), "--served-name", "tiny", "--drain-grace", "0")
    engine.wait_ready()
    limits = {"max_tokens": 400, "extra_body": {"ignore_eos": True}}
    stream = client(engine).chat.completions.create(model="tiny", messages=PROMPT, stream=True, **limits)
    reasons = []
    for number, chunk in enumerate(stream):
        if number == 0:
            engine.process.terminate()
            engine.wait_until(lambda: engine.status("/ready") == 503, "the drain")
        if number < 5:
            engine.process.terminate()
        reasons += [choice.finish_reason for choice in chunk.choices]
    assert reasons[-1] == "length"
    while engine.process.poll() is None:  # while it ends, too
        engine.process.terminate()
        time.sleep(0.01)
    assert engine.wait_exit() == 0


@pytest.mark.slow
def test_draining_by_request_ends_the_process(start_engine: Any, checkpoint: Path) -> None:
    engine = start_engine("--model", str(checkpoint), "--drain-grace", "0")
    engine.wait_ready()
    assert httpx.post(engine.url + "/fairlead/v1/drain").status_code == 202
    assert engine.wait_exit() == 0


@pytest.mark.slow
def test_ctrl_c_while_loading_ends_the_process(start_engine: Any, checkpoint: Path) -> None:
    engine = start_engine("--model", str(checkpoint))
    engine.wait_until(lambda: engine.status("/health") == 200, "the first probe")
    engine.process.send_signal(signal.SIGINT)
    assert engine.wait_exit() == 0, engine.log.read_text()


def test_a_port_in_use_is_named(start_engine: Any, checkpoint: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        engine = start_engine("--model", str(checkpoint), port=port)
        assert engine.wait_exit() == 1
    assert last_words(engine)["reason"] == "AddressUnavailable"
    assert f"127.0.0.1:{port}" in last_words(engine)["message"]
    assert "Traceback" not in engine.log.read_text()


def test_an_ipv6_address_is_told_as_urls_write_it(start_engine: Any) -> None:
    engine = start_engine.fake("--host", "::1")
    port = engine.url.rpartition(":")[2]
    engine.wait_until(lambda: f"url=http://[::1]:{port}\n" in engine.log.read_text(), "the first line of its log")
    assert httpx.get(f"http://[::1]:{port}/health").status_code == 200


def test_a_host_that_is_not_ours_is_named(start_engine: Any, checkpoint: Path) -> None:
    engine = start_engine("--model", str(checkpoint), "--host", "203.0.113.7")
    assert engine.wait_exit() == 1
    assert "203.0.113.7" in last_words(engine)["message"]


def broken(checkpoint: Path, folder: Path, how: str) -> Path:
    """A copy of the checkpoint with something wrong."""
    shutil.copytree(checkpoint, folder)
    weights = folder / "model.safetensors"
    if how == "MissingTensor":
        tensors = load_file(weights)
        del tensors["model.layers.1.mlp.up_proj.weight"]
        save_file(tensors, weights)
    elif how == "TensorShapeMismatch":
        tensors = load_file(weights)
        tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()
        save_file(tensors, weights)
    elif how == "TokenizerInvalid":
        (folder / "tokenizer.json").write_text("{")
    elif how == "ModelConfigInvalid":
        (folder / "config.json").write_text("not json")
    elif how == "UnsupportedArchitecture":
        fields = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**fields, "architectures": ["XForCausalLM"]}))
    elif how == "ModelNotFound":
        shutil.rmtree(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("MissingTensor", "model.layers.1.mlp.up_proj.weight"),
        ("TensorShapeMismatch", "model.norm.weight"),
        pytest.param("TokenizerInvalid", "tokenizer.json", marks=pytest.mark.long),
        pytest.param("ModelConfigInvalid", "config.json", marks=pytest.mark.long),
        ("UnsupportedArchitecture", "XForCausalLM"),
        pytest.param("ModelNotFound", "config.json", marks=pytest.mark.long),
    ],
)
def test_a_model_that_cannot_be_loaded_ends_in_the_termination_log(
    start_engine: Any, checkpoint: Path, tmp_path: Path, reason: str, says: str
) -> None:
    engine = start_engine("--model", str(broken(checkpoint, tmp_path / "broken", reason)))
    assert engine.wait_exit() == 1
    words = last_words(engine)
    assert words["reason"] == reason
    assert says in words["message"]


@pytest.mark.parametrize(
    ("flags", "reason", "says"),
    [
        (("--model", b"x\xff"), "InvalidConfig", "model: must be text"),
        (("--model", "demo://dinghy", "--config", b"/x\xff"), "InvalidConfig", "/x\\udcff cannot be read"),
        (("--model", "demo://dinghy", "--fl\xe4g"), "InvalidConfig", "command-line"),
        (("--model", "a" * 5000), "ModelNotFound", "cannot be looked into"),
        (("--model", "~nobody-has-this-name/m"), "ModelNotFound", "cannot be looked into"),
        (("--model", "demo://dinghy", "--host", "a" * 300), "AddressUnavailable", "choose another --port or --host"),
    ],
)  # fmt: skip
def test_what_no_system_call_takes_is_refused_in_a_sentence(
    start_engine: Any, flags: tuple[Any, ...], reason: str, says: str
) -> None:
    engine = start_engine(*flags)
    assert engine.wait_exit() != 0
    words = last_words(engine)
    assert words["reason"] == reason
    assert says in words["message"]
    assert "Traceback" not in engine.log.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="nobody else may become another user")
def test_a_folder_that_may_not_be_read_is_said_to_be_one(checkpoint: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "closed" / "model")
    ask = (
        "import os, sys, tokenizers\n"
        "from fairlead_engine.demo import resolve_model\n"
        "from fairlead_engine.errors import ModelLoadError\n"
        "os.setuid(65534)\n"
        "try: resolve_model(sys.argv[1])\n"
        "except ModelLoadError as error: print(error)\n"
    )
    folder.parent.chmod(0o700)
    done = subprocess.run([sys.executable, "-c", ask, str(folder)], capture_output=True, text=True, check=False)
    assert f"{folder} cannot be looked into (Permission denied)" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--max-num-seqs", "0"], "max-num-seqs"),
        (["--max-num-sequences", "4"], "--max-num-sequences"),
        (["--max-num", "4"], "--max-num"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml"),
        (["--attention-backend", "flash"], "attention-backend: 'flash' is not known; use one of auto, cpu_spans"),
    ],
)
def test_wrong_usage_ends_with_status_2_and_last_words(start_engine: Any, flags: list[str], says: str) -> None:
    engine = start_engine("--model", "/m", *flags)
    assert engine.wait_exit() == 2
    assert last_words(engine)["reason"] == "InvalidConfig"
    assert says in last_words(engine)["message"]


def test_a_termination_log_that_cannot_be_written_does_not_hide_the_reason(tmp_path: Path) -> None:
    environment = {**os.environ, "FAIRLEAD_TERMINATION_LOG": str(tmp_path / "missing" / "log")}
    command = [sys.executable, "-m", "fairlead_engine", "serve", "--model", "demo://nothing"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert '"reason":"ModelNotFound"' in done.stderr
    assert "cannot be written" in done.stderr


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ("fairlead_engine.server.server_process", {"torch", "transformers", "openai", "triton", "numpy"}),
        ("fairlead_engine.__main__, fairlead_engine.server.serve", {"fastapi", "starlette", "uvicorn", "pydantic"}),
    ],
    ids=["never", "before the core has been started"],
)
def test_the_http_process_does_not_import(modules: str, unwanted: set[str]) -> None:
    program = f"import sys, {modules}\nsys.exit(' '.join(sorted({unwanted} & set(sys.modules))) or 0)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_core_process_loads_a_model_without_transformers_openai_or_triton(checkpoint: Path) -> None:
    program = (
        "import sys\n"
        "from fairlead_engine.config import EngineConfig\n"
        "from fairlead_engine.core.engine import Engine\n"
        f"Engine(EngineConfig(model={str(checkpoint)!r}, kv_cache_memory=2**24, num_threads=1))\n"
        "sys.exit(' '.join(sorted({'transformers', 'openai', 'triton'} & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_names_every_setting() -> None:
    command = [sys.executable, "-m", "fairlead_engine", "serve", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for flag in ("--config", "--model", "--max-num-seqs", "--kv-cache-memory", "--drain-timeout", "--port"):
        assert flag in done.stdout
