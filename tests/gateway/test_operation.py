"""Probes, metrics, the log line, the drain, settings and the command itself."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from dataclasses import fields
from typing import Any

import aiohttp
import pytest

from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead_common.http.limited import LINGER_SECONDS
from fairlead_common.logs import LogfmtFormatter
from fairlead_common.settings import SettingError, docstrings
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.http import RecordedRequest, Responder, serve_http
from fairlead_testing.real_servers import free_port

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


async def get(setup, path: str, *, control: bool = False) -> int:
    base = f"http://127.0.0.1:{setup.gateway.control_port}" if control else setup.url
    async with setup.http.get(base + path) as response:
        return response.status


async def test_probes_answer_on_both_ports_and_metrics_on_the_control_port_only(start) -> None:
    setup = await start()
    assert [await get(setup, path) for path in ("/health", "/ping", "/ready", "/metrics")] == [200, 200, 200, 404]
    assert [await get(setup, path, control=True) for path in ("/health", "/ready", "/metrics", "/x")] == [
        200,
        200,
        200,
        404,
    ]


async def test_a_gateway_that_does_not_know_the_models_yet_is_not_ready_and_says_so(start, monkeypatch) -> None:
    setup = await start(pools=lambda engines: [])
    monkeypatch.setattr(type(setup.fleet), "synced", property(lambda fleet: False))
    assert [await get(setup, path) for path in ("/health", "/ping", "/ready", "/v1/models")] == [200, 200, 503, 503]
    status, document, headers = await setup.post(CHAT)
    assert (status, document["error"]["code"]) == (503, "starting")
    assert "retry-after" in headers


async def test_metrics_count_outcomes_and_show_what_is_going_on(start) -> None:
    setup = await start()
    await setup.post(CHAT)
    await setup.stream()
    await setup.post({**CHAT, "model": "unknown-1"})
    await setup.post(b"{")
    text = await setup.metrics()
    assert 'fairlead_gateway_requests_total{model="default/fake",outcome="completed",status="200"} 2.0' in text
    assert 'fairlead_gateway_requests_total{model="",outcome="client_error",status="404"} 1.0' in text
    assert 'fairlead_gateway_requests_total{model="",outcome="client_error",status="400"} 1.0' in text
    assert "unknown-1" not in text, "labels must not grow with what clients send"
    assert 'fairlead_gateway_time_to_first_token_seconds_count{model="default/fake"} 1.0' in text
    assert 'fairlead_gateway_request_duration_seconds_count{model="default/fake"} 2.0' in text
    assert 'fairlead_gateway_ready_replicas{model="default/fake"} 1.0' in text
    selectable = 'llmdeployment="fake",llmdeployment_namespace="default",model="default/fake"'
    assert f"fairlead_gateway_queue_requests{{{selectable}}} 0.0" in text
    assert f'fairlead_gateway_in_flight_requests{{{selectable},replica="engine-0"}} 0.0' in text


async def test_each_request_is_one_line_with_what_the_decision_rested_on(start, caplog) -> None:
    caplog.set_level(logging.INFO, logger="fairlead.gateway.requests")
    setup = await start(model={"aliases": ("gpt",)})
    await setup.post({**CHAT, "model": "gpt"}, headers={"x-request-id": "mine"})
    await setup.post({**CHAT, "model": "none\nsuch"})
    records = [record for record in caplog.records if record.name == "fairlead.gateway.requests"]
    served, refused = (LogfmtFormatter().format(record) for record in records)
    for part in (
        "msg=request request_id=mine path=/v1/chat/completions model=default/fake asked_model=gpt stream=False",
        "status=200 outcome=completed replica=engine-0 reason=",
        "num_attempts=1 queue_seconds=0.0 ttft_seconds=",
        "num_prompt_tokens=4 num_cached_tokens=0 num_completion_tokens=4",
    ):
        assert part in served
    assert "\n" not in refused
    assert "status=404 outcome=client_error num_attempts=0" in refused


async def test_a_defect_of_ours_is_500_in_openai_shape(start, monkeypatch, caplog) -> None:
    setup = await start()
    monkeypatch.setattr(setup.gateway.pools, "find", lambda *_: 1 / 0)
    status, document, _ = await setup.post(CHAT)
    assert (status, document["error"]["code"]) == (500, "internal_error")
    assert "ZeroDivisionError" in caplog.text


async def test_draining_is_announced_first_then_streams_are_finished(start) -> None:
    setup = await start(drain_delay=2.0)
    response, may_go = await setup.begun()
    setup.gateway.drain()
    assert [await get(setup, "/ready"), await get(setup, "/ready", control=True), await get(setup, "/health")] == [
        503,
        503,
        200,
    ]
    assert (await setup.http.post(f"{setup.url}/v1/chat/completions", json={**CHAT, "max_tokens": 1})).status == 200
    await setup.until(lambda: not listening(setup.gateway.port))
    may_go.set()
    assert (await response.read()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("once_used", [False, True])
async def test_a_request_that_arrives_while_a_drained_gateway_stops_is_served(start, once_used: bool) -> None:
    """Its first bytes came before the end, the rest after the linger."""
    setup = await start(drain_delay=0.05)
    raw = raw_chat({**CHAT, "max_tokens": 1})
    async with setup.connected() as (reader, writer):
        if once_used:
            writer.write(b"GET /health HTTP/1.1\r\nhost: gateway\r\n\r\n")
            await reader.readuntil(b"}")
        writer.write(raw[:30])
        await asyncio.sleep(0.05)
        setup.gateway.drain()
        await setup.until(lambda: not listening(setup.gateway.port))
        await asyncio.sleep(LINGER_SECONDS + 0.3)
        writer.write(raw[30:])
        answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer


async def test_a_second_sigterm_hurries_nothing(start) -> None:
    """A container runtime may repeat it; only the end of the grace period may cut a stream."""
    setup = await start(drain_delay=0.1)
    response, may_go = await setup.begun()
    for _ in range(3):
        setup.gateway.drain()
    assert listening(setup.gateway.port)
    await setup.until(lambda: not listening(setup.gateway.port))
    setup.gateway.drain()
    may_go.set()
    assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_ctrl_c_gives_what_runs_a_moment_and_takes_nothing_new(start, monkeypatch) -> None:
    monkeypatch.setattr("fairlead.gateway.server.INTERRUPT_SECONDS", 0.5)
    setup = await start(drain_delay=60.0, drain_timeout=60.0)
    ends, may_go = await setup.begun()
    setup.gateway.interrupt()
    await setup.until(lambda: not listening(setup.gateway.port))
    may_go.set()
    assert (await ends.read()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("before", ["drain", "interrupt", "nothing"])
async def test_ctrl_c_while_it_drains_tells_what_runs_and_ends_it(start, monkeypatch, before: str) -> None:
    """So does its end, where nobody interrupts again."""
    monkeypatch.setattr("fairlead.gateway.server.INTERRUPT_SECONDS", 0.3 if before == "nothing" else 60.0)
    setup = await start(drain_delay=60.0, drain_timeout=60.0)
    response, _ = await setup.begun()
    if before != "nothing":
        getattr(setup.gateway, before)()
    setup.gateway.interrupt()
    body = await asyncio.wait_for(response.read(), 20)
    assert b'"shutting_down"' in body
    assert b"[DONE]" not in body
    await setup.until(lambda: setup.engines[0].num_cancelled == 1)


async def test_a_gateway_that_was_never_ready_goes_at_once(start, monkeypatch) -> None:
    setup = await start(drain_delay=60.0)
    monkeypatch.setattr(type(setup.fleet), "synced", property(lambda fleet: False))
    setup.gateway.drain()
    await setup.until(lambda: not listening(setup.gateway.port))


async def test_a_kept_connection_may_be_used_once_more_when_a_drained_gateway_stops(start) -> None:
    setup = await start(drain_delay=0.1)
    may_go = asyncio.Event()
    setup.engines[0].pace = lambda index: asyncio.sleep(0) if index == 0 else may_go.wait()
    async with setup.connected() as (reader, writer):
        writer.write(raw_chat({**CHAT, "stream": True}))
        promise = await reader.readuntil(b"\r\n\r\n")
        assert b"connection: close" not in promise
        setup.gateway.drain()
        await setup.until(lambda: not listening(setup.gateway.port))
        may_go.set()
        await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        writer.write(raw_chat({**CHAT, "max_tokens": 1}))
        farewell = await reader.readuntil(b"\r\n\r\n")
        assert farewell.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in farewell
        assert (await reader.read()).endswith(b"}")


def raw_chat(body: dict[str, object]) -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_a_stream_that_outlives_the_drain_is_told_so(start) -> None:
    setup = await start(drain_timeout=1.0)
    response, _ = await setup.begun()
    setup.gateway.stop()
    body = await response.read()
    assert b'"shutting_down"' in body
    assert b"[DONE]" not in body
    await setup.until(lambda: setup.engines[0].num_cancelled == 1)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"port": 70000}, "--port must be between"),
        ({"max_queue": 0}, "--max-queue must be above 0"),
        *(
            ({"root_path": path}, "--root-path must be a path such as")
            for path in ("a", "/a/", "/", "/a b", "http://a/b")
        ),
        ({"drain_delay": -1.0}, "--drain-delay must not be negative"),
        ({"port": 9000, "control_port": 9000}, "must differ"),
        ({"max_queue_bytes": 99}, "--max-queue-bytes 99 is below --max-body-bytes 16777216"),
        ({"max_body_bytes": 2**40}, "--max-partial-body-bytes 67108864 is below --max-body-bytes"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        GatewaySettings(**setting)


def test_every_setting_is_described() -> None:
    texts = docstrings(GatewaySettings)
    assert all(texts[field.name].endswith(".") for field in fields(GatewaySettings))


def kubeconfig(port: int) -> str:
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": "t"}}
    return json.dumps({"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "x"})


def objects(engine_address: str) -> dict[str, list[dict[str, Any]]]:
    metadata = {"namespace": "default", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    deployment = {"metadata": {"name": "fake", "uid": "d", **metadata}, "spec": {"model": {"source": "demo://dinghy"}}}
    pod = {
        "metadata": {"name": "p", "uid": "p", "labels": {"fairlead.dev/llmdeployment": "fake"}, **metadata},
        "status": {"podIP": engine_address, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return {"llmdeployments": [deployment], "pods": [pod]}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fairlead", "gateway", "--host", "127.0.0.1", "--no-api-keys", *arguments]


async def test_the_command_serves_what_the_api_lists_and_ends_with_0_on_sigterm(tmp_path) -> None:
    """The whole program: kubeconfig, list and watch, an engine on port 8000 of its own address, probes, SIGTERM."""

    async def api(request: RecordedRequest, responder: Responder) -> None:
        plural = request.path.partition("?")[0].rpartition("/")[2]
        if "watch=true" in request.path:
            await responder.start(200, {"content-type": "application/json"})
            await asyncio.Event().wait()
        listed = {"kind": {"pods": "PodList", "llmdeployments": "LLMDeploymentList"}[plural]}
        listed |= {"metadata": {"resourceVersion": "1"}, "items": objects("127.20.77.77")[plural]}
        await responder.json(200, listed)

    server = await serve_http(api)
    (tmp_path / "kubeconfig").write_text(kubeconfig(server.sockets[0].getsockname()[1]))
    ports = free_port(), free_port()
    process = await asyncio.create_subprocess_exec(
        *command("--port", str(ports[0]), "--control-port", str(ports[1]), "--drain-delay", "0.1"),
        env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        async with FakeEngine(host="127.20.77.77", port=8000):
            await until_ready(ports[1], process)
            status, document = await post(ports[0], CHAT)
        assert status == 200, document
        assert document["choices"][0]["message"]["content"] == "Hello, world!"
    finally:
        ended = asyncio.create_task(process.communicate())
        async with asyncio.timeout(30):
            while process.returncode is None:  # a supervisor that repeats itself
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.01)
        output, _ = await ended
        server.close()
    assert process.returncode == 0, output.decode()
    assert b"outcome=completed" in output


async def test_sigterm_while_it_waits_for_the_api_ends_the_command_with_0(tmp_path) -> None:
    """An API that does not answer keeps it from ever being ready, and must not keep it from going."""

    async def api(request: RecordedRequest, responder: Responder) -> None:
        await asyncio.Event().wait()

    server = await serve_http(api)
    (tmp_path / "kubeconfig").write_text(kubeconfig(server.sockets[0].getsockname()[1]))
    control_port = free_port()
    process = await asyncio.create_subprocess_exec(
        *command("--port", "0", "--control-port", str(control_port), "--drain-delay", "60"),
        env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        while not listening(control_port):
            await asyncio.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, output = await asyncio.wait_for(process.communicate(), 30)
    server.close()
    assert process.returncode == 0, output.decode()


async def until_ready(port: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while process.returncode is None:
            try:
                async with session.get(f"http://127.0.0.1:{port}/ready") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)
    raise AssertionError("the gateway ended")


async def post(port: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        return response.status, await response.json()


def test_a_port_in_use_ends_the_command_with_a_sentence(tmp_path) -> None:
    (tmp_path / "kubeconfig").write_text(kubeconfig(1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            command("--port", str(port), "--control-port", "0", "--kubeconfig", str(tmp_path / "kubeconfig")),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "status", "part"),
    [
        (("--no-api-keys", "--max-queue", "0"), 2, "--max-queue must be above 0"),
        ((), 2, "say who may use this gateway, by exactly one of two flags"),
        (("--no-api-keys", "--api-keys-dir", "."), 2, "say who may use this gateway, by exactly one of two flags"),
        (
            ("--api-keys-dir", "/nonexistent"),
            2,
            "/nonexistent does not exist; it must be a folder with a file per client",
        ),
        (("--no-api-keys", "--host", "127.0.0.1", "--port", "0"), 1, "found no Kubernetes API"),
    ],
    ids=["a wrong setting", "no word of keys", "two words of keys", "no such keys", "no API to follow"],
)
def test_what_the_command_cannot_begin_with_ends_it_with_a_sentence(
    tmp_path, flags: tuple[str, ...], status: int, part: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
    environment["HOME"] = str(tmp_path)
    program = [sys.executable, "-m", "fairlead", "gateway", *flags]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == status
    assert part in done.stderr
    assert "Traceback" not in done.stderr


async def test_below_a_root_path_everything_is_served_whether_or_not_a_proxy_removes_it(start) -> None:
    setup = await start(root_path="/team/llm")
    for url in (f"{setup.url}/team/llm", setup.url):
        async with setup.http.post(f"{url}/v1/chat/completions", json=CHAT) as reply:
            assert reply.status == 200 and await reply.read()
        async with setup.http.get(f"{url}/") as reply:
            assert reply.status == 200 and "pages/models.js" in await reply.text()
        async with setup.http.get(f"{url}/pages/models.js") as reply:
            assert reply.status == 200
    async with setup.http.get(f"{setup.url}/team/llm", allow_redirects=False) as reply:
        assert (reply.status, reply.headers["location"]) == (308, "/team/llm/")
    async with setup.http.post(f"{setup.url}/team/llmv1/chat/completions", json=CHAT) as reply:
        assert reply.status == 404
    async with setup.http.post(f"{setup.url}/team/llm/v1/messages", headers={"x-long": "a" * 70_000}) as reply:
        assert (reply.status, (await reply.json())["type"]) == (431, "error"), "Anthropic's form"


PAGE = {"Origin": "https://chat.example.com"}
PREFLIGHT = {**PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-a"}


async def test_pages_of_the_allowed_origins_may_read_answers(start) -> None:
    setup = await start(allowed_origins="https://other.example, https://chat.example.com/")
    url = f"{setup.url}/v1/chat/completions"
    async with setup.http.options(url, headers=PREFLIGHT) as reply:
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (204, PAGE["Origin"])
        assert reply.headers["access-control-allow-headers"] == "authorization,x-a"
        assert "POST" in reply.headers["access-control-allow-methods"]
    for body, status in ((CHAT, 200), ({**CHAT, "stream": True}, 200), ({**CHAT, "model": "none"}, 404)):
        async with setup.http.post(url, json=body, headers=PAGE) as reply:
            assert (reply.status, reply.headers["access-control-allow-origin"]) == (status, PAGE["Origin"])
            assert reply.headers["vary"] == "origin" and await reply.read()
    for headers in ({}, {"Origin": "https://evil.example"}):
        async with setup.http.post(url, json=CHAT, headers=headers) as reply:
            assert reply.status == 200 and "access-control-allow-origin" not in reply.headers


async def test_no_page_of_another_origin_may_by_default(start) -> None:
    setup = await start()
    async with setup.http.options(f"{setup.url}/v1/chat/completions", headers=PREFLIGHT) as reply:
        assert reply.status == 405 and "access-control-allow-origin" not in reply.headers
