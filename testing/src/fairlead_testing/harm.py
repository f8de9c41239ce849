"""What a hostile request does to everybody else: how long the event loop stood still, and how much memory it took.

For tests of programs that run on the test's own event loop. Bounds on it should be generous: machines are busy.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

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
