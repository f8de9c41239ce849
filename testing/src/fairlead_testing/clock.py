"""Virtual time for asyncio: hours pass in an instant, and always in the same order."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of sleeping until the next timer, moves the clock there."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events and timeout is None:
            raise RuntimeError("everything waits for something that no timer will bring")
        if not events and timeout is not None:
            self.now += max(0.0, timeout)
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at 0 and jumps from timer to timer. For code without network I/O."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, without the waiting."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def in_virtual_time(main: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Decorates a test that is a coroutine function: each call has a loop of its own, whose clock starts at 0."""

    @wraps(main)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_in_virtual_time(main(*args, **kwargs))

    return run
