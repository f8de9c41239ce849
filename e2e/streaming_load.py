"""Steady streaming load whose every answer is known: what the scenarios that must drop nothing are held to.

Each client streams one prompt after another, greedily, on a connection that it keeps for as long as it may, and
compares each answer with what the same prompt gave while nothing disturbed the fleet.

It needs nothing but Python: on a cluster this very file runs in a pod and tells by JSON lines what it sees.
"""

import argparse
import http.client
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PROMPTS = tuple(
    f"The log of the {boat} says that {crew} sailed to {place} on a"
    for boat, crew, place in itertools.product(("heron", "tern"), ("Ada", "Boris"), ("Lisbon", "Oslo"))
)
NUM_TOKENS = 120
CONNECT_ATTEMPTS = 3
"""Connections a client tries to open, as every HTTP client does; a request that was sent is never sent again."""
API_KEY_VARIABLE = "FAIRLEAD_API_KEY"
"""Environment variable that a pod of clients finds its key in."""
TELL_SECONDS = 0.5


@dataclass(frozen=True)
class Endpoint:
    """A model behind a gateway."""

    url: str
    """Base URL of the gateway."""
    model: str
    api_key: str = ""
    """Empty = none is sent."""

    @property
    def headers(self) -> dict[str, str]:
        key = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"content-type": "application/json", **key}


@dataclass
class Answer:
    """One request, ended."""

    status: int
    text: str
    complete: bool
    """Whether the stream said that it was complete."""
    detail: str = ""


def connect(url: str) -> http.client.HTTPConnection:
    address = urlsplit(url)
    for attempt in range(CONNECT_ATTEMPTS):
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
        try:
            connection.connect()
        except OSError:
            if attempt == CONNECT_ATTEMPTS - 1:
                raise
        else:
            connection.auto_open = 0
            return connection
    raise AssertionError


def nothing() -> None:
    """What to do at a first token unless somebody wants to know of it."""


def stream(
    endpoint: Endpoint, prompt: str, num_tokens: int = NUM_TOKENS, *, begun: Callable[[], object] = nothing
) -> Answer:
    """Streams one greedy completion of exactly so many tokens. `begun` is called at the first one."""
    with closing(connect(endpoint.url)) as connection:
        return ask(connection, endpoint, prompt, num_tokens, begun=begun)


def ask(
    connection: http.client.HTTPConnection,
    endpoint: Endpoint,
    prompt: str,
    num_tokens: int = NUM_TOKENS,
    *,
    begun: Callable[[], object] = nothing,
) -> Answer:
    """The same on a connection that is open; closes it where the server says so."""
    body = {
        "model": endpoint.model, "prompt": prompt, "stream": True, "temperature": 0, "max_tokens": num_tokens,
        "ignore_eos": True,
    }  # fmt: skip
    connection.request("POST", "/v1/completions", json.dumps(body), endpoint.headers)
    reply = connection.getresponse()
    try:
        if reply.status != 200:
            return Answer(reply.status, "", False, reply.read().decode()[-300:])
        return _read(reply, begun)
    finally:
        if reply.will_close or not reply.isclosed():
            connection.close()


def _read(reply: http.client.HTTPResponse, begun: Callable[[], object]) -> Answer:
    parts: list[str] = []
    try:
        for line in reply:
            if not line.startswith(b"data: "):
                continue
            payload = line[6:].strip()
            if payload == b"[DONE]":
                reply.read()  # to the very end, so that the connection can be used again
                return Answer(200, "".join(parts), True)
            event = json.loads(payload)
            if "error" in event:
                return Answer(200, "".join(parts), False, payload.decode())
            if not parts:
                begun()
            parts += [choice["text"] for choice in event["choices"]]
    except (OSError, http.client.HTTPException) as error:
        return Answer(200, "".join(parts), False, repr(error))
    return Answer(200, "".join(parts), False, "the stream ended without [DONE]")


@dataclass
class ClientLoad:
    """Clients at work, and what they saw."""

    endpoint: Endpoint
    expected: dict[str, str]
    stopped: threading.Event = field(default_factory=threading.Event)
    num_begun: int = 0
    num_answers: int = 0
    failed: list[str] = field(default_factory=list)
    truncated: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self, first: int) -> None:
        connection: http.client.HTTPConnection | None = None
        for number in itertools.count(first):
            if self.stopped.is_set():
                break
            prompt = PROMPTS[number % len(PROMPTS)]
            try:
                if connection is None or connection.sock is None:
                    connection = connect(self.endpoint.url)
                answer = ask(connection, self.endpoint, prompt, begun=self._begun)
            except (OSError, http.client.HTTPException) as error:
                answer, connection = Answer(0, "", False, repr(error)), None
            self._judge(prompt, answer)
        if connection is not None:
            connection.close()

    def _begun(self) -> None:
        with self._lock:
            self.num_begun += 1

    def _judge(self, prompt: str, answer: Answer) -> None:
        with self._lock:
            self.num_answers += 1
            if answer.status != 200:
                self.failed.append(f"{answer.status}: {answer.detail}")
            elif not answer.complete:
                self.truncated.append(answer.detail)
            elif answer.text != self.expected[prompt]:
                self.different.append(f"{prompt!r} gave {answer.text!r} instead of {self.expected[prompt]!r}")

    @property
    def verdict(self) -> tuple[int, int, int]:
        """Failed, truncated, different: all must be 0."""
        return len(self.failed), len(self.truncated), len(self.different)

    @property
    def problems(self) -> str:
        """A few of each, for whoever reads a failed test."""
        return "\n".join([*self.failed[:3], *self.truncated[:3], *self.different[:3]])

    def told(self) -> dict[str, Any]:
        """What it has seen so far, as one JSON object."""
        with self._lock:
            return {
                "begun": self.num_begun, "answers": self.num_answers, "verdict": self.verdict,
                "problems": self.problems,
            }  # fmt: skip


def undisturbed(endpoint: Endpoint) -> dict[str, str]:
    """What each prompt gives while nothing happens to the fleet."""
    answers = {prompt: stream(endpoint, prompt) for prompt in PROMPTS}
    assert all(answer.complete for answer in answers.values()), answers
    return {prompt: answer.text for prompt, answer in answers.items()}


@contextmanager
def steady_load(endpoint: Endpoint, expected: dict[str, str], *, num_clients: int = 6) -> Iterator[ClientLoad]:
    """Load from before the block to after it; its verdict is final afterwards. `expected`: what `undisturbed` told."""
    load = ClientLoad(endpoint, expected)
    clients = [threading.Thread(target=load.client, args=(first,)) for first in range(num_clients)]
    for client in clients:
        client.start()
    try:
        yield load
    finally:
        load.stopped.set()
        for client in clients:
            client.join()


def main() -> None:
    """Loads until a file appears; tells what it sees as JSON lines, the last one with `"final": true`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="base URL of the gateway")
    parser.add_argument("--model", required=True)
    parser.add_argument("--num-clients", type=int, default=6)
    parser.add_argument("--stop-file", type=Path, required=True, help="ends once this file is there")
    options = parser.parse_args()
    endpoint = Endpoint(options.url, options.model, os.environ.get(API_KEY_VARIABLE, ""))
    with steady_load(endpoint, undisturbed(endpoint), num_clients=options.num_clients) as load:
        while not options.stop_file.exists():
            print(json.dumps({**load.told(), "final": False}), flush=True)
            time.sleep(TELL_SECONDS)
    print(json.dumps({**load.told(), "final": True}), flush=True)


if __name__ == "__main__":
    main()
