"""Where what takes long is done: prompts in lanes, off the event loop; bodies at a pace, on it.

Tokenising takes some two hundred times the memory of its text, so what many clients send at once is done in turn: very
long prompts one by one, and beside them the others, which never wait for one of those. A thread that is at work stays
taken when its client has left, so leaving early does not let more in.

Decoding JSON holds the interpreter, in whatever thread it is done, so large bodies are decoded one by one, and between
two of them everybody else's tokens go on. Gateway and engine have one of each.
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
PAUSE_SECONDS = 0.002
"""Between two of them; enough for all that has become ready in the meantime."""


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
    """Lets large bodies be decoded one after the other."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def pace(self, num_bytes: int) -> None:
        """Returns when what takes as long as decoding so many bytes may be done, at once for what is not large. It is
        to be done before anything else is awaited."""
        if num_bytes >= LARGE_BYTES:
            async with self._lock:
                await asyncio.sleep(PAUSE_SECONDS)
