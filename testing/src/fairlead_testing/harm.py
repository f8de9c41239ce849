"""Harm: what a hostile request does to everybody else (how long the event loop stood still, how much memory it took),
garbage that only searches of the collector find, and a flood of clients that send at once and read the answers.

Bounds on harm should be generous: machines are busy. The flood is a process of its own (`python -m
fairlead_testing.harm PORT NUM SECONDS`, with what each client sends on standard input), so that its work does not count
for the server that is flooded.
"""

import asyncio
import contextlib
import gc
import selectors
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path


async def kinds_left_behind(act: Callable[[], Awaitable[object]]) -> set[str]:
    """Names of the classes of such objects, that `act` leaves when it is done once more."""
    await act()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await act()
        gc.collect()
        return {type(each).__name__ for each in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


PACKET_BYTES = 256 * 1024


async def flood(port: int, payload: bytes, *, num_connections: int, seconds: float) -> None:
    """Opens the connections, and when all are open sends on all of them for so long."""
    command = (sys.executable, "-m", "fairlead_testing.harm", str(port), str(num_connections), str(seconds))
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
    await process.communicate(payload)
    if process.returncode:
        raise RuntimeError(f"the flood ended with status {process.returncode}")


def _send(port: int, payload: bytes, num_connections: int, seconds: float) -> None:
    selector = selectors.DefaultSelector()
    left = dict[int, memoryview]()
    for _ in range(num_connections):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setblocking(False)
        left[connection.fileno()] = memoryview(payload)
        selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
    until = time.monotonic() + seconds
    while time.monotonic() < until and selector.get_map():
        for key, events in selector.select(0.1):
            with contextlib.suppress(BlockingIOError):
                if not _is_served(key.data, events, left, selector):
                    selector.unregister(key.data)


def _is_served(
    connection: socket.socket, events: int, left: dict[int, memoryview], selector: selectors.BaseSelector
) -> bool:
    """Sends and reads what is possible; False: it has been ended."""
    number = connection.fileno()
    try:
        if events & selectors.EVENT_WRITE:
            left[number] = left[number][connection.send(left[number][:PACKET_BYTES]) :]
            if not left[number]:
                selector.modify(connection, selectors.EVENT_READ, connection)
        return not events & selectors.EVENT_READ or connection.recv(PACKET_BYTES) != b""
    except ConnectionError:
        return False


TICK_SECONDS = 0.001


@dataclass(slots=True)
class Harm:
    """Both figures are there when the `async with` has ended."""

    stalled_seconds: float = 0.0
    """The longest time between two turns of a coroutine that only sleeps, as far as this process was computing: what
    others take of the machine does not count."""
    grown_bytes: int = 0
    """How far the process's memory has been above what it was at the beginning."""


@asynccontextmanager
async def measured_harm() -> AsyncIterator[Harm]:
    """Measures while inside."""
    harm = Harm()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the highest use of memory so far
    before = _memory("VmRSS")
    ticking = asyncio.create_task(_tick(harm))
    await asyncio.sleep(2 * TICK_SECONDS)
    try:
        yield harm
        await asyncio.sleep(2 * TICK_SECONDS)
    finally:
        ticking.cancel()
        harm.grown_bytes = max(0, _memory("VmHWM") - before)


async def _tick(harm: Harm) -> None:
    last = time.monotonic(), time.process_time()
    while True:
        await asyncio.sleep(TICK_SECONDS)
        now = time.monotonic(), time.process_time()
        harm.stalled_seconds = max(harm.stalled_seconds, min(now[0] - last[0], now[1] - last[1]))
        last = now


def _memory(name: str) -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    _send(int(sys.argv[1]), sys.stdin.buffer.read(), int(sys.argv[2]), float(sys.argv[3]))
