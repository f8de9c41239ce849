"""WorkQueue: keys in, one call at a time per key out.

kopf's handlers put keys in; the reconciler works them off. Kubernetes is unknown here.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable

logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name of an LLMDeployment."""
Handle = Callable[[Key], Awaitable[float | None]]
"""Works on a key. Returns seconds until the next call; None = until an event."""

FIRST_BACKOFF_SECONDS = 0.5
LAST_BACKOFF_SECONDS = 30.0


class WorkQueue:
    """Coalesces: a key added again while it waits is worked on once; while it is worked on, once more.

    Failed calls are repeated with exponential back-off, which further adds do not shorten: a broken object cannot keep
    a worker busy.
    """

    def __init__(self, handle: Handle, *, num_workers: int = 4) -> None:
        self._handle = handle
        self._num_workers = num_workers
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        """In `_ready`."""
        self._working: set[Key] = set()
        self._again: set[Key] = set()
        """Put in while being worked on."""
        self._num_failures: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        """At most one per key: the earliest."""

    @property
    def num_waiting(self) -> int:
        """Keys that wait for a worker."""
        return len(self._waiting)

    def add(self, key: Key) -> None:
        """Have the key worked on as soon as possible; after a failure, when its back-off is over."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting and key not in self._num_failures:
            self._cancel_timer(key)
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_all(self, keys: Iterable[Key]) -> None:
        """`add` for each."""
        for key in keys:
            self.add(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Has the key worked on in so many seconds, or earlier."""
        loop = asyncio.get_running_loop()
        known = self._timers.get(key)
        if known is not None and known.when() <= loop.time() + seconds:
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_later(seconds, self._due, key)

    async def run(self) -> None:
        """Works until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._num_workers):
                    tasks.create_task(self._work())
        finally:
            for key in list(self._timers):
                self._cancel_timer(key)

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._working.add(key)
            try:
                again_after = await self._handle(key)
            except Exception as e:
                failures = self._num_failures[key] = self._num_failures.get(key, 0) + 1
                seconds = min(FIRST_BACKOFF_SECONDS * 2 ** (failures - 1), LAST_BACKOFF_SECONDS)
                seconds *= random.uniform(0.8, 1.2)
                # A stack trace would add nothing where the API was not reachable, or somebody was faster.
                is_expected = getattr(e, "may_pass", False) or getattr(e, "status", None) == 409
                logger.warning("%s/%s: %s; again in %.1f s", *key, e, seconds, exc_info=not is_expected)
                self.add_after(key, seconds)
            else:
                self._num_failures.pop(key, None)
                if again_after is not None:
                    self.add_after(key, again_after)
            finally:
                self._working.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        failures = self._num_failures.pop(key, None)
        self.add(key)
        if failures is not None:
            self._num_failures[key] = failures  # keeps counting until a call succeeds

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
