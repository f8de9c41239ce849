"""Where what takes long is done: prompts in lanes, off the event loop; bodies at a pace, on it.

Tokenising takes some two hundred times the memory of its text, so what many clients send at once is done in turn: very
long prompts one by one, and beside them the others, which never wait for one of those. A thread that is at work stays
taken when its client has left, so leaving early does not let more in.

Decoding JSON holds the interpreter, in whatever thread it is done, so large bodies are decoded one by one, of smaller
ones a few at a time, and in between everybody else's tokens go on. Gateway and engine have one of each.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

LONG_BYTES = 256 * 1024
"""From this size on a prompt goes into the lane of the very long: it takes about a second."""

LARGE_BYTES = 2**20
"""From this size on a body is decoded in turn: it takes some five milliseconds."""
SMALL_BYTES = 64 * 1024
"""Below this size it is decoded at once. Of those in between, `LARGE_BYTES` in all are decoded without a pause."""
PAUSE_SECONDS = 0.002
"""Between two large ones; enough for all that has become ready in the meantime."""


class Lanes:
    """A few threads. Close them when done."""

    def __init__(self, *, num_threads: int = 2) -> None:
        """`num_threads`: for prompts that are not very long."""
        self._short = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenise")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="tokenise-long")

    async def run(self, num_bytes: int, work: Callable[[], Result]) -> Result:
        """`work()` in the lane for prompts of this size. Whoever is cancelled before it began leaves its lane."""
        lane = self._short if num_bytes < LONG_BYTES else self._long
        return await asyncio.get_running_loop().run_in_executor(lane, work)

    def close(self) -> None:
        """Ends the threads when they have done what they are at."""
        for lane in (self._short, self._long):
            lane.shutdown(wait=False, cancel_futures=True)


class Pacer:
    """Lets bodies that are not small be decoded in turn. Those that are not large do not wait for large ones."""

    def __init__(self) -> None:
        self._large = asyncio.Lock()
        self._others = asyncio.Lock()
        self._left = LARGE_BYTES
        """What of the others may be decoded before the next pause."""

    async def pace(self, num_bytes: int) -> None:
        """Returns when what takes as long as decoding so many bytes may be done, at once for what is small. It is to be
        done before anything else is awaited."""
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
