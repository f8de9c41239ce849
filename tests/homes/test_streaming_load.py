"""The load that must find nothing dropped: what it calls failed, truncated and different, and how it tells it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from homes.cluster_load import ClusterLoad, load_pod
from streaming_load import PROMPTS, ClientLoad, Endpoint, steady_load, undisturbed


class Gateway(BaseHTTPRequestHandler):
    """Streams the prompt in upper case, until `fault` says what else to do."""

    fault = ""
    keys: ClassVar[set[str | None]] = set()

    def do_POST(self) -> None:
        Gateway.keys.add(self.headers["authorization"])
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if Gateway.fault == "failed":
            self.send_error(503, "nothing can serve this")
            return
        self.send_response(200)
        self.end_headers()
        text = "other" if Gateway.fault == "different" else body["prompt"].upper()
        self.tell({"choices": [{"text": text}]})
        if Gateway.fault == "error":
            self.tell({"error": {"message": "the replica went away"}})
        elif Gateway.fault != "cut":
            self.wfile.write(b"data: [DONE]\n\n")

    def tell(self, event: dict) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    Gateway.fault, Gateway.keys = "", set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield Endpoint(f"http://127.0.0.1:{server.server_port}", "boat", "secret")
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def loaded(endpoint: Endpoint, fault: str) -> Iterator[ClientLoad]:
    with steady_load(endpoint, undisturbed(endpoint), num_clients=2) as load:
        Gateway.fault = fault
        met = threading.Event()
        while not met.wait(0.01):
            if load.num_answers >= 20 and (not fault or load.verdict != (0, 0, 0)):
                met.set()
    yield load


def test_a_load_that_nothing_disturbs_finds_nothing_and_sends_its_key(endpoint: Endpoint) -> None:
    with loaded(endpoint, "") as load:
        assert load.verdict == (0, 0, 0)
        assert load.num_answers >= 20
        assert load.num_begun == load.num_answers
        assert load.problems == ""
    assert Gateway.keys == {"Bearer secret"}


@pytest.mark.parametrize(
    ("fault", "place", "words"),
    [
        ("failed", 0, "503"),
        ("error", 1, "the replica went away"),
        ("cut", 1, "the stream ended without [DONE]"),
        ("different", 2, "gave 'other' instead of"),
    ],
)
def test_each_fault_counts_as_what_it_is_and_is_described(
    endpoint: Endpoint, fault: str, place: int, words: str
) -> None:
    with loaded(endpoint, fault) as load:
        counts = list(load.verdict)
        assert counts.pop(place) > 0
        assert counts == [0, 0]
        assert words in load.problems
        assert (load.num_begun == load.num_answers) == (fault != "failed")


def test_what_a_pod_tells_is_heard_and_a_log_that_begins_again_takes_nothing_back(endpoint: Endpoint) -> None:
    with loaded(endpoint, "different") as load:
        told = load.told()
    heard = ClusterLoad()
    assert not heard.started
    for each in ({**told, "final": False}, {**told, "answers": 1, "verdict": [0, 0, 0], "final": False}):
        heard.hear(json.dumps(each))
    assert heard.started
    assert heard.num_answers == load.num_answers
    assert heard.num_begun == load.num_begun > 0
    assert heard.verdict == load.verdict
    assert heard.problems == load.problems
    assert not heard.final
    heard.hear(json.dumps({**told, "final": True}))
    assert heard.final


def test_a_pod_that_breaks_is_heard_with_its_own_words() -> None:
    heard = ClusterLoad()
    for line in ("Traceback (most recent call last):", "ConnectionRefusedError: no"):
        heard.hear(line)
    assert not heard.started
    assert heard.problems.splitlines() == ["Traceback (most recent call last):", "ConnectionRefusedError: no"]


def test_the_pod_carries_the_script_and_reads_the_key_from_its_secret() -> None:
    script, pod = load_pod("load-1", "image:1", ["--model", "boat"], ("keys", "client"))
    assert "steady_load" in script["data"]["streaming_load.py"]
    [container] = pod["spec"]["containers"]
    assert container["env"][0]["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "client"}}
    assert "secret" not in json.dumps(container["command"])
    assert len(PROMPTS) == len(set(PROMPTS))
