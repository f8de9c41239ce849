"""What the front before a server that is not ours costs: the same requests straight to the server, and through it.

    python engine/benchmarks/front_hop.py --streams 64 --seconds 10
    python engine/benchmarks/front_hop.py --upstream 127.0.0.1:8001 --name qwen --model /models/qwen

Without `--upstream` the server is the tests' fake vLLM, a process of its own. First short streams one after another,
straight and through the front by turns: time to first token and to the end. Then `--streams` at once for `--seconds`,
first straight, then through the front: tokens per second, and the front's processor time per token.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import uvloop
from server_path import START_SECONDS, Stream, cpu_seconds

import fairlead_engine.demo

DINGHY = Path(fairlead_engine.demo.__file__).parent / "dinghy"
SHORT_TOKENS = 16


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def process(*words: str) -> Iterator[int]:
    """Its id."""
    running = subprocess.Popen([sys.executable, "-m", *words], stdout=sys.stderr)
    try:
        yield running.pid
    finally:
        running.terminate()
        running.wait()


def request(name: str, num_tokens: int, turn: int) -> bytes:
    """A stream whose prompt begins as no other, so that nothing is cached."""
    body = json.dumps(
        {"model": name, "prompt": f"{turn} ahoy there", "stream": True, "max_tokens": num_tokens, "ignore_eos": True}
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    )
    return f"{head}\r\n\r\n".encode() + body


async def short(port: int, name: str, turn: int) -> tuple[float, float]:
    """Seconds to the first token, and to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began, first, text = time.perf_counter(), 0.0, b""
    writer.write(request(name, SHORT_TOKENS, turn))
    while b"data: [DONE]" not in text:
        chunk = await reader.read(65536)
        if not chunk:
            raise SystemExit(f"the server broke off: {text[-500:]!r}")
        text += chunk
        if not first and b"data: " in text:
            first = time.perf_counter() - began
    writer.close()
    return first, time.perf_counter() - began


async def many(port: int, args: argparse.Namespace, pid: int | None) -> dict[str, float]:
    loop, streams = asyncio.get_running_loop(), []
    for turn in range(args.streams):
        asked = request(args.name, args.length, turn)
        transport, stream = await loop.create_connection(lambda asked=asked: Stream(asked), "127.0.0.1", port)
        streams.append((transport, stream))
    async with asyncio.timeout(START_SECONDS):
        while not all(stream.num_events > 5 for _, stream in streams):
            await asyncio.sleep(0.05)
    before, used = sum(stream.num_events for _, stream in streams), 0.0 if pid is None else cpu_seconds(pid)
    began = time.perf_counter()
    await asyncio.sleep(args.seconds)
    wall, tokens = time.perf_counter() - began, sum(stream.num_events for _, stream in streams) - before
    told = {"tokens_per_second": tokens / wall}
    if pid is not None:
        told["front_cpu_us_per_token"] = 1e6 * (cpu_seconds(pid) - used) / tokens
    for transport, _ in streams:
        transport.close()
    await asyncio.sleep(1.0)
    return told


async def ready(port: int, path: str) -> None:
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"GET {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n".encode())
                is_ready = b" 200 " in await reader.readline()
                writer.close()
                if is_ready:
                    return
            except OSError:
                pass
            await asyncio.sleep(0.1)


async def measure(args: argparse.Namespace, upstream: int, front: int, pid: int) -> dict[str, float]:
    await ready(upstream, "/health")
    await ready(front, "/ready?wait=5")
    seen: dict[int, list[tuple[float, float]]] = {upstream: [], front: []}
    for turn in range(args.requests + 5):
        for port in (upstream, front):
            told = await short(port, args.name, 2 * turn + (port == front))
            if turn >= 5:
                seen[port].append(told)
    found: dict[str, float] = {}
    for index, what in enumerate(("first_token", f"{SHORT_TOKENS}_tokens")):
        straight, through = (1000 * median(each[index] for each in seen[port]) for port in (upstream, front))
        found |= {
            f"{what}_straight_ms": straight,
            f"{what}_through_ms": through,
            f"{what}_added_ms": through - straight,
        }
    for name, port, who in (("straight", upstream, None), ("through", front, pid)):
        found |= {f"{key}_{name}": value for key, value in (await many(port, args, who)).items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="vllm", help="kind of server, as the front calls it")
    parser.add_argument("--upstream", help="HOST:PORT of one that runs on this machine")
    parser.add_argument("--name", default="bench", help="of its model")
    parser.add_argument("--model", type=Path, default=DINGHY, help="its folder")
    parser.add_argument("--requests", type=int, default=100, help="short ones, each way")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--length", type=int, default=100_000, help="of each of these, in tokens")
    parser.add_argument("--seconds", type=float, default=10.0, help="that are measured")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    front = free_port()
    upstream = int(args.upstream.rpartition(":")[2]) if args.upstream else free_port()
    fake = (
        "fairlead_testing.fake_vllm", "serve", str(DINGHY), "--served-model-name", args.name, "--host", "127.0.0.1",
        "--port", str(upstream), "--max-model-len", "1000000", "--max-num-seqs", "1024",
        "--enable-prompt-tokens-details",
    )  # fmt: skip
    words = (
        "fairlead_engine", "front", "--engine", args.engine, "--model", str(args.model), "--served-name", args.name,
        "--upstream-port", str(upstream), "--port", str(front), "--log-level", "warning", "--drain-grace", "0",
    )  # fmt: skip
    if args.upstream:
        with process(*words) as pid:
            found = uvloop.run(measure(args, upstream, front, pid))
    else:
        with process(*fake), process(*words) as pid:
            found = uvloop.run(measure(args, upstream, front, pid))
    for name, value in found.items():
        print(f"{name:36} {value:10.3f}")


if __name__ == "__main__":
    main()
