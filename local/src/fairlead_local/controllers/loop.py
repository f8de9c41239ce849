"""How every controller runs: changes name keys, a key is looked at again, one at a time, until nothing is left to do.

Controllers are level-triggered: `reconcile` is told where to look, never what happened. It is synchronous, because the
API is in the same process; so what it reads is never stale.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from fairlead_local.apiserver.status import ApiError
from fairlead_local.apiserver.store import Change, ChangeType, Store

log = logging.getLogger(__name__)

Key = tuple[str, ...]

_FIRST_RETRY_SECONDS = 0.05
_LONGEST_RETRY_SECONDS = 10.0


class Controller(Protocol):
    """One control loop."""

    def keys(self, change: Change) -> Iterable[Key]:
        """What to look at again after this change."""

    def reconcile(self, key: Key) -> float | None:
        """Brings what is nearer to what is wanted; returns after how many seconds to look again by itself."""


class ControlLoop:
    """Runs one controller over one store."""

    def __init__(self, store: Store, controller: Controller) -> None:
        self._store = store
        self._controller = controller
        self._queue: dict[Key, None] = {}
        self._retries: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Looks at everything there is, then at what changes; ends when cancelled."""
        unsubscribe = self._store.subscribe(self._follow)
        try:
            for resource in self._store.resources():
                for obj in self._store.list(resource):
                    version = int(obj["metadata"]["resourceVersion"])
                    self._follow(Change(ChangeType.ADDED, resource, obj, None, version))
            while True:
                await self._woken.wait()
                self._work()
                await asyncio.sleep(0)  # others' turn: a busy controller must not starve the API
        finally:
            unsubscribe()
            for timer in self._timers.values():
                timer.cancel()

    def _follow(self, change: Change) -> None:
        for key in self._controller.keys(change):
            self._enqueue(key)

    def _enqueue(self, key: Key) -> None:
        self._queue[key] = None
        self._woken.set()

    def _work(self) -> None:
        """Takes one key off the queue."""
        key = next(iter(self._queue), None)
        if key is None:
            self._woken.clear()
            return
        del self._queue[key]
        if timer := self._timers.pop(key, None):
            timer.cancel()
        again = self._attempt(key)
        if again is not None:
            self._timers[key] = asyncio.get_running_loop().call_later(again, self._enqueue, key)

    def _attempt(self, key: Key) -> float | None:
        try:
            again = self._controller.reconcile(key)
        except ApiError as error:
            retry = self._retries[key] = self._retries.get(key, 0) + 1
            log.debug("%s %s: %s", type(self._controller).__name__, key, error)
            return min(_FIRST_RETRY_SECONDS * 2.0**retry, _LONGEST_RETRY_SECONDS)
        except Exception:
            # One object a controller cannot cope with must not end the control of all others.
            log.exception("%s failed at %s", type(self._controller).__name__, key)
            return _LONGEST_RETRY_SECONDS
        self._retries.pop(key, None)
        return again
