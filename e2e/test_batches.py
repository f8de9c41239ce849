"""A batch of the size that is judged, while gateways, engines and the operator are killed at random moments."""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from homes.local import LocalFleet, free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.local_only(reason="it kills the fleet's processes"),
    pytest.mark.timeout(1500),
]

NUM_LINES = 2000
NUM_REPLICAS = 2
PAUSE_SECONDS = (2.0, 8.0)
"""Between kills: engines take some seconds to start, and would else hardly ever serve."""


class OwnGateway:
    """A gateway of the fleet that stores what clients send, as those of local mode do not."""

    def __init__(self, fleet: LocalFleet, folder: Path, number: int) -> None:
        self.port = free_port()
        control, self._log = free_port(), folder / f"gateway-{number}.log"
        self._command = [
            sys.executable, "-m", "fairlead", "gateway", "--kubeconfig", str(fleet.kubeconfig), "--no-api-keys",
            "--host", "127.0.0.1", "--port", str(self.port), "--control-port", str(control),
            "--response-store", f"sqlite:///{folder}/store.db", "--file-store", str(folder / "files"),
        ]  # fmt: skip
        self.client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=20.0
        )
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=os.environ)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def gateways(fleet: LocalFleet, tmp_path: Path) -> Iterator[list[OwnGateway]]:
    both = [OwnGateway(fleet, tmp_path, number) for number in range(2)]
    try:
        yield both
    finally:
        for each in both:
            each.kill()
            each.client.close()


def question(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"What is {number % 13} plus {number % 11}?"}]}


def body(model: str, number: int) -> dict[str, Any]:
    return {"model": model, **question(number), "max_tokens": 8, "temperature": 0}


class Kills:
    """At random, one program at a time. Each dead program comes back, by its own keeper or by this one."""

    def __init__(self, fleet: LocalFleet, gateways: list[OwnGateway], name: str, draw: random.Random) -> None:
        self._fleet, self._gateways, self._name, self._draw = fleet, gateways, name, draw
        self.counts = Counter[str]()

    def one(self) -> None:
        kind = self._draw.choice(["gateway", "engine", "operator"])
        if kind == "gateway":
            victim = self._draw.choice(self._gateways)
            victim.kill()
            victim.start()
        else:
            pods = self._fleet.pods(self._name) if kind == "engine" else self._fleet.system_pods("operator")
            found = self._fleet.processes(self._draw.choice(list(pods.values()))) if pods else ()
            if not found:
                return  # it has not come back yet
            for process in found:
                with contextlib.suppress(Exception):
                    process.kill()
        self.counts[kind] += 1


def test_two_thousand_lines_survive_kills_of_gateways_engines_and_the_operator(
    fleet: LocalFleet,
    gateways: list[OwnGateway],
    deployed: Callable[..., str],
    name: str,
    say: Callable[[str], None],
) -> None:
    deployed(name, replicas=NUM_REPLICAS)
    fleet.wait_ready(name, NUM_REPLICAS)
    draw = random.Random(int(os.environ.get("FAIRLEAD_SOAK_SEED", "1")))

    def asked(call: Callable[[openai.OpenAI], Any]) -> Any:
        """At whichever gateway lives."""
        until = time.monotonic() + 120
        while True:
            try:
                return call(draw.choice(gateways).client)
            except openai.APIError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.3)

    expected = [
        asked(lambda client, number=number: client.chat.completions.create(**body(name, number)))
        for number in range(143)  # after which questions come again
    ]
    texts = [each.choices[0].message.content for each in expected]
    lines = (
        {"custom_id": str(each), "method": "POST", "url": "/v1/chat/completions", "body": body(name, each)}
        for each in range(NUM_LINES)
    )
    content = b"".join(json.dumps(each).encode() + b"\n" for each in lines)
    file = asked(lambda client: client.files.create(file=("lines.jsonl", content), purpose="batch"))
    batch = asked(
        lambda client: client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    )
    kills, started = Kills(fleet, gateways, name, draw), time.monotonic()
    while (now := asked(lambda client: client.batches.retrieve(batch.id))).status != "completed":
        assert now.status in ("validating", "in_progress", "finalizing"), now
        time.sleep(draw.uniform(*PAUSE_SECONDS))
        kills.one()
    say(f"{now.request_counts} in {time.monotonic() - started:.0f} s, beside {dict(kills.counts)} kills")
    assert now.error_file_id is None
    told = [
        json.loads(each) for each in asked(lambda client: client.files.content(now.output_file_id)).text.splitlines()
    ]
    assert Counter(each["custom_id"] for each in told) == Counter(map(str, range(NUM_LINES)))
    wrong = {
        each["custom_id"]: each["response"]
        for each in told
        if each["response"]["body"]["choices"][0]["message"]["content"] != texts[int(each["custom_id"]) % 143]
    }
    assert not wrong
    assert set(kills.counts) == {"gateway", "engine", "operator"}, "it was too fast"
