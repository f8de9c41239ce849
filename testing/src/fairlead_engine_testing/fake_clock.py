"""A clock that stands still until it is told to go on."""

from fairlead_engine.core.clock import Clock


class FakeClock(Clock):
    """Time that only `advance` moves; starts at `now` seconds since the epoch."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._started = now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def start(self) -> None:
        self._started = self._now

    def elapsed(self) -> float:
        return self._now - self._started
