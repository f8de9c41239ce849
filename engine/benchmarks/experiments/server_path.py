"""What the engine's HTTP side costs per streamed token: real HTTP, real processes, and a core without a model.

The server is the product's own, of `--api-servers` processes; its core makes a token for every stream at each beat
(`paced_core.py`). This process is all clients at once and reads what comes. Rows are processor time of all HTTP
processes per token, and that of the busiest and of the core as shares of a CPU; how many streams the fullest has; the
time between two steps of the core; system calls that write per step and connection; events per read; and percentiles of
the time between two reads of one stream.
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import uvloop
from harness import Row, spread
from http_load import answer, cpu_seconds, free_port, post, ready, running, started_streams


def run(
    streams: int = 256, step_ms: float = 25.0, seconds: float = 10.0, api_servers: int = 1, chat: bool = False
) -> Iterator[Row]:
    """`step_ms`: between two tokens of a stream; `seconds`: that are measured; `chat`: in place of text completions."""
    body = {"model": "paced", "stream": True, "max_tokens": 30_000, "ignore_eos": True}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    request = post(path, body | ({"messages": [{"role": "user", "content": "ahoy"}]} if chat else {"prompt": "ahoy"}))
    port = free_port()
    with running("server_path", port, step_ms / 1000, api_servers) as pid:
        for what, value in uvloop.run(measure(pid, port, [request] * streams, seconds)).items():
            yield {"what": what, "value": value}


async def measure(pid: int, port: int, requests: list[bytes], seconds: float) -> dict[str, float]:
    await ready(port)
    streams = await started_streams(port, requests)
    children = psutil.Process(pid).children()
    (core,) = (child.pid for child in children if "paced_core" in child.cmdline())
    https = [pid, *(child.pid for child in children if child.pid != core)]
    fullest = max(sum(bool(each.raddr) for each in psutil.Process(pid).net_connections("tcp")) for pid in https)
    steps, steps_began = await num_steps(port), time.perf_counter()
    used = {each: cpu_seconds(each) for each in (*https, core)}
    writes, began = sum(map(num_writes, https)), time.perf_counter()
    for stream in streams:
        stream.forget()
    await asyncio.sleep(seconds)
    used = {each: cpu_seconds(each) - before for each, before in used.items()}
    writes, wall = sum(map(num_writes, https)) - writes, time.perf_counter() - began
    events, delays = sum(each.num_events for each in streams), [delay for each in streams for delay in each.delays]
    most, reads = max(each.num_events for each in streams), sum(each.num_reads for each in streams)
    steps, steps_wall = await num_steps(port) - steps, time.perf_counter() - steps_began
    return {
        "tokens per second": events / wall,
        "CPU µs per token": 1e6 * sum(used[each] for each in https) / events,
        "busiest CPU share": max(used[each] for each in https) / wall,
        "core CPU share": used[core] / wall,
        "most streams of one process": fullest,
        "step ms": 1000 * steps_wall / steps,
        "writes per step and connection": writes / most / len(streams),
        "events per read": events / reads,
        **{f"delay {name} ms": value for name, value in spread(delays).items() if name != "times"},
    }


def num_writes(pid: int) -> int:
    """System calls of a process that wrote."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["syscw"])


async def num_steps(port: int) -> float:
    """That the core has made, as it tells."""
    lines = (await answer(port, "/metrics")).splitlines()
    (line,) = (line for line in lines if line.startswith("fairlead_engine_steps_total{"))
    return float(line.rsplit(" ", 1)[1])


def serve(port: int, step_seconds: float, api_servers: int) -> int:
    """The HTTP processes, until they are told to end."""
    from fairlead_engine.config import EngineConfig, ServerConfig
    from fairlead_engine.demo import resolve_model
    from fairlead_engine.server.serve import run

    engine = EngineConfig(
        model=f"paced://?step_seconds={step_seconds}", served_name="paced", device="cpu", max_num_seqs=4096,
        max_num_batched_tokens=8192, max_num_queued_tokens=1 << 30, kv_cache_memory=1 << 24, block_size=16,
        enable_prefix_caching=False,
    )  # fmt: skip
    server = ServerConfig(port=port, log_level="warning", drain_grace=0.0, drain_timeout=0.0, api_servers=api_servers)
    return run(engine, server, core_module="paced_core", folder=resolve_model("demo://dinghy"))


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
