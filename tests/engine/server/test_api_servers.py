"""Several HTTP processes on one core, as a user meets them: one engine, whichever process has the connection."""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

pytestmark = pytest.mark.xdist_group("several HTTP processes")  # they share an engine, and count its connections

NUM_PROCESSES = 3
REQUEST = {"model": "tiny", "prompt": [5, 6, 7], "temperature": 0, "ignore_eos": True}


class Crew:
    """A client for each process of an engine: connections go to the process that has fewest."""

    def __init__(self, engine: Any, stack: ExitStack) -> None:
        self.engine = engine
        wait_without_connections(engine)
        self.clients = []
        for _ in range(NUM_PROCESSES):
            client = stack.enter_context(httpx.Client(base_url=engine.url, timeout=60))
            client.get("/v1/models")  # its connection is there, and stays
            self.clients.append(client)
        assert set(self.places()) == {engine.process.pid, *engine.peer_pids()}

    def places(self) -> list[int]:
        """The process that has each client's connection."""
        owners = {}
        for pid in (self.engine.process.pid, *self.engine.peer_pids()):
            for connection in psutil.Process(pid).net_connections("tcp"):
                if connection.raddr:
                    owners[connection.raddr.port] = pid
        return [owners[port_of(client)] for client in self.clients]

    def of(self, pid: int) -> httpx.Client:
        return self.clients[self.places().index(pid)]


def port_of(client: httpx.Client) -> int:
    """The client's end of its only connection."""
    (connection,) = client._transport._pool.connections  # type: ignore[attr-defined]
    stream = connection._connection._network_stream
    return int(stream.get_extra_info("client_addr")[1])


def wait_without_connections(engine: Any) -> None:
    engine.wait_until(lambda: engine.metric("fairlead_engine_open_connections") == 1, "the end of other connections")


@pytest.fixture
def crew(several: Any) -> Iterator[Crew]:
    with ExitStack() as stack:
        yield Crew(several, stack)


def stream_of(client: httpx.Client, **fields: Any) -> Iterator[dict[str, Any]]:
    """The events of a streamed completion."""
    with client.stream("POST", "/v1/completions", json={**REQUEST, "stream": True, **fields}) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def test_every_process_answers_the_same(served: Any, start_engine: Any, checkpoint: Path) -> None:
    """As one process does, with a real model."""
    engine = start_engine("--model", str(checkpoint), "--served-name", "tiny", "--api-servers", str(NUM_PROCESSES))
    engine.wait_ready()
    body = {"model": "tiny", "prompt": "ahoy there", "max_tokens": 12, "temperature": 0}
    vector = {"model": "tiny", "input": ["ahoy", "there"]}
    with ExitStack() as stack:
        alone = stack.enter_context(httpx.Client(base_url=served.url, timeout=60))
        clients = Crew(engine, stack).clients
        for client in clients:
            for sent in (body, {**body, "stream": True, "seed": 3, "temperature": 1}):
                mine, theirs = (each.post("/v1/completions", json=sent) for each in (client, alone))
                assert mine.status_code == 200
                assert answer(mine) == answer(theirs)
            data = [each.post("/v1/embeddings", json=vector).json()["data"] for each in (client, alone)]
            assert data[0] == data[1]
        assert len({client.get("/v1/models").text for client in clients}) == 1
    engine.process.terminate()
    assert engine.wait_exit() == 0


def answer(response: httpx.Response) -> tuple[str, str]:
    """The text of an answer, streamed or not, and how it ended; steps may come together."""
    bodies = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith(("{", "data: {"))]
    choices = [choice for body in bodies for choice in json.loads(body)["choices"]]
    return "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]


def test_what_only_the_first_knows_every_process_tells(crew: Crew) -> None:
    tokenizers = set()
    for client in crew.clients:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/ready").json() == {"status": "ready"}
        refused = client.get("/ready?wait=never", headers={"x-request-id": "mine"})
        assert (refused.status_code, refused.headers["x-request-id"]) == (400, "mine")
        assert refused.json()["error"]["param"] == "wait"
        assert client.head("/metrics").status_code == 200
        assert client.post("/health").headers["allow"] == "GET, HEAD"
        assert client.get("/nowhere").status_code == 404
        assert len(client.get("/metrics").headers.get_list("date")) == 1
        blocks = client.get("/fairlead/v1/kv/blocks").json()
        tokenizers.add((blocks["epoch"], client.get("/fairlead/v1/model").json()["digest"]))
    assert len(tokenizers) == 1


def test_metrics_are_those_of_all_processes(crew: Crew) -> None:
    names = {
        "fairlead_engine_time_to_first_token_seconds_count": 2,
        "fairlead_engine_e2e_request_latency_seconds_count": 2,
        "fairlead_engine_request_success_total": 2,
        "vllm:request_success_total": 2,
        "fairlead_engine_generation_tokens_total": 8,
    }
    before = {name: crew.engine.metric(name) for name in names}
    for client in crew.clients:
        for _ in range(2):
            client.post("/v1/completions", json={**REQUEST, "max_tokens": 4}).raise_for_status()
        client.post("/v1/completions", json={**REQUEST, "max_tokens": -2})
    for name, each in names.items():
        assert crew.engine.metric(name) == before[name] + each * NUM_PROCESSES, name
    lines = crew.clients[1].get("/metrics").text.splitlines()
    assert 'fairlead_engine_open_connections{model_name="tiny"} 3.0' in lines
    samples = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
    assert [sample for sample, times in Counter(samples).items() if times > 1] == []
    assert 'fairlead_engine_draining{model_name="tiny"} 0.0' in lines
    (invalid,) = (
        line for line in lines if line.startswith("fairlead_engine_http_requests_total") and "invalid" in line
    )
    assert float(invalid.rsplit(" ", 1)[1]) >= 3


def all_was_told(lines: list[dict[str, Any]]) -> bool:
    """Five prompts' blocks and the last dispatch; either may come first, and a line may tell of several steps."""
    seen = [line["load"]["seen"].get("gw") for line in lines if line.get("load")]
    return sum(len(line.get("stored") or ()) for line in lines) >= 5 and seen[-1:] == [6]


def test_a_follower_sees_one_engine_whoever_asks_it(crew: Crew) -> None:
    """Through a peer: changes and loads of what every process does, and all dispatch numbers."""
    follower = crew.clients[0]
    assert crew.places()[0] != crew.engine.process.pid
    start = follower.get("/fairlead/v1/kv/blocks").json()
    watch = {"epoch": start["epoch"], "seq": start["seq"]}
    lines: list[dict[str, Any]] = []
    with follower.stream("GET", "/fairlead/v1/kv/events", params=watch) as stream:
        incoming = map(json.loads, stream.iter_lines())
        lines.append(next(incoming))
        with ExitStack() as stack:
            for number in range(1, 7):
                other = stack.enter_context(httpx.Client(base_url=crew.engine.url, timeout=60))
                prompt = {"prompt": [20 + number] * 9, "max_tokens": -1 if number == 3 else 2}
                header = {"x-fairlead-dispatch": f"gw:{number}"}
                other.post("/v1/completions", json={**REQUEST, **prompt}, headers=header)
        while not all_was_told(lines):
            lines.append(next(incoming))
    stored = [line for line in lines if line.get("stored")]
    assert [line["seq"] for line in lines if line.get("seq")] == list(
        range(start["seq"] + 1, start["seq"] + 1 + len(stored))
    )
    gone = follower.get("/fairlead/v1/kv/events", params={"epoch": "other", "seq": 0})
    assert gone.status_code == 410


def test_clients_may_use_one_request_id_for_all(crew: Crew) -> None:
    def ask(client: httpx.Client) -> int:
        body = {**REQUEST, "n": 2, "max_tokens": 40}
        return client.post("/v1/completions", json=body, headers={"x-request-id": "the-same"}).status_code

    with ThreadPoolExecutor(NUM_PROCESSES) as pool:
        for _ in range(3):
            assert [*pool.map(ask, crew.clients)] == [200] * NUM_PROCESSES


def test_a_client_that_leaves_any_process_frees_its_blocks(crew: Crew) -> None:
    free, aborted = crew.engine.metric("fairlead_engine_kv_blocks_free"), num_aborted(crew.engine)
    for client in crew.clients:
        with client.stream("POST", "/v1/completions", json={**REQUEST, "stream": True, "max_tokens": 120}) as stream:
            next(stream.iter_lines())
    crew.engine.wait_until(lambda: num_aborted(crew.engine) == aborted + NUM_PROCESSES, "the aborts")
    assert crew.engine.metric("fairlead_engine_num_requests_running") == 0
    assert crew.engine.metric("fairlead_engine_kv_blocks_free") == free


def num_aborted(engine: Any) -> float:
    return float(engine.metric('fairlead_engine_request_success_total{finished_reason="abort",model_name="tiny"}'))


def test_the_limit_of_connections_is_that_of_the_engine(several: Any) -> None:
    with ExitStack() as stack:
        wait_without_connections(several)
        clients = [stack.enter_context(httpx.Client(base_url=several.url, timeout=60)) for _ in range(10)]
        statuses = [client.get("/v1/models").status_code for client in clients]
        assert statuses == [200] * 9 + [429]
        assert httpx.get(several.url + "/health").status_code == 200
        clients[4].close()
        several.wait_until(lambda: httpx.get(several.url + "/v1/models").status_code == 200, "room")


def read_all(stack: ExitStack, engine: Any, number: int, max_tokens: int = 100) -> tuple[Any, list[Any]]:
    """So many streams at once, all begun, over all processes; returns the pool and what becomes of each, the last
    reason or what broke it."""
    begun = threading.Barrier(number + 1)

    def read(index: int) -> Any:
        reason = None
        with httpx.Client(base_url=engine.url, timeout=60) as client:
            try:
                for position, event in enumerate(stream_of(client, max_tokens=max_tokens, prompt=[index + 1])):
                    if position == 0:
                        begun.wait()
                    if "error" in event:
                        return event["error"]
                    reason = event["choices"][0]["finish_reason"]
            except httpx.TransportError as error:
                return error
        return reason

    pool = stack.enter_context(ThreadPoolExecutor(number))
    running = [pool.submit(read, index) for index in range(number)]
    begun.wait()
    return pool, running


def processes(engine: Any) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in (engine.process.pid, *engine.children())]


def wait_gone(engine: Any, all_of_it: list[psutil.Process]) -> None:
    def are_gone() -> bool:
        return not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in all_of_it)

    engine.wait_until(are_gone, "the end of all processes")


def last_words(engine: Any) -> dict[str, str]:
    return dict(json.loads(engine.termination_log.read_text()))


FLAGS = ("--api-servers", str(NUM_PROCESSES), "--drain-grace", "200ms")


def begin(start_engine: Any, *flags: str, **settings: Any) -> tuple[Any, list[psutil.Process]]:
    """A ready engine, and all its processes."""
    engine = start_engine.fake(*FLAGS, *flags, **settings)
    engine.wait_ready()
    return engine, processes(engine)


def check_end(engine: Any, everything: list[psutil.Process], reason: str) -> None:
    """The engine ends with its reason, and nothing is left of it."""
    assert engine.wait_exit() == 1
    wait_gone(engine, everything)
    assert last_words(engine)["reason"] == reason


@pytest.mark.slow
def test_a_drain_finishes_what_runs_in_every_process(start_engine: Any) -> None:
    engine, everything = begin(start_engine, misbehaviour="step_seconds=0.01")
    with ExitStack() as stack:
        _, running = read_all(stack, engine, 7)
        reply = httpx.post(engine.url + "/fairlead/v1/drain").json()
        assert reply == {"status": "draining", "num_running": 7}
        engine.process.terminate()
        engine.wait_until(lambda: engine.status("/ready") != 200, "the end of readiness")
        assert [each.result() for each in running] == ["length"] * 7
    assert engine.wait_exit() == 0
    wait_gone(engine, everything)
    assert not engine.termination_log.exists()


def test_ctrl_c_ends_what_runs_in_every_process(start_engine: Any) -> None:
    engine = start_engine.fake(*FLAGS, "--drain-grace", "1h", misbehaviour="step_seconds=0.05")
    engine.wait_ready()
    with ExitStack() as stack:
        _, running = read_all(stack, engine, 4)
        engine.process.send_signal(signal.SIGINT)
        engine.wait_until(lambda: engine.status("/ready") != 200, "the drain")
        engine.process.send_signal(signal.SIGINT)
        assert {each.result()["code"] for each in running} == {"draining"}
    assert engine.wait_exit() == 0


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_engine_once_the_others_have_finished(start_engine: Any) -> None:
    engine, everything = begin(start_engine, misbehaviour="step_seconds=0.01")
    with ExitStack() as stack:
        _, running = read_all(stack, engine, 6)
        os.kill(engine.peer_pids()[1], signal.SIGKILL)
        results = [each.result() for each in running]
    assert results.count("length") == 4, "two of six were its own"
    assert sum(isinstance(each, httpx.TransportError) for each in results) == 2
    check_end(engine, everything, "HTTPProcessLost")
    assert "HTTP process 2 of this engine has died: it was ended by signal 9" in last_words(engine)["message"]


@pytest.mark.slow
def test_a_core_that_is_killed_is_told_by_every_process(start_engine: Any) -> None:
    engine, everything = begin(start_engine, misbehaviour="step_seconds=0.05")
    with ExitStack() as stack:
        _, running = read_all(stack, engine, 6)
        os.kill(engine.core_pid(), signal.SIGKILL)
        errors = [each.result() for each in running]
        assert {error["code"] for error in errors} == {"engine_dead"}
        assert all("signal 9" in error["message"] for error in errors)
        statuses = {engine.status("/health") for _ in range(NUM_PROCESSES)}
    assert statuses == {503}
    check_end(engine, everything, "EngineDead")


@pytest.mark.slow
def test_a_process_that_hangs_fails_health_and_keeps_nobody_waiting(start_engine: Any) -> None:
    engine, everything = begin(start_engine, "--step-timeout", "1s")
    hung = engine.peer_pids()[0]
    os.kill(hung, signal.SIGSTOP)
    engine.wait_until(lambda: engine.status("/health") == 503, "the end of health")

    def says(path: str, words: str) -> bool:
        try:  # until the first process gives the hung one no connections any more
            return words in httpx.get(engine.url + path, timeout=2).text
        except httpx.TransportError:
            return False

    engine.wait_until(lambda: says("/health", "HTTP process 1 of this engine has not answered for"), "the reason")
    engine.wait_until(lambda: says("/metrics", "fairlead_engine_http_requests_total{"), "metrics without the hung one")
    os.kill(hung, signal.SIGCONT)
    engine.wait_until(lambda: engine.status("/health") == 200, "health")
    os.kill(hung, signal.SIGSTOP)
    for _ in range(2):
        engine.process.send_signal(signal.SIGINT)
        engine.wait_until(lambda: engine.status("/ready") != 200, "the end of readiness")
    assert engine.wait_exit() == 0
    wait_gone(engine, everything)


@pytest.mark.slow
def test_nothing_is_left_when_the_first_process_is_killed(start_engine: Any) -> None:
    engine, everything = begin(start_engine, misbehaviour="step_seconds=0.05")
    with ExitStack() as stack:
        _, running = read_all(stack, engine, 3)
        engine.process.kill()
        assert all(isinstance(each.result(), httpx.TransportError) for each in running)
    engine.process.wait()
    wait_gone(engine, everything)


@pytest.mark.parametrize(
    "seconds",
    [
        0.0,
        pytest.param(0.6, marks=pytest.mark.slow),
        *(pytest.param(s, marks=pytest.mark.long) for s in (0.2, 1.0, 1.4)),
    ],
)
def test_a_process_that_is_killed_while_it_starts_keeps_the_engine_from_starting(
    start_engine: Any, seconds: float
) -> None:
    engine = start_engine.fake(*FLAGS, misbehaviour="step_seconds=0.01")
    engine.wait_until(engine.peer_pids, "a second process")
    everything = processes(engine)
    time.sleep(seconds)
    os.kill(engine.peer_pids()[0], signal.SIGKILL)
    check_end(engine, everything, "HTTPProcessLost")
    assert "HTTP process 1 of this engine" in last_words(engine)["message"]
    assert "Traceback" not in engine.log.read_text()


@pytest.mark.slow
def test_a_core_that_is_killed_while_other_processes_still_load_ends_the_engine(start_engine: Any) -> None:
    engine = start_engine.fake(*FLAGS)
    engine.wait_until(lambda: len(engine.peer_pids()) == NUM_PROCESSES - 1, "all processes")
    everything = processes(engine)
    for pid in engine.peer_pids():
        os.kill(pid, signal.SIGSTOP)
    time.sleep(3)  # the core starts, and tells the first alone
    os.kill(engine.core_pid(), signal.SIGKILL)
    check_end(engine, everything, "EngineDead")


@pytest.mark.slow
def test_a_signal_while_it_starts_ends_all(start_engine: Any) -> None:
    engine = start_engine.fake(*FLAGS)
    engine.wait_until(lambda: engine.status("/health") == 200, "the first probe")
    everything = processes(engine)
    engine.process.terminate()
    assert engine.wait_exit() == 0
    wait_gone(engine, everything)


@pytest.mark.slow
def test_a_core_that_cannot_start_is_told_once(start_engine: Any) -> None:
    engine = start_engine.fake(*FLAGS, misbehaviour="start_error=NotEnoughMemory")
    assert engine.wait_exit() == 1
    assert last_words(engine) == {"reason": "NotEnoughMemory", "message": "this engine was told not to start"}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--api-servers", "0"], "api-servers: must be from 1 to 64, not 0"),
        (["--api-servers", "3", "--max-connections", "2"], "max-connections: 2 is below api-servers (3)"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_by_name(start_engine: Any, flags: list[str], says: str) -> None:
    engine = start_engine("--model", "demo://dinghy", *flags)
    assert engine.wait_exit() == 2
    assert says in last_words(engine)["message"]
