"""Long work in turn: prompts are tokenised in lanes, off the event loop; bodies are decoded at a pace, on the loop.

Tokenising takes some two hundred times the memory of the text, hence the turns: a lane for very long prompts, one by
one, and a lane for the rest, which never waits for a very long prompt. A busy thread stays taken
when the client has left, and leaving early lets no further prompt in.

Decoding JSON holds the interpreter in every thread, hence turns as well: large bodies singly, smaller bodies a few at
a time, with tokens of running requests in between. Gateway and engine have a `Lanes` and a `Pacer` each.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

LONG_BYTES = 256 * 1024
"""Size from which a prompt is very long: about a second of tokenising."""

LARGE_BYTES = 2**20
"""Size from which a body is decoded in turn: some five milliseconds."""
SMALL_BYTES = 64 * 1024
"""Size below which a body is decoded at once. Bodies in between are decoded without a pause up to `LARGE_BYTES` in
total."""
PAUSE_SECONDS = 0.002
"""Pause between two large bodies; enough for all callbacks that became ready meanwhile."""


class Lanes:
    """A few threads. Close them when done."""

    def __init__(self, *, num_threads: int = 2) -> None:
        """`num_threads`: for prompts that are not very long."""
        self._short = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenise")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="tokenise-long")

    async def run(self, num_bytes: int, work: Callable[[], Result]) -> Result:
        """Runs `work()` in the lane for prompts of this size. A caller cancelled before the start leaves the
        lane."""
        lane = self._short if num_bytes < LONG_BYTES else self._long
        return await asyncio.get_running_loop().run_in_executor(lane, work)

    def close(self) -> None:
        """Ends each thread after the work in progress."""
        for lane in (self._short, self._long):
            lane.shutdown(wait=False, cancel_futures=True)


class Pacer:
    """Lets bodies that are not small be decoded in turn. Bodies of medium size do not wait for large bodies."""

    def __init__(self) -> None:
        self._large = asyncio.Lock()
        self._others = asyncio.Lock()
        self._left = LARGE_BYTES
        """Bytes of medium bodies that may be decoded before the next pause."""

    async def pace(self, num_bytes: int) -> None:
        """Returns when so many bytes may be decoded, at once for small bodies. Decode before awaiting anything else."""
        if num_bytes >= LARGE_BYTES:
            async with self._large:
                await asyncio.sleep(PAUSE_SECONDS)
        elif num_bytes >= SMALL_BYTES:
            async with self._others:
                await self._take(num_bytes)

    async def _take(self, num_bytes: int) -> None:
        while self._left < num_bytes:
            await asyncio.sleep(PAUSE_SECONDS)
        if self._left == LARGE_BYTES:  # counts anew when the loop has come around, not when time has passed
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._refill)
        self._left -= num_bytes

    def _refill(self) -> None:
        self._left = LARGE_BYTES
