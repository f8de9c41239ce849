"""Five hundred streams through one gateway process, and what one hung and one killed engine do to them: little.

Everything is a process of its own: the gateway, whose memory is looked at, and fake engines that sleep for what their
steps would cost, so that they can be stopped and killed as real ones can.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

NUM_STREAMS = 500
NUM_TOKENS = 80
"""Of each, four a second: none ends before the last has begun."""
MAX_BYTES_PER_STREAM = 256 * 1024
"""Generous: about 30 KiB are usual."""


@dataclass
class Process:
    """A child that has said where it serves."""

    process: asyncio.subprocess.Process
    ready: dict[str, Any]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


async def spawn(module: str, *arguments: str) -> Process:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"fairlead_testing.{module}", *arguments, stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    return Process(process, json.loads(await asyncio.wait_for(process.stdout.readline(), 60)))


async def spawn_engine(name: str, *, step_seconds: float, port: int = 0) -> Process:
    limits = ("--max-num-seqs", "256", "--max-num-queued-tokens", "100000", "--num-kv-blocks", "8192")
    cost = f"base={step_seconds},prefill_token=0.0001"  # enough for requests that come at once to be spread
    return await spawn("fake_engine", "--name", name, "--port", str(port), "--step-cost", cost, *limits,
                       "--max-num-batched-tokens", "16384")  # fmt: skip


@dataclass
class System:
    """One gateway and its engines."""

    gateway: Process
    engines: dict[str, Process]
    http: aiohttp.ClientSession
    num_started: int = 0
    """Streams whose first token has come."""
    num_ended: int = 0
    replicas: Counter[str] = field(default_factory=Counter)
    """Where streams went."""

    async def stream(self, name: str, num_tokens: int) -> tuple[str, bytes]:
        """(replica, what came), to the end."""
        body = {"model": "fake", "messages": [{"role": "user", "content": f"stream {name}"}], "stream": True,
                "max_tokens": num_tokens, "ignore_eos": True}  # fmt: skip
        url = f"http://127.0.0.1:{self.gateway.ready['port']}/v1/chat/completions"
        async with self.http.post(url, json=body) as response:
            assert response.status == 200, await response.text()
            replica = response.headers["x-fairlead-replica"]
            self.replicas[replica] += 1
            first = await response.content.readuntil(b"\n\n")
            self.num_started += 1
            rest = await response.read()
        self.num_ended += 1
        return replica, first + rest

    def start(self, num: int, num_tokens: int) -> list["asyncio.Task[tuple[str, bytes]]"]:
        self.num_started = self.num_ended = 0
        self.replicas.clear()
        return [asyncio.create_task(self.stream(str(index), num_tokens)) for index in range(num)]

    async def metric(self, name: str) -> float:
        url = f"http://127.0.0.1:{self.gateway.ready['control_port']}/metrics"
        async with self.http.get(url) as response:
            lines = (await response.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"fairlead_gateway_{name}"))

    async def until_metric(self, name: str, value: float) -> None:
        async with asyncio.timeout(60):
            while await self.metric(name) != value:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running(num_engines: int, *, step_seconds: float, idle_timeout: float = 60.0) -> AsyncIterator[System]:
    processes: list[Process] = []
    engines: dict[str, Process] = {}
    try:
        for index in range(num_engines):
            name = f"engine-{index}"
            engines[name] = await spawn_engine(name, step_seconds=step_seconds)
        processes += engines.values()
        named = (f"--engine={name}={engine.ready['url']}" for name, engine in engines.items())
        gateway = await spawn("static_gateway", *named, "--idle-timeout", str(idle_timeout))
        processes.append(gateway)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            system = System(gateway, engines, http)
            await system.until_metric("stale_replicas", 0)
            await system.until_metric("kv_index_replicas", num_engines)
            yield system
    finally:
        for each in [*processes, *engines.values()]:
            if each.process.returncode is None:
                each.send(signal.SIGCONT)
                each.process.kill()
                await each.process.wait()


async def until(number: Callable[[], int], goal: int) -> None:
    """Waits until there are so many, as long as there come more and more."""
    while (before := number()) < goal:
        async with asyncio.timeout(60):
            while number() == before:
                await asyncio.sleep(0.01)


def resident_bytes(pid: int) -> int:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def is_whole(answer: bytes, num_tokens: int) -> bool:
    """Every token, the finish reason, and the end."""
    return answer.endswith(b"data: [DONE]\n\n") and answer.count(b"\n\n") == num_tokens + 2 and b"error" not in answer


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks at the process's memory as Linux tells it")
async def test_five_hundred_streams_at_once_all_end_well_in_bounded_memory() -> None:
    async with running(4, step_seconds=0.25) as system:
        pid = system.gateway.ready["pid"]
        await asyncio.gather(*system.start(8, 1))
        before = resident_bytes(pid)
        tasks = system.start(NUM_STREAMS, NUM_TOKENS)
        await until(lambda: system.num_started, NUM_STREAMS)
        assert system.num_ended == 0, "they are there all at once"
        assert await system.metric("in_flight_requests") == NUM_STREAMS
        growth = resident_bytes(pid) - before
        answers = await asyncio.gather(*tasks)
        assert sum(is_whole(answer, NUM_TOKENS) for _, answer in answers) == NUM_STREAMS
        assert growth / NUM_STREAMS < MAX_BYTES_PER_STREAM
        assert len(system.replicas) == 4, "each engine serves some"
        assert max(system.replicas.values()) <= NUM_STREAMS / 2, "a busy machine slows an engine, which then gets fewer"
        assert await system.metric("in_flight_requests") == 0


@pytest.mark.slow
async def test_a_hung_and_a_killed_engine_take_only_their_own_streams_with_them_and_come_back() -> None:
    async with running(4, step_seconds=0.1, idle_timeout=5.0) as system:
        tasks = system.start(120, 50)
        await until(lambda: system.num_started, 120)
        hung, killed = "engine-2", "engine-3"
        system.engines[hung].send(signal.SIGSTOP)
        system.engines[killed].send(signal.SIGKILL)
        cut = [(replica, answer) for replica, answer in await asyncio.gather(*tasks) if not is_whole(answer, 50)]
        assert {replica for replica, _ in cut} == {hung, killed}, "those that had ended before are whole"
        for replica, answer in cut:
            assert (b'"replica_timeout"' if replica == hung else b'"replica_failed"') in answer
        assert system.replicas[hung] and system.replicas[killed]

        await system.until_metric("stale_replicas", 2)
        for _ in range(2):  # connections to the hung one are still accepted, and it looks idle
            answers = await asyncio.gather(*system.start(20, 4))
            assert {replica for replica, _ in answers} <= {"engine-0", "engine-1"}
            assert all(is_whole(answer, 4) for _, answer in answers)

        system.engines[hung].send(signal.SIGCONT)
        await system.engines[killed].process.wait()
        port = system.engines[killed].ready["port"]
        system.engines[killed] = await spawn_engine(killed, step_seconds=0.1, port=port)
        await system.until_metric("stale_replicas", 0)
        served: set[str] = set()
        async with asyncio.timeout(60):
            while served != set(system.engines):
                answers = await asyncio.gather(*system.start(20, 2))
                assert all(is_whole(answer, 2) for _, answer in answers)
                served |= set(system.replicas)
