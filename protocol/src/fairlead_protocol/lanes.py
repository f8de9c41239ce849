"""Lanes: where prompts that take long are read, off the event loop and only so many at a time.

Tokenising takes some two hundred times the memory of its text, so what many clients send at once is done in turn: very
long prompts one by one, and beside them the others, which never wait for one of those. A thread that is at work stays
taken when its client has left, so leaving early does not let more in. Gateway and engine have one each.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

LONG_BYTES = 256 * 1024
"""From this size on a prompt goes into the lane of the very long: it takes about a second."""


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
