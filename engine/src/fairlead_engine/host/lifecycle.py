"""The server's phase from loading to the end, the running requests, and the fleet's drain contract.

Knows neither signals nor HTTP. Called by `ServerProcess`, `Service` and the endpoints.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum

from fairlead_engine.errors import Draining, EngineError, NotReady

log = logging.getLogger(__name__)


class Phase(StrEnum):
    """Phase of the server's life; phases only move down this list."""

    LOADING = "loading"
    """The core loads the model: not ready, takes no requests."""
    READY = "ready"
    DRAINING = "draining"
    """Not ready, but still takes requests of clients unaware of the drain."""
    REFUSING = "refusing"
    """Takes no new requests; finishes running requests."""
    STOPPED = "stopped"
    """Everything has finished or was aborted: the process may exit."""


async def first_of(*work: Awaitable[object]) -> None:
    """Returns at the first end, raising that error if any; cancels the rest."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Admission:
    """An admitted request, with a way to stop it at the end of a drain."""

    def __init__(self) -> None:
        self._stop: Callable[[EngineError], object] | None = None
        self._error: EngineError | None = None

    def attach(self, stop: Callable[[EngineError], object]) -> None:
        """Sets the function that ends the request with an error for the client."""
        self._stop = stop
        if self._error is not None:
            stop(self._error)

    def stop(self, error: EngineError) -> None:
        """Ends the request, at once or as soon as `attach` is called."""
        self._error = error
        if self._stop is not None:
            self._stop(error)

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Ends the block, in the request's own task, when the request is stopped, and raises the error of the stop."""
        self._check()
        task = asyncio.current_task()
        assert task is not None
        self._stop = lambda error: task.cancel()
        try:
            yield
        except asyncio.CancelledError:
            self._check()
            raise
        finally:
            self._stop = None

    def _check(self) -> None:
        if self._error is not None:
            raise self._error from None


class Lifecycle:
    def __init__(self) -> None:
        self.phase = Phase.LOADING
        self.stopped = asyncio.Event()
        self._running: set[Admission] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurried = asyncio.Event()
        self._loaded = asyncio.Event()
        self._drain: asyncio.Task[None] | None = None

    @property
    def is_draining(self) -> bool:
        return self.phase in (Phase.DRAINING, Phase.REFUSING, Phase.STOPPED)

    @property
    def num_running(self) -> int:
        """API requests that are being answered."""
        return len(self._running)

    def ready(self) -> None:
        """The model is loaded and warm; without effect during a drain."""
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY
        self._loaded.set()

    async def loaded(self, seconds: float) -> None:
        """Returns once loading has ended, after `seconds` at the latest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._loaded.wait()

    def check_accepting(self) -> None:
        """Raises `NotReady` or `Draining` when no new request can be taken."""
        if self.phase is Phase.LOADING:
            raise NotReady
        if self.phase in (Phase.REFUSING, Phase.STOPPED):
            raise Draining

    @contextmanager
    def admitted(self) -> Iterator[Admission]:
        """Admits a request, which delays a drain. Raises `NotReady` or `Draining`."""
        self.check_accepting()
        admission = Admission()
        self._running.add(admission)
        self._idle.clear()
        try:
            yield admission
        finally:
            self._running.discard(admission)
            if not self._running:
                self._idle.set()

    def drain(self, *, grace_seconds: float, timeout_seconds: float) -> None:
        """Begins to drain; returns at once, `stopped` tells the end. A second call changes nothing."""
        if self._drain is None:
            grace_seconds = 0.0 if self.phase is Phase.LOADING else grace_seconds
            self.phase = Phase.DRAINING
            self._loaded.set()
            log.info("draining", extra={"grace_seconds": grace_seconds, "timeout_seconds": timeout_seconds})
            self._drain = asyncio.create_task(self._drained(grace_seconds, timeout_seconds))

    def hurry(self) -> None:
        """Ends a drain now: running requests are aborted."""
        self._hurried.set()

    async def _drained(self, grace_seconds: float, timeout_seconds: float) -> None:
        await self._unless_hurried(self._hurried, grace_seconds)
        self.phase = Phase.REFUSING
        await self._unless_hurried(self._idle, timeout_seconds)
        for admission in list(self._running):
            admission.stop(Draining("this engine shut down before the request was complete; send it again"))
        if self._running:
            log.warning("aborted", extra={"num_requests": len(self._running)})
        self.phase = Phase.STOPPED
        self.stopped.set()

    async def _unless_hurried(self, event: asyncio.Event, seconds: float) -> None:
        """Waits for `event`, at most `seconds`, and no longer once hurried."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await first_of(event.wait(), self._hurried.wait())
