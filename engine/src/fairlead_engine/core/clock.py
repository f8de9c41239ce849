"""Time as the engine reads it; `fairlead_engine_testing.FakeClock` stands in for it."""

import time


class Clock:
    """Wall time, and a stopwatch for the running step."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    def now(self) -> float:
        """Wall-clock seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since some moment; never set back."""
        return time.perf_counter()

    def start(self) -> None:
        """Starts the stopwatch again from 0."""
        self._started = time.perf_counter()

    def elapsed(self) -> float:
        """Seconds since `start`."""
        return time.perf_counter() - self._started
