"""List and watch over real HTTP, from a real core process: at equal `seq` a follower has what the engine has."""

import json
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

EVENTS = "/fairlead/v1/kv/events"
BLOCKS = "/fairlead/v1/kv/blocks"


class Follower(threading.Thread):
    """Lists, watches, and keeps every set of hashes it ever had, by seq."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        listed = httpx.get(url + BLOCKS).json()
        self.epoch, self.seq = listed["epoch"], listed["seq"]
        self.hashes = {each for chain in listed["blocks"] for each in chain["hashes"]}
        self.at: dict[int, frozenset[str]] = {self.seq: frozenset(self.hashes)}
        self.raw: list[str] = []
        self.loads: list[dict[str, Any]] = []
        self.condition = threading.Condition()
        self._url = f"{url}{EVENTS}?epoch={self.epoch}&seq={self.seq}"
        self.start()

    def run(self) -> None:
        with suppress(httpx.TransportError), httpx.stream("GET", self._url, timeout=60) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                with self.condition:
                    self._take(line)
                    self.condition.notify_all()

    def _take(self, raw: str) -> None:
        line = json.loads(raw)
        if "load" in line:
            # The first load is of now, and what was missed comes behind it.
            assert line["load"]["seq"] == self.seq or not self.loads
            self.loads.append(line["load"])
            return
        assert line["seq"] == self.seq + 1
        self.raw.append(raw)
        removed = set(line.get("removed", []))
        assert removed <= self.hashes
        self.hashes -= removed
        self.hashes |= {each for chain in line.get("stored", []) for each in chain["hashes"]}
        self.seq = line["seq"]
        self.at[self.seq] = frozenset(self.hashes)

    def wait_for(self, seq: int) -> None:
        with self.condition:
            assert self.condition.wait_for(lambda: self.seq >= seq, timeout=60)

    def wait_for_load(self, **figures: object) -> dict[str, Any]:
        with self.condition:
            assert self.condition.wait_for(lambda: self._last_is(figures), timeout=60), self.loads[-1:]
            return self.loads[-1]

    def _last_is(self, figures: dict[str, object]) -> bool:
        return bool(self.loads) and all(self.loads[-1][name] == value for name, value in figures.items())


def complete(url: str, prompt: list[int], number: int, **fields: object) -> httpx.Response:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 24, "ignore_eos": True, **fields}
    headers = {"x-fairlead-dispatch": f"gw:{number}"}
    return httpx.post(url + "/v1/completions", json=body, headers=headers, timeout=60)


def random_load(url: str, num_requests: int) -> None:
    """Prompts with common beginnings, several at a time; some clients leave."""
    rng = random.Random(0)
    prefixes = [[rng.randrange(300) for _ in range(length)] for length in (40, 64, 90)]
    prompts = [rng.choice(prefixes) + [rng.randrange(300) for _ in range(rng.randint(1, 60))] for _ in range(40)]

    def one(number: int) -> None:
        prompt = prompts[number % len(prompts)]
        if number % 5 == 4:
            with httpx.stream(
                "POST", url + "/v1/completions", json={"model": "tiny", "prompt": prompt, "stream": True}, timeout=60
            ) as response:
                next(response.iter_lines())  # and closes the connection
        else:
            assert complete(url, prompt, number + 1).status_code in (200, 429)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(num_requests)))


@pytest.mark.parametrize("host", [(), ("--host-kv-cache-memory", "60k")], ids=["device", "host"])
def test_at_equal_seq_followers_and_engine_agree_and_another_process_s_epoch_is_refused(
    host: tuple[str, ...], start_engine: Any, checkpoint: Path, served: Any
) -> None:
    engine = start_engine(
        "--model", str(checkpoint), "--served-name", "tiny", "--kv-cache-memory", "150k", "--max-model-len", "256",
        *host,
    )  # fmt: skip
    engine.wait_ready()
    early = Follower(engine.url)
    random_load(engine.url, 30)
    late = Follower(engine.url)
    random_load(engine.url, 30)
    listed = httpx.get(engine.url + BLOCKS).json()
    for follower in (early, late):
        follower.wait_for(listed["seq"])
        assert follower.at[listed["seq"]] == {each for chain in listed["blocks"] for each in chain["hashes"]}
    assert any('"removed":["' in raw for raw in early.raw), "the cache was small enough to evict"
    common = sorted(early.at.keys() & late.at.keys())
    assert len(common) > 10
    assert all(early.at[seq] == late.at[seq] for seq in common)
    assert early.raw[-len(late.raw) :] == late.raw
    assert engine.metric("fairlead_engine_kv_events_total") == listed["seq"]
    assert engine.metric("fairlead_engine_kv_followers") == 2
    idle = early.wait_for_load(running=0, waiting=0)
    most = max(map(len, early.at.values()))
    assert (idle["kv_blocks_total"] < most <= idle["kv_blocks_total"] + idle["kv_blocks_host"]) == bool(host)
    assert bool(engine.metric("fairlead_engine_kv_blocks_loaded_total")) == bool(host)
    assert bool(engine.metric("fairlead_engine_kv_blocks_saved_total")) == bool(host)
    assert idle["seen"] == {"gw": 29}, "the 30th client numbered nothing"
    assert idle["kv_blocks_free"] == idle["kv_blocks_total"]
    theirs = httpx.get(served.url + BLOCKS).json()["epoch"]
    assert httpx.get(engine.url + EVENTS, params={"epoch": theirs, "seq": 0}).status_code == 410


@pytest.mark.slow
def test_a_drain_ends_streams_only_with_the_process_and_does_not_wait_for_them(
    start_engine: Any, checkpoint: Path
) -> None:
    engine = start_engine("--model", str(checkpoint), "--served-name", "tiny", "--drain-grace", "0")
    engine.wait_ready()
    follower = Follower(engine.url)
    follower.wait_for_load(draining=False)
    with httpx.stream(
        "POST",
        engine.url + "/v1/completions",
        json={"model": "tiny", "prompt": [1] * 40, "stream": True, "max_tokens": 400, "ignore_eos": True},
        timeout=60,
    ) as response:
        lines = response.iter_lines()
        next(lines)
        assert engine.metric("fairlead_engine_num_requests_running") == 1
        engine.process.send_signal(signal.SIGTERM)
        follower.wait_for_load(draining=True, running=1)
        assert httpx.get(engine.url + BLOCKS).status_code == 200
        assert "data: [DONE]" in list(lines)
    assert engine.wait_exit() == 0
    follower.join(timeout=60)
    assert not follower.is_alive(), "the stream ended, and as it should: with its last chunk"
    log = engine.log.read_text()
    assert "Traceback" not in log and "level=ERROR" not in log
