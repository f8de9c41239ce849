"""What the engine's HTTP side costs per streamed token: real HTTP, real processes, and a core without a model.

    python engine/benchmarks/server_path.py --streams 256 --step-ms 25 --seconds 10

The server is the product's own, of `--api-servers` processes; its core makes a token for every stream at each beat
(`paced_core.py`). This process is all clients at once and reads what comes. Prints (or `--json`): processor time of all
HTTP processes per token, and that of the busiest and of the core as shares of a CPU; how many streams the fullest has;
system calls that write per step and connection; events per read; percentiles of the time between two reads of one
stream; and the time between two steps of the core. `--profile FILE` has the first HTTP process write its cProfile
there, which makes it slower by half.
"""

import argparse
import asyncio
import cProfile
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import uvloop

HERE = Path(__file__).resolve().parent
START_SECONDS = 60.0


def serve(port: int, step_seconds: float, api_servers: int) -> None:
    """The HTTP processes, until they are told to end."""
    from fairlead_engine.config import EngineConfig, ServerConfig
    from fairlead_engine.demo import resolve_model
    from fairlead_engine.server.serve import run

    engine = EngineConfig(model=f"paced://?step_seconds={step_seconds}", served_name="paced")
    server = ServerConfig(port=port, log_level="warning", drain_grace=0.0, drain_timeout=0.0, api_servers=api_servers)
    run(engine, server, core_module="paced_core", folder=resolve_model("demo://dinghy"))


class Stream(asyncio.Protocol):
    """One client: asks, then counts what comes."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._last = 0.0
        self.num_events = self.num_reads = 0
        self.delays: list[float] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._last:
            self.delays.append(now - self._last)
        self._last = now
        self.num_reads += 1
        self.num_events += data.count(b"data: ")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def num_writes(pid: int) -> int:
    """System calls of a process that wrote."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["syscw"])


def num_connections(pid: int) -> int:
    """TCP connections of a process."""
    return sum(bool(each.raddr) for each in psutil.Process(pid).net_connections("tcp"))


async def num_steps(port: int) -> float:
    """That the core has made, as it tells."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    (line,) = (line for line in text.splitlines() if line.startswith("fairlead_engine_steps_total{"))
    return float(line.rsplit(" ", 1)[1])


def processes(pid: int) -> tuple[list[int], int]:
    """The HTTP processes, the first one first, and the core."""
    children = psutil.Process(pid).children()
    (core,) = (child.pid for child in children if "paced_core" in child.cmdline())
    return [pid, *(child.pid for child in children if child.pid != core)], core


async def measure(args: argparse.Namespace, pid: int, port: int) -> dict[str, float]:
    body = {"model": "paced", "stream": True, "max_tokens": 900_000, "ignore_eos": True}
    body |= {"messages": [{"role": "user", "content": "ahoy"}]} if args.chat else {"prompt": "ahoy"}
    path, text = "/v1/chat/completions" if args.chat else "/v1/completions", json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    streams = []
    for _ in range(args.streams):
        _, stream = await loop.create_connection(lambda: Stream(head.encode() + text), "127.0.0.1", port)
        streams.append(stream)
    async with asyncio.timeout(START_SECONDS):
        while not all(stream.num_events > 5 for stream in streams):
            await asyncio.sleep(0.1)
    before = [(stream.num_events, stream.num_reads) for stream in streams]
    for stream in streams:
        stream.delays.clear()
    https, core = processes(pid)
    fullest = max(map(num_connections, https))
    steps_before, steps_began = await num_steps(port), time.perf_counter()
    used = {each: cpu_seconds(each) for each in (*https, core)}
    writes, began = sum(map(num_writes, https)), time.perf_counter()
    await asyncio.sleep(args.seconds)
    used = {each: cpu_seconds(each) - before for each, before in used.items()}
    writes, wall = sum(map(num_writes, https)) - writes, time.perf_counter() - began
    cpu = sum(used[each] for each in https)
    events = sum(stream.num_events for stream in streams) - sum(each[0] for each in before)
    reads = sum(stream.num_reads for stream in streams) - sum(each[1] for each in before)
    delays = sorted(delay for stream in streams for delay in stream.delays)
    steps = max(stream.num_events - each[0] for stream, each in zip(streams, before, strict=True))
    core_steps, core_wall = await num_steps(port) - steps_before, time.perf_counter() - steps_began
    return {
        "tokens_per_second": events / wall,
        "cpu_us_per_token": 1e6 * cpu / events,
        "busiest_cpu_share": max(used[each] for each in https) / wall,
        "core_cpu_share": used[core] / wall,
        "most_streams_of_one_process": fullest,
        "step_ms": 1000 * core_wall / core_steps,
        "writes_per_step_and_connection": writes / steps / args.streams,
        "events_per_read": events / reads,
        "delay_p50_ms": 1000 * delays[len(delays) // 2],
        "delay_p99_ms": 1000 * delays[int(0.99 * len(delays))],
        "delay_max_ms": 1000 * delays[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=25.0, help="between two tokens of a stream")
    parser.add_argument("--seconds", type=float, default=10.0, help="that are measured")
    parser.add_argument("--api-servers", type=int, default=1, help="HTTP processes")
    parser.add_argument("--chat", action="store_true", help="chats instead of text completions")
    parser.add_argument("--profile", type=Path, help="where the HTTP process writes its profile")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        if args.profile is None:
            serve(args.serve, args.step_ms / 1000, args.api_servers)
            return
        with cProfile.Profile() as profile:
            serve(args.serve, args.step_ms / 1000, args.api_servers)
        profile.dump_stats(args.profile)
        return
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, *sys.argv[1:], "--serve", str(port)]
    paths = os.pathsep.join(
        filter(None, [str(HERE), os.environ.get("PYTHONPATH")])
    )  # the core's process finds it there
    http = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths})
    try:
        result = uvloop.run(ready_then(args, http.pid, port))
    finally:
        http.terminate()
        http.wait()
    if args.json:
        print(json.dumps({**{name: str(value) for name, value in vars(args).items()}, **result}, indent=2))
        return
    for name, value in result.items():
        print(f"{name:32} {value:10.3f}")


async def ready_then(args: argparse.Namespace, pid: int, port: int) -> dict[str, float]:
    """Measures once the server is ready."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /ready?wait=5 HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")
                answer = await reader.read()
                writer.close()
                if b" 200 " in answer.split(b"\r\n", 1)[0]:
                    break
            except OSError:
                await asyncio.sleep(0.1)
    return await measure(args, pid, port)


if __name__ == "__main__":
    main()
