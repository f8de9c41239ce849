"""Programs that serve HTTP, the streams that one process has from them, and what the kernel counts of them."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead_testing.real_servers import free_port

__all__ = ["Stream", "answer", "cpu_seconds", "free_port", "post", "ready", "running", "started_streams"]

START_SECONDS = 60.0


@contextmanager
def running(*words: object) -> Iterator[int]:
    """`python -m` a module with arguments, until the block ends; its process id. It finds this folder's modules."""
    paths = filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen([sys.executable, "-m", *map(str, words)], stdout=sys.stderr, env=environment)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def post(path: str, body: dict[str, Any]) -> bytes:
    """A request, as it is sent."""
    content = json.dumps(body).encode()
    fields = f"host: bench\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
    return f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n".encode() + content


async def ready(port: int, path: str = "/ready?wait=5") -> None:
    """Returns once the answer is 200."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                reader, writer = await _get(port, path)
                is_ready = b" 200 " in await reader.readline()
                writer.close()
                if is_ready:
                    return
            except OSError:
                pass
            await asyncio.sleep(0.1)


async def answer(port: int, path: str) -> str:
    """Head and body, of a server that closes the connection behind them."""
    reader, writer = await _get(port, path)
    text = await reader.read()
    writer.close()
    return text.decode()


async def _get(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n".encode())
    return reader, writer


class Stream(asyncio.Protocol):
    """One client: sends its request, then counts what comes."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._last = 0.0
        self.num_events = self.num_reads = 0
        self.delays: list[float] = []
        """Seconds between two reads."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._last:
            self.delays.append(now - self._last)
        self._last = now
        self.num_reads += 1
        self.num_events += data.count(b"data: ")

    def forget(self) -> None:
        """Counts from here on."""
        self.num_events = self.num_reads = 0
        self.delays.clear()


async def started_streams(port: int, requests: list[bytes]) -> list[Stream]:
    """One for each request, once all of them have had some events; none of these is counted."""
    loop = asyncio.get_running_loop()
    streams = [Stream(request) for request in requests]
    for stream in streams:
        await loop.create_connection(lambda stream=stream: stream, "127.0.0.1", port)
    async with asyncio.timeout(START_SECONDS):
        while not all(stream.num_events > 5 for stream in streams):
            await asyncio.sleep(0.05)
    for stream in streams:
        stream.forget()
    return streams


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
