"""What the front before an external engine costs: the same requests straight to the server, and through the front.

Without `--upstream`, which is `HOST:PORT` of a server on this machine, the server is the tests' fake vLLM, a process of
its own. First short streams one after another, straight and through the front by turns: milliseconds to the first token
and to the end. Then `--streams` at once for `--seconds`, first straight, then through the front: tokens per second, and
the front's processor time per token.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import uvloop
from harness import Row
from http_load import cpu_seconds, free_port, post, ready, running, started_streams

import fairlead_engine.demo

DINGHY = Path(fairlead_engine.demo.__file__).parent / "dinghy"
SHORT_TOKENS = 16
WARM_UP = 5
"""Short streams each way that are not counted."""


def run(
    engine: str = "vllm", upstream: str | None = None, name: str = "bench", model: Path = DINGHY, requests: int = 100,
    streams: int = 64, length: int = 100_000, seconds: float = 10.0,
) -> Iterator[Row]:  # fmt: skip
    """`engine`: kind of server; `name`, `model`: its model and the folder of that; `requests`: short ones, each way;
    `length`: tokens of each long stream."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    front, server = free_port(), int(upstream.rpartition(":")[2]) if upstream else free_port()
    fake = (
        "fairlead_testing.fake_vllm", "serve", DINGHY, "--served-model-name", name, "--host", "127.0.0.1", "--port",
        server, "--max-model-len", 1_000_000, "--max-num-seqs", 1024, "--enable-prompt-tokens-details",
    )  # fmt: skip
    words = (
        "fairlead_engine", "front", "--engine", engine, "--model", model, "--served-name", name, "--upstream-port",
        server, "--port", front, "--log-level", "warning", "--drain-grace", 0,
    )  # fmt: skip
    with nullcontext() if upstream else running(*fake), running(*words) as pid:
        ports = {"straight": server, "through": front}
        rows, front_cpu = uvloop.run(measure(ports, pid, name, requests, streams, length, seconds))
    for what, each in rows.items():
        yield {"what": what, **each}
    yield {"what": "front's CPU µs per token", "straight": 0.0, "through": front_cpu}


async def measure(
    ports: dict[str, int], front_pid: int, name: str, requests: int, streams: int, length: int, seconds: float
) -> tuple[dict[str, dict[str, float]], float]:
    """Both ways of each figure, and microseconds of the front per token."""
    await ready(ports["straight"], "/health")
    await ready(ports["through"])
    seen: dict[str, list[tuple[float, float]]] = {way: [] for way in ports}
    turns = iter(range(10**9))
    for _ in range(requests + WARM_UP):
        for way, port in ports.items():
            seen[way].append(await short(port, completion(name, SHORT_TOKENS, next(turns))))
    rows = {
        what: {way: 1000 * median(each[index] for each in told[WARM_UP:]) for way, told in seen.items()}
        for index, what in enumerate(("first token, ms", f"{SHORT_TOKENS} tokens, ms"))
    }
    rows[f"{streams} streams, tokens per second"] = rates = {}
    front_cpu = 0.0
    for way, port in ports.items():
        asked = [completion(name, length, next(turns)) for _ in range(streams)]
        clients = await started_streams(port, asked)
        began, used = time.perf_counter(), cpu_seconds(front_pid)
        await asyncio.sleep(seconds)
        num_tokens, wall = sum(each.num_events for each in clients), time.perf_counter() - began
        rates[way], front_cpu = num_tokens / wall, 1e6 * (cpu_seconds(front_pid) - used) / num_tokens
        for client in clients:
            client.transport.close()
        await asyncio.sleep(1.0)
    return rows, front_cpu


def completion(name: str, num_tokens: int, turn: int) -> bytes:
    """A stream whose prompt begins as no other, so that nothing is cached."""
    body = {"model": name, "prompt": f"{turn} ahoy there", "max_tokens": num_tokens}
    return post("/v1/completions", {**body, "stream": True, "ignore_eos": True})


async def short(port: int, request: bytes) -> tuple[float, float]:
    """Seconds to the first token, and to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began, first, text = time.perf_counter(), 0.0, b""
    writer.write(request)
    while b"data: [DONE]" not in text:
        chunk = await reader.read(65536)
        if not chunk:
            raise SystemExit(f"the server broke off: {text[-500:]!r}")
        text += chunk
        if not first and b"data: " in text:
            first = time.perf_counter() - began
    writer.close()
    return first, time.perf_counter() - began
