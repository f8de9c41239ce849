"""From loading to gone: readiness, refusals, drain, a core that dies or hangs, and clients that leave."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from fairlead_common.wire.messages import StepCost
from fairlead_engine.host import metrics
from fairlead_engine.host.lifecycle import Lifecycle, Phase
from fairlead_engine.server.app import build_app
from fairlead_engine.version import __version__
from fairlead_engine_testing import ScriptedEngine, answer

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "ahoy"}]}


OF = {"grammars.grammar": "GrammarCompiler", "prompts.prompts": "PromptWorkers", "images.load": "ImageLoader"}


class Connection:
    """A client's connection at ASGI level: its answer arrives part by part, and it can leave at any time."""

    def __init__(self, app: Any, body: dict[str, Any]) -> None:
        self.status: int | None = None
        self.parts: asyncio.Queue[bytes] = asyncio.Queue()
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": json.dumps(body).encode(), "more_body": False})
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], "root_path": ""}
        self.served = asyncio.ensure_future(app(scope, self._incoming.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.parts.put_nowait(message["body"])

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})


async def until(condition: Any) -> None:
    """Lets other tasks run until `condition()` holds."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


async def status(app: Any, path: str) -> tuple[int, dict[str, Any], httpx.Headers]:
    response = await app.http.get(path)
    return response.status_code, response.json(), response.headers


async def test_while_loading_the_server_is_healthy_but_not_ready_and_takes_nothing(start_app: Any) -> None:
    app = start_app(ready=False)
    assert (await status(app, "/health"))[0] == 200
    code, body, headers = await status(app, "/ready")
    assert (code, body["status"], headers["x-fairlead-reason"]) == (503, "loading", "loading")
    response = await app.chat()
    assert (response.status_code, response.headers["x-fairlead-reason"]) == (503, "loading")
    assert int(response.headers["retry-after"]) > 0
    assert (await app.http.get("/v1/models")).status_code == 503
    assert (await app.http.get("/metrics")).status_code == 200


async def test_who_asks_with_wait_learns_of_readiness_when_it_comes(start_app: Any) -> None:
    app = start_app(ready=False)
    asked = asyncio.create_task(status(app, "/ready?wait=10"))
    await asyncio.sleep(0.2)
    assert not asked.done()
    app.service.lifecycle.ready()
    assert (await asyncio.wait_for(asked, 5))[0] == 200
    app.service.drain()
    assert (await status(app, "/ready?wait=10"))[0] == 503, "there is nothing to wait for"


async def test_waiting_for_readiness_ends(start_app: Any) -> None:
    app = start_app(ready=False)
    assert (await status(app, "/ready?wait=0.05"))[0] == 503
    for wrong in ("x", "-1", "11", "nan"):
        code, body, _ = await status(app, f"/ready?wait={wrong}")
        assert (code, body["error"]["param"]) == (400, "wait")


async def test_a_drain_answers_who_waits_for_readiness(start_app: Any) -> None:
    app = start_app(ready=False)
    asked = asyncio.create_task(status(app, "/ready?wait=10"))
    await asyncio.sleep(0.05)
    app.service.drain()
    assert (await asyncio.wait_for(asked, 5))[0] == 503


async def test_a_full_engine_refuses_with_a_reason_before_any_work(start_app: Any) -> None:
    engine = ScriptedEngine()
    engine.full = True
    app = start_app(engine)
    for stream in (False, True):
        response = await app.chat(stream=stream)
        assert (response.status_code, response.headers["x-fairlead-reason"]) == (429, "engine-full")
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "engine_full"
    assert engine.requests == []
    assert "request_success_total{" not in app.service.metrics.render().decode()


@pytest.mark.parametrize("stream", [False, True])
async def test_one_refused_choice_refuses_the_request_and_ends_the_others(start_app: Any, stream: bool) -> None:
    app = start_app()
    add = app.engine.add

    def refuse_after_first(request: Any, stream: Any) -> int:
        app.engine.full = bool(app.engine.requests)
        return int(add(request, stream))

    app.engine.add = refuse_after_first
    app.engine.hang()
    response = await app.chat(n=3, stream=stream)
    assert response.status_code == 429
    assert not app.engine.running


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_work_at_once(start_app: Any, stream: bool) -> None:
    app = start_app()
    app.engine.hang()
    connection = Connection(build_app(app.service), {**CHAT, "stream": stream, "n": 2})
    await until(lambda: len(app.engine.running) == 2)
    connection.leave()
    await connection.served
    assert len(app.engine.aborted) == 2
    assert not app.engine.running
    assert app.service.lifecycle.num_running == 0
    assert 'http_requests_total{model_name="tiny",outcome="disconnected"} 1.0' in app.service.metrics.render().decode()


async def test_a_core_that_dies_ends_streams_with_an_error_event(start_app: Any) -> None:
    app = start_app()
    connection = Connection(build_app(app.service), {**CHAT, "stream": True})
    await connection.parts.get()
    app.engine.die("the engine core has died: it was killed by SIGKILL")
    await connection.served
    parts = [connection.parts.get_nowait() for _ in range(connection.parts.qsize())]
    events = [line for line in b"".join(parts).split(b"\n\n") if line]
    error = json.loads(events[-1].removeprefix(b"data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "engine_dead")
    assert "SIGKILL" in error["message"]
    assert b"[DONE]" not in b"".join(parts)
    assert (await status(app, "/health"))[0] == 503
    assert (await status(app, "/ready"))[2]["x-fairlead-reason"] == "engine-dead"
    later = await app.chat()
    assert (later.status_code, later.headers["x-fairlead-reason"]) == (503, "engine-dead"), "it dies of nothing here"
    assert later.json()["error"]["code"] == "engine_dead"


async def test_a_step_that_hangs_fails_health_and_readiness(start_app: Any) -> None:
    app = start_app(step_timeout=60.0)
    app.engine.hang(step_age_seconds=59.0)
    assert (await status(app, "/health"))[0] == 200
    app.engine.hang(step_age_seconds=61.0)
    code, body, _ = await status(app, "/health")
    assert code == 503
    assert "one step for 61 s" in body["message"]
    assert (await status(app, "/ready"))[0] == 503


async def test_an_engine_that_cannot_go_on_answers_with_its_message(start_app: Any) -> None:
    from fairlead_engine.types import EngineRequest, FinishReason, SequenceOutput

    def script(request: EngineRequest) -> list[SequenceOutput]:
        return [
            SequenceOutput(
                request_id=request.request_id, new_token_ids=[], finish_reason=FinishReason.ERROR, message="no such id"
            )
        ]

    response = await start_app(ScriptedEngine(script)).chat()
    assert (response.status_code, response.json()["error"]["message"]) == (500, "no such id")


async def test_a_defect_answers_500_without_its_details(start_app: Any, caplog: pytest.LogCaptureFixture) -> None:
    def script(request: object) -> list[Any]:
        raise ZeroDivisionError("secret")

    response = await start_app(ScriptedEngine(script)).chat()
    assert response.status_code == 500
    assert "secret" not in response.text
    assert "ZeroDivisionError: secret" in caplog.text


async def test_a_drain_takes_requests_for_the_grace_then_refuses_and_finishes_what_runs(start_app: Any) -> None:
    app = start_app(drain_grace=0.05, drain_timeout=30.0)
    app.engine.hang()
    running = asyncio.ensure_future(app.chat())
    await until(lambda: app.engine.running)
    reply = await app.http.post("/fairlead/v1/drain")
    assert (reply.status_code, reply.json()["num_running"]) == (202, 1)
    await until(lambda: app.service.lifecycle.phase is Phase.DRAINING)
    code, body, headers = await status(app, "/ready")
    assert (code, body["status"], headers["x-fairlead-reason"]) == (503, "draining", "draining")
    assert (await status(app, "/health"))[0] == 200
    late = asyncio.ensure_future(app.chat())
    await until(lambda: len(app.engine.running) == 2)
    while app.service.lifecycle.phase is Phase.DRAINING:
        await asyncio.sleep(0.01)
    refused = await app.chat()
    assert (refused.status_code, refused.headers["x-fairlead-reason"]) == (503, "draining")
    assert "retry-after" in refused.headers
    late.cancel()  # a request that ends leaves the drain waiting for the other
    await until(lambda: len(app.engine.running) == 1)
    await asyncio.sleep(0.05)
    assert not app.service.lifecycle.stopped.is_set()
    app.engine.resume()
    assert (await running).status_code == 200
    await asyncio.wait_for(app.service.lifecycle.stopped.wait(), 10)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_outlasts_the_drain_is_aborted_with_an_error(start_app: Any, stream: bool) -> None:
    app = start_app(drain_grace=0.0, drain_timeout=0.01)
    connection = Connection(build_app(app.service), {**CHAT, "stream": stream})
    if stream:
        await connection.parts.get()
    app.engine.hang()
    await until(lambda: app.engine.running)
    app.service.drain()
    await connection.served
    text = b"".join(connection.parts.get_nowait() for _ in range(connection.parts.qsize()))
    assert b'"code":"draining"' in text
    assert connection.status == (200 if stream else 503)
    assert len(app.engine.aborted) == 1
    assert 'finished_reason="abort",model_name="tiny"} 1.0' in app.service.metrics.render().decode()


@pytest.mark.parametrize("step", ["grammars.grammar", "prompts.prompts", "images.load"])
async def test_what_outlasts_the_drain_before_it_is_computed_is_to_be_sent_again(
    start_app: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    began = asyncio.Event()

    async def never(*_: Any) -> None:
        began.set()
        await asyncio.sleep(3600)

    app = start_app(drain_grace=0.0, drain_timeout=0.01)
    monkeypatch.setattr(f"fairlead_engine.api.service.{OF[step]}.{step.partition('.')[2]}", never)
    asked = asyncio.ensure_future(app.chat(guided_regex="a"))
    await began.wait()
    app.service.drain()
    refused = await asyncio.wait_for(asked, 30)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")


async def test_processes_that_have_ended_with_the_server_are_no_fault_of_a_request(start_app: Any) -> None:
    """Whatever their answer was awaited for."""
    app = start_app()
    assert (await app.chat(guided_regex="b")).status_code == 200
    app.service.close()
    refused = await app.chat(guided_regex="a")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")


async def test_a_request_that_has_not_begun_is_aborted_when_it_does() -> None:
    lifecycle = Lifecycle()
    lifecycle.ready()
    stopped: list[Exception] = []
    with lifecycle.admitted() as admission:
        lifecycle.drain(grace_seconds=0, timeout_seconds=0)
        await asyncio.wait_for(lifecycle.stopped.wait(), 10)
        admission.attach(stopped.append)
    assert len(stopped) == 1


async def test_a_drain_while_loading_ends_at_once() -> None:
    lifecycle = Lifecycle()
    lifecycle.drain(grace_seconds=3600, timeout_seconds=3600)
    await asyncio.wait_for(lifecycle.stopped.wait(), 10)
    lifecycle.ready()
    assert lifecycle.phase is Phase.STOPPED


@pytest.fixture
async def scraped(start_app: Any, tokenizer: Any) -> AsyncIterator[list[str]]:
    """The lines of `/metrics` after one request of each kind."""
    app = start_app(ScriptedEngine(answer(tokenizer.encode("one two three"), num_cached_tokens=4)))
    app.engine.load = msgspec.structs.replace(
        app.engine.load,
        running=2,
        waiting=2,
        held_back=1,
        kv_blocks_free=16,
        prefix_query_tokens=40,
        prefix_hit_tokens=16,
        step_cost=StepCost(base=0.001, tokens_per_decode=2.0),
        num_drafts=9,
        num_draft_tokens=20,
        num_accepted_per_position=(8, 3),
    )
    await app.chat()
    await app.chat(stop="two")
    await app.chat(temperature=-1)
    yield (await app.http.get("/metrics")).text.splitlines()


@pytest.mark.parametrize(
    "sample",
    [
        'num_requests_running{model_name="tiny"} 2.0',
        'num_requests_waiting{model_name="tiny"} 3.0',
        'kv_cache_usage_perc{model_name="tiny"} 0.75',
        'prompt_tokens_total{model_name="tiny"} 0.0',
        'generation_tokens_total{model_name="tiny"} 0.0',
        'num_preemptions_total{model_name="tiny"} 0.0',
        'prefix_cache_queries_total{model_name="tiny"} 40.0',
        'prefix_cache_hits_total{model_name="tiny"} 16.0',
        'spec_decode_num_drafts_total{model_name="tiny"} 9.0',
        'spec_decode_num_draft_tokens_total{model_name="tiny"} 20.0',
        'spec_decode_num_accepted_tokens_total{model_name="tiny"} 11.0',
        'spec_decode_num_accepted_tokens_per_pos_total{model_name="tiny",position="1"} 3.0',
        'cache_config_info{block_size="16",model_name="tiny",num_gpu_blocks="64"} 1.0',
        'request_success_total{finished_reason="stop",model_name="tiny"} 2.0',
        'time_to_first_token_seconds_count{model_name="tiny"} 2.0',
        'e2e_request_latency_seconds_count{model_name="tiny"} 2.0',
        'request_queue_time_seconds_count{model_name="tiny"} 2.0',
        'inter_token_latency_seconds_bucket{le="+Inf",model_name="tiny"}',
    ],
)
async def test_metrics_exist_under_our_name_and_vllms(scraped: list[str], sample: str) -> None:
    for prefix in ("fairlead_engine_", "vllm:"):
        assert any(line.startswith(prefix + sample) for line in scraped), prefix + sample


async def test_metrics_of_our_own_count_outcomes_and_step_cost(scraped: list[str]) -> None:
    assert 'fairlead_engine_http_requests_total{model_name="tiny",outcome="ok"} 2.0' in scraped
    assert 'fairlead_engine_http_requests_total{model_name="tiny",outcome="invalid"} 1.0' in scraped
    assert 'fairlead_engine_step_cost_seconds{model_name="tiny",term="base"} 0.001' in scraped
    assert any(line.startswith('fairlead_engine_start_seconds{model_name="tiny",stage=') for line in scraped)
    assert 'fairlead_engine_draining{model_name="tiny"} 0.0' in scraped
    assert not any("_created" in line for line in scraped)


async def test_many_who_ask_for_metrics_at_once_cost_no_more_than_one(start_app: Any, monkeypatch: Any) -> None:
    num_rendered, render = 0, metrics.generate_latest

    def counted(registry: Any) -> bytes:
        nonlocal num_rendered
        num_rendered += 1
        return render(registry)

    monkeypatch.setattr(metrics, "generate_latest", counted)
    app = start_app()
    replies = await asyncio.gather(*(app.http.get("/metrics") for _ in range(200)))
    assert all("open_connections" in reply.text for reply in replies)
    assert num_rendered < 50


async def test_other_servers_names_for_health_version_and_load(start_app: Any) -> None:
    app = start_app()
    for path, expected in (("/ping", {"status": "ok"}), ("/version", {"version": __version__})):
        code, body, _ = await status(app, path)
        assert (code, body) == (200, expected)
    assert (await status(app, "/load"))[1] == {"server_load": 0}
    app.engine.hang(step_age_seconds=999.0)
    asked = asyncio.create_task(app.chat(max_tokens=2))
    while not app.engine.requests:
        await asyncio.sleep(0)
    assert (await status(app, "/load"))[1] == {"server_load": 1}
    assert (await status(app, "/ping"))[0] == 503
    asked.cancel()


async def test_pages_of_allowed_origins_may_read_answers(start_app: Any) -> None:
    page = {"origin": "https://chat.example.com"}
    preflight = {**page, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    for origins, is_allowed in (
        ("*", True),
        ("https://chat.example.com", True),
        ("https://a.example", False),
        ("", False),
    ):
        app = start_app(allowed_origins=origins)
        asked = await app.http.options("/v1/chat/completions", headers=preflight)
        assert asked.status_code == (204 if is_allowed else 405)
        for body in (CHAT, {**CHAT, "stream": True}, {**CHAT, "n": 0}):
            reply = await app.http.post("/v1/chat/completions", json=body, headers=page)
            assert ("access-control-allow-origin" in reply.headers) is is_allowed
